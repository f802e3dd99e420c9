"""Softmax, sampled softmax and the losses on draws, on vectors of users and items, by loops."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

import softdex as sdx
from composition.loops import Leaves, Ran, check_lists, check_run, check_step, close, trained
from composition.losses import Row, numbers_of, row_loss, sparsemax
from composition.products import Pair, featured, living, offsets, start_of
from composition.proposals import check_frequencies, check_index, draws_of, log_law, shared
from composition.suite import Case, row

ALIKE = 10  # items that may stand in for a target
AFTER = ([4, 1, 4], [1, 7, 9, 2, 0])  # histories of nobody


def check(case: Case, log: sdx.Interactions | None = None) -> None:
    """Every step, the index at every step, the order of the run, and what the model serves."""
    asked = case.options.get("features") or case.options.get("user_features")
    ran = trained(case, featured() if asked else log)
    objective = ran.options["objective"]
    if ran.options["index"] == "auto":  # the log is small: all items, or uniform draws
        ran.options["index"] = "full" if objective in ("ssm", "sparsemax") else "uniform"
    full = objective == "softmax" or ran.options["index"] == "full"
    if full:
        ran.options["index"] = "full"
        ran.options["objective"] = "softmax" if objective == "ssm" else objective
    check_start(ran)
    check_run(ran, len(ran.facts.user))
    drawn, laws = [0.0] * ran.log.num_items, []
    for number in range(len(ran.steps)):
        laws += _check(ran, number, drawn)
    if not full:
        check_frequencies(drawn, laws)
        check_index(ran, partial(_directions, ran), partial(_offsets, ran), living(ran))
    check_served(ran)


def check_start(ran: Ran) -> None:
    """The tables before the first step are those of the seed."""
    found = ran.steps[0].before
    for name, tensor in (start_of(ran) | numbers_of(ran)).items():
        if tensor.numel():
            close(found[f"model.{name}"], tensor, f"{name} before the first step")


def check_served(ran: Ran, state: dict[str, Tensor] | None = None) -> None:
    """Lists are those of the last tables, or of a state, of users and of histories."""
    pair, facts = Pair(ran, state or ran.steps[-1].after), ran.facts
    end = [pair.scores(pair.query(u, facts.histories[u])) for u in range(ran.log.num_users)]
    if ran.options["encoder"] == "user":
        check_lists(ran, end.__getitem__)
        return
    check_lists(ran, end.__getitem__, AFTER, lambda history: pair.scores(pair.query(-1, history)))
    encoder = ran.model.encoder  # reads the items that are served, and no copy
    assert encoder.items is ran.model.index.scorer.items


def batch_of(ran: Ran, number: int, generator: torch.Generator) -> list[tuple[int, int, float]]:
    """User, target and weight per row of a step; a similar item may stand in for the target."""
    at, facts, smooth = ran.steps[number].at.tolist(), ran.facts, ran.options["smooth"]
    total = sum(facts.weight[n] for n in at)
    targets = [facts.item[n] for n in at]
    if smooth:
        which, whether = torch.rand(2, len(at), 1, generator=generator)
        for b, target in enumerate(targets):
            if whether[b] < smooth:
                targets[b] = _stand_in(ran, target, float(which[b]))
    return [(facts.user[n], y, facts.weight[n] / total) for n, y in zip(at, targets, strict=True)]


def _stand_in(ran: Ran, item: int, point: float) -> int:
    """One of the items most similar to this one, in proportion to the similarity: a cosine in which
    a user with n items counts 1 / n."""
    baskets = [set(history) for history in ran.facts.histories]
    users_of = [sum(i in basket for basket in baskets) for i in range(ran.log.num_items)]
    alike: dict[int, float] = {}
    for basket in baskets:
        for other in sorted(basket) if item in basket else ():
            size = math.sqrt(users_of[item] * users_of[other]) * len(basket)
            alike[other] = alike.get(other, 0.0) + 1 / size
    alike.pop(item)
    assert len(alike) <= ALIKE
    reached = 0.0
    for other, similarity in alike.items():
        reached += similarity / sum(alike.values())
        if point < reached:
            return other
    return item


def _check(ran: Ran, number: int, drawn: list[float]) -> list[tuple[int, list[float]]]:
    """Recompute a step; count its draws in `drawn`, and return their laws."""
    step, options = ran.steps[number], ran.options
    leaves, alive, laws = Leaves(step), living(ran), []
    pair = Pair(ran, step.before, leaves, salts=step.after)
    batch = batch_of(ran, number, after_shuffles(ran, number))
    loss = torch.zeros((), dtype=torch.float64)
    for b, (user, target, weight) in enumerate(batch):
        query = pair.projected(pair.query(user, ran.facts.histories[user], target))
        if options["index"] == "full":
            every = [pair.score(query, i) for i in range(pair.items)]
            own, others = every[target], [every[i] for i in alive]
            mass = sparsemax(own, others) if options["objective"] == "sparsemax" else None
            each = torch.stack(others).logsumexp(0) - own if mass is None else mass
            loss = loss + weight * each
            all_rows(leaves)
            continue
        ids, logq = draws_for(ran, number, b)
        law = law_now(ran, number, query)
        close(logq, [law[i] for i in ids], f"log q of the draws of step {number}", scale=1.0)
        if b == 0 or not shared(ran):
            laws.append((len(ids), law))
            for i in ids:
                drawn[i] += 1
        loss = loss + weight * row_loss(ran, pair, leaves, Row(user, query, target, ids, law))
    salts = [n.removeprefix("model.") for n in step.before if n.endswith(".salt")]
    check_step(ran, number, leaves, loss, moving=salts)
    return laws


def draws_for(ran: Ran, number: int, b: int) -> tuple[list[int], Tensor]:
    """The draws of a row of a step and their log q, whether they are its own or the batch's."""
    step, n = ran.steps[number], draws_of(ran)
    [draws] = step.draws
    assert tuple(draws.ids.shape) == ((n,) if shared(ran) else (len(step.at), n))
    own = draws.ids.ndim == 2
    return (draws.ids[b] if own else draws.ids).tolist(), draws.logq[b] if own else draws.logq


