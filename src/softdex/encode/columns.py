"""Columns: what a table says of items or users, as tokens and numbers that a tower can read.

Each column has its own rows in one token table: the first stands for a missing value, then comes
one for each value seen (category) or for each bucket that words are hashed into (text). A number
has the first one only.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.errors import DataError, SoftdexError, choose, some
from softdex.keys import plain
from softdex.options import check
from softdex.ragged import Ragged, empty, offsets

STORED = {
    "string": pa.large_string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    "moment": pa.float64(),  # seconds since 1970
}
ENTRIES: dict[str, dict[str, type]] = {  # what is kept of a column besides its name
    "category": {"type": str, "values": list},
    "text": {"hashed": int},
    "number": {"type": str, "mean": float, "scale": float},
}
KINDS = tuple(ENTRIES)
FEW = 1000  # whole numbers with no more distinct values than this are categories
MOST = 2**24  # the largest size that is taken for one
FAR = 1e6  # standardised numbers end here; none of 10**12 can be as far from their mean
SEPARATORS = r"[^\p{L}\p{M}\p{N}_]+"  # RE2: what is no letter, mark, digit or underscore
REFUSED = (pa.ArrowException, OverflowError, TypeError, UnicodeError)


class Encoded(NamedTuple):
    """Rows of a table as a tower reads them.

    ids (N, F) int64: rows of the token table, -1 pads the end of a row. weights (N, F) float32:
    1 / number of values that the column has in the row, 0 at pads. numbers (N, M) float32:
    standardised, 0 where missing. F is the most any row needs, at least 1.
    """

    ids: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray


class Cells(NamedTuple):
    """The values of a column that are there, and the row of each, ascending."""

    rows: np.ndarray
    values: pa.Array


# what is learnt of one column --------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Category:
    """Distinct values, sorted; each is a token. A cell may hold a list of them."""

    name: str
    type: str
    values: pa.Array

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 1 + len(self.values)

    def tokens(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """The row and the token of each value that was seen in learning."""
        found = pc.fill_null(pc.index_in(cells.values, value_set=self.values), -1)
        ids = found.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        return cells.rows[ids > 0], ids[ids > 0]

    def json(self) -> dict[str, Any]:
        """As plain values."""
        values = self.values.to_pylist()
        return {"name": self.name, "kind": "category", "type": self.type, "values": values}


@final
@dataclass(frozen=True)
class Text:
    """Words, lower-cased and hashed; each bucket is a token."""

    name: str
    hashed: int
    type = "string"

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 1 + self.hashed

    def tokens(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """The row and the token of each word."""
        split = pc.utf8_split_whitespace(cells.values)
        pieces = pc.list_flatten(split).dictionary_encode()
        words = self._buckets(pieces.dictionary).take(pieces.indices.to_numpy())
        rows = np.repeat(cells.rows, pc.list_value_length(split).to_numpy())
        return rows[words.row_of], words.ids

    def _buckets(self, pieces: pa.Array) -> Ragged:
        """The tokens of the words of each piece of text, of which none stands twice."""
        split = pc.split_pattern_regex(pc.utf8_lower(pieces), pattern=SEPARATORS)
        words = pc.list_flatten(split).cast(pa.large_binary()).to_pylist()
        ids = [1 + zlib.crc32(word) % self.hashed if word else 0 for word in words]
        tokens = np.array(ids, np.int64)
        return Ragged(offsets(pc.list_value_length(split).to_numpy()), tokens).where(tokens > 0)

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "kind": "text", "hashed": self.hashed}


@final
@dataclass(frozen=True)
class Number:
    """Mean and standard deviation; a scale of 0 says that all values were the same."""

    name: str
    type: str
    mean: float
    scale: float
    size = 1

    def standard(self, cells: Cells, rows: int) -> np.ndarray:
        """Standardised numbers (rows,), 0 where missing."""
        numbers = np.zeros(rows)
        if self.scale:
            with np.errstate(over="ignore"):
                far = (cells.values.to_numpy() - self.mean) / self.scale
            numbers[cells.rows] = np.clip(far, -FAR, FAR)
        return numbers

    def json(self) -> dict[str, Any]:
        """As plain values."""
        found = {"name": self.name, "kind": "number", "type": self.type}
        return {**found, "mean": self.mean, "scale": self.scale}


# what is learnt of a table -----------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Columns:
    """How the columns of a table are read. A list keeps the first `max_values` distinct values."""

    parts: tuple[Category | Text | Number, ...]
    max_values: int

    @property
    def tokens(self) -> int:
        """Rows of the token table."""
        return sum(part.size for part in self.parts)

    @property
    def numeric(self) -> int:
        """Number of numeric columns, M."""
        return sum(isinstance(part, Number) for part in self.parts)

    def encode(self, table: pa.Table) -> Encoded:
        """Tokens and numbers of each row; a column that the table lacks is missing everywhere."""
        rows, first = table.num_rows, 0
        bags: list[Ragged] = []
        numbers: list[np.ndarray] = []
        for part in self.parts:
            cells = _cells(table, part, "encode")
            if isinstance(part, Number):
                numbers.append(part.standard(cells, rows))
                bag = _where_missing(cells.rows, rows)
            else:
                bag = _bags(*part.tokens(cells), rows, self.max_values)
            bags.append(Ragged(bag.indptr, bag.ids + first))
            first += part.size
        side_by_side = np.array(numbers, np.float32).reshape(len(numbers), rows).T
        return Encoded(*_padded(bags, rows), np.ascontiguousarray(side_by_side))

    def json(self) -> dict[str, Any]:
        """As plain values, from which `columns_from_json` makes the same."""
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

    The kind of a column is said after its name ("title:text", "year:category", "price:number"),
    or follows from its type. Strings, truths and dictionaries are categories, and so are lists of
    them or of whole numbers. Strings are text if more than half of the values are distinct and at
    least half of the distinct ones have a space in them. Whole numbers are categories if they have
    at most 1,000 distinct values, or fewer than half as many as rows. All else is a number.

    Args:
        table: the rows to learn from.
        names: the columns to read; None: all but those of nested types other than lists of
            categories, those of types that cannot be read, and strings that look like ids (all
            distinct, no spaces).
        hashed: buckets that the words of each text column are hashed into.
        max_values: the most values or words of one column that count in one row.
        where: who asks, for messages.

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
    found = _every_kind(table, where) if names is None else _named_kinds(table, names, where)
    parts = [_learn(table, name, kind, hashed, where) for name, kind in found.items()]
    return Columns(tuple(parts), max_values)


def _learn(
    table: pa.Table, name: str, kind: str, hashed: int, where: str
) -> Category | Text | Number:
    stored = _stored(_inside(table[name].type), kind)
    if kind == "text":
        text = Text(name, hashed)
        _cells(table, text, where)  # refused now rather than later
        return text
    if kind == "number":
        cells = _cells(table, Number(name, stored, 0.0, 0.0), where)
        return Number(name, stored, *_moments(cells.values.to_numpy()))
    nothing = Category(name, stored, pa.array([], STORED[stored]))
    values = _cells(table, nothing, where).values.unique()
    return Category(name, stored, values.take(pc.array_sort_indices(values)))


def _moments(numbers: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation, to the last bit the same in any order of the rows."""
    numbers = np.sort(numbers)
    if not len(numbers) or numbers[0] == numbers[-1]:
        return (float(numbers[0]) if len(numbers) else 0.0), 0.0
    largest = float(np.abs(numbers[[0, -1]]).max())
    power = math.frexp(largest)[1]  # without it squares may overflow
    shares = np.ldexp(numbers, -power)
    mean = np.clip(shares.mean(), shares[0], shares[-1])
    scale = min(shares.std(), math.ldexp(largest, -power))
    return math.ldexp(mean, power), math.ldexp(scale, power)


