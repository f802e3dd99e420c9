"""Columns: turn the columns of an item or user table into tokens and numbers for a tower.

Each column owns rows of one token table: the first stands for a missing value; then follows one per
known value (category), or one per bucket that words are hashed into (text). A number, and a vector
of numbers, has the first one only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.ragged import Ragged, empty, offsets
from softdex.encode.features.cells import (
    KINDS,
    REFUSED,
    STORED,
    every_kind,
    inside,
    named_kinds,
    read_cells,
    read_vectors,
    stored_as,
)
from softdex.encode.features.parts import Category, Number, Part, Text, Vector, moments, vector_of
from softdex.errors import DataError, SoftdexError
from softdex.options import check

ENTRIES: dict[str, dict[str, type]] = {  # stored of a column besides its name and kind
    "category": {"type": str, "values": list},
    "text": {"hashed": int},
    "number": {"type": str, "mean": float, "scale": float},
    "vector": {"mean": list, "scale": float},
}
MOST = 2**24  # the largest size that an option may have


class Encoded(NamedTuple):
    """Rows of a table as a tower reads them.

    Attributes:
        ids: rows of the token table (N, F) int64, padded with -1; F is at least 1.
        weights: 1 / number of values of the column in the row (N, F) float32, 0 for padding.
        numbers: standardised numbers (N, X) float32, 0 where missing.
    """

    ids: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray


# a table -----------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Columns:
    """How the columns of a table are read; a cell counts its first `max_values` distinct values."""

    parts: tuple[Part, ...]
    max_values: int

    @property
    def tokens(self) -> int:
        """Rows of the token table."""
        return sum(part.size for part in self.parts)

    @property
    def numeric(self) -> int:
        """Number of numbers per row, X: one per numeric column, the length of each vector."""
        return sum(part.width for part in self.parts)

    def encode(self, table: pa.Table) -> Encoded:
        """Return tokens and numbers per row; a column that the table lacks counts as missing."""
        rows, first = table.num_rows, 0
        bags: list[Ragged] = []
        numbers: list[np.ndarray] = []
        for part in self.parts:
            if isinstance(part, Vector):
                present, vectors = read_vectors(table, part.name, part.width, "encode")
                numbers.append(part.standard(present, vectors, rows))
                bag = _where_missing(present, rows)
            elif isinstance(part, Number):
                cells = read_cells(table, part.name, part.type, "encode", lists=False)
                numbers.append(part.standard(cells, rows)[:, None])
                bag = _where_missing(cells.rows, rows)
            else:
                cells = read_cells(table, part.name, part.type, "encode")
                bag = _bags(*part.tokens(cells), rows, self.max_values)
            bags.append(Ragged(bag.indptr, bag.ids + first))
            first += part.size
        side_by_side = np.concatenate([np.zeros((rows, 0)), *numbers], 1, dtype=np.float32)
        return Encoded(*_padded(bags, rows), side_by_side)

    def json(self) -> dict[str, Any]:
        """Return plain values, from which `columns_from_json` makes the same columns."""
        return {"max_values": self.max_values, "columns": [part.json() for part in self.parts]}


def learn_columns(
    table: pa.Table,
    names: Sequence[str] | None = None,
    *,
    hashed: int = 4096,
    max_values: int = 32,
    where: str = "fit",
) -> Columns:
    """Learn how to read the columns of a table.

    The kind of a column follows its name ("title:text", "year:category", "price:number"), or else
    from its type. Strings, booleans and dictionaries are categories, and so are lists of them or of
    integers. Strings are text if more than half of the values are distinct and at least half of the
    distinct ones contain a space. Integers are categories if they have at most 1,000 distinct
    values, or fewer than half as many as there are rows. Lists of fractions, all of one length, are
    vectors. Everything else is a number.

    Args:
        table: the rows to learn from.
        names: columns to read; None: all but nested types other than vectors and lists of
            categories, types that cannot be read, and strings that look like ids (all distinct, no
            spaces).
        hashed: buckets per text column that words are hashed into.
        max_values: values or words of one column that count in one row, at most.
        where: the caller, for messages.

    Example:
        >>> table = pa.table({"genre": [["drama", "crime"], ["drama"]], "year": [1972, 1974]})
        >>> learn_columns(table).encode(table).ids
        array([[ 2,  1,  4],
               [ 2,  5, -1]])
    """
    _check_sizes(where, hashed=hashed, max_values=max_values)
    check(where, {"names": Sequence[str] | None}, {"names": names})
    if not table.num_rows or not table.num_columns:
        shape = f"{table.num_rows} rows and {table.num_columns} columns"
        raise DataError(f"{where}: expected a table to learn columns from, got {shape}.")
    found = every_kind(table, where) if names is None else named_kinds(table, names, where)
    parts = [_learn(table, name, kind, hashed, where) for name, kind in found.items()]
    return Columns(tuple(parts), max_values)


def _learn(table: pa.Table, name: str, kind: str, hashed: int, where: str) -> Part:
    if kind == "vector":
        return vector_of(name, read_vectors(table, name, None, where)[1])
    to = stored_as(inside(table[name].type), kind)
    if kind == "text":
        text = Text(name, hashed)
        read_cells(table, name, text.type, where)  # refuse it now rather than later
        return text
    if kind == "number":
        cells = read_cells(table, name, to, where, lists=False)
        return Number(name, to, *moments(cells.values.to_numpy()))
    values = read_cells(table, name, to, where).values.unique()
    return Category(name, to, values.take(pc.array_sort_indices(values)))


# bags of tokens ----------------------------------------------------------------------------------


def _bags(row: np.ndarray, ids: np.ndarray, rows: int, most: int) -> Ragged:
    """Return the first `most` distinct ids of each row; 0, for missing, where there are none."""
    if (row[1:] == row[:-1]).any():
        first = _first_ones(row, ids)
        row, ids = row[first], ids[first]
    counts = np.bincount(row, minlength=rows)
    rank = np.arange(len(row)) - np.repeat(offsets(counts)[:-1], counts)
    kept = rank < most
    indptr = offsets(np.clip(counts, 1, most))
    bags = np.zeros(indptr[-1], np.int64)
    bags[indptr[row[kept]] + rank[kept]] = ids[kept]
    return Ragged(indptr, bags)


def _first_ones(row: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return which ids occur for the first time in their row."""
    pairs = row * (ids.max() + 1) + ids
    order = np.argsort(pairs, kind="stable")  # fast, since rows are sorted
    pairs = pairs[order]
    first = np.ones(len(pairs), bool)
    first[order[1:]] = pairs[1:] != pairs[:-1]
    return first


