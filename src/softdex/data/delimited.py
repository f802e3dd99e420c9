"""Delimited text: guess its layout, read it fast, and find its bad lines when that fails."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import mmap
import re
import zlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from softdex.errors import DataError, some

SEPARATORS = ("::", "\t", ", ", ",", ";", "|", " ")
NULLS = ["", "null", "NULL", "NaN", "nan", "None", "\\N", "NA", "N/A"]
INTER_TYPES = (":token", ":float", ":token_seq", ":float_seq")  # RecBole's header suffixes
STAND_IN = "\x1f"  # one byte for `::`, which the fast parser cannot take
HEAD = 1 << 16  # bytes that the layout is guessed from
BLOCK = 1 << 22
LONGEST = 1 << 30  # characters of a field; Python's own limit would refuse long texts


@dataclass(frozen=True)
class Layout:
    """How a text file is cut into columns. The first `skip` lines are not data."""

    path: Path
    separator: str
    encoding: str
    names: list[str]
    has_header: bool
    skip: int
    sample: list[list[str]]

    @property
    def byte(self) -> str:
        """What separates the columns once the file is in memory: always one byte."""
        return STAND_IN if _is_long(self.separator) else self.separator

    def without_header(self) -> Layout:
        """The same file, its first line taken for data."""
        if not self.has_header:
            return self
        names = [str(i) for i in range(len(self.names))]
        rows = [self.names, *self.sample]
        return Layout(self.path, self.separator, self.encoding, names, False, self.skip - 1, rows)


def layout(path: Path, separator: str | None, encoding: str) -> Layout:
    """Guess separator, header and column names from the first lines of a file."""
    if separator is not None and (not separator or set(separator) & set('"\r\n')):
        raise DataError(f"read: separator={separator!r}. Expected a character, or a few.")
    lines = _first_lines(path, encoding)
    skip = next(i for i, line in enumerate(lines) if line.strip())
    lines = [line for line in lines if line.strip()]
    if separator is None:
        separator = _guess_separator(lines[:100])
    rows = [_split(line, separator) for line in lines[:1000]]
    first = [cell.strip() for cell in rows[0]]
    if len(first) == 1:
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
            f"read: {path} has duplicate headers ({some(twice)}). Rename them in the file."
        )
    return Layout(path, separator, encoding, names, True, skip + 1, rows[1:])


def has_numbers(shape: Layout) -> bool:
    """Whether there is a number in the sample, so that a first line without is a header."""
    return any(_is_number(cell) for row in shape.sample for cell in row)


def _first_lines(path: Path, encoding: str) -> list[str]:
    with _reading(path, encoding), _open(path) as file:
        head = file.read(HEAD)
        wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
        text = head.decode(encoding, errors="replace").lstrip("\ufeff")
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
    whole = lines[:-1] if len(head) == HEAD else lines
    return whole if any(map(str.strip, whole)) else lines


def _guess_separator(lines: list[str]) -> str:
    """The separator that cuts most lines like the first; of several, the one that cuts finest."""

    def fit(separator: str) -> tuple[int, int]:
        widths = [len(_split(line, separator)) for line in lines]
        return (widths.count(widths[0]), widths[0]) if widths[0] > 1 else (0, 0)

    return max((s for s in SEPARATORS if s in lines[0]), key=fit, default=",")


def load(shape: Layout, columns: list[str], ids: Collection[str]) -> pa.Table:
    """Read these columns with the fast parser; ids are integers or strings.

    Raises `pa.ArrowInvalid` where a line does not parse: `load_lines` then says which.
    """
    content = _content(shape)
    if next(_inspect(content, shape, columns), None) is None:
        return _empty(columns)
    start = 0
    for _ in range(shape.skip):
        start = content.find(b"\n", start) + 1
    quotes = not _is_long(shape.separator) and content.find(b'"', start) >= 0
    table = _parse(content, shape, columns, ids, quotes=quotes)
    # a field over several lines is fine if its quotes are: one left open swallows the lines below
    if quotes and table.num_rows != _num_lines(content) - shape.skip:
        for number, _, problem in _inspect(content, shape, columns):
            if problem:
                raise pa.ArrowInvalid(f"line {number}: {problem}")
    return table


def load_lines(
    shape: Layout, columns: list[str], ids: Collection[str]
) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
    """Read a file line by line: the rows that parse, their line numbers, and what is wrong."""
    content = _content(shape)
    problems: dict[str, list[int]] = defaultdict(list)
    lines: list[int] = []
    kept = io.StringIO()
    write = csv.writer(kept, delimiter=shape.byte)  # ends lines with CR LF, so it quotes both
    for number, cells, problem in _inspect(content, shape, columns):
        if problem:
            problems[problem].append(number)
        else:
            write.writerow(cells)
            lines.append(number)
    if not lines:
        return _empty(columns), np.zeros(0, np.int64), problems
    clean = Layout(shape.path, shape.byte, "utf-8", shape.names, False, 0, shape.sample)
    text = kept.getvalue().encode(errors="surrogateescape")
    block = min(max(BLOCK, len(text)), 2**31 - 2)  # a field may be longer than a usual block
    table = _parse(text, clean, columns, ids, quotes=True, block=block)
    return table, np.array(lines), problems


def _empty(columns: list[str]) -> pa.Table:
    return pa.table({name: pa.nulls(0) for name in columns})


def _parse(
    content: Any,
    shape: Layout,
    columns: list[str],
    ids: Collection[str],
    *,
    quotes: bool,
    block: int = BLOCK,
) -> pa.Table:
    try:
        table = _fast(content, shape, columns, ids, quotes, block)
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        # the type guessed from the first block does not hold further down
        table = _fast(content, shape, columns, columns, quotes, block)
    if pa.binary() in table.schema.types:
        raise pa.ArrowInvalid("a column that is not valid UTF-8")
    with ThreadPoolExecutor() as pool:
        found = dict(zip(ids, pool.map(integers, [table[name] for name in ids]), strict=True))
    return pa.table({name: found.get(name, table[name]) for name in columns})


def integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as int64 if that loses nothing: not "007", "1.0", "0x1F" or more than 64 bits."""
    try:
        whole = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
    values = (whole.drop_null() if whole.null_count else whole).to_numpy()
    negative = values[values < 0]
    positive = (-negative).view(np.uint64)  # the least integer has no negative among the signed
    length = len(values) + len(negative) + _further_digits(values) + _further_digits(positive)
    return whole if length == (pc.sum(pc.binary_length(column)).as_py() or 0) else column


