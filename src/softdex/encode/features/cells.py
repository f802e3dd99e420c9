"""Cells: the kind of a table's column, and its values, one by one, in one type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.arrow import unwrapped
from softdex.errors import DataError, SoftdexError, choose, first_few

KINDS = ("category", "text", "number", "vector")
STORED = {
    "string": pa.large_string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    "moment": pa.float64(),  # seconds since 1970
}
FEW = 1000  # integers with at most this many distinct values are categories
REFUSED = (pa.ArrowException, OverflowError, TypeError, UnicodeError)


class Cells(NamedTuple):
    """The non-missing values of a column, and the row of each, ascending."""

    rows: np.ndarray
    values: pa.Array


# the kind of a column -----------------------------------------------------------------------


def every_kind(table: pa.Table, where: str) -> dict[str, str]:
    """Return the kind of each column that rows can share values of."""
    found: dict[str, str] = {}
    for name in table.column_names:
        _check_once(table, name, where)
        kind = _kind(table[name])
        if kind == "vector" and not _of_one_length(table[name]):
            continue
        if kind is not None and not _are_ids(table[name]):
            found[name] = kind
    if not found:
        raise SoftdexError(
            f"{where}: expected a column with values that rows share, got only ids and types that "
            f"cannot be read ({first_few(table.column_names)}). Name a column and its kind, for "
            f"example {table.column_names[0] + ':category'!r}."
        )
    return found


def named_kinds(table: pa.Table, names: Sequence[str], where: str) -> dict[str, str]:
    """Return the kind of each of these columns."""
    if not names:
        known = first_few(table.column_names)
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
                f"{where}: expected the column {name!r} to hold strings, numbers, booleans, dates, "
                f"vectors or lists of categories, got {table[name].type}. Drop it, cast it, or "
                f"name its kind: {name + ':category'!r}."
            )
        found[name] = kind
    return found


def _check_once(table: pa.Table, name: str, where: str) -> None:
    if (times := table.column_names.count(name)) > 1:
        raise DataError(f"{where}: {times} columns are called {name!r}. Rename all but one.")


def _parsed(given: str, known: Sequence[str], where: str) -> tuple[str, str | None]:
    """Return the column and the kind of "name:kind"; a column's name may have a colon."""
    if given in known:
        return given, None
    name, _, kind = given.rpartition(":")
    if name not in known:
        choose(where, "column", name if kind in KINDS else given, known)
    return name, choose(where, f"kind of the column {name!r}:", kind, KINDS)


def _kind(column: pa.ChunkedArray) -> str | None:
    """Return the kind that follows from a column's type and from how often its values repeat."""
    types, outside, kind = pa.types, _bare(column.type), inside(column.type)
    whole = types.is_integer(kind)
    discrete = whole or _is_string(kind) or types.is_boolean(kind)
    numeric = types.is_floating(kind) or types.is_decimal(kind) or _is_time(kind)
    if _is_listed(outside):
        return "category" if discrete else "vector" if types.is_floating(kind) else None
    if types.is_dictionary(column.type):
        return "category" if discrete or numeric else None
    if whole:
        distinct = pc.count_distinct(unwrapped(column)).as_py()
        return "category" if distinct <= FEW or 2 * distinct < len(column) else "number"
    if discrete:
        return "text" if _is_string(kind) and _is_text(column) else "category"
    return "number" if numeric else None


def _is_text(column: pa.ChunkedArray) -> bool:
    values, distinct, spaced = _spelling(column)
    return 2 * distinct > values and 2 * spaced >= distinct


def _of_one_length(column: pa.ChunkedArray) -> bool:
    lengths = pc.unique(pc.list_value_length(unwrapped(column))).drop_null().to_pylist()
    return len([length for length in lengths if length]) == 1


def _are_ids(column: pa.ChunkedArray) -> bool:
    if not _is_string(_bare(column.type)):
        return False
    values, distinct, spaced = _spelling(column)
    return distinct == values and not spaced


def _spelling(column: pa.ChunkedArray) -> tuple[int, int, int]:
    """Return the number of strings, of distinct ones, and of distinct ones with a space."""
    values = _cast(unwrapped(column), "string").drop_null()
    distinct = values.unique()
    return len(values), len(distinct), pc.sum(pc.match_substring(distinct, " ")).as_py() or 0