def _where_missing(present: np.ndarray, rows: int) -> Ragged:
    """Return id 0 in the rows that have no number, nothing in the others."""
    missing = np.ones(rows, np.int64)
    missing[present] = 0
    return Ragged(offsets(missing), np.zeros(missing.sum(), np.int64))


def _padded(bags: list[Ragged], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all bags side by side, and their weights."""
    total = sum((bag.lengths for bag in bags), empty(rows).lengths)
    shape = (rows, max(1, int(total.max(initial=0))))
    ids, weights = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
    start = np.zeros(rows, np.int64)
    for bag in bags:
        row = bag.row_of
        at = np.arange(len(row)) + (start - bag.indptr[:-1])[row]
        ids[row, at] = bag.ids
        weights[row, at] = 1 / bag.lengths[row]
        start += bag.lengths
    return ids, weights


# from a manifest ---------------------------------------------------------------------------------


def columns_from_json(found: Any) -> Columns:
    """Return the columns of a record from `Columns.json`; raise ValueError for anything else."""
    _check_entries(found, "columns", {"max_values": int, "columns": list})
    _check_sizes("columns", max_values=found["max_values"])
    parts = tuple(_part(entry) for entry in found["columns"])
    names = [part.name for part in parts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns: expected columns with a name each, got {_short(names)}.")
    _array(names, "string", "columns")
    return Columns(parts, found["max_values"])


def _part(found: Any) -> Part:
    kind = found.get("kind") if isinstance(found, dict) else found
    if kind not in KINDS:
        raise ValueError(f"columns: expected a {' or '.join(KINDS)} column, got {_short(kind)}.")
    _check_entries(found, f"a {kind} column", {"name": str, "kind": str, **ENTRIES[kind]})
    name = found["name"]
    if kind == "category":
        return Category(name, found["type"], _sorted_values(name, found["type"], found["values"]))
    if kind == "text":
        _check_sizes("columns", hashed=found["hashed"])
        return Text(name, found["hashed"])
    if kind == "vector":
        return _vector(name, found["mean"], found["scale"])
    stored, mean, scale = found["type"], found["mean"], found["scale"]
    if stored not in ("double", "moment") or not 0 <= scale < math.inf or not math.isfinite(mean):
        got = f"{_short(stored)}, {mean} and {scale}"
        raise ValueError(f"columns: expected type, mean and scale of {_short(name)}, got {got}.")
    return Number(name, stored, mean, scale)


def _vector(name: str, mean: list[Any], scale: float) -> Vector:
    finite = bool(mean) and all(type(x) is float and math.isfinite(x) for x in mean)
    if not finite or not 0 <= scale < math.inf:
        raise ValueError(f"columns: expected finite mean and scale of the vectors {_short(name)}.")
    return Vector(name, tuple(mean), scale)


def _check_entries(found: Any, what: str, kinds: dict[str, type]) -> None:
    """Refuse a record unless it has exactly these entries, of these types."""
    if type(found) is not dict or set(found) != set(kinds):
        got = list(found) if type(found) is dict else found
        raise ValueError(f"columns: expected {what} with {', '.join(kinds)}, got {_short(got)}.")
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise ValueError(
                f"columns: expected {name} of {what} as {kind.__name__}, got {_short(found[name])}."
            )


def _sorted_values(name: str, stored: str, given: list[Any]) -> pa.Array:
    """Return the values of a category; they must be of its type, distinct and sorted."""
    if stored not in STORED:
        raise ValueError(f"columns: expected a type of {', '.join(STORED)}, got {_short(stored)}.")
    what = f"the values of {_short(name)}"
    python = type(pa.scalar(0).cast(STORED[stored]).as_py())
    if any(type(value) is not python for value in given):
        raise ValueError(f"columns: expected {what} as {python.__name__}.")
    values = _array(given, stored, what)
    finite = not pa.types.is_floating(values.type) or np.isfinite(values).all()
    if (
        "" in given
        or not finite
        or not pc.all(pc.less(values[:-1], values[1:]), min_count=0).as_py()
    ):
        raise ValueError(f"columns: expected {what} to be finite, not empty, distinct and sorted.")
    return values


def _array(values: list[Any], stored: str, what: str) -> pa.Array:
    try:
        return pa.array(values, STORED[stored])
    except REFUSED as error:
        raise ValueError(f"columns: expected {what} as {stored} ({str(error)[:80]}).") from None


def _short(value: Any) -> str:
    return repr(value)[:60]


def _check_sizes(where: str, **sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST:
            raise SoftdexError(
                f"{where}: expected {name} as a whole number from 1 to {MOST:,}, got {size!r}."
            )