# which kind a column is of -----------------------------------------------------------------------


def _every_kind(table: pa.Table, where: str) -> dict[str, str]:
    """The kind of each column that says what rows have in common."""
    found: dict[str, str] = {}
    for name in table.column_names:
        _check_once(table, name, where)
        kind = _kind(table[name])
        if kind is not None and not _are_ids(table[name]):
            found[name] = kind
    if not found:
        raise SoftdexError(
            f"{where}: expected a column that says what rows have in common, got only ids and "
            f"types that cannot be read ({some(table.column_names)}). Name a column and how to "
            f"read it, for example {table.column_names[0] + ':category'!r}."
        )
    return found


def _named_kinds(table: pa.Table, names: Sequence[str], where: str) -> dict[str, str]:
    """The kind of each column that is asked for."""
    if not names:
        known = some(table.column_names)
        raise SoftdexError(f"{where}: expected at least one column, got none. Known: {known}.")
    found: dict[str, str] = {}
    for given in names:
        name, kind = _parsed(given, table.column_names, where)
        if name in found:
            raise SoftdexError(f"{where}: the column {name!r} is named twice.")
        _check_once(table, name, where)
        kind = kind or _kind(table[name])
        if kind is None:
            raise DataError(
                f"{where}: expected the column {name!r} to hold strings, numbers, truths, dates or "
                f"lists of categories, got {table[name].type}. Leave it out, cast it, or say how "
                f"to read it: {name + ':category'!r}."
            )
        found[name] = kind
    return found


