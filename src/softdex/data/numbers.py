"""Numbers: Arrow columns and text as int64 or float64, and dates as microseconds."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.arrow import unwrapped
from softdex.errors import DataError

NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
NUMERIC_TYPES = (pa.int64(), pa.float64())  # text is cast to the first that fits
DATE_TYPES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))


def nulls(column: pa.ChunkedArray) -> np.ndarray:
    """Mask of the cells that are null or NaN."""
    column = unwrapped(column)
    if not column.null_count and not pa.types.is_floating(column.type):
        return np.zeros(len(column), bool)
    return pc.is_null(column, nan_is_null=True).to_numpy()


def numbers(column: pa.ChunkedArray, what: str, *, dates: bool) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers, and which cells are not numbers.

    Args:
        column: numbers, text, booleans, or dates.
        what: names the column in error messages.
        dates: accept dates, as microseconds since 1970 (in UTC unless they have a zone), and refuse
            booleans.

    Returns:
        values (int64 or float64), and a mask of the cells that are not numbers. Nulls are not in
        the mask; their value is meaningless.
    """
    column = unwrapped(column)
    absent = nulls(column)
    try:
        column = _as_numbers(column, dates)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        wanted = "numbers or dates" if dates else "numbers"
        raise DataError(
            f"read: {what} has the Arrow type {column.type}. Expected {wanted}."
        ) from None
    wrong = nulls(column) & ~absent
    values = (column.fill_null(0) if column.null_count else column).to_numpy()
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False), wrong | ~(np.isfinite(values) | absent)
    return values.astype(np.int64, copy=False), wrong


def _as_numbers(column: pa.ChunkedArray, dates: bool) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parse_text(column, dates)
    if pa.types.is_floating(kind):
        return column
    if (pa.types.is_temporal(kind) and not dates) or (pa.types.is_boolean(kind) and dates):
        raise pa.ArrowInvalid(f"{kind} has no use here")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zone = getattr(kind, "tz", None)
        finer = kind == pa.timestamp("ns", zone)
        return column.cast(pa.timestamp("us", zone), safe=not finer).cast(pa.int64())
    try:
        return column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column.cast(pa.float64(), safe=False)


def _parse_text(column: pa.ChunkedArray, dates: bool) -> pa.ChunkedArray:
    """Text as numbers or as dates, whichever is more common; the rest becomes null."""
    for kind in (*NUMERIC_TYPES, *(DATE_TYPES if dates else ())):
        try:
            read = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return read.cast(pa.int64()) if kind in DATE_TYPES else read
    cells = column.to_pylist()
    found = [None if cell is None else _number(cell) for cell in cells]
    if dates:
        moments = [None if cell is None else _microseconds(cell) for cell in cells]
        if sum(m is not None for m in moments) > sum(n is not None for n in found):
            found = moments
    if not all(isinstance(value, int) for value in found if value is not None):
        found = [None if value is None else float(value) for value in found]
    kind = pa.float64() if float in map(type, found) else pa.int64()
    return pa.chunked_array([pa.array(found, kind)])


def _number(cell: str) -> float | None:
    if not NUMBER.fullmatch(cell):
        return None
    try:
        value = int(cell)
    except ValueError:
        return float(cell)
    return value if abs(value) < 2**63 else float(cell)


def _microseconds(cell: str) -> float | None:
    try:
        moment = dt.datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - EPOCH) // MICROSECOND
