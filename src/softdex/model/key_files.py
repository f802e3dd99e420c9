"""Table files of users and items: whom to recommend to, and what."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from softdex.data.paths import TEXT
from softdex.data.roles import find_key_column
from softdex.data.sources import Source, open_source
from softdex.errors import DataError

SEPARATORS = ",;|\t:"


def users_in(file: Path) -> pa.ChunkedArray | list[str]:
    """Return the users in a table file, or in a text file with one per line."""
    listed = _one_per_line(file, "user")
    return columns(open_source(file, None, "utf-8"), "user")[0] if listed is None else listed


def items_in(file: Path) -> pa.ChunkedArray | pa.Table | list[str]:
    """Return the items in a table or text file, or users and items if it has a column of users."""
    listed = _one_per_line(file, "item")
    if listed is not None:
        return listed
    return items_of(open_source(file, None, "utf-8"))


def items_of(source: Source) -> pa.ChunkedArray | pa.Table:
    """Return the items of a table, or users and items if it has a column of users."""
    item, user = find_key_column(source, "item", None), _found(source, "user")
    if user is None or user == item:
        return columns(source, "item")[0]
    return pa.table(columns(source, "user", "item"), ["user", "item"])


def columns(source: Source, *roles: str) -> list[pa.ChunkedArray]:
    """Return the columns that hold users or items, by their usual names."""
    names = [find_key_column(source, role, None) for role in roles]
    read = source.fetch(names, names)
    if read.problems:
        raise DataError(f"read: {source.label} has lines that do not parse.")
    return [read.table[name] for name in names]


def _found(source: Source, role: str) -> str | None:
    try:
        return find_key_column(source, role, None)
    except DataError:
        return None


def _one_per_line(file: Path, role: str) -> list[str] | None:
    """Return the lines of a text file without a separator; the first may be a header."""
    if file.suffix.lower() not in TEXT or not file.is_file():
        return None
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        first = opened.readline().strip().strip('"')
        if not first or any(sign in first for sign in SEPARATORS):
            return None
        lines = [line.strip().strip('"') for line in opened]
    header = _found(Source(str(file), [first], [], []), role) is not None
    return [line for line in ([] if header else [first]) + lines if line]