def _check_once(table: pa.Table, name: str, where: str) -> None:
    if (times := table.column_names.count(name)) > 1:
        raise DataError(f"{where}: {times} columns are called {name!r}. Rename all but one.")


def _parsed(given: str, known: Sequence[str], where: str) -> tuple[str, str | None]:
    """The column and the kind that "name:kind" says; a column may have a colon in its name."""
    if given in known:
        return given, None
    name, _, kind = given.rpartition(":")
    if name not in known:
        choose(where, "column", name if kind in KINDS else given, known)
    return name, choose(where, f"kind of the column {name!r}:", kind, KINDS)


def _kind(column: pa.ChunkedArray) -> str | None:
    """The kind that follows from the type of a column and from how often its values repeat."""
    types, outside, kind = pa.types, _bare(column.type), _inside(column.type)
    whole = types.is_integer(kind)
    discrete = whole or _is_string(kind) or types.is_boolean(kind)
    numeric = types.is_floating(kind) or types.is_decimal(kind) or _is_time(kind)
    if _is_listed(outside):
        return "category" if discrete else None
    if types.is_dictionary(column.type):
        return "category" if discrete or numeric else None
    if whole:
        distinct = pc.count_distinct(plain(column)).as_py()
        return "category" if distinct <= FEW or 2 * distinct < len(column) else "number"
    if discrete:
        return "text" if _is_string(kind) and _is_text(column) else "category"
    return "number" if numeric else None


def _is_text(column: pa.ChunkedArray) -> bool:
    values, distinct, spaced = _spelling(column)
    return 2 * distinct > values and 2 * spaced >= distinct


def _are_ids(column: pa.ChunkedArray) -> bool:
    if not _is_string(_bare(column.type)):
        return False
    values, distinct, spaced = _spelling(column)
    return distinct == values and not spaced


def _spelling(column: pa.ChunkedArray) -> tuple[int, int, int]:
    """How many strings there are, how many distinct ones, and how many of those have a space."""
    values = _cast(plain(column), "string").drop_null()
    distinct = values.unique()
    return len(values), len(distinct), pc.sum(pc.match_substring(distinct, " ")).as_py() or 0


def _stored(kind: pa.DataType, read_as: str) -> str:
    """The type that values are kept in: a name among STORED."""
    types = pa.types
    if read_as == "text":
        return "string"
    if _is_moment(kind):
        return "moment"
    if read_as == "number" or types.is_floating(kind) or types.is_decimal(kind):
        return "double"
    if _is_time(kind):  # of the day, or a duration
        return "double"
    if types.is_integer(kind):
        return "uint64" if types.is_uint64(kind) else "int64"
    return "bool" if types.is_boolean(kind) else "string"


def _bare(kind: pa.DataType) -> pa.DataType:
    """The type under a dictionary, an extension type or a run-length code."""
    if isinstance(kind, pa.BaseExtensionType):
        return _bare(kind.storage_type)
    coded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return _bare(kind.value_type) if coded else kind


def _inside(kind: pa.DataType) -> pa.DataType:
    """The type of single values, be they in lists or not."""
    kind = _bare(kind)
    return _bare(kind.value_type) if _is_listed(kind) else kind


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_moment(kind: pa.DataType) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def _is_listed(kind: pa.DataType) -> bool:
    types = pa.types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return views or lists


# reading cells -----------------------------------------------------------------------------------


def _cells(table: pa.Table, part: Category | Text | Number, where: str) -> Cells:
    """The values of a column in the type they are kept in, those of a list one by one."""
    if part.name not in table.column_names:
        return Cells(np.zeros(0, np.int64), pa.array([], STORED[part.type]))
    _check_once(table, part.name, where)
    column = table[part.name]
    try:
        rows, values = _unfold(plain(column), lists=not isinstance(part, Number))
        values = _cast(values, part.type).combine_chunks()
    except REFUSED as error:
        raise DataError(
            f"{where}: expected the column {part.name!r} as {part.type}, got {column.type} "
            f"({str(error)[:120]}). Cast the column first, or fit with columns that are like it."
        ) from None
    if values.null_count:
        rows = rows[values.is_valid().to_numpy(zero_copy_only=False)]
        values = values.drop_null()
    if pa.types.is_floating(values.type) and (endless := np.isinf(values)).any():
        raise DataError(
            f"{where}: expected finite numbers in the column {part.name!r}, got infinite ones in "
            f"{len(np.unique(rows[endless])):,} of {len(column):,} rows. Make them null, or clip."
        )
    return Cells(rows, values)


