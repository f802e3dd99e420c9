"""Names of items and tree nodes, from columns of the item table or from keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.keys import as_list
from softdex.data.ragged import Ragged, offsets
from softdex.errors import SoftdexError, did_you_mean
from softdex.index.tree.tree import Tree
from softdex.model.retriever import Retriever

TITLES, CATEGORIES = ("title", "name"), ("genre", "categ", "topic")
CONTROL = dict.fromkeys(range(32), " ")


@final
class Names:
    """Titles of items and categories of nodes, from columns of the item table, else keys.

    Attributes:
        title, category: the columns that name items and nodes, or None.
        shown: further columns to show of an item.
    """

    def __init__(
        self, model: Retriever, history: np.ndarray, columns: str | Sequence[str] | None
    ) -> None:
        self.keys, self.counts = model.items, model.item_counts
        self.in_history = np.bincount(history, minlength=len(self.keys)) > 0
        self.table = pa.table({}) if model.item_table is None else model.item_table
        known = self.table.column_names
        given = [] if columns is None else list(dict.fromkeys(as_list(columns)))
        for name in given:
            if name not in known:
                raise SoftdexError(f"explain: no item column {name!r}. {did_you_mean(name, known)}")
        self.title = self._first("title", given, TITLES)
        self.category = self._first("category", given, CATEGORIES)
        also = [self.category] if self.category else []
        self.shown = [name for name in dict.fromkeys([*also, *given]) if name != self.title]
        if self.category:
            self.labels, self.codes = _coded(self.table[self.category])
            self.overall = np.bincount(self.codes.ids, minlength=len(self.labels)) / len(self.keys)

    def _first(self, role: str, given: Sequence[str], hints: Sequence[str]) -> str | None:
        """Return the first column that fits a role: of those given, else of text ones."""
        text = [n for n in self.table.column_names if _is_text(_inside(self.table[n].type))]
        likely = sorted(text, key=lambda name: not _hinted(name, hints))
        return next((n for n in [*given, *likely] if self._role(n) == role), None)

    def _role(self, name: str) -> str:
        """Tell whether a column holds a title, a category or neither."""
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
        """Return the key, the title and the further columns of an item."""
        key = str(self.keys.take(np.array([item]))[0].as_py())
        title = _text(self.table[self.title][item].as_py()) if self.title else ""
        return key, title or key, {n: _text(self.table[n][item].as_py()) for n in self.shown}

    def node(self, tree: Tree, level: int, number: int) -> tuple[str, str, str]:
        """Return the name of a node, its share of the items below, and a tooltip."""
        items = items_under(tree, level, number)
        best = items[np.argsort(-self.counts[items], kind="stable")[:3]].tolist()
        if level == tree.depth:
            _, title, fields = self.item(best[0])
            events = counted(int(self.counts[best[0]]), "event")
            return title, "", "\n".join([*(f"{n}: {v}" for n, v in fields.items()), events])
        titles = [self.item(i)[1] for i in best]
        past = int(self.in_history[items].sum())
        note = f"{counted(len(items), 'item')} below" + (f", {past:,} in the history" * bool(past))
        note = f"{note}\nmost popular: {' · '.join(titles)}"
        shares = self._shares(items)
        if not shares:
            return titles[0], counted(len(items), "item"), note
        words = (
            f"{label} {percent(here)} ({percent(all_)} of all)" for label, here, all_ in shares
        )
        detail = f"{percent(shares[0][1])} of {len(items):,}"
        return shares[0][0], detail, f"{note}\n{', '.join(words)}"

    def _shares(self, ids: np.ndarray) -> list[tuple[str, float, float]]:
        """Return the three most distinctive categories with their shares of these and of all items.

        They maximise share * log(share / share of all), so a category must be common here and
        rarer elsewhere; the most common one of all would name every node.
        """
        if self.category is None:
            return []
        share = np.bincount(self.codes.take(ids).ids, minlength=len(self.labels)) / len(ids)
        there = np.flatnonzero(share)
        apart = share[there] * np.log(share[there] / self.overall[there])
        best = there[np.argsort(-apart, kind="stable")[:3]]
        return [(self.labels[i], float(share[i]), float(self.overall[i])) for i in best]


def _coded(column: pa.ChunkedArray) -> tuple[list[str], Ragged]:
    """Return the categories of a column and their codes per item."""
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
    """Format a cell on one line."""
    if isinstance(value, list):
        return ", ".join(_text(inside) for inside in value)
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.translate(CONTROL).split())


def counted(n: int, what: str) -> str:
    """Format a count with its noun."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def percent(share: float) -> str:
    """Format a share in per cent."""
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else "< 1 %"


def numbered(ranks: Sequence[int], most: int) -> str:
    """Format the first ranks of a list."""
    return " ".join(f"#{rank}" for rank in ranks[:most]) + (" …" if len(ranks) > most else "")


def items_under(tree: Tree, level: int, number: int) -> np.ndarray:
    """Return the items below a node, in tree order."""
    width = tree.width(level)
    ids = tree.item_of[number * width : (number + 1) * width].long()
    return ids[(ids >= 0) & tree.alive[ids]].cpu().numpy()


def above(tree: Tree, item: int, level: int) -> int:
    """Return the ancestor of an item on a level."""
    return int(tree.slot_of[item]) // tree.width(level)
