"""Tables in memory: what Python programs hold, as an Arrow table that is safe to touch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Set
from typing import Any

import pyarrow as pa

from softdex.errors import DataError, first_few

EXPECTED = (
    "Expected a path, an Arrow-compatible table, a scipy sparse matrix, a list of dicts or an "
    "iterable of (user, item[, time[, weight]]) tuples."
)
FIT = "Expected columns of equal length, each of one type: cast mixed ones to strings."


def table_of(source: Any) -> pa.Table:
    """A source in memory as an Arrow table."""
    source = collected(source)
    if isinstance(source, (pa.Table, pa.RecordBatch, Mapping)) or _has_capsule(source):
        return _from_arrow(source)
    return _from_rows(source)


def validated(table: pa.Table, label: str) -> pa.Table:
    """The table, once Arrow has checked every offset and index in it against its buffers."""
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise DataError(
            f"read: {label} is damaged ({first_line(error)}). Write it again from its source."
        ) from None
    return table


def first_line(error: BaseException) -> str:
    """The first line of an error; the rest only helps those who know Arrow."""
    return str(error).strip().split("\n")[0].rstrip(".")


def _has_capsule(source: Any) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def collected(source: Any) -> Any:
    """A lazy frame of polars, or the result of a DuckDB connection, as a table."""
    if _has_capsule(source):
        return source
    for method in ("collect", "to_arrow_table"):
        if callable(getattr(source, method, None)):
            try:
                with warnings.catch_warnings(action="ignore"):  # DuckDB warns of the copy
                    return getattr(source, method)()
            except Exception as error:  # of a library that softdex does not know
                raise DataError(
                    f"read: this {type(source).__name__} gives no table ({first_line(error)})."
                ) from None
    return source


def _from_arrow(source: Any) -> pa.Table:
    try:
        table = pa.table(source)
    except Exception as error:  # the source may run a query of its own
        reason = "; ".join(map(str, error.args)) or str(error)
        raise DataError(
            f"read: this {type(source).__name__} does not convert to an Arrow table ({reason}). "
            f"{FIT}"
        ) from None
    # polars exports the addresses of Python objects as eight bytes
    objects = [f.name for f in table.schema if f.type == pa.binary(8)]
    if objects and type(source).__module__.startswith("polars"):
        raise DataError(
            f"read: column {first_few(objects)} holds Python objects. Cast it to strings first."
        )
    return table


def _from_rows(source: Any) -> pa.Table:
    """Rows as dicts, or as tuples (user, item[, time[, weight]])."""
    try:
        rows = list(source) if isinstance(source, Iterable) else None
    except TypeError:
        rows = None
    if rows is None or isinstance(source, (bytes, bytearray)):
        raise DataError(f"read: cannot read {type(source).__name__}. {EXPECTED}")
    if not rows:
        raise DataError(f"read: the source is empty. {EXPECTED}")
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return table_of_columns({str(n): [row.get(n) for row in rows] for n in names})
    strange = [r for r in rows if isinstance(r, (str, bytes, Mapping, Set)) or not _has_len(r)]
    widths = sorted({len(r) for r in rows if _has_len(r)})
    if strange or len(widths) != 1 or not 2 <= widths[0] <= 4:
        raise DataError(
            "read: expected tuples (user, item[, time[, weight]]) of one length, got "
            f"{str((strange or rows)[0])[:60]!r} and lengths {first_few(widths) or 'none'}. Pass "
            "other columns as a list of dicts or a dict of lists, or as a pandas, polars or "
            "pyarrow table."
        )
    roles = ("user", "item", "time", "weight")[: widths[0]]
    return table_of_columns(dict(zip(roles, zip(*rows, strict=True), strict=True)))


def _has_len(row: object) -> bool:
    return hasattr(row, "__len__") and getattr(row, "ndim", 1) == 1


def table_of_columns(columns: Mapping[str, Any]) -> pa.Table:
    """Python values per column as a table; a column of more than one type is refused."""
    return pa.table({name: _cells(name, cells) for name, cells in columns.items()})


def _cells(name: str, cells: Any) -> pa.Array:
    try:
        return pa.array(cells)
    except OverflowError:
        raise DataError(
            f"read: column {name!r} holds integers of more than 64 bits. Use strings."
        ) from None
    except UnicodeError:
        raise DataError(f"read: column {name!r} holds text that is not valid Unicode.") from None
    except (pa.ArrowException, TypeError, ValueError):
        kinds = sorted({type(c).__name__ for c in cells})
        raise DataError(
            f"read: column {name!r} mixes {', '.join(kinds)}. Use one type, e.g. strings."
            if len(kinds) > 1
            else f"read: column {name!r} holds {kinds[0]} objects. Use numbers or strings."
        ) from None
