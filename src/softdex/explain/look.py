"""What a beam search of a tree looks at for one user, with the names of nodes and items.

A node is its number in its level, as in `index.tree`. `explain` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.data.keys import as_list, find
from softdex.data.ragged import Ragged, offsets
from softdex.encode.history import Recent
from softdex.errors import SoftdexError, nearest
from softdex.index.contract import Filter
from softdex.index.tree.beam import Allowed
from softdex.index.tree.tree import Tree
from softdex.model.retriever import Retriever
from softdex.options import check, within

EXACT = 200_000  # items up to which there is an exact search, too
PATHS, LOST = 50, 10  # of the list, and of what the beam lost: items whose ways are drawn
KEPT, CUT = 24, 16  # other nodes of a level that are drawn
RECENT = 12  # items of the history that are shown
WIDTH, LEFT = 1200, 192  # of the picture, and of the words beside it
AREA = WIDTH - LEFT - 4
SLIM, DOT = 19.0, 11.0  # space of a box whose text stands, and of a dot
MANY = 11  # boxes beside each other whose text can lie
CONTROL = dict.fromkeys(range(32), " ")
TREES = "dtr, tdm, jtm, otm or plt"
TITLES, CATEGORIES = ("title", "name"), ("genre", "categ", "topic")


class Beam(NamedTuple):
    """A level as the search saw it: candidates, the best first, of which it kept the head."""

    level: int
    size: int
    scored: int  # candidates, and nodes under which nothing may come back
    nodes: np.ndarray
    scores: np.ndarray
    kept: int


class Node(NamedTuple):
    """A node that is drawn.

    Its kind is path (to the list), trail (to an item that was lost), kept, cut, or lost: the end of
    a trail.
    """

    number: int
    parent: int
    kind: str
    rank: int
    shade: float  # 0 for the worst score of the level, 1 for the best
    leads: Sequence[int]  # ranks in the list of the items under it
    name: str
    detail: str
    note: str


class Row(NamedTuple):
    """A level that is drawn: some of its nodes, in the order of the tree."""

    beam: Beam
    nodes: list[Node]


class End(NamedTuple):
    """Where the beam lost an item: the rank of its node there, and how many went on."""

    level: int
    rank: int
    kept: int


class Item(NamedTuple):
    """An item of the list (rank) or one that it lacks (end), and its rank in the exact search."""

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
    """What a search looked at and found.

    `named` is the column that names nodes, `lost` what an exact search finds beside (None: there
    was none), and `table` the list as `recommend` gives it, with titles and ranks of the exact
    search.
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
    columns: str | Sequence[str] | None = None,
) -> Look:
    """Search, and keep what `draw` draws; the arguments are those of `explain`."""
    tree, encoder = tree_of(model), model.encoder
    assert isinstance(encoder, Recent)
    check("explain", {"k": int}, {"k": k})
    within("explain", {"k": k}, positive=("k",))
    past = _past(model, user, history)
    names, filter = Names(model, past.ids, columns), Filter(past)
    with torch.inference_mode():
        query = encoder(np.array([-1]), past)
    k = min(k, tree.num_items)
    found = _search(tree, query, k, filter)
    if not found:
        raise SoftdexError("explain: every item was had already; there is nothing to search for.")
    beams = _beams(tree, query, k, filter, len(found))
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
    """The tree that a model is served from."""
    if not isinstance(model.index, Tree):
        raise SoftdexError(f"explain: {model.recipe} has no tree to draw. Fit {TREES}.")
    return model.index


def _past(model: Retriever, user: Any, history: Sequence[Any] | None) -> Ragged:
    """What the user has had, as one row."""
    if (user is None) == (history is None):
        raise SoftdexError("explain: expected a user or a history, and not both.")
    if history is not None:
        ids = find(model.items, as_list(history), "explain", "items in history")
        if not len(ids):
            raise SoftdexError("explain: the history is empty. Name at least one item.")
        return Ragged(offsets(np.array([len(ids)])), ids)
    rows = find(model.users, as_list(user), "explain", "users")
    if len(rows) != 1:
        raise SoftdexError(f"explain: expected one user, got {len(rows)}.")
    past = model.seen.take(rows)
    if not len(past.ids):
        raise SoftdexError(f"explain: user {user!r} has no event in training. Give a history.")
    return past


def _facts(model: Retriever, tree: Tree, beams: Sequence[Beam], most: int) -> dict[str, str]:
    scored, total = sum(beam.scored for beam in beams), sum(tree.living)
    width = "everything" if math.isinf(tree.effort) else f"the best {tree.effort:,.0f} of a level"
    facts = {
        "recipe": model.recipe,
        "trained on": f"{counted(len(model.users), 'user')}, {counted(len(model.items), 'item')}",
        "tree": f"{counted(tree.depth, 'level')}, {tree.arity} children a node",
        "reads": f"the last {counted(most, 'item')}",
        "beam": width,
        "nodes scored": f"{scored:,} of {total:,} ({_percent(scored / total)})",
    }
    return facts | ({"score": "log-probability of the path"} if tree.product else {})