def _further_digits(values: np.ndarray) -> int:
    """How many decimal digits the positive integers have after their first."""
    longest = len(str(int(values.max(initial=0))))
    return sum(int(np.count_nonzero(values >= 10**p)) for p in range(1, longest))


def _fast(
    content: Any,
    shape: Layout,
    columns: list[str],
    texts: Collection[str],
    quotes: bool,
    block: int,
) -> pa.Table:
    return pacsv.read_csv(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=pacsv.ReadOptions(
            column_names=shape.names, skip_rows=shape.skip, block_size=block
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=shape.byte, quote_char='"' if quotes else False, newlines_in_values=quotes
        ),
        convert_options=pacsv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(texts, pa.string()),
            null_values=NULLS,
            strings_can_be_null=True,
        ),
    )


def _content(shape: Layout) -> Any:
    """The whole file as UTF-8 with one-byte separators, mapped if it stands so on the disk."""
    with _reading(shape.path, shape.encoding), _open(shape.path) as file:
        is_utf8 = codecs.lookup(shape.encoding).name in ("utf-8", "utf-8-sig")
        if is_utf8 and not _is_long(shape.separator) and not isinstance(file, gzip.GzipFile):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        content = file.read()
        if not is_utf8:
            content = content.decode(shape.encoding).encode()
    if _is_long(shape.separator):
        content = content.replace(shape.separator.encode(), STAND_IN.encode())
    return content


def _num_lines(content: Any) -> int:
    end = len(content)
    while content[end - 1] in b"\r\n":
        end -= 1
    values = np.frombuffer(content, np.uint8)[:end]
    mark = ord("\n" if content.find(b"\n") >= 0 else "\r")
    blocks = (values[at : at + BLOCK] for at in range(0, end, BLOCK))
    return 1 + sum(int(np.count_nonzero(block == mark)) for block in blocks)


def explain(problems: dict[str, list[int]], unit: str = "line") -> str:
    """One clause a problem: how many lines, and the first of them."""
    parts = []
    for problem, lines in problems.items():
        where = f"{unit} {lines[0]}"
        if len(lines) > 1:
            where = f"{len(lines):,} {unit}s ({some(lines)})"
        parts.append(f"{problem}: {where}")
    return "; ".join(parts)


def _inspect(
    content: Any, shape: Layout, columns: Collection[str]
) -> Iterator[tuple[int, list[str], str]]:
    """Number, cells and problem (or "") of every line, blank ones left out."""
    places, width = [shape.names.index(name) for name in columns], len(shape.names)
    for number, cells, problem in _records(content, shape):
        if number <= shape.skip or not (cells or problem):
            continue
        if not problem and len(cells) != width:
            problem = f"expected {width} columns, got {len(cells)}"
        elif not problem and any("\udc80" <= c <= "\udcff" for at in places for c in cells[at]):
            problem = "not valid UTF-8 (another encoding? try encoding='latin-1')"
        yield number, cells, problem


def _records(content: Any, shape: Layout) -> Iterator[tuple[int, list[str], str]]:
    source = pa.BufferReader(pa.py_buffer(content))
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
    lines = _Lines(text)
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
    reader = csv.reader(
        lines,
        delimiter=shape.byte,
        quoting=csv.QUOTE_NONE if _is_long(shape.separator) else csv.QUOTE_MINIMAL,
        strict=True,
    )
    number = 1
    while True:
        lines.taken.clear()
        try:
            cells, problem = next(reader), ""
        except StopIteration:
            return
        except csv.Error as error:
            cells, problem = [], f"badly quoted ({error})"
            lines.put_back_all_but_first()
        yield number, cells, problem
        number += len(lines.taken)


class _Lines(Iterator[str]):
    """Lines of a text, of which the last ones taken can be put back."""

    def __init__(self, text: IO[str]) -> None:
        self.text, self.taken, self.waiting = text, list[str](), deque[str]()

    def __next__(self) -> str:
        self.taken.append(self.waiting.popleft() if self.waiting else next(self.text))
        return self.taken[-1]

    def put_back_all_but_first(self) -> None:
        self.waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")  # type: ignore[return-value]


@contextmanager
def _reading(path: Path, encoding: str) -> Iterator[None]:
    """Turn what can go wrong with a file into one kind of error."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"read: cannot read {path} ({error}). Is it whole, and readable?") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"read: {path}: line {line} is not valid {encoding} ({error.reason}). Pass the "
            "encoding it was written in, e.g. encoding='latin-1'."
        ) from None
    except LookupError:
        raise DataError(f"read: unknown encoding {encoding!r}. Try 'utf-8' or 'latin-1'.") from None


def _is_long(separator: str) -> bool:
    """More than one byte: replaced by a stand-in, and such files know no quotes."""
    return len(separator.encode()) > 1


def _split(line: str, separator: str) -> list[str]:
    return (
        line.split(separator)
        if _is_long(separator)
        else next(csv.reader([line], delimiter=separator))
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
