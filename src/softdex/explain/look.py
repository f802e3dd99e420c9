"""Look: what the beam search of a tree scores, keeps and cuts for one user.

A node is its number within its level, as in `index.tree`. `explain.draw` draws the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, NamedTuple, cast, final

import numpy as np
import pyarrow as pa
import torch

from softdex.data.keys import as_list, find
from softdex.data.ragged import Ragged, offsets
from softdex.encode.history import Recent
from softdex.errors import SoftdexError
from softdex.explain.names import Names, counted, numbered, percent
from softdex.explain.page import AREA, DOT, box_width
from softdex.index.contract import Filter
from softdex.index.tree.trace import Beam, above
from softdex.index.tree.trace import beams as traced
from softdex.index.tree.tree import Tree, as_tree
from softdex.model.retriever import Retriever
from softdex.model.rules import Rules
from softdex.model.wanted import wanted
from softdex.options import check, positive

EXACT = 200_000  # up to this many items, an exact search is made for comparison
PATHS, LOST = 50, 10  # items of the list, and items the beam lost, whose paths are drawn
KEPT, CUT = 24, 16  # other nodes drawn per level
RECENT = 12  # items of the history shown
TREES = "dtr, tdm, jtm, otm or plt"


class Node(NamedTuple):
    """A node to draw.

    Its kind is `path` (an item of the list is below), `trail` (a lost item is below), `lost` (the
    trail was cut here), `kept` or `cut`.
    """

    number: int
    parent: int
    kind: str
    rank: int
    shade: float  # 0 for the worst score of the level, 1 for the best
    leads: Sequence[int]  # ranks of the list's items below it
    name: str
    detail: str
    note: str


class Row(NamedTuple):
    """A level to draw: some of its nodes, in tree order."""

    beam: Beam
    nodes: list[Node]


class End(NamedTuple):
    """Where the beam lost an item: its node's rank on that level, and how many were kept."""

    level: int
    rank: int
    kept: int


class Item(NamedTuple):
    """An item of the list (`rank`) or one the beam lost (`end`), with its exact rank."""

    key: str
    title: str
    fields: dict[str, str]
    score: float
    exact: int | None
    rank: int | None = None
    end: End | None = None


@final
@dataclass(frozen=True)
class Look:
    """What a search scored and found.

    Attributes:
        who, facts: the user, and the search in words.
        history, older: titles of the latest items, and the number of earlier ones.
        named: the item column that names nodes, or None.
        rows: levels from the top down.
        items: the list.
        lost: items of the exact list that the beam lost; None without an exact search.
        table: the list as `recommend` returns it, with titles and exact ranks.
    """

    who: str
    facts: dict[str, str]
    history: list[str]
    older: int
    named: str | None
    rows: list[Row]
    items: list[Item]
    lost: list[Item] | None
    table: pa.Table


def look(
    model: Retriever,
    user: Any = None,
    *,
    history: Sequence[Any] | None = None,
    k: int = 10,
    allow: Any = None,
    deny: Any = None,
    where: Any = None,
    columns: str | Sequence[str] | None = None,
) -> Look:
    """Search as `recommend` does and return what `draw` draws; arguments as in `explain`."""
    tree, encoder = tree_of(model), cast(Recent, model.encoder)
    check("explain", {"k": Annotated[int, positive]}, {"k": k})
    past = _past(model, user, history)
    rules = wanted(model, "explain", k, None, Rules(allow, deny, where), None)
    names, filter = Names(model, past.ids, columns), Filter(past, rules.mask)
    with torch.inference_mode():
        query = encoder(np.array([-1]), past)
    k = min(k, tree.num_items)
    found = _search(tree, query, k, filter)
    if not found:
        raise SoftdexError(
            "explain: no item is left to recommend: the history and the rules exclude all of them."
        )
    beams = traced(tree, query, k, filter, len(found))
    few = tree.num_items <= EXACT
    exact = _search(tree, query, tree.num_items, filter, math.inf) if few else {}
    place = {item: rank for rank, item in enumerate(exact, 1)}
    ends = {i: _end(tree, beams, i) for i in islice(exact, len(found)) if i not in found}
    items = [
        Item(*names.item(i), score, place.get(i), rank=rank)
        for rank, (i, score) in enumerate(found.items(), 1)
    ]
    lost = [Item(*names.item(i), exact[i], place[i], end=end) for i, end in ends.items()]
    table = {
        "rank": [item.rank for item in items],
        "item": model.items.take(np.array(list(found))),
        "title": [item.title for item in items],
        "score": [item.score for item in items],
        "exact": [item.exact for item in items],
    }
    absent = ["title"] * (names.title is None) + ["exact"] * (not few)
    return Look(
        "a history" if user is None else f"user {user}",
        _facts(model, tree, beams, encoder.most),
        [names.item(i)[1] for i in past.ids[-RECENT:].tolist()],
        max(0, len(past.ids) - RECENT),
        names.category,
        _rows(tree, beams, list(found)[:PATHS], dict(islice(ends.items(), LOST)), names),
        items,
        lost if few else None,
        pa.table(table).drop_columns(absent),
    )


def tree_of(model: Retriever) -> Tree:
    """Return the tree that a model searches."""
    tree = as_tree(model.index)
    if tree is None:
        raise SoftdexError(
            f"explain: {model.recipe} has no tree to draw. Fit {TREES}; or give a user and an item."
        )
    return tree