def _search(
    tree: Tree, query: Any, k: int, filter: Filter, effort: float | None = None
) -> dict[int, float]:
    """Items and their scores, the best first."""
    ids, scores = tree.search(query, k, filter=filter, effort=effort)
    return {i: s for i, s in zip(ids[0].tolist(), scores[0].tolist(), strict=True) if i >= 0}


def _beams(tree: Tree, query: Any, k: int, filter: Filter, found: int) -> list[Beam]:
    """Every level; the last one keeps what comes back."""
    levels = tree.beam(query, k, Allowed(tree, filter))
    beams, scored = [], tree.living[0]
    for level, (nodes, scores) in enumerate(levels, 1):
        real = scores[0] > -torch.inf
        head, values = nodes[0][real], scores[0][real].cpu().numpy()
        inner, size = level < tree.depth, tree.living[level - 1]
        kept = min(levels[level].nodes.shape[1] // tree.arity, len(head)) if inner else found
        beams.append(Beam(level, size, scored, head.cpu().numpy(), values, kept))
        if inner:
            below = tree.starts[level] + tree.children(head[None, :kept])
            scored = int(tree.full[below].sum())
    return beams


def _end(tree: Tree, beams: Sequence[Beam], item: int) -> End:
    for beam in beams:
        here = beam.nodes == above(tree, item, beam.level)
        rank = int(np.flatnonzero(here)[0]) + 1
        if rank > beam.kept:
            break
    return End(beam.level, rank, beam.kept)


def _rows(
    tree: Tree, beams: Sequence[Beam], found: Sequence[int], ends: Mapping[int, End], names: Names
) -> list[Row]:
    """From the top down: a node is drawn only where its parent is."""
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


def items_under(tree: Tree, level: int, number: int) -> np.ndarray:
    """The items under a node, as they lie."""
    width = tree.width(level)
    ids = tree.item_of[number * width : (number + 1) * width].long()
    return ids[(ids >= 0) & tree.alive[ids]].cpu().numpy()


def above(tree: Tree, item: int, level: int) -> int:
    """The node of a level that an item lies under."""
    return int(tree.slot_of[item]) // tree.width(level)


def _add_others(kinds: dict[int, str], near: Sequence[int], kept: set[int]) -> None:
    """The best other nodes, as many as there is room for."""
    boxes = sum(kind == "path" for kind in kinds.values())
    room = AREA - boxes * box_width(boxes) - (len(kinds) - boxes) * DOT
    left = {"kept": min(KEPT, room * 0.6 // DOT), "cut": min(CUT, room * 0.4 // DOT)}
    for number in near:
        kind = "kept" if number in kept else "cut"
        if number not in kinds and left[kind] >= 1:
            kinds[number], left[kind] = kind, left[kind] - 1


def box_width(boxes: int) -> float:
    """Width of each of so many boxes beside each other, and of the gap to the next."""
    return SLIM if boxes > MANY else min(150.0, 0.8 * AREA / max(1, boxes))


def _described(
    tree: Tree, beam: Beam, number: int, kind: str, leads: Sequence[int], names: Names
) -> Node:
    place = int(np.flatnonzero(beam.nodes == number)[0])
    score, low, high = (float(beam.scores[i]) for i in (place, -1, 0))
    shade = (score - low) / (high - low) if high > low else 1.0
    name, detail, below = names.node(tree, beam.level, number)
    outcome = _outcome(kind, leads, beam.level == tree.depth)
    rank = f"rank {place + 1:,} of {len(beam.nodes):,}"
    note = f"{name}\nscore {score:.4g}, {rank}: {outcome}\n{below}"
    return Node(number, number // tree.arity, kind, place + 1, shade, leads, name, detail, note)


def _outcome(kind: str, leads: Sequence[int], last: bool) -> str:
    if kind == "path":
        return (
            f"number {leads[0]} of the list" if last else f"leads to {numbered(leads)} of the list"
        )
    if kind in ("trail", "lost"):
        lost = "under it is an item that an exact search has in the list"
        return f"{'cut' if kind == 'lost' else 'kept'}; {lost}"
    return "in the list" if last and kind == "kept" else kind


# names -------------------------------------------------------------------------------------------


@final
class Names:
    """What items and nodes are called: by columns of the item table, else by keys."""

    def __init__(
        self, model: Retriever, had: np.ndarray, columns: str | Sequence[str] | None
    ) -> None:
        self.keys, self.counts = model.items, model.item_counts
        self.had = np.bincount(had, minlength=len(self.keys)) > 0
        self.table = pa.table({}) if model.item_table is None else model.item_table
        known = self.table.column_names
        given = [] if columns is None else list(dict.fromkeys(as_list(columns)))
        for name in given:
            if name not in known:
                raise SoftdexError(f"explain: no item column {name!r}. {nearest(name, known)}")
        self.title = self._first("title", given, TITLES)
        self.category = self._first("category", given, CATEGORIES)
        also = [self.category] if self.category else []
        self.shown = [name for name in dict.fromkeys([*also, *given]) if name != self.title]
        if self.category:
            self.labels, self.codes = _coded(self.table[self.category])
            self.overall = np.bincount(self.codes.ids, minlength=len(self.labels)) / len(self.keys)

    def _first(self, role: str, given: Sequence[str], hints: Sequence[str]) -> str | None:
        """The first column for a role: of those given, else of text, likely names first."""
        text = [n for n in self.table.column_names if _is_text(_inside(self.table[n].type))]
        likely = sorted(text, key=lambda name: not _hinted(name, hints))
        return next((n for n in [*given, *likely] if self._role(n) == role), None)

    def _role(self, name: str) -> str:
        column, inside = self.table[name], _inside(self.table[name].type)
        words = _is_text(inside)
        if not words and not pa.types.is_integer(inside) and not pa.types.is_boolean(inside):
            return "other"
        if inside != column.type or _hinted(name, CATEGORIES):
            return "category"
        if words and _hinted(name, TITLES):
            return "title"
        if 2 * pc.count_distinct(column).as_py() <= len(column) - column.null_count:
            return "category"
        return "title" if words else "other"

    def item(self, item: int) -> tuple[str, str, dict[str, str]]:
        """Key, title and what else is shown of an item."""
        key = str(self.keys.take(np.array([item]))[0].as_py())
        title = _text(self.table[self.title][item].as_py()) if self.title else ""
        return key, title or key, {n: _text(self.table[n][item].as_py()) for n in self.shown}

    def node(self, tree: Tree, level: int, number: int) -> tuple[str, str, str]:
        """Name of a node, how much of it that is, and what more there is to know."""
        items = items_under(tree, level, number)
        best = items[np.argsort(-self.counts[items], kind="stable")[:3]].tolist()
        if level == tree.depth:
            _, title, fields = self.item(best[0])
            events = counted(int(self.counts[best[0]]), "event")
            return title, "", "\n".join([*(f"{n}: {v}" for n, v in fields.items()), events])
        titles = [self.item(i)[1] for i in best]
        had = int(self.had[items].sum())
        note = f"{counted(len(items), 'item')} below" + (f", {had:,} of them had" if had else "")
        note = f"{note}\nmost popular: {' · '.join(titles)}"
        shares = self._shares(items)
        if not shares:
            return titles[0], counted(len(items), "item"), note
        words = (
            f"{label} {_percent(here)} ({_percent(all_)} of all)" for label, here, all_ in shares
        )
        detail = f"{_percent(shares[0][1])} of {len(items):,}"
        return shares[0][0], detail, f"{note}\n{', '.join(words)}"

    def _shares(self, ids: np.ndarray) -> list[tuple[str, float, float]]:
        """The three categories that most set these items apart: share of these, and of all.

        The most common one of all would name every node; by share * log(share / share of all) a
        category must be common here and rarer elsewhere.
        """
        if self.category is None:
            return []
        share = np.bincount(self.codes.take(ids).ids, minlength=len(self.labels)) / len(ids)
        there = np.flatnonzero(share)
        apart = share[there] * np.log(share[there] / self.overall[there])
        best = there[np.argsort(-apart, kind="stable")[:3]]
        return [(self.labels[i], float(share[i]), float(self.overall[i])) for i in best]


def _coded(column: pa.ChunkedArray) -> tuple[list[str], Ragged]:
    """The categories in a column, and which of them each item has."""
    flat, lengths = column, np.ones(len(column), np.int64)
    if _inside(column.type) != column.type:
        flat = pc.list_flatten(column)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    coded = flat.combine_chunks().dictionary_encode()
    labels = [_text(value) for value in coded.dictionary.to_pylist()]
    codes = pc.fill_null(coded.indices, -1).to_numpy().astype(np.int64)
    each = Ragged(offsets(lengths), codes).where(codes >= 0)
    if flat is column or not len(each.ids):
        return labels, each
    rows, ids = np.divmod(np.unique(each.cells(len(labels))), len(labels))  # each once
    return labels, Ragged(offsets(np.bincount(rows, minlength=len(column))), ids)


def _inside(kind: pa.DataType) -> pa.DataType:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return kind.value_type if lists else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _hinted(name: str, hints: Sequence[str]) -> bool:
    return any(hint in name.lower() for hint in hints)


def _text(value: Any) -> str:
    """A cell on one line."""
    if isinstance(value, list):
        return ", ".join(_text(inside) for inside in value)
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.translate(CONTROL).split())


def counted(n: int, what: str) -> str:
    """A number of things in words."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else "< 1 %"


def numbered(ranks: Sequence[int], most: int = PATHS) -> str:
    """Ranks as they are shown, the first of them."""
    return " ".join(f"#{rank}" for rank in ranks[:most]) + (" …" if len(ranks) > most else "")
