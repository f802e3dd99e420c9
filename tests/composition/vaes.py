"""The variational autoencoders by loops, on all items and on draws."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from composition.loops import Leaves, Ran, Rows, check_lists, check_run, check_step, close, trained
from composition.matrix import AFTER
from composition.proposals import check_frequencies, check_index, draws_of, log_law, shared
from composition.suite import Case, row

LAYERS = ("bias", "mix", "mix_bias", "out", "out_bias")


def check(case: Case) -> None:
    """Every step, the index at every step, the order of the run, and what the model serves."""
    ran = trained(case)
    if ran.options["index"] == "auto":  # the log is small
        ran.options["index"] = "full"
    for name, tensor in start_of(ran).items():
        close(ran.steps[0].before[f"model.{name}"], tensor, f"{name} before the first step")
    check_run(ran, len(ran.facts.histories))
    drawn: list[float] = [0.0] * ran.log.num_items
    laws: list[tuple[int, list[float]]] = []
    for number in range(len(ran.steps)):
        _check(ran, number, drawn, laws)
    if ran.options["index"] != "full":
        check_frequencies(drawn, laws)
        check_index(ran, lambda state: state[ITEMS], lambda state: None, range(ran.log.num_items))
    state = ran.steps[-1].after

    def served(history: Iterable[int]) -> list[float]:
        query = _query(ran, state, sorted(set(history)))
        return [float(query @ vector) for vector in state[ITEMS]]

    check_lists(ran, lambda user: served(ran.facts.histories[user]), AFTER, served)


ITEMS = "model.scorer.items.weight"


def start_of(ran: Ran) -> dict[str, Tensor]:
    """The tables and layers before the first step, by the seed."""
    given, items = ran.options, ran.log.num_items
    dim, hidden, latent = given["dim"], given["hidden"], given["latent"]
    generator = torch.Generator().manual_seed(given["seed"])

    def random(rows: int, columns: int, size: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(size)

    return {
        "scorer.items.weight": random(items, dim, dim),
        "encoder.bag.weight": random(items, hidden, hidden),
        "encoder.bias": torch.zeros(hidden),
        "encoder.mix": random(hidden, 2 * latent, hidden),
        "encoder.mix_bias": torch.zeros(2 * latent),
        "encoder.out": random(latent, dim, latent),
        "encoder.out_bias": torch.zeros(dim),
    }


def _activated(ran: Ran, x: Tensor) -> Tensor:
    return x.clamp(min=0) if ran.options["activation"] == "relu" else torch.tanh(x)


def _query(ran: Ran, state: dict[str, Tensor], history: list[int]) -> Tensor:
    """The query of the latent means of a history."""
    bag = state["model.encoder.bag.weight"]
    bias, mix, mix_bias, out, out_bias = (state[f"model.encoder.{n}"] for n in LAYERS)
    read = sum((bag[i] for i in history), torch.zeros_like(bias)) / math.sqrt(len(history) or 1)
    latent = _activated(ran, read + bias) @ mix + mix_bias
    return latent[: len(out)] @ out + out_bias


def shuffled(ran: Ran) -> list[list[tuple[int, float]]]:
    """Items and confidences per user, in an order that the seed gives."""
    pairs = []
    for items, weights in zip(ran.facts.histories, ran.facts.weights, strict=True):
        total = dict.fromkeys(sorted(items), 0.0)
        for item, weight in zip(items, weights, strict=True):
            total[item] += weight
        pairs.append(list(total.items()))
    chance = iter(np.random.default_rng(ran.options["seed"]).random(sum(map(len, pairs))))
    return [[p for _, p in sorted((next(chance), p) for p in mine)] for mine in pairs]


def _check(ran: Ran, number: int, drawn: list[float], laws: list[tuple[int, list[float]]]) -> None:
    step, given, leaves = ran.steps[number], ran.options, Leaves(ran.steps[number])
    bag, items = leaves.tables["encoder.bag"], leaves.tables["scorer.items"]
    bias, mix, mix_bias, out, out_bias = (leaves.dense[f"encoder.{n}"] for n in LAYERS)
    users, generator = shuffled(ran), step.generator
    longest = max(map(len, users))
    mean = sum(c for mine in users for _, c in mine) / len(users)
    asked = [users[at] for at in step.at.tolist()]
    width = min(given["max_history"], longest, max(map(len, asked)))
    begin = torch.rand(len(asked), 1, generator=generator)
    kept = torch.rand(len(asked), width, generator=generator)
    noise = torch.randn(len(asked), given["latent"], generator=generator)
    count = float(step.before["model.encoder.steps"]) + 1
    assert float(step.after["model.encoder.steps"]) == count == number + 1
    beta = given["beta"] * min(1.0, count / max(1, given["anneal"]))
    loss = torch.zeros((), dtype=torch.float64)
    for b, history in enumerate(asked):
        first = int(begin[b] * len(history)) if len(history) > width else 0
        read = [history[(first + n) % len(history)] for n in range(min(width, len(history)))]
        total = torch.zeros_like(bias)
        for n, (item, _) in enumerate(read):
            own = bag[item] / math.sqrt(len(read)) / (1 - given["dropout"])
            total = total + (own if kept[b, n] >= given["dropout"] else 0 * own)
        middle, spread = (_activated(ran, total + bias) @ mix + mix_bias).chunk(2)
        query = (middle + (spread / 2).exp() * noise[b].double()) @ out + out_bias
        divergence = (middle**2 + spread.exp() - 1 - spread).sum() / 2
        loss = loss + beta * divergence / len(asked) / mean
        scale = len(history) / len(read) / len(asked) / mean
        each = _losses(ran, number, b, query, items, [item for item, _ in read], drawn, laws)
        for (_, weight), part in zip(read, each, strict=True):
            loss = loss + scale * weight * part
    check_step(ran, number, leaves, loss, ["encoder.steps"])


def _losses(
    ran: Ran,
    number: int,
    b: int,
    query: Tensor,
    items: Rows,
    targets: list[int],
    drawn: list[float],
    laws: list[tuple[int, list[float]]],
) -> list[Tensor]:
    """The loss of each target of a row: on all items, or on draws that its targets share."""
    step = ran.steps[number]
    if ran.options["index"] == "full":
        mass = torch.stack([query @ items[i] for i in range(len(items))]).logsumexp(0)
        return [mass - query @ items[y] for y in targets]
    [draws] = step.draws
    n, own = draws_of(ran), draws.ids.ndim == 2
    assert tuple(draws.ids.shape) == ((n,) if shared(ran) else (len(step.at), n))
    ids = (draws.ids[b] if own else draws.ids).tolist()
    index = {k.removeprefix("index."): t for k, t in step.before.items() if "index." in k}
    nothing, every = [0.0] * len(items), range(len(items))
    law = log_law(ran, index, query.detach(), step.before[ITEMS], nothing, every)
    wanted = torch.tensor([law[i] for i in ids], dtype=torch.float64)
    close(draws.logq[b] if own else draws.logq, wanted, "log q of the draws", scale=1.0)
    if own or b == 0:
        laws.append((n, law))
        for i in ids:
            drawn[i] += 1
    scores = {i: query @ items[i] for i in set(ids)}
    others = torch.stack([scores[i] for i in ids]) - wanted
    corrected = [query @ items[y] - law[y] for y in targets]
    return [torch.cat([o.view(1), others]).logsumexp(0) - o for o in corrected]


HALF = {"batch_size": 3, "hidden": 5, "latent": 3}
SLOW = {"lr": 0.03, "lr_end": 0.2, "decay": 0.5}
WORDS = {"codewords": 3, "refit_every": 2, "negatives": 9}
RANKS = {"index": "factor_ranks", "rank_scale": 2.0, "refit_every": 2, "negatives": 9}
LESS = {"dropout": 0.2, "beta": 0.9, "anneal": 3}
CASES = [
    row("mult_vae", check, **HALF),
    row("mult_vae", check, **HALF | SLOW, **LESS, per_row=True, activation="relu", max_history=3),
    row("fastvae", check),
    row("fastvae", check, **HALF | SLOW | WORDS, **LESS, power=0.9),
    row("fastvae", check, **HALF | WORDS, popularity="log", per_row=False, max_history=3, lr=0.1),
    row("fastvae", check, **HALF | WORDS, popularity="count", lr=0.1, activation="relu"),
    row("fastvae", check, **HALF | WORDS, index="imi_uniform", lr=0.1),
    row("fastvae", check, **HALF, index="kernel", negatives=9, refit_every=2),
    row("fastvae", check, **HALF, index="popularity", power=0.8, negatives=9),
    row("fastvae", check, **HALF, index="popularity", popularity="log", shared=False, negatives=9),
    row("fastvae", check, **HALF, **RANKS, lr=0.1),
    row("fastvae", check, **HALF, index="uniform", negatives=9),
    row("fastvae", check, **HALF | WORDS, index="imi_exact"),
    row("fastvae", check, **HALF, index="auto"),
    row("fastvae", check, **HALF, index="full"),
]