def _past(model: Retriever, user: Any, history: Sequence[Any] | None) -> Ragged:
    """Return the history of a user, or the one given, as one row."""
    if (user is None) == (history is None):
        raise SoftdexError("explain: expected either user or history. Pass one of them.")
    if history is not None:
        ids = find(model.items, as_list(history), "explain", "items in history")
        if not len(ids):
            raise SoftdexError("explain: expected at least one item in history, got none.")
        return Ragged(offsets(np.array([len(ids)])), ids)
    rows = find(model.users, as_list(user), "explain", "users")
    if len(rows) != 1:
        raise SoftdexError(f"explain: expected one user, got {len(rows)}.")
    past = model.seen.take(rows)
    if not len(past.ids):
        raise SoftdexError(
            f"explain: user {user!r} has no event in training. Pass history= instead."
        )
    return past


def _facts(model: Retriever, tree: Tree, beams: Sequence[Beam], most: int) -> dict[str, str]:
    scored, total = sum(beam.scored for beam in beams), sum(tree.living)
    width = "all nodes" if math.isinf(tree.effort) else f"the best {tree.effort:,.0f} per level"
    facts = {
        "recipe": model.recipe,
        "trained on": f"{counted(len(model.users), 'user')}, {counted(len(model.items), 'item')}",
        "tree": f"{counted(tree.depth, 'level')}, {tree.arity} children per node",
        "reads": f"the last {counted(most, 'item')}",
        "beam": width,
        "nodes scored": f"{scored:,} of {total:,} ({percent(scored / total)})",
    }
    return facts | ({"score": "log-probability of the path"} if tree.product else {})


def _search(
    tree: Tree, query: Any, k: int, filter: Filter, effort: float | None = None
) -> dict[int, float]:
    """Return the score per item, best first."""
    ids, scores = tree.search(query, k, filter=filter, effort=effort)
    return {i: s for i, s in zip(ids[0].tolist(), scores[0].tolist(), strict=True) if i >= 0}


def _end(tree: Tree, beams: Sequence[Beam], item: int) -> End:
    """Find the level on which the beam cut an item's ancestor."""
    for beam in beams:
        here = beam.nodes == above(tree, item, beam.level)
        rank = int(np.flatnonzero(here)[0]) + 1
        if rank > beam.kept:
            break
    return End(beam.level, rank, beam.kept)


def _rows(
    tree: Tree, beams: Sequence[Beam], found: Sequence[int], ends: Mapping[int, End], names: Names
) -> list[Row]:
    """Choose the nodes to draw per level, from the top down: only children of nodes drawn."""
    rows: list[Row] = []
    for beam in beams:
        leads: dict[int, list[int]] = {}
        for rank, item in enumerate(found, 1):
            leads.setdefault(above(tree, item, beam.level), []).append(rank)
        kinds = dict.fromkeys(leads, "path")
        for item, end in ends.items():
            if beam.level <= end.level:
                kind = "lost" if beam.level == end.level else "trail"
                kinds.setdefault(above(tree, item, beam.level), kind)
        parents = {node.number for node in rows[-1].nodes} if rows else None
        near = [n for n in beam.nodes.tolist() if parents is None or n // tree.arity in parents]
        _add_others(kinds, near, set(beam.nodes[: beam.kept].tolist()))
        nodes = [
            _described(tree, beam, number, kind, leads.get(number, []), names)
            for number, kind in sorted(kinds.items())
        ]
        rows.append(Row(beam, nodes))
    return rows


def _add_others(kinds: dict[int, str], near: Sequence[int], kept: set[int]) -> None:
    """Add the best other nodes, as many as fit beside the boxes."""
    boxes = sum(kind == "path" for kind in kinds.values())
    room = AREA - boxes * box_width(boxes) - (len(kinds) - boxes) * DOT
    left = {"kept": min(KEPT, room * 0.6 // DOT), "cut": min(CUT, room * 0.4 // DOT)}
    for number in near:
        kind = "kept" if number in kept else "cut"
        if number not in kinds and left[kind] >= 1:
            kinds[number], left[kind] = kind, left[kind] - 1


def _described(
    tree: Tree, beam: Beam, number: int, kind: str, leads: Sequence[int], names: Names
) -> Node:
    """Return a node with its rank, shade, names and tooltip."""
    place = int(np.flatnonzero(beam.nodes == number)[0])
    score, low, high = (float(beam.scores[i]) for i in (place, -1, 0))
    shade = (score - low) / (high - low) if high > low else 1.0
    name, detail, below = names.node(tree, beam.level, number)
    outcome = _outcome(kind, leads, beam.level == tree.depth)
    rank = f"rank {place + 1:,} of {len(beam.nodes):,}"
    note = f"{name}\nscore {score:.4g}, {rank}: {outcome}\n{below}"
    return Node(number, number // tree.arity, kind, place + 1, shade, leads, name, detail, note)


def _outcome(kind: str, leads: Sequence[int], last: bool) -> str:
    """Say what became of a node."""
    if kind == "path":
        return f"{'' if last else 'leads to '}{numbered(leads, PATHS)} in the list"
    if kind in ("trail", "lost"):
        lost = "the list of an exact search has an item below it"
        return f"{'cut' if kind == 'lost' else 'kept'}; {lost}"
    return "in the list" if last and kind == "kept" else kind
