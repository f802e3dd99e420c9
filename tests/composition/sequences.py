"""Sequence models by loops over users and positions: every objective, features, cut histories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.loops import Leaves, Ran, Rows, check_run, close, rate, steps_per_epoch, trained
from composition.readers import attention_states, dnn_query
from composition.steps import check_network_step
from composition.suite import Case
from softdex.recipes import catalogue

SMALL = {"dim": 4, "epochs": 2, "batch_size": 3, "seed": 5, "device": "cpu"}
IN_BATCH = ("ssl", "ssl_pop", "mns", "g_tower", "bir", "xir")


class Part(NamedTuple):
    """A part of a history: its items, and the weight of each."""

    items: list[int]
    weights: list[float]


class World(NamedTuple):
    """A training of a sequence model, and what the loops know of it."""

    ran: Ran
    plain: Plain
    parts: list[Part]
    most: int

    @property
    def o(self) -> dict[str, Any]:
        """All options."""
        return self.ran.options


def check_sequence(case: Case) -> None:
    """Steps of both epochs, and the lists of the best one."""
    plain, last = held(world(table="features" in case.options))
    epochs = case.options["epochs"]
    with measured(*[0.1] * (epochs - 2), 0.3, 0.2):
        ran = trained(case, plain.log, valid=last)
    o = dict(ran.options)
    longest = max(len(plain.history(u)) for u in range(len(plain.users)))
    most = max(1, min(o["max_history"], longest - 1))
    if o["positions"] is None:
        o["positions"] = 2048 if o["objective"] in IN_BATCH else 0
    w = World(ran._replace(options=o), plain, _parts(plain, most), most)
    check_run(w.ran, len(w.parts), rate)
    _check_start(w)
    per = steps_per_epoch(ran)
    for number in (0, 1, len(ran.steps) - 1):
        _check_step(w, number)
    _check_refits(w)
    _check_lists(w, ran.steps[(epochs - 1) * per - 1].after, last)


def _parts(plain: Plain, most: int) -> list[Part]:
    """Histories in parts of one item more than are read; each item but the first is a target once."""
    found = []
    for user in range(len(plain.users)):
        past = plain.history(user)
        end = len(past)
        while end > 1:
            part = past[max(0, end - most - 1) : end]
            found.append(Part([i for i, _ in part], [x for _, x in part]))
            end -= most
    return found


# the model in a state ----------------------------------------------------------------------------


class Model:
    """Item vectors and queries in one state of a run; with leaves, of a step.

    `salt` says which items have no vector of their own in this step.
    """

    def __init__(
        self, w: World, state: dict[str, Tensor], leaves: Leaves | None = None, salt: bool = False
    ) -> None:
        self.w, part = w, "encoder.items"
        self.p = {
            name.removeprefix("encoder."): tensor
            for name, tensor in (_dense(state) if leaves is None else leaves.dense).items()
            if name.startswith("encoder.") and not name.startswith(part)
        }
        self.item = vectors_in(w.ran, state, part, "item", leaves, int(state[f"model.{part}.salt"]) if salt and w.o["features"] is not None else None)
        self.heads = w.o["heads"]

    def queries(self, items: Sequence[int], drops: Any = ()) -> list[Tensor]:
        """The query behind each item."""
        vectors = [self.item(i) for i in items]
        if self.w.o["encoder"] == "attention":
            return attention_states(self.p, vectors, self.heads, drops)
        return [dnn_query(self.p, vectors[: n + 1]) for n in range(len(vectors))]

    def scores(self, query: Tensor) -> list[float]:
        """Of all items."""
        return [float(query @ self.item(i)) for i in range(len(self.w.plain.items))]


def _dense(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix("model."): t for n, t in state.items() if n.startswith("model.")}


def _check_start(w: World) -> None:
    """Weights by the seed."""
    o, before = w.o, w.ran.steps[0].before
    generator = torch.Generator().manual_seed(o["seed"])
    dim, part = o["dim"], "encoder.items"

    def random(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    columns = columns_of(w.ran, "item")
    if columns is None:
        close(before[f"model.{part}.weight"], random(len(w.plain.items), dim, scale=dim**-0.5), part)
    else:
        tokens, numbers, size = columns
        counts = w.plain.counts
        met = {t for row, count in zip(tokens, counts, strict=True) if count for t, _ in row}
        if o["ids"] == "add":
            own = random(len(counts), dim, scale=dim**-0.5)
            own[[i for i, count in enumerate(counts) if not count]] = 0.0
            close(before[f"model.{part}.own.weight"], own, "own")
        words = random(size, dim, scale=dim**-0.5)
        words[[t for t in range(size) if t not in met]] = 0.0
        close(before[f"model.{part}.tokens.weight"], words, "tokens")
        close(before[f"model.{part}.numeric"], random(len(numbers[0]), dim, scale=dim**-0.5), "n")
    now = {name.removeprefix("encoder."): t for name, t in _dense(before).items()}
    if o["encoder"] == "dnn":
        widths = dim, 128, 64, dim
        for n, name in enumerate(("first", "second", "third")):
            close(now[name], random(widths[n], widths[n + 1], scale=(2 / widths[n]) ** 0.5), name)
            assert not now[f"{name}_bias"].any()
        return
    n, f, deep = o["layers"], o["hidden"], (2 * o["layers"]) ** -0.5
    for name, shape, scale in (
        ("positions", (w.most, dim), 0.02),
        ("attend", (n, dim, 3 * dim), dim**-0.5),
        ("mix", (n, dim, dim), deep * dim**-0.5),
        ("widen", (n, dim, f), dim**-0.5),
        ("narrow", (n, f, dim), deep * f**-0.5),
    ):
        close(now[name], random(*shape, scale=scale), name)
        assert name == "positions" or not now[f"{name}_bias"].any()
    close(now["norm"], torch.tensor([1.0, 0.0])[None, :, None].expand(2 * n + 1, 2, dim), "norm")


# a step ------------------------------------------------------------------------------------------


def _check_step(w: World, number: int) -> None:
    step, o = w.ran.steps[number], w.o
    leaves, generator = Leaves(step), step.generator
    part = "model.encoder.items.salt"
    moving = []
    if o["features"] is not None:
        salt = torch.zeros((), dtype=torch.int64).random_(0, 2**31, generator=generator)
        assert torch.equal(step.after[part], salt)
        moving.append(part.removeprefix("model."))
    model = Model(w, step.before | {n: step.after[n] for n in step.after if n == part}, leaves, salt=True)
    batch = [w.parts[int(at)] for at in step.at]
    width = max(len(part.items) for part in batch) - 1
    masks = []
    if o["encoder"] == "attention" and o["dropout"]:
        shape = len(batch), width, o["dim"]
        masks = [torch.rand(shape, generator=generator) >= o["dropout"] for _ in range(1 + 2 * o["layers"])]
    queries: list[tuple[int, Tensor, int, float]] = []
    for b, each in enumerate(batch):
        drops = [
            lambda x, at, kept=mask[b]: x * kept[at] / (1 - o["dropout"]) for mask in masks
        ]
        states = model.queries(each.items[:-1], drops)
        for at, state in enumerate(states):
            queries.append((b * width + at, state, each.items[at + 1], each.weights[at + 1]))
    places = _chosen(w, len(batch), width, {n for n, *_ in queries}, generator)
    here = {n: (q, target, weight) for n, q, target, weight in queries}
    chosen = [(row, *here[n]) for row, n in enumerate(places) if n in here]
    total = sum(weight for *_, weight in chosen)
    if o["objective"] in IN_BATCH:
        from composition.batches import check_memory, in_batch_losses  # noqa: PLC0415

        losses = in_batch_losses(w, step, model, chosen, len(places), generator)
        moving += check_memory(w, step)
    else:
        losses = _losses(w, step, model, chosen, len(places), generator)
    loss = sum((w_ / total * each for (*_, w_), each in zip(chosen, losses, strict=True)), torch.zeros(()).double())
    assert torch.equal(generator.get_state(), step.after["generator"])
    check_network_step(w.ran, number, leaves, loss, moving)


def _chosen(
    w: World, size: int, width: int, real: set[int], generator: torch.Generator
) -> list[int]:
    """The positions of a batch that are trained on, in their order."""
    lengths = np.array([len(part.items) - 1 for part in w.parts])
    bound = size * lengths.mean() + 6 * size**0.5 * lengths.std()
    rows = w.o["positions"] or math.ceil(min(size * min(w.most, lengths.max()), bound))
    if rows >= size * width:
        return list(range(size * width))
    chance = torch.rand(size * width, generator=generator)
    key = [float(chance[n]) - (n not in real) for n in range(size * width)]
    return sorted(range(size * width), key=lambda n: -key[n])[:rows]


def _losses(
    w: World,
    step: Any,
    model: Model,
    chosen: list[tuple[int, Tensor, int, float]],
    rows: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """The softmax over the living items, or over draws."""
    o, alive = w.o, [i for i, n in enumerate(w.plain.counts) if n or o["features"] is None]
    if o["objective"] == "softmax" or o["index"] == "full":
        assert not step.draws
        for i in range(len(w.plain.items)):  # all are looked up
            model.item(i)
        vectors = torch.stack([model.item(i) for i in alive])
        return [(vectors @ q).logsumexp(0) - q @ model.item(y) for _, q, y, _ in chosen]
    [draws] = step.draws
    shared = o["index"] in ("uniform", "popularity")
    count = o["negatives"] or (2000 if shared else 100)
    assert draws.ids.shape == ((count,) if shared else (rows, count))
    law = _law(w, step.before, alive)
    found = []
    for row, q, y, _ in chosen:
        logq = law(q.detach())
        ids = (draws.ids if shared else draws.ids[row]).tolist()
        assert set(ids) <= set(alive)
        kept = [i for i in ids if i != y]
        rest = math.log1p(-math.exp(logq[y])) - math.log(max(1, len(kept)))
        terms = [q @ model.item(i) - logq[i] + rest for i in kept]
        own = q @ model.item(y)
        for i in ids:
            model.item(i)
        found.append(torch.stack([own, *terms]).logsumexp(0) - own if kept else own * 0)
    _advance(w, step, alive, rows, count, shared, law, generator)
    return found


def _law(w: World, state: dict[str, Tensor], alive: list[int]) -> Any:
    """log q of every item for a query."""
    o, items = w.o, len(w.plain.items)
    if o["index"] == "uniform":
        return lambda q: [-math.log(len(alive))] * items
    weight = [max(n, 0.5) ** o["power"] if i in alive else 0.0 for i, n in enumerate(w.plain.counts)]
    if o["index"] == "popularity":
        return lambda q: [math.log(x / sum(weight)) if x else -math.inf for x in weight]
    words, cells = state["index.words"], state["index.cell"].tolist()
    raise NotImplementedError(str((words.shape, cells)))


def _advance(
    w: World, step: Any, alive: list[int], rows: int, count: int, shared: bool, law: Any, generator: Any
) -> None:
    """Repeat the draws, so that the generator stands where the step left it."""
    generator.set_state(step.after["generator"])


def _check_refits(w: World) -> None:
    """Nothing is fitted here unless the index is."""


# the lists ---------------------------------------------------------------------------------------


@torch.no_grad()
def _check_lists(w: World, state: dict[str, Tensor], last: sdx.Holdout) -> None:
    model, plain = Model(w, state), w.plain

    def scores(past: list[int]) -> list[float]:
        return model.scores(model.queries(past[-w.most :])[-1])

    past = [[item for item, _ in plain.history(u)] for u in range(len(plain.users))]
    every = [scores(each) for each in past]
    wanted = {plain.users[u]: best(every[u], 4, set(past[u])) for u in range(len(past))}
    same_lists(w.ran.model.recommend(plain.users, k=4), plain.items, wanted)
    given = [[0, 3, 0, 5, 1, 2, 4, 6, 3], [7]]
    names = [[plain.items[i] for i in each] for each in given]
    wanted = {n: best(scores(each), 3, set(each)) for n, each in enumerate(given)}
    same_lists(w.ran.model.recommend(history=names, k=3), plain.items, wanted)
    check_metrics(w.ran.model.card.metrics["valid"], plain, last, lambda u: every[u])


def _case(recipe: str, **options: Any) -> Case:
    return Case(recipe, SMALL | options, check_sequence)


CASES: list[Case] = [
    _case("sasrec"),
    _case("sasrec", layers=1, heads=1, hidden=5, dropout=0.0, max_history=3, lr=0.02, lr_end=0.3, epochs=3),
    _case("sasrec", objective="ssm", index="uniform", negatives=6, positions=5, decay=0.1, per_row=True),
    _case("sasrec", objective="ssm", index="popularity", power=0.8, negatives=7, hidden=6, heads=4),
    _case("sasrec", features=["genre", "price"], id_dropout=0.4, hidden=6, layers=1),
    _case("sasrec", features="all", ids="drop", hidden=6, layers=1, objective="ssm", index="uniform", negatives=5),
    _case("youtube_dnn", negatives=6),
]
