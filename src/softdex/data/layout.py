"""Layout: guess the separator, the header and the column names of a delimited text file."""

from __future__ import annotations

import codecs
import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from softdex.data.compressed import open_bytes, readable
from softdex.errors import DataError, first_few

SEPARATORS = ("::", "\t", ", ", ",", ";", "|", " ")
INTER_TYPES = (":token", ":float", ":token_seq", ":float_seq")  # RecBole's header suffixes
STAND_IN = "\x1f"  # replaces separators of several bytes, which the fast parser cannot take
HEAD_BYTES = 1 << 16  # read to guess the layout


@dataclass(frozen=True)
class Layout:
    """How a text file is divided into columns.

    Attributes:
        path: the file.
        separator: what separates columns in the file.
        encoding: of the file.
        names: the column names; "0", "1", ... without a header.
        has_header: whether the first line that is not blank holds the names.
        skip: number of lines at the start that are not data.
        sample: cells of the first rows of data.
    """

    path: Path
    separator: str
    encoding: str
    names: list[str]
    has_header: bool
    skip: int
    sample: list[list[str]]

    @property
    def byte(self) -> str:
        """The separator once the file is in memory, always a single byte."""
        return STAND_IN if is_long(self.separator) else self.separator

    def without_header(self) -> Layout:
        """The same file with its first line taken as data."""
        if not self.has_header:
            return self
        names = [str(i) for i in range(len(self.names))]
        rows = [self.names, *self.sample]
        return Layout(self.path, self.separator, self.encoding, names, False, self.skip - 1, rows)

    def has_numbers(self) -> bool:
        """Whether the sample holds a number, so that a first line without one is a header."""
        return any(_is_number(cell) for row in self.sample for cell in row)


def guess_layout(path: Path, separator: str | None, encoding: str, least: int = 2) -> Layout:
    """Guess the layout of a file from its first lines.

    Args:
        path: the file, compressed or not.
        separator: what separates the columns; None guesses it.
        encoding: of the file.
        least: fewest columns that the file may have.
    """
    if separator is not None and not _can_separate(separator):
        raise DataError(f"read: separator={separator!r}. Expected one or more characters.")
    lines = _first_lines(path, encoding)
    skip = next(i for i, line in enumerate(lines) if line.strip())
    lines = [line for line in lines if line.strip()]
    if separator is None:
        separator = _guess_separator(lines[:100])
    rows = _rows(lines[:1000], separator)
    first = [cell.strip() for cell in rows[0]]
    if len(first) < least:
        raise DataError(
            f"read: {path} has one column ({first[0][:40]!r}). Expected at least a user and an "
            "item column. If another character separates them, name it: read(separator=...)."
        )
    if any(_is_number(cell) for cell in first) or not any(first):
        names = [str(i) for i in range(len(first))]
        return Layout(path, separator, encoding, names, False, skip, rows)
    if all(cell.endswith(INTER_TYPES) for cell in first):
        first = [cell.rsplit(":", 1)[0] for cell in first]
    names = [name or str(i) for i, name in enumerate(first)]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise DataError(
            f"read: {path} has duplicate headers ({first_few(twice)}). Rename them in the file."
        )
    return Layout(path, separator, encoding, names, True, skip + 1, rows[1:])


def _can_separate(separator: object) -> bool:
    """Whether text can be cut at this: characters, no quote and no end of a line."""
    if not isinstance(separator, str) or not separator or set(separator) & set('"\r\n\0'):
        return False
    return not any("\ud800" <= c <= "\udfff" for c in separator)


def check_encoding(encoding: str) -> None:
    """Raise unless lines in this encoding can be read one after another, as those of a table."""
    line = "user,item\n"
    try:
        twice = (line.encode(encoding) * 2).decode(encoding, errors="replace")
    except (LookupError, ValueError, TypeError):  # a UnicodeError is a ValueError
        twice = ""
    if twice.replace("\ufeff", "") != line * 2:
        raise DataError(
            f"read: unknown encoding {str(encoding)[:40]!r}. Expected one of text, e.g. 'utf-8' or "
            "'latin-1'."
        )


def _first_lines(path: Path, encoding: str) -> list[str]:
    with readable(path, encoding), open_bytes(path) as file:
        head = file.read(HEAD_BYTES)
        wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
        text = head.decode(encoding, errors="replace").lstrip("\ufeff")
        text = text.encode(errors="replace").decode()  # some encodings make half characters
    if b"\0" in head and not wide:
        hint = (
            " It starts like UTF-16: pass encoding='utf-16'."
            if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            else " Expected CSV, TSV or Parquet."
        )
        raise DataError(f"read: {path} is not a text table (it holds zero bytes).{hint}")
    if not text.strip():
        raise DataError(f"read: {path} is empty. Expected a table with a user and an item column.")
    lines = re.split(r"\r\n|\r|\n", text)
    whole = lines[:-1] if len(head) == HEAD_BYTES else lines
    return whole if any(map(str.strip, whole)) else lines


def _guess_separator(lines: list[str]) -> str:
    """The separator that splits most lines into as many columns as the first line."""

    def fit(separator: str) -> tuple[float, int]:
        widths = [len(row) for row in _rows(lines, separator)]
        return (widths.count(widths[0]) / len(widths), widths[0]) if widths[0] > 1 else (0, 0)

    found = [s for s in SEPARATORS if s in lines[0]]
    if ", " in found and fit(", ")[0] >= fit(" ")[0]:
        found.remove(" ")  # it cuts wherever ", " does
    return max(found, key=fit, default=",")


def _rows(lines: list[str], separator: str) -> list[list[str]]:
    """The cells of each line; quotes may join lines, where that leaves more rows whole."""
    alone = [_split(line, separator) for line in lines]
    if is_long(separator):
        return alone
    joined = [r for r in csv.reader((f"{line}\n" for line in lines), delimiter=separator) if r]
    return max(alone, joined, key=lambda rows: sum(len(row) == len(alone[0]) for row in rows))


def is_long(separator: str) -> bool:
    """Whether a separator has several bytes; files with such separators have no quoting."""
    return len(separator.encode()) > 1


def _split(line: str, separator: str) -> list[str]:
    return (
        line.split(separator)
        if is_long(separator)
        else next(csv.reader([line], delimiter=separator))
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