def law_now(ran: Ran, number: int, query: Tensor) -> list[float]:
    """log q of every item for a projected query in a step."""
    step = ran.steps[number]
    pair = Pair(ran, step.before, salts=step.after)
    directions = torch.stack([pair.direction(i) for i in range(pair.items)])
    index = {n.removeprefix("index."): t for n, t in step.before.items() if "index." in n}
    return log_law(ran, index, query.detach(), directions, offsets_now(pair), living(ran))


def all_rows(leaves: Leaves) -> None:
    """The full softmax updates every item."""
    for name, rows in leaves.tables.items():
        if name.endswith(("items", "items.own", "bias")):
            rows.seen |= set(range(len(rows)))


def after_shuffles(ran: Ran, number: int) -> torch.Generator:
    """The generator of a step after the towers have drawn which rows lose their own vector."""
    step, generator = ran.steps[number], torch.Generator()
    generator.set_state(step.generator.get_state())
    for name, tensor in step.after.items():
        if name.endswith(".salt"):
            salt = torch.zeros((), dtype=torch.int64).random_(0, 2**31, generator=generator)
            assert torch.equal(tensor, salt), f"{name} was not drawn anew in step {number}"
    return generator


def offsets_now(pair: Pair) -> list[float]:
    """What is added to the score of each item, as numbers."""
    if pair.bias is not None:
        return [float(x) for x in pair.bias.weight]
    if pair.euclidean:
        return [float(pair.offset(i)) for i in range(pair.items)]
    return offsets(pair.ran) if pair.cosine else [0.0] * pair.items


def _directions(ran: Ran, state: dict[str, Tensor]) -> Tensor:
    pair = Pair(ran, state)
    return torch.stack([pair.direction(i) for i in range(pair.items)])


def _offsets(ran: Ran, state: dict[str, Tensor]) -> list[float] | None:
    pair = Pair(ran, state)
    known = pair.bias is not None or pair.euclidean or (pair.cosine and any(offsets(ran)))
    return offsets_now(pair) if known else None


