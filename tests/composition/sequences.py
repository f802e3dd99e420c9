"""Sequence models by loops over users and positions: every objective, features, cut histories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from composition import batches
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.loops import Leaves, Ran, check_run, close, rate, steps_per_epoch, trained
from composition.matrix import all_rows
from composition.products import columns_of, vectors_in
from composition.proposals import cells_of, check_index, draws_of, log_law, shared
from composition.readers import attention_states, dnn_query
from composition.steps import check_network_step, check_order, check_patience
from composition.suite import Case
from composition.towers import Resampled
from softdex.solve.gradient import in_batch

SMALL = {
    "dim": 4, "epochs": 2, "batch_size": 3, "lr": 0.05, "lr_end": 0.5, "seed": 5, "device": "cpu",
}  # fmt: skip
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
    resampled: Resampled

    @property
    def o(self) -> dict[str, Any]:
        """All options."""
        return self.ran.options


def check_sequence(case: Case) -> None:
    """Steps of both epochs, and the lists of the best one."""
    cold = "features" in case.options or case.options.get("objective") in IN_BATCH
    plain, last = held(world(table=cold))
    epochs = case.options["epochs"]
    resampled = Resampled()
    with (
        measured(*[0.1] * (epochs - 2), 0.3, 0.2),
        patch.object(in_batch, "resample_counts", resampled),
    ):
        ran = trained(case, plain.log, valid=last)
    o = ran.options | {"batch_size": ran.options["batch_size"] or 16}
    if o["index"] == "auto":  # few items
        o["index"] = "full"
    longest = max(len(plain.history(u)) for u in range(len(plain.users)))
    most = max(1, min(o["max_history"], longest - 1))
    if o["positions"] is None:
        o["positions"] = 2048 if o["objective"] in IN_BATCH else 0
    w = World(ran._replace(options=o), plain, _parts(plain, most), most, resampled)
    check_run(w.ran, len(w.parts), rate)
    check_order(w.ran, len(w.parts))
    _check_start(w)
    per = steps_per_epoch(w.ran)
    for number in sorted({0, 1, len(ran.steps) - 1}):
        _check_step(w, number)
    if o["objective"] == "ssm" and o["index"] != "full":
        _check_index(w._replace(ran=w.ran._replace(steps=ran.steps[: (epochs - 1) * per])))
    _check_lists(w, ran.steps[(epochs - 1) * per - 1].after, last)


def _parts(plain: Plain, most: int) -> list[Part]:
    """Histories in parts of one item more than are read; each but the first is a target once."""
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
        self,
        w: World,
        state: dict[str, Tensor],
        leaves: Leaves | None = None,
        salt: dict[str, Tensor] | None = None,
    ) -> None:
        self.w, part = w, "encoder.items"
        self.p = {
            name.removeprefix("encoder."): tensor
            for name, tensor in (_dense(state) if leaves is None else leaves.dense).items()
            if name.startswith("encoder.") and not name.startswith(part)
        }
        known = None if salt is None else salt.get(f"model.{part}.salt")
        number = None if known is None else int(known)
        self.item = vectors_in(w.ran, state, part, "item", leaves, number)
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
        close(
            before[f"model.{part}.weight"], random(len(w.plain.items), dim, scale=dim**-0.5), part
        )
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
    model = Model(w, step.before, leaves, step.after)
    batch = [w.parts[int(at)] for at in step.at]
    width = max(len(part.items) for part in batch) - 1
    masks = []
    if o["encoder"] == "attention" and o["dropout"]:
        shape = len(batch), width, o["dim"]
        masks = [
            torch.rand(shape, generator=generator) >= o["dropout"]
            for _ in range(1 + 2 * o["layers"])
        ]
    queries: list[tuple[int, Tensor, int, float]] = []
    for b, each in enumerate(batch):
        drops = [lambda x, at, kept=mask[b]: x * kept[at] / (1 - o["dropout"]) for mask in masks]
        states = model.queries(each.items[:-1], drops)
        for at, state in enumerate(states):
            queries.append((b * width + at, state, each.items[at + 1], each.weights[at + 1]))
    places = _chosen(w, len(batch), width, {n for n, *_ in queries}, generator)
    here = {n: (q, target, weight) for n, q, target, weight in queries}
    chosen = [(row, *here[n]) for row, n in enumerate(places) if n in here]
    total = sum(weight for *_, weight in chosen)
    if o["objective"] in IN_BATCH:
        losses, more = batches.losses(
            w.ran, number, _living(w), model.item, chosen, len(places), generator, w.resampled
        )
        moving += more
    else:
        losses = _losses(w, number, model, leaves, chosen, len(places), generator)
    loss = sum(
        (w_ / total * each for (*_, w_), each in zip(chosen, losses, strict=True)),
        torch.zeros(()).double(),
    )
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
    number: int,
    model: Model,
    leaves: Leaves,
    chosen: batches.Chosen,
    rows: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """The softmax over the living items, or over draws."""
    o, alive, step = w.o, _living(w), w.ran.steps[number]
    if o["objective"] == "softmax" or o["index"] == "full":
        assert not step.draws
        every = [model.item(i) for i in range(len(w.plain.items))]
        all_rows(leaves)
        vectors = torch.stack([every[i] for i in alive])
        return [(vectors @ q).logsumexp(0) - q @ every[y] for _, q, y, _ in chosen]
    [draws] = step.draws
    generator.set_state(step.after["generator"])
    count, own = draws_of(w.ran), not shared(w.ran)
    assert draws.ids.shape == ((rows, count) if own else (count,))
    still = Model(w, step.before, salt=step.after)
    directions = torch.stack([still.item(i) for i in range(len(w.plain.items))]).detach()
    index = {n.removeprefix("index."): t for n, t in step.before.items() if "index." in n}
    [model.item(i) for i in set(draws.ids.flatten().tolist())]  # padding looks its draws up, too
    found = []
    for row, q, y, _ in chosen:
        law = log_law(w.ran, index, q.detach(), directions, [0.0] * len(directions), alive)
        ids = (draws.ids[row] if own else draws.ids).tolist()
        logq = draws.logq[row] if own else draws.logq
        close(logq, [law[i] for i in ids], "log q of the draws", scale=1.0)
        each = {i: q @ model.item(i) for i in set(ids)}
        kept = [i for i in ids if i != y]
        own_score = q @ model.item(y)
        rest = math.log1p(-math.exp(law[y])) - math.log(max(1, len(kept)))
        terms = torch.stack([own_score, *(each[i] - law[i] + rest for i in kept)])
        found.append(terms.logsumexp(0) - own_score if kept else own_score * 0)
    return found


def _living(w: World) -> list[int]:
    """Items that can be negatives: those with features and without events are not."""
    return [i for i, n in enumerate(w.plain.counts) if n or w.o["features"] is None]


def _check_index(w: World) -> None:
    """Cells are those of the vectors of the last refit."""

    def directions(state: dict[str, Tensor]) -> Tensor:
        model = Model(w, state)
        return torch.stack([model.item(i) for i in range(len(w.plain.items))]).detach()

    check_index(w.ran, directions, lambda state: None, _living(w))


# the lists ---------------------------------------------------------------------------------------


@torch.no_grad()
def _check_lists(w: World, state: dict[str, Tensor], last: sdx.Holdout) -> None:
    plain, name = w.plain, "model.encoder.items.weight"
    if w.o["objective"] in IN_BATCH and name in state:  # items without events are not trained
        met = torch.tensor([count > 0 for count in plain.counts])
        state = state | {name: state[name] * met[:, None]}
    model = Model(w, state)

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


def check_metrics_per_epoch(case: Case) -> None:
    """The metric of every epoch is that of its tables, without what only training drops."""
    plain, last = held(world(table=True))
    ran = trained(case, plain.log, valid=last)
    longest = max(len(plain.history(u)) for u in range(len(plain.users)))
    most = max(1, min(ran.options["max_history"], longest - 1))
    w, per = World(ran, plain, _parts(plain, most), most, Resampled()), steps_per_epoch(ran)
    assert ran.model.card.training is not None
    for epoch, record in enumerate(ran.model.card.training["history"]):
        model = Model(w, ran.steps[(epoch + 1) * per - 1].after)

        def scores(user: int, model: Model = model) -> list[float]:
            past = [item for item, _ in plain.history(user)][-most:]
            return model.scores(model.queries(past)[-1].detach())

        check_metrics({"ndcg@20": record["metric"]}, plain, last, scores)


def check_warm_start(case: Case) -> None:
    """A run takes over the vectors of an earlier one, and its index belongs to them."""
    plain = world()
    start = sdx.fit(case.recipe, plain.log, **case.options | {"seed": 77, "epochs": 1})
    ran = trained(case, plain.log, start=start)
    before = ran.steps[0].before
    vectors = before["model.encoder.items.weight"]
    close(vectors, start.index.scorer.items.weight, "vectors of the start")
    for name, tensor in start.encoder.named_parameters():
        close(before[f"model.encoder.{name}"], tensor, name)
    assert torch.equal(before["index.cell"], cells_of(vectors, before["index.words"]).int())


def _case(recipe: str, **options: Any) -> Case:
    return Case(recipe, SMALL | options, check_sequence)


OWN = {"lr": 0.03, "lr_end": 1.0, "decay": 0.1, "per_row": True, "seed": 8, "batch_size": 2}
CELLS = {"index": "imi_popularity", "codewords": 2}
IMI = {**CELLS, "refit_every": 2, "power": 0.8, "negatives": 7}
FEATURED = {"features": "all", "id_dropout": 0.8, "negatives": 6, "batch_size": 2}
SHALLOW = {"layers": 1, "hidden": 5}
DRAWN = {"objective": "ssm", "index": "uniform", "negatives": 5}
POPULAR = {"index": "popularity", "negatives": 6}
RANKS = {"index": "factor_ranks", "rank_scale": 2.0, "refit_every": 2, "negatives": 6}
CASES: list[Case] = [
    _case("sasrec"),
    _case("sasrec", **SHALLOW, heads=1, dropout=0.0, max_history=3, epochs=3, **OWN),
    _case("sasrec", objective="ssm", **POPULAR, power=0.8, positions=5),
    _case("sasrec", **SHALLOW, objective="ssm", **IMI),
    _case("sasrec", **SHALLOW, features=["genre", "price"], id_dropout=0.4, dropout=0.4),
    _case("sasrec", **SHALLOW, **DRAWN, features="all", ids="drop", shared=False),
    _case("sasrec", **SHALLOW, **DRAWN | RANKS),
    _case("sasrec", **SHALLOW, **DRAWN | CELLS, popularity="count"),
    *(
        _case("sasrec", **SHALLOW, objective=name, positions=7)
        for name in ("ssl", "ssl_pop", "g_tower", "xir")
    ),
    _case("sasrec", **SHALLOW, objective="mns", features="genre"),
    _case("sasrec", **SHALLOW, objective="bir", max_history=4, epochs=3),
    _case("sasrec", **SHALLOW, objective="ssm"),
    Case("sasrec", {**SMALL, **SHALLOW, "epochs": 9}, check_patience),
    Case("sasrec", {**SMALL, **SHALLOW, **IMI, "objective": "ssm"}, check_warm_start),
    Case("youtube_dnn", {**SMALL, **FEATURED, "epochs": 3, "patience": 0}, check_metrics_per_epoch),
    _case("youtube_dnn", negatives=6, batch_size=None),
    _case("youtube_dnn", **OWN, **POPULAR | {"power": 0.9}, max_history=3, epochs=3),
    _case("youtube_dnn", **POPULAR, popularity="log", shared=False),
    _case("youtube_dnn", **RANKS),
    _case("youtube_dnn", **IMI, positions=4, features="all", ids="drop"),
    _case("youtube_dnn", features=["genre", "price"], id_dropout=0.4, objective="softmax"),
    *(_case("youtube_dnn", objective=name, positions=6) for name in ("ssl_pop", "mns", "bir")),
    _case("youtube_dnn", objective="g_tower"),
    _case("youtube_dnn", objective="ssl", max_history=4),
    _case("youtube_dnn", objective="xir", features="genre", positions=9),
]
