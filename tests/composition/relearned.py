"""Relearning by loops: which histories an item is asked by, its weights, and what moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from composition.loops import Ran, close
from composition.nodes import Shape, Tree
from softdex.index.tree import learn as learn_file
from softdex.solve.tree import relearn as relearn_file

LEAST = -1e4


class Dealt(NamedTuple):
    """What one assignment was given, and the columns it chose."""

    weight: Tensor
    group: Tensor
    room: Tensor
    stays: Tensor
    rule: str
    chosen: Tensor


@contextmanager
def dealt() -> Iterator[tuple[list[Dealt], list[Any]]]:
    """Record all assignments, and the vectors of all balanced clusterings."""
    found: list[Dealt] = []
    clustered: list[Any] = []
    deal, by_vectors = learn_file.deal, relearn_file.tree_build.by_vectors

    def recorded(weight: Any, group: Any, room: Any, stays: Any, *, rule: str = "auction") -> Any:
        given = weight.double().clone(), group.clone(), room.clone(), stays.clone(), rule
        found.append(Dealt(*given, deal(weight, group, room, stays, rule=rule)))
        return found[-1].chosen.clone()

    def order(vectors: Any, shape: Any, **kept: Any) -> Any:
        clustered.append((vectors.copy(), tuple(shape), by_vectors(vectors, shape, **kept)))
        return clustered[-1][2]

    clusters = patch.object(relearn_file.tree_build, "by_vectors", order)
    with patch.object(learn_file, "deal", recorded), clusters:
        yield found, clustered


def check_round(
    ran: Ran,
    shape: Shape,
    rows: list[Any],
    number: int,
    taken: tuple[list[Dealt], list[Any]],
) -> None:
    """Between two steps the tree was learned from the tables, and nothing else moved."""
    o, before, after = ran.options, ran.steps[number - 1].after, ran.steps[number].before
    old, new = Tree(shape, before, o), Tree(shape, after, o)
    generator = torch.Generator()
    generator.set_state(before["generator"])
    mixed = torch.randperm(len(rows), generator=generator).tolist()
    assert torch.equal(generator.get_state(), after["generator"])
    some = len(rows) // 10
    held, left = mixed[:some], mixed[some:]
    asked: dict[int, list[Any]] = {}
    for at in left:
        mine = asked.setdefault(rows[at].target, [])
        if len(mine) < o["per_item"]:
            mine.append(rows[at])
    if o["relearn"] == "cluster":
        slot_of, gain = _clustered(old, taken[1]), None
    else:
        slot_of, gain = _learned(old, asked, taken[0], o)
    assert new.slot_of == slot_of
    assert sorted(new.item_of) == sorted(old.item_of)
    _check_tables(before, after, old, new, o["move"])
    training = ran.model.card.training
    assert training is not None
    record = training["history"][number // (len(ran.steps) // o["epochs"])]
    moved = sum(old.slot_of[i] != new.slot_of[i] for i in old.slot_of) / len(old.slot_of)
    assert abs(record["moved"] - moved) < 1e-4
    if gain is not None:
        assert abs(record["gain"] - gain / sum(map(len, asked.values()))) < 1e-3
    for tree, name in ((old, "held_before"), (new, "held_after")):
        assert len(record.get(name, ())) == (tree.shape.depth if held else 0)
        for level, value in enumerate(record.get(name, ()), 1):
            assert abs(value - _likely(tree, [rows[at] for at in held], level)) < 1e-3


def _learned(
    tree: Tree, asked: dict[int, list[Any]], taken: list[Dealt], o: dict[str, Any]
) -> tuple[dict[int, int], float]:
    """Deal items out stage by stage, by their weights for the descendants of where they are."""
    shape, items = tree.shape, sorted(tree.slot_of)
    ends = sorted({1, *range(shape.depth, 1, -min(o["gap"], int(7 / math.log2(shape.arity))))})
    at, above, gain = dict.fromkeys(items, 0), 0, 0.0
    for stage, upto in enumerate(ends):
        wide = shape.sizes[0] if above == 0 else shape.arity ** (upto - above)
        found = taken.pop(0)
        assert found.rule == o["deal"]
        for item in items:
            weight = [0.0] * wide
            for row in asked.get(item, ()):
                nodes = [at[item] * wide + c for c in range(wide)]
                each = _weights(tree, row.history, nodes, above, upto, o["relearn"])
                weight = [a + b for a, b in zip(weight, each, strict=True)]
            close(found.weight[item], torch.tensor(weight).double(), f"weights of {item}", scale=1)
            assert int(found.group[item]) == at[item]
            was = tree.above(item, upto)
            assert int(found.stays[item]) == (was % wide if was // wide == at[item] else -1)
            if stage == 0:
                gain += weight[int(found.chosen[item])] - weight[was]
        for group in range(len(found.room)):
            room = [len(tree.holds(group * wide + c, upto)) for c in range(wide)]
            assert found.room[group].tolist() == room
            chosen = [int(found.chosen[i]) for i in items if at[i] == group]
            assert all(chosen.count(c) == room[c] for c in range(wide))
        if o["deal"] == "greedy":
            wanted = _greedy(found)
            assert found.chosen.tolist() == wanted
        at = {item: at[item] * wide + int(found.chosen[item]) for item in items}
        above = upto
    return at, gain


def _weights(
    tree: Tree, history: list[int], nodes: list[int], above: int, upto: int, by: str
) -> list[float]:
    """Log-softmax of candidates, or log-sigmoids of the nodes on the path to each."""
    if by == "softmax":
        scores = torch.tensor([tree.value(history, upto, n) for n in nodes]).double()
        return [max(LEAST, x) for x in scores.log_softmax(0).tolist()]
    total = []
    for node in nodes:
        path = [(node // tree.shape.arity ** (upto - j), j) for j in range(above + 1, upto + 1)]
        logs = [
            -math.log1p(math.exp(-tree.value(history, j, n))) if tree.holds(n, j) else LEAST
            for n, j in path
        ]
        total.append(sum(max(LEAST, x) for x in logs))
    return total


def _greedy(found: Dealt) -> list[int]:
    """The fullest column keeps the items that were there, then the heaviest, and is closed."""
    weight = found.weight.masked_fill(found.room[found.group] == 0, -math.inf)
    chosen = weight.argmax(1).tolist()
    for group in range(len(found.room)):
        closed: set[int] = set()
        mine = [i for i in range(len(chosen)) if int(found.group[i]) == group]
        room = found.room[group].tolist()
        while True:
            load = [sum(chosen[i] == c for i in mine) for c in range(len(room))]
            over = [c for c in range(len(room)) if load[c] > room[c] and c not in closed]
            if not over:
                break
            full = max(over, key=lambda c: load[c])
            closed.add(full)
            here = [i for i in mine if chosen[i] == full]
            here.sort(key=lambda i: (int(found.stays[i]) != full, -float(weight[i].max())))
            for i in here[room[full] :]:
                left = [
                    (-math.inf if c in closed else float(weight[i, c])) for c in range(len(room))
                ]
                chosen[i] = left.index(max(left))
    return chosen


def _clustered(tree: Tree, clustered: list[Any]) -> dict[int, int]:
    """Items in the order of a clustering of their leaf vectors."""
    vectors, shape, order = clustered.pop(0)
    made, first = tree.shape, tree.shape.starts[-1]
    assert shape == (made.roots, made.arity, made.depth)
    for item, slot in tree.slot_of.items():
        close(vectors[item], tree.rows.weight[first + slot].detach(), "a leaf vector")
    return {int(item): r * made.sizes[-1] // len(order) for r, item in enumerate(order)}


def _check_tables(
    before: dict[str, Tensor], after: dict[str, Tensor], old: Tree, new: Tree, move: bool
) -> None:
    """Leaf vectors and their moments follow their items; nothing else changes."""
    first = old.shape.starts[-1]
    tables = {
        "model.scorer.nodes.weight",
        *(f"optimizer.0.{n}" for n in ("age", "first", "second")),
    }
    for name, tensor in before.items():
        wanted = tensor.clone()
        if name in tables and move:
            for item, slot in old.slot_of.items():
                wanted[first + new.slot_of[item]] = tensor[first + slot]
        if name not in ("generator", "total", "index.item_of"):
            assert torch.equal(after[name], wanted), f"{name} between rounds"


def _likely(tree: Tree, rows: list[Any], level: int) -> float:
    """The mean log-probability that a walk passes the target's ancestor on a level."""
    total = 0.0
    for row in rows:
        for j in range(1, level + 1):
            own = tree.above(row.target, j)
            arity = tree.shape.arity
            nodes = list(range(tree.shape.roots)) if j == 1 else tree.children(own // arity)
            scores = torch.tensor([tree.value(row.history, j, n) for n in nodes]).double()
            total += float(scores.log_softmax(0)[nodes.index(own)])
    return total / len(rows)