SLOW = {"lr": 0.03, "lr_end": 0.2, "decay": 0.5, "per_row": True}
MIX = {"encoder": "mix", "share": 0.3, "max_history": 2}
COSINE = {"temperature": 0.4, "prior": 0.3}
POPULAR = {"index": "popularity", "power": 0.8, "negatives": 6}
WORDS = {"codewords": 3, "refit_every": 3, "negatives": 6}
RANKS = {"index": "factor_ranks", "rank_scale": 2.0, "refit_every": 3, "negatives": 6}
ALL = {"features": "all", "user_features": ["city"], "id_dropout": 0.4}
GENRE = {"features": ["genre"], "ids": "drop", "encoder": "history"}
LOG, COUNT = {"popularity": "log"}, {"popularity": "count"}
MIXED = {"smooth": 0.5, **MIX, **COSINE, **SLOW}
FAR = {"score": "euclidean", "lr": 0.3}  # so that some points would leave the ball
CASES = [
    row("softmax", check, **MIXED),
    row("softmax", check, score="dot_bias", encoder="history", decay=0.1),
    row("softmax", check, **ALL),
    row("softmax", check, **GENRE | {"encoder": "user"}, user_features="all", score="dot"),
    row("softmax", check, **FAR),
    row("ssm", check),
    row("ssm", check, **MIXED, **POPULAR),
    row("ssm", check, correct="all", **ALL, negatives=7, shared=False),
    row("ssm", check, **GENRE | {"encoder": "user"}, user_features="all", index="imi_popularity",
        power=0.8, **WORDS),
    row("ssm", check, index="imi_uniform", score="dot_bias", encoder="history", lr=0.1, **WORDS),
    row("ssm", check, index="imi_uniform", correct="all", encoder="mix", lr=0.1, **WORDS),
    row("ssm", check, index="imi_exact", score="dot", seed=1, **WORDS),
    row("ssm", check, index="imi_exact", **FAR, **WORDS),
    row("ssm", check, index="imi_popularity", **COUNT, **WORDS),
    row("ssm", check, index="kernel", refit_every=3, negatives=6, lr=0.1),
    row("ssm", check, **RANKS, lr=0.1, prior=0.0),
    row("ssm", check, index="popularity", shared=False, **LOG, negatives=6),
    row("ssm", check, index="full", prior=0.0),
    row("ssm", check, index="auto"),
    row("bpr", check, **MIXED, **POPULAR),
    row("bpr", check, index="imi_popularity", **LOG, score="dot_bias", encoder="mix", **WORDS),
    row("bpr", check, **ALL, index="auto", negatives=2, shared=True),
    row("bpr", check, **GENRE, score="dot", **RANKS),
    row("bpr", check, **FAR, negatives=5),
    row("bce", check, **MIXED, score="cosine", **POPULAR),
    row("bce", check, index="kernel", refit_every=3, score="dot_bias", negatives=7),
    row("bce", check, **ALL, negatives=5, shared=True, index="popularity", **COUNT),
    row("bce", check, **GENRE, index="imi_uniform", **WORDS),
    row("bce", check, **RANKS, score="dot_bias", lr=0.1),
    row("dns", check, **MIXED, **POPULAR),
    row("dns", check, index="imi_exact", score="dot_bias", **WORDS),
    row("dns", check, **ALL, negatives=6, shared=True, index="popularity", **LOG),
    row("dns", check, **GENRE, **RANKS | {"negatives": 2}),
    row("self_adversarial", check, **MIXED, **POPULAR),
    row("self_adversarial", check, index="imi_uniform", score="dot_bias", **WORDS),
    row("self_adversarial", check, **ALL, negatives=5, shared=True, index="popularity", **LOG),
    row("self_adversarial", check, **GENRE, **RANKS | {"negatives": 1}),
    row("warp", check, **MIXED, **POPULAR, score="cosine", margin=0.6, rank_weight="log"),
    row("warp", check, index="imi_uniform", score="dot_bias", lr=0.1, margin=0.2, **WORDS),
    row("warp", check, **ALL, negatives=7, shared=True, index="popularity", **COUNT),
    row("warp", check, **GENRE, **RANKS, rank_weight="log"),
    row("warp", check, score="cosine"),
    row("pris", check, **MIXED, **POPULAR, score="cosine"),
    row("pris", check, index="imi_popularity", **LOG, score="dot_bias", lr=0.1, **WORDS),
    row("pris", check, **ALL, negatives=7, shared=True, index="popularity", **COUNT),
    row("pris", check, **GENRE, **RANKS | {"negatives": 1}),
    row("aobpr", check, **MIXED, negatives=6, rank_scale=1.5, refit_every=3),
    row("aobpr", check, score="dot_bias", negatives=5, rank_scale=4.0, refit_every=2, lr=0.1),
    row("aobpr", check, **ALL, rank_scale=3.0),
    row("aobpr", check, **GENRE, **COSINE, refit_every=3, lr=0.1),
    row("uib", check, **MIXED, **POPULAR, score="cosine", link="hinge"),
    row("uib", check, index="imi_uniform", score="dot_bias", lr=0.1, **WORDS),
    row("uib", check, **ALL, negatives=7, shared=True, index="popularity", **COUNT),
    row("uib", check, **GENRE, **RANKS, link="hinge"),
    row("sml", check, **MIX, **SLOW | {"lr": 0.3}, smooth=0.5, **POPULAR, most_margin=0.7),
    row("sml", check, index="imi_uniform", lr=0.2, symmetry=0.6, reward=0.3, **WORDS),
    row("sml", check, **ALL, negatives=7, shared=True, index="popularity", **COUNT, lr=0.3),
    row("sml", check, **GENRE, **RANKS, lr=0.1, symmetry=0.4),
    row("sparsemax", check, **MIXED, score="cosine"),
    row("sparsemax", check, **ALL, lr=0.3),
    row("sparsemax", check, index="auto", score="cosine", temperature=0.2),
    row("sparsemax", check, **GENRE, index="popularity", **LOG, shared=True, negatives=6),
    row("sparsemax", check, index="popularity", power=0.9, score="cosine"),
    row("sparsemax", check, index="imi_uniform", score="dot", lr=0.1, **WORDS),
    row("sparsemax", check, **RANKS, score="cosine"),
]  # fmt: skip
