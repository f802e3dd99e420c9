"""Find users and items while somebody types: keys by their start, items by text in their columns.

Text is scanned in the order of popularity and the scan ends at the first hits, so that frequent
words end it at once and rare ones cost one pass over the text (`bench/page_search.py`).
"""

from __future__ import annotations

import bisect
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.keys import Keys
from softdex.model.retriever import Retriever

STEP = 2**18  # bytes that are scanned before other threads get their turn
TRIED = 2000  # cells with the longest word that are searched for the others
END = b"\n"  # of a cell: no hit reaches over it


@final
class Finder:
    """Finds users and items of a model.

    Args:
        model: the model.
        title: the column whose hits come first, or None.
    """

    def __init__(self, model: Retriever, title: str | None = None) -> None:
        self.model, self.title = model, title
        self.users, self.keys = _Starts(model.users), _Starts(model.items)

    def items(self, text: str, limit: int) -> np.ndarray:
        """Return the rows of items whose key starts with a text, then of those that have it
        elsewhere, the most popular first."""
        rows = self.keys.rows(text, limit)
        for cells in self._texts if text.strip() else []:
            if len(rows) >= limit:
                break
            hits = self._order[cells.find(text, limit)]
            rows = np.append(rows, hits[~np.isin(hits, rows)])[:limit]
        return rows

    @cached_property
    def _order(self) -> np.ndarray:
        """Item rows by falling popularity."""
        return np.argsort(-self.model.item_counts, kind="stable")

    @cached_property
    def _texts(self) -> list[_Text]:
        """The columns of text, the title first."""
        table = self.model.item_table
        if table is None:
            return []
        kinds = (pa.types.is_string, pa.types.is_large_string)
        names = [n for n in table.column_names if any(kind(table[n].type) for kind in kinds)]
        order = pa.array(self._order)
        return [_Text(table[n].take(order)) for n in sorted(names, key=lambda n: n != self.title)]


@final
class _Text:
    """The cells of a column as one piece of lower-case text."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        cells = pc.fill_null(pc.utf8_lower(column.cast(pa.large_string())), "")
        empty, end = (pa.scalar(text, pa.large_string()) for text in ("", END.decode()))
        ended = pc.binary_join_element_wise(cells, empty, end).combine_chunks()
        ended = ended if isinstance(ended, pa.Array) else pa.concat_arrays(ended.chunks)
        _, ends, data = ended.buffers()
        self.ends = np.frombuffer(ends, np.int64)[ended.offset + 1 :][: len(ended)]
        self.data = b"" if data is None else data.to_pybytes()

    def find(self, text: str, limit: int) -> np.ndarray:
        """Return the places of the first cells that have a text, or else all of its words."""
        lower = text.lower().strip().encode("utf-8", "replace").replace(END, b" ")
        found = self._with([lower], limit)
        words = sorted(lower.split(), key=len)[::-1]
        if len(words) > 1 and len(found) < limit:
            more = self._with(words, limit)
            found += [place for place in more if place not in found]
        return np.array(found[:limit], np.int64)

    def _with(self, words: list[bytes], limit: int) -> list[int]:
        """Return the places of the first cells that have these words; the first one is searched."""
        data, word, found = self.data, words[0], list[int]()
        start, length, tries = 0, len(word) - 1, 0
        while start < len(data) and len(found) < limit and tries < TRIED:
            at = data.find(word, start, start + STEP + length)
            if at < 0:
                start += STEP
                continue
            place = int(np.searchsorted(self.ends, at, side="right"))
            begin, start = int(self.ends[place - 1]) if place else 0, int(self.ends[place])
            if all(data.find(each, begin, start) >= 0 for each in words[1:]):
                found.append(place)
            tries += 1
        return found


@final
class _Starts:
    """Keys by their start."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def rows(self, text: str, limit: int) -> np.ndarray:
        """Return the rows of the first keys that start with a text."""
        keys = self.keys
        if not text:
            return np.arange(min(limit, len(keys)))
        if pa.types.is_string(keys.values.type):
            rows = range(len(keys))
            first = bisect.bisect_left(rows, text, key=lambda i: keys.values[i].as_py())
            window = keys.values.slice(first, limit)
            return first + _true(pc.starts_with(window, text))
        return _true(pc.starts_with(self._shown, text))[:limit]

    @cached_property
    def _shown(self) -> pa.Array:
        """The keys as text, in the order of their rows."""
        try:
            return self.keys.values.cast(pa.string())
        except pa.ArrowException:
            return pa.array([str(key) for key in self.keys.all().to_pylist()])


def _true(mask: pa.Array) -> np.ndarray:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))