def _unfold(column: pa.ChunkedArray, *, lists: bool) -> tuple[np.ndarray, pa.ChunkedArray]:
    """The row of each value, and the values."""
    rows = np.arange(len(column))
    if lists and _is_listed(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        return np.repeat(rows, lengths), plain(pc.list_flatten(column))
    return rows, column


def _cast(values: pa.ChunkedArray, to: str) -> pa.ChunkedArray:
    """Values in the type they are kept in, empty strings and NaN as null; raises if they change."""
    types, kind = pa.types, values.type
    if types.is_nested(kind):
        raise TypeError("these are not single values")
    if _is_string(kind):
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, kind), values)
    if _is_time(kind) or to == "moment":
        return _seconds(values, to)
    if to == "string" and (types.is_floating(kind) or types.is_decimal(kind)):
        raise TypeError("fractions have no one spelling")
    if to == "double" or types.is_floating(kind):
        values = _without_nan(values.cast(pa.float64(), safe=False))
    found = values.cast(STORED[to])
    numeric = types.is_integer(kind) or types.is_floating(kind)
    if to == "bool" and numeric and not found.cast(values.type).equals(values):
        raise TypeError("there are numbers other than 0 and 1")
    return found


def _without_nan(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """NaN as null, and one zero instead of two."""
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), pc.add(values, 0.0))


def _seconds(values: pa.ChunkedArray, to: str) -> pa.ChunkedArray:
    """Dates and timestamps as seconds since 1970 (naive ones: UTC), times and durations as long."""
    if _is_string(values.type):
        values = values.cast(pa.timestamp("us"))
    kind = values.type
    if pa.types.is_null(kind):
        return values.cast(pa.float64())
    if not _is_time(kind) or to != ("moment" if _is_moment(kind) else "double"):
        raise TypeError("times are not cast to other types, nor other types to times")
    stored = pa.int32() if kind.bit_width == 32 else pa.int64()
    whole = pa.chunked_array([part.view(stored) for part in values.chunks], stored)
    if pa.types.is_date32(kind):
        return pc.multiply(whole.cast(pa.float64()), 86400.0)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    if unit == "ns" and to == "moment":  # a double cannot tell so many of them apart
        whole, unit = pc.divide(whole, 1000), "us"
    a_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    return pc.divide(whole.cast(pa.float64(), safe=False), a_second)


# bags of tokens ----------------------------------------------------------------------------------


def _bags(row: np.ndarray, ids: np.ndarray, rows: int, most: int) -> Ragged:
    """The first few distinct ids of each row; 0, the missing one, where there are none."""
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
    """Which ids come for the first time in their row."""
    pairs = row * (ids.max() + 1) + ids
    order = np.argsort(pairs, kind="stable")  # fast, since rows are sorted
    pairs = pairs[order]
    first = np.ones(len(pairs), bool)
    first[order[1:]] = pairs[1:] != pairs[:-1]
    return first


def _where_missing(present: np.ndarray, rows: int) -> Ragged:
    """Id 0 in the rows that have no number, nothing in the others."""
    missing = np.ones(rows, np.int64)
    missing[present] = 0
    return Ragged(offsets(missing), np.zeros(missing.sum(), np.int64))


def _padded(bags: list[Ragged], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all bags side by side, and the weight of each."""
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
    """The columns that `Columns.json` told of; anything else is a ValueError that says what."""
    _check_entries(found, "columns", {"max_values": int, "columns": list})
    _check_sizes("columns", max_values=found["max_values"])
    parts = tuple(_part(entry) for entry in found["columns"])
    names = [part.name for part in parts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns: expected columns with a name each, got {_short(names)}.")
    _array(names, "string", "columns")
    return Columns(parts, found["max_values"])


def _part(found: Any) -> Category | Text | Number:
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
    stored, mean, scale = found["type"], found["mean"], found["scale"]
    if stored not in ("double", "moment") or not 0 <= scale < math.inf or not math.isfinite(mean):
        got = f"{_short(stored)}, {mean} and {scale}"
        raise ValueError(f"columns: expected type, mean and scale of {_short(name)}, got {got}.")
    return Number(name, stored, mean, scale)


def _check_entries(found: Any, what: str, kinds: dict[str, type]) -> None:
    """Refuse a record unless its entries are these, and of these types."""
    if type(found) is not dict or set(found) != set(kinds):
        got = list(found) if type(found) is dict else found
        raise ValueError(f"columns: expected {what} with {', '.join(kinds)}, got {_short(got)}.")
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise ValueError(
                f"columns: expected {name} of {what} as {kind.__name__}, got {_short(found[name])}."
            )


def _sorted_values(name: str, stored: str, given: list[Any]) -> pa.Array:
    """The values of a category, which must be of its type, distinct and sorted."""
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
