"""Ragged: rows of ids of different lengths, as two flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp


@final
@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths: row b is `ids[indptr[b]:indptr[b + 1]]`.

    Attributes:
        indptr: int64, one more than there are rows.
        ids: int32, all rows one after another.
    """

    indptr: np.ndarray
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.indptr[:-1][row] : self.indptr[1:][row]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.indptr, other.indptr) and np.array_equal(self.ids, other.ids)

    __hash__ = None  # type: ignore[assignment]

    @property
    def lengths(self) -> np.ndarray:
        """Number of ids per row."""
        return np.diff(self.indptr)

    @property
    def row_of(self) -> np.ndarray:
        """The row of each id."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: np.ndarray) -> Ragged:
        """Select rows, in the given order."""
        starts = self.indptr[:-1][rows]
        lengths = self.indptr[1:][rows] - starts
        indptr = offsets(lengths)
        if len(starts) == 1:
            return Ragged(indptr, self.ids[starts[0] : starts[0] + lengths[0]])
        source = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return Ragged(indptr, self.ids[source])

    def last(self, n: int) -> Ragged:
        """Keep the last n ids of each row."""
        lengths = np.minimum(self.lengths, n)
        indptr = offsets(lengths)
        source = np.arange(indptr[-1]) + np.repeat(self.indptr[1:] - indptr[1:], lengths)
        return Ragged(indptr, self.ids[source])

    def where(self, keep: np.ndarray) -> Ragged:
        """Keep the ids whose flag is set; the number of rows stays the same."""
        counts = np.bincount(self.row_of[keep], minlength=len(self))
        return Ragged(offsets(counts), self.ids[keep])

    def distinct(self, num_items: int) -> Ragged:
        """Each id once per row, in ascending order."""
        row, ids = np.divmod(np.unique(self.cells(num_items)), num_items)
        return Ragged(offsets(np.bincount(row, minlength=len(self))), ids.astype(np.int32))

    def csr(self, num_items: int) -> sp.csr_matrix:
        """Rows x items (float32): how many times each item occurs in each row."""
        matrix = sp.csr_matrix(
            (np.ones(len(self.ids), np.float32), self.ids.astype(np.int32), self.indptr),
            shape=(len(self), num_items),
        )
        matrix.sum_duplicates()
        return matrix

    def cells(self, num_items: int) -> np.ndarray:
        """Each (row, id) pair as one integer, for set operations."""
        return self.row_of * np.int64(num_items) + self.ids


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Row pointers (int64) of rows of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def empty(rows: int) -> Ragged:
    """This many empty rows."""
    return Ragged(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32))


def group(row: np.ndarray, ids: np.ndarray, rows: int, by: np.ndarray | None = None) -> Ragged:
    """Collect ids by row.

    Args:
        row: the row of each id.
        ids: the ids.
        rows: the number of rows.
        by: the order of ids within a row; ties, and all ids if None, keep their given order.
    """
    order = np.argsort(row, kind="stable") if by is None else np.lexsort((by, row))
    return Ragged(offsets(np.bincount(row, minlength=rows)), ids[order].astype(np.int32))


def among(cells: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Whether each cell is one of the others, by sorting: `np.isin` hashes, which is far slower."""
    ordered = np.sort(others)
    if not len(ordered):
        return np.zeros(len(cells), bool)
    at = np.searchsorted(ordered, cells)
    found: np.ndarray = ordered[np.minimum(at, len(ordered) - 1)] == cells
    return found


def concatenate(parts: list[Ragged]) -> Ragged:
    """Join row by row: the ids of the first part, then those of the next."""
    rows = np.concatenate([p.row_of for p in parts])
    return group(rows, np.concatenate([p.ids for p in parts]), len(parts[0]))