def stored_as(kind: pa.DataType, read_as: str) -> str:
    """Return the type that values are stored in, a name in STORED."""
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
    """Return the type under a dictionary, an extension type or a run-length encoding."""
    if isinstance(kind, pa.BaseExtensionType):
        return _bare(kind.storage_type)
    coded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return _bare(kind.value_type) if coded else kind


def inside(kind: pa.DataType) -> pa.DataType:
    """Return the type of single values, whether in lists or not."""
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


def read_cells(table: pa.Table, name: str, to: str, where: str, *, lists: bool = True) -> Cells:
    """Return the values of a column in the type they are stored in, those of lists one by one."""
    if name not in table.column_names:
        return Cells(np.zeros(0, np.int64), pa.array([], STORED[to]))
    _check_once(table, name, where)
    column = table[name]
    try:
        rows, values = _unfold(unwrapped(column), lists=lists)
        values = _cast(values, to).combine_chunks()
    except REFUSED as error:
        raise DataError(
            f"{where}: expected the column {name!r} as {to}, got {column.type} "
            f"({str(error)[:120]}). Cast the column first, or fit with columns of this type."
        ) from None
    if values.null_count:
        rows = rows[values.is_valid().to_numpy(zero_copy_only=False)]
        values = values.drop_null()
    if pa.types.is_floating(values.type) and (endless := np.isinf(values)).any():
        raise DataError(
            f"{where}: expected finite numbers in the column {name!r}, got infinite ones in "
            f"{len(np.unique(rows[endless])):,} of {len(column):,} rows. Make them null, or clip."
        )
    return Cells(rows, values)


def read_vectors(
    table: pa.Table, name: str, width: int | None, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have a vector, and the vectors (N, width).

    Args:
        table: has the column, or every vector is missing.
        name: of the column.
        width: length of the vectors; None: that of the first one.
        where: the caller, for messages.
    """
    if name not in table.column_names:
        return np.zeros(0, np.int64), np.zeros((0, width or 0))
    _check_once(table, name, where)
    column = unwrapped(table[name])
    if not _is_listed(column.type):
        raise DataError(f"{where}: expected vectors in the column {name!r}, got {column.type}.")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    try:
        flat = _cast(unwrapped(pc.list_flatten(column)), "double").combine_chunks()
    except REFUSED as error:
        raise DataError(
            f"{where}: expected vectors of numbers in the column {name!r}, got {column.type} "
            f"({str(error)[:120]})."
        ) from None
    rows, numbers = np.flatnonzero(lengths), flat.to_numpy(zero_copy_only=False)
    if width is None:
        if not len(rows):
            raise DataError(f"{where}: the column {name!r} has no vector, only missing ones.")
        width = int(lengths[rows[0]])
    starts = np.cumsum(lengths[rows]) - lengths[rows]
    finite = np.logical_and.reduceat(np.isfinite(numbers), starts) if len(rows) else starts == 0
    bad = np.flatnonzero((lengths[rows] != width) | ~finite)
    if len(bad):
        row = rows[bad[0]]
        got = f"{lengths[row]} numbers" if lengths[row] != width else "NaN, null or infinity"
        raise DataError(
            f"{where}: expected vectors of {width} finite numbers in the column {name!r}, got "
            f"{got} in row {row} of {len(column):,}. Make it null where there is no vector."
        )
    return rows, numbers.reshape(len(rows), width)


def _unfold(column: pa.ChunkedArray, *, lists: bool) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Return the row of each value, and the values."""
    rows = np.arange(len(column))
    if lists and _is_listed(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        return np.repeat(rows, lengths), unwrapped(pc.list_flatten(column))
    return rows, column


def _cast(values: pa.ChunkedArray, to: str) -> pa.ChunkedArray:
    """Cast values to the type they are stored in, empty strings and NaN to null; raise on loss."""
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
    """Replace NaN by null, and -0 by 0."""
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), pc.add(values, 0.0))


def _seconds(values: pa.ChunkedArray, to: str) -> pa.ChunkedArray:
    """Return dates and timestamps as seconds since 1970 (naive: UTC), durations as seconds."""
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
    if unit == "ns" and to == "moment":  # a double has too few digits for nanoseconds
        whole, unit = pc.divide(whole, 1000), "us"
    a_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    return pc.divide(whole.cast(pa.float64(), safe=False), a_second)
