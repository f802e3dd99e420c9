"""Trees: whole steps, labels, relearning and searches by loops over nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.loops import Leaves, Ran, check_run, close, steps_per_epoch, trained
from composition.nodes import LAYERS, Shape, Tree
from composition.readers import attention_states
from composition.relearned import check_round, dealt
from composition.steps import check_network_step
from composition.suite import Case
from softdex.recipes import catalogue
from softdex.recipes import leaves as leaves_file
from softdex.recipes.leaves import Quick

CPU = {
    "leaves": "factors", "sampling": "uniform", "negatives": 20, "max_history": 20,
    "batch_size": 128, "epochs": 2, "lr": 0.02,
}  # fmt: skip
SMALL = {"dim": 3, "beam": 2, "negatives": 2, "batch_size": 16, "seed": 5, "device": "cpu"}
SAVED = "a saved model"


class Row(NamedTuple):
    """A row to train on: the items before a target, the target, and its weight."""

    history: list[int]
    target: int
    weight: float


class World(NamedTuple):
    """A training of a tree, and what the loops know of it."""

    ran: Ran
    plain: Plain
    shape: Shape
    rows: list[Row]
    made: dict[str, Any]

    @property
    def o(self) -> dict[str, Any]:
        """All options."""
        return self.ran.options


def check_tree(case: Case) -> None:
    """Steps of both epochs, what happens between them, and the lists of the best epoch."""
    given = dict(case.options)
    plain, last = held(world(table="category" in given, weights=given.get("rounds", 1) < 3))
    epochs = given.get("epochs", CPU["epochs"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        case = case._replace(options=_saved(given, plain, folder))
        taken = stack.enter_context(dealt())
        made = stack.enter_context(_made())
        stack.enter_context(measured(*[0.1] * (epochs - 2), 0.3, 0.2))
        ran = trained(case, plain.log, valid=last)
        check_ran(case, plain, last, ran, made, taken)


def _saved(given: dict[str, Any], plain: Plain, folder: Path) -> dict[str, Any]:
    """The options, with a saved model where one is asked for."""
    if given.get("estimator") == SAVED:
        quick = {"dim": 4, "epochs": 2, "max_history": 3, "seed": 1, "batch_size": 4}
        given["estimator"] = str(folder / "estimator.sdx")
        sdx.fit("sasrec", plain.log, **quick).save(given["estimator"])
    if given.get("leaves") == SAVED:
        given["leaves"] = str(folder / "leaves.sdx")
        one = {"dim": 2, "epochs": 1, "leaves": "random", "seed": 9, "beam": 1}
        sdx.fit("tdm", plain.log, **one).save(given["leaves"])
    return given


def check_ran(
    case: Case, plain: Plain, last: sdx.Holdout, ran: Ran, made: dict[str, Any], taken: Any
) -> None:
    """Everything that a training recorded."""
    o = _options(case, plain)
    steps = [step for step in ran.steps if "index.item_of" in step.before]  # not of quick models
    ran = ran._replace(options=o, steps=steps)
    w = World(ran, plain, Shape(len(plain.items), o), _rows(plain, o), made)
    _check_start(w, case)
    if o["rounds"] == 1:
        check_run(ran, len(w.rows), lambda ran, number: _rate(o, ran, number))
    per = steps_per_epoch(ran)
    if o["leaves"] in ("factors", "sequence"):
        taken[1].pop(0)  # that was for the first tree
    for epoch in _starts(o):
        check_round(ran, w.shape, w.rows, epoch * per, taken)
    assert taken == ([], [])  # nothing else was assigned
    epochs = o["epochs"]
    for number in (0, per, len(ran.steps) - 1):
        close(ran.steps[number].lr, _rate(o, ran, number), f"learning rate of step {number}")
        _check_step(w, number)
    kept = dict(ran.steps[(epochs - 1) * per - 1].after)
    _check_lists(w, kept, last)


def _options(case: Case, plain: Plain) -> dict[str, Any]:
    o = catalogue.options(case.recipe) | case.options
    o |= {name: value for name, value in CPU.items() if o[name] is None}
    longest = max(len(plain.history(u)) for u in range(len(plain.users)))
    o["length"] = max(1, min(o["max_history"], longest - 1))
    o["product"] = o["sampling"] == "siblings"
    o["draws"] = o["arity"] * o["beam"] if o["sampling"] == "beam" else o["negatives"]
    return o


def _rows(plain: Plain, o: dict[str, Any]) -> list[Row]:
    """Every item of a history with enough before it, from those before it."""
    found = []
    for user in range(len(plain.users)):
        past = plain.history(user)
        places = range(o["min_history"], len(past))
        for at in places[-1:] if o["windows"] == "last" and len(past) > o["min_history"] else places:
            before = [item for item, _ in past[:at]][-o["length"] :]
            found.append(Row(before, past[at][0], past[at][1]))
    most = o["max_instances"]
    if 0 < most < len(found):
        drawn = np.random.default_rng(o["seed"]).choice(len(found), most, replace=False)
        found = [found[n] for n in sorted(drawn)]
    return found


def _rate(o: dict[str, Any], ran: Ran, number: int) -> float:
    """The rate falls by the step; it starts again with a round if so asked."""
    per = steps_per_epoch(ran)
    epoch = number // per
    starts = [0, *_starts(o)] if o["restart"] else [0]
    first = max(start for start in starts if start <= epoch)
    end = min([start for start in starts if start > epoch], default=o["epochs"])
    done = (number - first * per) / ((end - first) * per)
    return float(o["lr"] * (1 - (1 - o["lr_end"]) * done))


def _starts(o: dict[str, Any]) -> list[int]:
    return [r * o["epochs"] // o["rounds"] for r in range(1, o["rounds"])]


# the beginning -----------------------------------------------------------------------------------


class _made:  # noqa: N801
    """Record the vectors that leaves are clustered by, and the quick models behind them."""

    def __enter__(self) -> dict[str, Any]:
        self.found: dict[str, Any] = {"clustered": [], "jobs": {}}
        by_vectors = leaves_file.build.by_vectors

        def clustered(vectors: Any, shape: Any, **kept: Any) -> Any:
            order = by_vectors(vectors, shape, **kept)
            self.found["clustered"].append((vectors.copy(), shape, kept, order))
            return order

        def job(name: str) -> Any:
            plain = getattr(Quick, name)

            def made(quick: Quick) -> Any:
                self.found["jobs"][name] = plain(quick)
                return self.found["jobs"][name]

            return patch.object(Quick, name, made)

        self.stack = ExitStack()
        self.stack.enter_context(patch.object(leaves_file.build, "by_vectors", clustered))
        self.stack.enter_context(job("sequence"))
        self.stack.enter_context(job("factors"))
        return self.found

    def __exit__(self, *args: Any) -> None:
        self.stack.close()


def _check_start(w: World, case: Case) -> None:
    """Random weights by the seed, and items in the order that `leaves` asks for."""
    o, before, dim = w.o, w.ran.steps[0].before, w.o["dim"]
    generator = torch.Generator().manual_seed(o["seed"])
    made = Tree(w.shape, before, o)
    widths = [(len(made.windows) + 1) * dim, 128, 64, 24]
    for n, layer in enumerate(LAYERS):
        wanted = torch.randn(widths[n], widths[n + 1], generator=generator) * widths[n] ** -0.5
        close(made.layers[layer], wanted, layer)
    torch.randn(1, 32, generator=generator)
    nodes = torch.randn(sum(w.shape.sizes), dim, generator=generator) * 0.1
    close(made.rows.weight, nodes, "nodes")
    assert torch.equal(before["index.effort"], torch.tensor(float(o["beam"])).double())
    items, slots = len(w.plain.items), w.shape.sizes[-1]
    order = [item for item in made.item_of if item >= 0]
    assert made.item_of == [
        order[r] if (r := [k * slots // items for k in range(items)].index(s) if s in [k * slots // items for k in range(items)] else -1) >= 0 else -1
        for s in range(slots)
    ]
    how = o["leaves"]
    if how == "none":
        assert order == list(range(items))
    elif how == "random":
        assert order == np.random.default_rng(o["seed"]).permutation(items).tolist()
    elif how == "category":
        assert w.plain.log.item_table is not None
        genres = w.plain.log.item_table["genre"].to_pylist()
        first = [each[0] if each else None for each in genres]
        codes = {name: n for n, name in enumerate(dict.fromkeys(first)) if name is not None}
        code = [-1 if name is None else sorted(codes.values()).index(codes[name]) for name in first]
        draw = np.random.default_rng(o["seed"])
        place = draw.permutation(len(set(code)))[[c + 1 for c in code]].tolist()
        mixed = np.random.default_rng(int(draw.integers(2**62))).permutation(items).tolist()
        assert order == sorted(mixed, key=lambda i: place[i])
    elif how in ("factors", "sequence"):
        vectors, shape, kept, clustered = w.made["clustered"][0]
        assert order == clustered.tolist()
        assert (tuple(shape), kept["seed"]) == ((w.shape.roots, w.shape.arity, w.shape.depth), o["seed"])
        job = w.made["jobs"][how]
        close(job.scorer.items.weight, vectors, "the vectors of a quick model")
        assert vectors.any()
    else:
        saved = sdx.load(how)
        assert order == [i for i in saved.index.item_of.tolist() if i >= 0]


# a step ------------------------------------------------------------------------------------------


def _check_step(w: World, number: int) -> None:
    step, o = w.ran.steps[number], w.o
    leaves = Leaves(step)
    tree, still = Tree(w.shape, step.before, o, leaves), Tree(w.shape, step.before, o)
    rows = [w.rows[int(at)] for at in step.at]
    epoch = number // steps_per_epoch(w.ran)
    rectify = o["rectify"] if epoch >= o["warm_up"] and w.shape.depth > 1 else "none"
    labels = [[1.0] * w.shape.depth for _ in rows]
    if rectify == "own":
        labels = [_led_to(still, row) for row in rows]
    losses = _losses(tree, still, rows, o, step.generator, labels)
    if rectify in ("path", "child"):
        weighed = [_rectified(w, still, row, rectify) for row in rows]
    else:
        weighed = [[1.0] * w.shape.depth for _ in rows]
    total, sum_ = torch.zeros((), dtype=torch.float64), sum(row.weight for row in rows)
    for row, each, label in zip(rows, losses, weighed, strict=True):
        for value, counts in zip(each, label, strict=True):
            total = total + row.weight / sum_ * counts * value / w.shape.depth
    moving = [f"scorer.{layer}_stats" for layer in LAYERS] if o["norm"] == "batch" else []
    check_network_step(w.ran, number, leaves, total, moving)
    for layer in LAYERS:
        close(step.after[f"model.scorer.{layer}_stats"], tree.stats[layer], f"norm of {layer}")


def _losses(
    tree: Tree,
    still: Tree,
    rows: list[Row],
    o: dict[str, Any],
    generator: torch.Generator,
    labels: list[list[float]],
) -> list[list[Tensor]]:
    """The loss of each row per level: first the levels that are taken whole, then the others."""
    shape = tree.shape
    found: list[list[Tensor]] = [[] for _ in rows]
    own = [[tree.above(row.target, j) for j in range(1, shape.depth + 1)] for row in rows]
    narrow = o["sampling"] in ("siblings", "beam")
    whole = [j == 1 if narrow else shape.sizes[j - 1] <= o["draws"] + 1 for j in range(1, shape.depth + 1)]
    against = _against(still, rows, own, o, generator, whole)
    for level in range(1, shape.depth + 1):
        if not whole[level - 1]:
            continue
        nodes = range(shape.sizes[level - 1])
        scores = tree.scores([(r.history, level, n) for r in rows for n in nodes], learns=True)
        for b, each in enumerate(scores.view(len(rows), -1)):
            pos = own[b][level - 1]
            others = [n for n in nodes if n != pos and tree.holds(n, level)]
            if o["objective"] == "softmax":
                top = torch.stack([each[n] for n in [pos, *others]])
                found[b].append(top.logsumexp(0) - each[pos])
            else:
                found[b].append(_binary(each[pos], [each[n] for n in others], labels[b][level - 1]))
    sampled = [j for j in range(1, shape.depth + 1) if not whole[j - 1]]
    if not sampled:
        return found
    pairs = [
        (row.history, j, n)
        for j in sampled
        for b, row in enumerate(rows)
        for n in [own[b][j - 1], *(node for node, _ in against[j][b][0])]
    ]
    scores = iter(tree.scores(pairs, learns=True))
    for j in sampled:
        for b in range(len(rows)):
            draws, logq, there = against[j][b]
            pos = next(scores)
            kept = [(next(scores), node, q) for node, q in draws]
            kept = [x for x in kept if x[1] != own[b][j - 1] and tree.holds(x[1], j)]
            if o["objective"] == "binary":
                label = labels[b][j - 1]
                found[b].append(_binary(pos, [score for score, _, _ in kept], label, there))
            elif not kept:
                found[b].append(pos * 0)
            else:
                rest = math.log1p(-math.exp(logq)) - math.log(len(kept))
                terms = [pos] + [score - q + rest for score, _, q in kept]
                found[b].append(torch.stack(terms).logsumexp(0) - pos)
    return found


def _binary(pos: Tensor, others: list[Tensor], label: float, there: float = 1.0) -> Tensor:
    yes, no = -torch.nn.functional.logsigmoid(pos), -torch.nn.functional.logsigmoid(-pos)
    total = there * (label * yes + (1 - label) * no)
    for score in others:
        total = total - torch.nn.functional.logsigmoid(-score)
    return total


def _against(
    still: Tree,
    rows: list[Row],
    own: list[list[int]],
    o: dict[str, Any],
    generator: torch.Generator,
    whole: list[bool],
) -> dict[int, list[tuple[list[tuple[int, float]], float, float]]]:
    """Per level and row: nodes with their log-probabilities, that of the label, and whether the
    label counts."""
    shape, found = still.shape, {}
    if o["sampling"] == "tree":
        return _walks(still, rows, own, o["draws"], generator)
    looked = [still.beam(row.history, 1, o["beam"]) for row in rows] if o["sampling"] == "beam" else []
    widest = max((len(each[j]) for each in looked for j in range(1, shape.depth)), default=0)
    for level in range(1, shape.depth + 1):
        if whole[level - 1]:
            continue
        mine = [each[level - 1] for each in own]
        size = shape.sizes[level - 1]
        living = sum(bool(still.holds(n, level)) for n in range(size))
        logq = -math.log(living)
        if o["sampling"] == "uniform":
            drawn = torch.randint(size, (len(rows), o["draws"]), generator=generator).tolist()
            found[level] = [([(n, logq) for n in each], logq, 1.0) for each in drawn]
        elif o["sampling"] == "siblings":
            found[level] = [
                ([(n, 0.0) for n in still.children(m // shape.arity)], 0.0, 1.0) for m in mine
            ]
        else:
            found[level] = []
            for b, m in enumerate(mine):
                nodes = [n for n, score in looked[b][level - 1] if score > -math.inf]
                filled = [(n, 0.0) for n in nodes] + [(m, 0.0)] * (widest - len(nodes))
                found[level].append((filled, 0.0, float(m in nodes)))
    return found


def _walks(
    still: Tree, rows: list[Row], own: list[list[int]], count: int, generator: torch.Generator
) -> dict[int, list[tuple[list[tuple[int, float]], float, float]]]:
    """Walks from the top, each step by a softmax among siblings."""
    found: dict[int, Any] = {}
    at = [[(-1, 0.0)] * count for _ in rows]
    mine = [0.0] * len(rows)
    for level in range(1, still.shape.depth + 1):
        points = torch.rand(len(rows), count, generator=generator, dtype=torch.float64).tolist()
        cached: dict[tuple[int, int], list[tuple[int, float]]] = {}

        def local(
            b: int, parent: int, level: int = level, cached: dict[Any, Any] = cached
        ) -> list[tuple[int, float]]:
            if (b, parent) not in cached:
                nodes = still.children(parent) if level > 1 else list(range(still.shape.roots))
                scores = torch.tensor([still.value(rows[b].history, level, n) for n in nodes]).double()
                cached[b, parent] = list(zip(nodes, scores.log_softmax(0).tolist(), strict=True))
            return cached[b, parent]

        for b in range(len(rows)):
            walked = []
            for (node, logq), point in zip(at[b], points[b], strict=True):
                total, choice = 0.0, local(b, node)
                for child, log in choice:
                    total += math.exp(log)
                    if total > point:
                        break
                walked.append((child, logq + log))
            at[b] = walked
            label = own[b][level - 1]
            mine[b] += dict(local(b, -1 if level == 1 else label // still.shape.arity))[label]
        found[level] = [(at[b], mine[b], 1.0) for b in range(len(rows))]
    return found


# labels ------------------------------------------------------------------------------------------


def _led_to(still: Tree, row: Row) -> list[float]:
    """Where the path from a level down to the item leads through the best of siblings."""
    label, labels = 1.0, [1.0]
    for level in range(still.shape.depth, 1, -1):
        own = still.above(row.target, level)
        siblings = still.children(own // still.shape.arity)
        scores = [still.value(row.history, level, n) for n in siblings]
        label *= scores.index(max(scores)) == siblings.index(own)
        labels.append(label)
    return labels[::-1]


def _rectified(w: World, still: Tree, row: Row, kind: str) -> list[float]:
    """Where the likeliest item under the ancestor is the target, or under the likelier child."""
    scores = _estimate(w, row.history)
    chance = np.exp(scores - np.max(scores))
    chance /= chance.sum()
    labels = []
    for level in range(1, w.shape.depth + 1):
        below = still.holds(still.above(row.target, level), level)
        label = float(max(below, key=lambda i: chance[i]) == row.target)
        if kind == "child" and level < w.shape.depth:
            likeliest = max(below, key=lambda i: chance[i])
            label = float(still.above(likeliest, level + 1) == still.above(row.target, level + 1))
        if w.o["normalise"]:
            nodes = range(w.shape.sizes[level - 1])
            held_ = [still.holds(n, level) for n in nodes]
            label /= sum(max(chance[i] for i in under) for under in held_ if under)
        labels.append(label)
    return labels


@torch.no_grad()
def _estimate(w: World, history: list[int]) -> np.ndarray:
    """Scores of all items by the sasrec behind the labels."""
    if w.o["estimator"] is None:
        job = w.made["jobs"]["sequence"]
        encoder, items = job.encoder, job.scorer.items.weight.double()
    else:
        saved = sdx.load(w.o["estimator"])
        encoder, items = saved.encoder, saved.index.scorer.items.weight.double()
    p = {name: t.double() for name, t in encoder.named_parameters()}
    read = [items[i] for i in history[-len(p["positions"]) :]]
    state = attention_states(p, read, int(encoder.heads))[-1]
    found: np.ndarray = (items @ state).numpy()
    return found


# the lists ---------------------------------------------------------------------------------------


def _check_lists(w: World, state: dict[str, Tensor], last: sdx.Holdout) -> None:
    tree, model, beam = Tree(w.shape, state, w.o), w.ran.model, w.o["beam"]
    users = range(len(w.plain.users))
    past = [[item for item, _ in w.plain.history(u)] for u in users]
    most = w.o["max_history"]

    def found(history: list[int], k: int, width: int = beam) -> list[tuple[int, float]]:
        if w.shape.depth == 1:
            leaves = tree.beam(history, k, 10**6, history)[-1]
            items = [(tree.item_of[n], s) for n, s in leaves if s > -math.inf]
            return sorted(items, key=lambda each: (-each[1], each[0]))[:k]
        return tree.best(history, k, width, history)

    wanted = {w.plain.users[u]: found(past[u], 2) for u in users}
    same_lists(model.recommend(w.plain.users, k=2), w.plain.items, wanted)
    given = [[0, 3, 0, 5], [7]]
    names = [[w.plain.items[i] for i in each] for each in given]
    wanted = {n: found(each, 3) for n, each in enumerate(given)}
    same_lists(model.recommend(history=names, k=3), w.plain.items, wanted)
    assert most > 0

    def scores(user: int) -> list[float]:
        every = dict(found(past[user], len(w.plain.items)))
        return [every.get(i, -math.inf) for i in range(len(w.plain.items))]

    check_metrics(model.card.metrics["valid"], w.plain, last, scores)


def _case(recipe: str, check: Any = check_tree, **options: Any) -> Case:
    small = {n: v for n, v in SMALL.items() if n in catalogue.choices(recipe)}
    if "leaves" in catalogue.choices(recipe):
        small["leaves"] = "random"
    return Case(recipe, small | options, check)


LABELLED = {"beam": 1, "estimator": SAVED}
CASES: list[Case] = [
    _case("dtr", leaves="factors", lr=0.05),
    _case("dtr", sampling="tree", norm="layer", negatives=3, dim=2, decay=0.1, per_row=True, seed=8),
    _case("dtr", leaves="sequence", arity=3, max_history=3, lr_end=0.5, min_history=2, epochs=3),
    _case("dtr", leaves="category", category="genre", windows="last", room=0.5, batch_size=4),
    _case("dtr", rectify="path", warm_up=1, max_instances=20, **LABELLED),
    _case("dtr", rectify="child", normalise=True, sampling="tree", beam=1),
    _case("dtr", rounds=2, gap=2, per_item=2, restart=True, beam=1, **{"rectify": "path", "estimator": SAVED}),
    _case("dtr", rounds=3, epochs=3, deal="greedy", move=False, leaves=SAVED, beam=1),
    _case("tdm", norm="none", leaves="category", category="genre", windows="last", room=0.4, batch_size=4),
    _case("tdm", rounds=2, restart=True, lr=0.05, max_history=3, beam=1, decay=0.1, per_row=True),
    _case("tdm", rounds=2, move=False, arity=3, lr_end=0.4, min_history=2, max_instances=22, beam=1),
    _case("jtm", norm="none", leaves="category", category="genre", windows="last", room=0.4, batch_size=4, gap=1, beam=1),
    _case("jtm", per_item=2, restart=True, lr=0.05, max_history=3, beam=1, decay=0.1, per_row=True, gap=2),
    _case("jtm", arity=3, lr_end=0.4, min_history=2, max_instances=22, rounds=1),
    _case("jtm", move=False, deal="greedy", beam=1, rounds=3, epochs=3),
    _case("plt", norm="layer", leaves="category", category="genre", windows="last", room=0.4, batch_size=4),
    _case("plt", rounds=2, gap=2, per_item=2, restart=True, lr=0.05, max_history=3, beam=1, decay=0.1, per_row=True),
    _case("plt", rounds=2, move=False, arity=3, lr_end=0.4, min_history=2, max_instances=22, deal="greedy", beam=1),
    _case("otm", norm="layer", leaves="category", category="genre", windows="last", room=0.4, batch_size=4),
    _case("otm", rounds=2, gap=2, per_item=2, restart=True, lr=0.05, max_history=3, beam=1, decay=0.1, per_row=True),
    _case("otm", rounds=2, move=False, arity=3, lr_end=0.4, min_history=2, max_instances=22, deal="greedy", beam=1, warm_up=1),
    _case("din", norm="layer", windows="last", batch_size=4, lr=0.05, decay=0.1, per_row=True),
    _case("din", objective="binary", lr_end=0.4, max_history=3, min_history=2, max_instances=22, negatives=12),
]
