"""Delimited text: guess its layout, read it fast, and find its bad lines when that fails."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pacsv

from softdex.errors import DataError, some

SEPARATORS = ("::", "\t", ",", ";", "|", " ")
NULLS = ["", "null", "NULL", "NaN", "nan", "None", "\\N", "NA", "N/A"]
INTER_TYPES = (":token", ":float", ":token_seq", ":float_seq")  # RecBole's header suffixes
STAND_IN = b"\x1f"  # one byte for `::`, which the fast parser cannot take


@dataclass(frozen=True)
class Layout:
    """How a text file is cut into columns."""

    path: Path
    separator: str
    encoding: str
    names: list[str]
    has_header: bool
    sample: list[list[str]]


def layout(path: Path, separator: str | None, encoding: str) -> Layout:
    """Guess separator, header and column names from the first lines of a file."""
    with _open(path) as file:
        head = file.read(1 << 16)
    if not head.strip():
        raise DataError(f"read: {path} is empty. Expected a table with a user and an item column.")
    if b"\0" in head and not encoding.lower().startswith("utf-16"):
        hint = (
            " It starts like UTF-16: pass encoding='utf-16'."
            if head[:2] in (b"\xff\xfe", b"\xfe\xff")
            else ""
        )
        raise DataError(f"read: {path} is not a text table (it holds zero bytes).{hint}")
    text = head.decode(encoding, errors="replace").lstrip("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(head) == 1 << 16:
        lines = lines[:-1] or lines
    if separator is None:
        separator = next((s for s in SEPARATORS if s in lines[0]), ",")
    rows = [_split(line, separator) for line in lines[:1000]]
    first = [cell.strip() for cell in rows[0]]
    if len(first) == 1:
        raise DataError(
            f"read: {path} has one column ({first[0][:40]!r}). Expected at least a user and an "
            "item column. If another character separates them, name it: read(separator=...)."
        )
    has_header = not any(_is_number(cell) or cell == "" for cell in first)
    if has_header:
        if all(cell.endswith(INTER_TYPES) for cell in first):
            first = [cell.rsplit(":", 1)[0] for cell in first]
        twice = [name for i, name in enumerate(first) if name in first[:i]]
        if twice:
            raise DataError(
                f"read: {path} has duplicate headers ({some(twice)}). Rename them in the file."
            )
    names = first if has_header else [str(i) for i in range(len(first))]
    return Layout(path, separator, encoding, names, has_header, rows[1:] if has_header else rows)


def load(shape: Layout, columns: list[str], ids: Collection[str]) -> pa.Table:
    """Read these columns with the fast parser; ids of mixed kinds become strings.

    Raises `pa.ArrowInvalid` where a line does not parse: `bad_lines` then says which.
    """
    return _parse(shape, _source(shape), columns, ids)


def _parse(shape: Layout, source: Any, columns: list[str], ids: Collection[str]) -> pa.Table:
    # "007" and "7" are different ids, so leading zeros must not go through an integer
    kinds = {name: pa.string() for name in ids if _has_leading_zero(shape, name)}
    try:
        return _fast(shape, source, columns, kinds)
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        source.seek(0) if hasattr(source, "seek") else None
        return _fast(shape, source, columns, {name: pa.string() for name in ids})


def _fast(
    shape: Layout, source: Any, columns: list[str], kinds: dict[str, pa.DataType]
) -> pa.Table:
    separator = STAND_IN.decode() if len(shape.separator) > 1 else shape.separator
    return pacsv.read_csv(
        source,
        read_options=pacsv.ReadOptions(
            column_names=shape.names,
            skip_rows=int(shape.has_header),
            encoding=shape.encoding,
            block_size=1 << 22,
        ),
        parse_options=pacsv.ParseOptions(delimiter=separator, newlines_in_values=False),
        convert_options=pacsv.ConvertOptions(
            include_columns=columns, column_types=kinds, null_values=NULLS, strings_can_be_null=True
        ),
    )


def _source(shape: Layout) -> Any:
    if len(shape.separator) == 1:
        return str(shape.path)
    with _open(shape.path) as file:
        text = file.read()
    return io.BytesIO(text.replace(shape.separator.encode(), STAND_IN))


def bad_lines(shape: Layout, used: list[str], numeric: Mapping[str, str]) -> dict[str, list[int]]:
    """Every problem of the file with the numbers of its lines, by a slow second pass."""
    problems: dict[str, list[int]] = defaultdict(list)
    for number, _, problem in _inspect(shape, used, numeric):
        if problem:
            problems[problem].append(number)
    return problems


def load_good_lines(
    shape: Layout,
    used: list[str],
    columns: list[str],
    ids: Collection[str],
    numeric: Mapping[str, str],
) -> tuple[pa.Table, dict[str, list[int]]]:
    """The table without its bad lines, and what was wrong with those."""
    problems: dict[str, list[int]] = defaultdict(list)
    kept = io.StringIO()
    write = csv.writer(kept, delimiter=STAND_IN.decode(), lineterminator="\n")
    for number, cells, problem in _inspect(shape, used, numeric):
        if problem:
            problems[problem].append(number)
        else:
            write.writerow(cells)
    if not kept.tell():
        raise DataError(f"read: no good line is left in {shape.path}. {explain(problems)}")
    clean = Layout(shape.path, STAND_IN.decode(), "utf-8", shape.names, False, shape.sample)
    return _parse(clean, io.BytesIO(kept.getvalue().encode()), columns, ids), problems


def explain(problems: dict[str, list[int]], unit: str = "line") -> str:
    """One clause a problem: how many lines, and the first of them."""
    parts = []
    for problem, lines in problems.items():
        where = f"{unit} {lines[0]}"
        if len(lines) > 1:
            where = f"{len(lines):,} {unit}s ({some(lines)})"
        parts.append(f"{problem}: {where}")
    return "; ".join(parts) + "." if parts else ""


def _inspect(
    shape: Layout, used: list[str], numeric: Mapping[str, str]
) -> Iterator[tuple[int, list[str], str]]:
    places = [(name, shape.names.index(name)) for name in used]
    width = len(shape.names)
    with _open(shape.path) as raw:
        text = io.TextIOWrapper(raw, encoding=shape.encoding, errors="surrogateescape", newline="")
        for number, cells in _records(text, shape.separator):
            if not cells or (number == 1 and shape.has_header):
                continue
            yield number, cells, _problem(cells, width, places, numeric, shape.encoding)


def _records(text: IO[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    if len(separator) == 1:
        reader = csv.reader(text, delimiter=separator)
        for cells in reader:
            yield reader.line_num, cells
    else:
        for number, line in enumerate(text, 1):
            line = line.rstrip("\r\n")
            yield number, line.split(separator) if line else []


def _problem(
    cells: list[str],
    width: int,
    places: list[tuple[str, int]],
    numeric: Mapping[str, str],
    encoding: str,
) -> str:
    if len(cells) != width:
        return f"expected {width} columns, got {len(cells)}"
    if any("\udc80" <= char <= "\udcff" for cell in cells for char in cell):
        return f"not valid {encoding} (another encoding? pass encoding='latin-1')"
    for name, at in places:
        if cells[at] in NULLS:
            return f"no value in column {name!r}"
        role = numeric.get(name)
        if role and not _is_number(cells[at]) and not (role == "time" and _is_date(cells[at])):
            return f"column {name!r} is not a number or a date"
        if role == "weight" and float(cells[at]) < 0:
            return f"negative weight in column {name!r}"
    return ""


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _split(line: str, separator: str) -> list[str]:
    if len(separator) > 1:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator))


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _is_date(cell: str) -> bool:
    try:
        dt.datetime.fromisoformat(cell)
    except ValueError:
        return False
    return True


def _has_leading_zero(shape: Layout, name: str) -> bool:
    at = shape.names.index(name)
    return any(
        len(row) > at and len(row[at]) > 1 and row[at][0] == "0" and row[at].isdigit()
        for row in shape.sample
    )
