"""Labels: what items are called, by columns of the item table, else by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.keys import Keys, as_list
from softdex.data.ragged import Ragged, offsets
from softdex.drawing import one_line
from softdex.errors import SoftdexError, did_you_mean

TITLES, CATEGORIES = ("title", "name"), ("genre", "categ", "topic")


@final
class Labels:
    """Titles, categories and further columns of items.

    Attributes:
        title, category: the columns that name an item and its group, or None.
        shown: further columns to show of an item; the category is among them.
    """

    def __init__(
        self,
        keys: Keys,
        table: pa.Table | None,
        columns: str | Sequence[str] | None = None,
        where: str = "explain",
    ) -> None:
        """Choose columns.

        Args:
            keys, table: of the items.
            columns: names of columns. One with distinct values names items, one with repeated
                values groups them, others are shown. Roles not given are looked for.
            where: who asks; an error starts with it.
        """
        self.keys, self.table = keys, pa.table({}) if table is None else table
        known = self.table.column_names
        given = [] if columns is None else list(dict.fromkeys(as_list(columns)))
        for name in given:
            if name not in known:
                raise SoftdexError(f"{where}: no item column {name!r}. {did_you_mean(name, known)}")
        self.title = self._first("title", given, TITLES)
        self.category = self._first("category", given, CATEGORIES)
        also = [self.category] if self.category else []
        self.shown = [name for name in dict.fromkeys([*also, *given]) if name != self.title]

    def item(self, item: int) -> tuple[str, str, dict[str, str]]:
        """Return the key, the title and the further columns of an item."""
        key = one_line(self.keys.take(np.array([item]))[0].as_py())
        title = one_line(self.table[self.title][item].as_py()) if self.title else ""
        return key, title or key, {n: one_line(self.table[n][item].as_py()) for n in self.shown}

    def categories(self) -> tuple[list[str], Ragged]:
        """Return the categories and their codes per item; none without such a column."""
        if self.category is None:
            return [], Ragged(np.zeros(len(self.keys) + 1, np.int64), np.empty(0, np.int64))
        return coded(self.table[self.category])

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


# inside ------------------------------------------------------------------------------------------


def coded(column: pa.ChunkedArray) -> tuple[list[str], Ragged]:
    """Return the categories of a column and their codes per item."""
    flat, lengths = column, np.ones(len(column), np.int64)
    if _inside(column.type) != column.type:
        flat = pc.list_flatten(column)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    dictionary = flat.combine_chunks().dictionary_encode()
    labels = [one_line(value) for value in dictionary.dictionary.to_pylist()]
    codes = pc.fill_null(dictionary.indices, -1).to_numpy().astype(np.int64)
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
