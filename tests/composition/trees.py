"""Trees: whole steps, labels, relearning and searches by loops over nodes."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor

import softdex as sdx
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.loops import Ran, check_run, close, steps_per_epoch, trained
from composition.nodes import Shape, Tree
from composition.relearned import check_round, dealt
from composition.steps import check_order, check_patience
from composition.suite import Case
from composition.tree_starts import check_tree_start, quick_models
from composition.tree_steps import Row, World, check_tree_step
from softdex.recipes import catalogue

CPU = {
    "leaves": "factors", "sampling": "uniform", "negatives": 20, "max_history": 20,
    "batch_size": 128, "epochs": 2, "lr": 0.02,
}  # fmt: skip
SMALL = {"dim": 3, "beam": 2, "negatives": 2, "batch_size": 16, "seed": 5, "device": "cpu"}
SAVED = "a saved model"


def check_tree(case: Case) -> None:
    """Steps of both epochs, what happens between them, and the lists of the best epoch."""
    given = dict(case.options)
    plain, last = held(world(table="category" in given, weights=given.get("rounds", 1) < 3))
    epochs = given.get("epochs", CPU["epochs"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        case = case._replace(options=_saved(given, plain, folder))
        taken = stack.enter_context(dealt())
        made = stack.enter_context(quick_models())
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
        known = plain.log.select(plain.log.item % 4 != 1).compact()  # but for some items
        sdx.fit("tdm", known, **one).save(given["leaves"])
    return given


def check_ran(
    case: Case, plain: Plain, last: sdx.Holdout, ran: Ran, made: dict[str, Any], taken: Any
) -> None:
    """Everything that a training recorded."""
    o = _options(case, plain)
    steps = [step for step in ran.steps if "index.item_of" in step.before]  # not of quick models
    ran = ran._replace(options=o, steps=steps)
    w = World(ran, plain, Shape(len(plain.items), o), _rows(plain, o), made)
    check_tree_start(w)
    if o["rounds"] == 1:
        check_run(ran, len(w.rows), lambda ran, number: _rate(o, ran, number))
    check_order(ran, len(w.rows))
    _check_records(w)
    assert ran.model.index.state()["effort"] == o["beam"]
    per = steps_per_epoch(ran)
    if o["leaves"] in ("factors", "sequence"):
        taken[1].pop(0)  # that was for the first tree
    for epoch in _starts(o):
        check_round(ran, w.shape, w.rows, epoch * per, taken)
    assert taken == ([], [])  # nothing else was assigned
    epochs = o["epochs"]
    for number in sorted({0, per, len(ran.steps) - 1}):
        close(ran.steps[number].lr, _rate(o, ran, number), f"learning rate of step {number}")
        check_tree_step(w, number)
    kept = dict(ran.steps[(epochs - 1) * per - 1].after)
    _check_lists(w, kept, last)


def _check_records(w: World) -> None:
    """An epoch reports its loss and its metric, one that begins with a new tree its figures."""
    assert w.ran.model.card.training is not None
    for epoch, record in enumerate(w.ran.model.card.training["history"]):
        more = {"moved"} if epoch in _starts(w.o) else set()
        found = set(record) - {"gain", "held_before", "held_after"}
        assert found == {"epoch", "loss", "metric"} | more


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
        for at in (
            places[-1:] if o["windows"] == "last" and len(past) > o["min_history"] else places
        ):
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
    model.build_index("flat")  # every leaf is scored, by the rule of the search
    every = {u: best(_leaf_scores(tree, past[u]), 3, set(past[u])) for u in users}
    wanted = {w.plain.users[u]: found for u, found in every.items()}
    same_lists(model.recommend(w.plain.users, k=3), w.plain.items, wanted)


def _leaf_scores(tree: Tree, history: list[int]) -> list[float]:
    """The score of each item: of its leaf, or the sum of log-sigmoids along its path."""
    found = []
    for item in sorted(tree.slot_of):
        path = range(1, tree.shape.depth + 1)
        scores = [tree.value(history, level, tree.above(item, level)) for level in path]
        log = [-math.log1p(math.exp(-score)) for score in scores]
        found.append(sum(log) if tree.options["product"] else scores[-1])
    return found


def check_din_has_no_tree(case: Case) -> None:
    """However many items there are, every one is scored."""
    rows = [(f"u{n % 7}", f"i{n}", n) for n in range(320)]
    job = catalogue.make("din", sdx.read(rows), case.options)
    index = job.parts.negatives.index
    assert (index.depth, index.sizes) == (1, [320])
    assert index.item_of.tolist() == list(range(320))


def _case(recipe: str, check: Any = check_tree, **options: Any) -> Case:
    small = {n: v for n, v in SMALL.items() if n in catalogue.choices(recipe)}
    if "leaves" in catalogue.choices(recipe):
        small["leaves"] = "random"
    return Case(recipe, small | options, check)


LABELLED = {"beam": 1, "estimator": SAVED}
CASES: list[Case] = [
    Case("dtr", {"beam": 2, "dim": 3, "seed": 5, "device": "cpu"}, check_tree),
    Case("dtr", SMALL | {"leaves": "random", "epochs": 9}, check_patience),
    _case("dtr", leaves="factors", lr=0.05),
    _case(
        "dtr", sampling="tree", norm="layer", negatives=3, dim=2, decay=0.1, per_row=True, seed=8
    ),
    _case("dtr", leaves="sequence", arity=3, max_history=3, lr_end=0.5, min_history=2, epochs=3),
    _case("dtr", leaves="category", category="genre", windows="last", room=0.5, batch_size=4),
    _case("dtr", rectify="path", warm_up=1, max_instances=20, **LABELLED),
    _case("dtr", rectify="child", normalise=True, sampling="tree", beam=1),
    _case(
        "dtr",
        rounds=2,
        gap=2,
        per_item=2,
        restart=True,
        beam=1,
        rectify="path",
        estimator=SAVED,
    ),
    _case("dtr", rounds=3, epochs=3, deal="greedy", move=False, leaves=SAVED, beam=1),
    _case(
        "tdm",
        norm="none",
        leaves="category",
        category="genre",
        windows="last",
        room=0.4,
        batch_size=4,
    ),
    _case("tdm", rounds=2, restart=True, lr=0.05, max_history=3, beam=1, decay=0.1, per_row=True),
    _case(
        "tdm", rounds=2, move=False, arity=3, lr_end=0.4, min_history=2, max_instances=22, beam=1
    ),
    _case(
        "jtm",
        norm="none",
        leaves="category",
        category="genre",
        windows="last",
        room=0.4,
        batch_size=4,
        gap=1,
        beam=1,
    ),
    _case(
        "jtm",
        per_item=2,
        restart=True,
        lr=0.05,
        max_history=3,
        beam=1,
        decay=0.1,
        per_row=True,
        gap=2,
    ),
    _case("jtm", arity=3, lr_end=0.4, min_history=2, max_instances=22, rounds=1),
    _case("jtm", move=False, deal="greedy", beam=1, rounds=3, epochs=3),
    _case(
        "plt",
        norm="layer",
        leaves="category",
        category="genre",
        windows="last",
        room=0.4,
        batch_size=4,
    ),
    _case(
        "plt",
        rounds=2,
        gap=2,
        per_item=2,
        restart=True,
        lr=0.05,
        max_history=3,
        beam=1,
        decay=0.1,
        per_row=True,
    ),
    _case(
        "plt",
        rounds=2,
        move=False,
        arity=3,
        lr_end=0.4,
        min_history=2,
        max_instances=22,
        deal="greedy",
        beam=1,
    ),
    _case(
        "otm",
        norm="layer",
        leaves="category",
        category="genre",
        windows="last",
        room=0.4,
        batch_size=4,
    ),
    _case(
        "otm",
        rounds=2,
        gap=2,
        per_item=2,
        restart=True,
        lr=0.05,
        max_history=3,
        beam=1,
        decay=0.1,
        per_row=True,
    ),
    _case(
        "otm",
        rounds=2,
        move=False,
        arity=3,
        lr_end=0.4,
        min_history=2,
        max_instances=22,
        deal="greedy",
        beam=1,
        warm_up=1,
    ),
    Case("din", {"device": "cpu", "dim": 2}, check_din_has_no_tree),
    _case("tree", objective="binary", sampling="uniform", rectify="own", negatives=4, beam=1),
    _case("din", norm="layer", windows="last", batch_size=4, lr=0.05, decay=0.1, per_row=True),
    _case(
        "din",
        objective="binary",
        lr_end=0.4,
        max_history=3,
        min_history=2,
        max_instances=22,
        negatives=12,
    ),
]
