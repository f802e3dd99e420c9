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
NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
DATE_TYPES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
DOTTED = (  # the day, the month, the year and the hour; Arrow wants two digits of each
    (r"^\s*(\d)\.(\d\d?\.\d{4}\b)", r"0\1.\2"),
    (r"^\s*(\d\d)\.(\d)\.(\d{4}\b)", r"\1.0\2.\3"),
    (r"^\s*(\d\d)\.(\d\d)\.(\d{4}\b)", r"\3-\2-\1"),
    (r"^(\d{4}-\d\d-\d\d),? +(\d\d?:)", r"\1 \2"),
)
SLASHED = r"^\s*(?P<first>\d\d?)/(?P<second>\d\d?)/(?P<year>\d{4})\b"
YEAR_FIRST = r"^\s*(\d{4})/(\d\d?)/(\d\d?)\b"
HOUR = r"^(\d{4}-\d\d-\d\d[ T])(\d:)"
DECIMAL_COMMA = r"^\s*[-+]?\d*,\d+\s*$"
THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2},\d{3}\s*$"
UNITS = (1, 1e3, 1e6, 1e9)  # of Unix times, per second
UNIX_TIMES = (631_152_000, 2_208_988_800)  # seconds: the years 1990 to 2039


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
    if dates and _is_text(column) and _day_first(column) is None:
        raise DataError(
            f"read: {what} has dates such as {column.drop_null()[0].as_py()!r}, and no row tells "
            "whether the day or the month comes first. Write them as 1997-09-22."
        )
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


def is_time(name: str, column: pa.ChunkedArray) -> bool:
    """Whether a column tells when: dates, text of dates, or Unix time in s, ms, us or ns.

    Half of the cells may be null, and fewer than half of a text may be no dates: reading refuses
    those. Unix times are between 1990 and 2040, and no column of that kind is called an id.
    """
    column = unwrapped(column)
    cells = column.filter(pa.array(~nulls(column)))
    if not len(cells) or 2 * len(cells) < len(column):
        return False
    types = pa.types
    if types.is_timestamp(cells.type) or types.is_date(cells.type):
        return True
    if _is_text(cells):
        if _in_one_type(cells, NUMERIC_TYPES) is None:
            return 2 * _as_dates(_as_iso(cells)).null_count < len(cells)
    elif not any(is_kind(cells.type) for is_kind in NUMERIC):
        return False
    found = pc.min_max(cells.cast(pa.float64(), safe=False)).as_py()
    return not name.lower().endswith("id") and any(
        UNIX_TIMES[0] * unit <= found["min"] and found["max"] < UNIX_TIMES[1] * unit
        for unit in UNITS
    )


def _as_numbers(column: pa.ChunkedArray, dates: bool) -> pa.ChunkedArray:
    kind = column.type
    if _is_text(column):
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
    column = _with_points(_as_iso(column) if dates else column)
    whole = _in_one_type(column, (*NUMERIC_TYPES, *(DATE_TYPES if dates else ())))
    if whole is not None:
        return whole.cast(pa.int64()) if whole.type in DATE_TYPES else whole
    found = [None if cell is None else _number(cell) for cell in column.to_pylist()]
    if dates:
        moments = _as_dates(column)
        if len(moments) - moments.null_count > sum(n is not None for n in found):
            return moments
    if not all(isinstance(value, int) for value in found if value is not None):
        found = [None if value is None else float(value) for value in found]
    kind = pa.float64() if float in map(type, found) else pa.int64()
    return pa.chunked_array([pa.array(found, kind)])


def _as_iso(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates as 22.09.1997 or 9/22/1997, with or without a time of day, as 1997-09-22."""
    if pc.any(pc.match_substring(column, "/")).as_py():
        month_first = _day_first(column) is False
        day, month = (r"\2", r"\1") if month_first else (r"\1", r"\2")
        column = pc.replace_substring_regex(column, SLASHED, rf"{day}.{month}.\3")
        column = pc.replace_substring_regex(column, YEAR_FIRST, r"\3.\2.\1")
    for pattern, iso in DOTTED:
        column = pc.replace_substring_regex(column, pattern, iso)
    return pc.replace_substring_regex(column, HOUR, r"\10\2")


def _day_first(column: pa.ChunkedArray) -> bool | None:
    """Whether dates with slashes begin with the day; None where they do not tell."""
    if not pc.any(pc.match_substring(column, "/")).as_py():
        return False
    parts = pc.extract_regex(column, SLASHED)
    first, second = (
        pc.max(pc.struct_field(parts, name).cast(pa.int8())).as_py() for name in ("first", "second")
    )
    if first is None or first <= 12 < second:
        return False
    return True if first > 12 else None


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _with_points(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimal commas as points, unless every comma may separate thousands (1,234)."""
    decimal = pc.match_substring_regex(column, DECIMAL_COMMA)
    if not pc.any(pc.and_(decimal, pc.invert(pc.match_substring_regex(column, THOUSANDS)))).as_py():
        return column
    return pc.if_else(decimal, pc.replace_substring(column, ",", "."), column)


def _in_one_type(column: pa.ChunkedArray, types: tuple[pa.DataType, ...]) -> pa.ChunkedArray | None:
    """Text cast to the first of these types that fits every cell, or None."""
    for kind in types:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def _as_dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as microseconds; what is no date becomes null."""
    whole = _in_one_type(column, DATE_TYPES)
    if whole is not None:
        return whole.cast(pa.int64())
    cells = [None if cell is None else _microseconds(cell) for cell in column.to_pylist()]
    return pa.chunked_array([pa.array(cells, pa.int64())])


def _number(cell: str) -> float | None:
    if not NUMBER.fullmatch(cell):
        return None
    try:
        value = int(cell)
    except ValueError:
        return float(cell)
    return value if abs(value) < 2**63 else float(cell)


def _microseconds(cell: str) -> int | None:
    try:
        moment = dt.datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - EPOCH) // MICROSECOND
