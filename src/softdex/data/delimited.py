"""Delimited text: read it fast, or line by line where that finds the bad lines."""

from __future__ import annotations

import codecs
import csv
import io
import mmap
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from softdex.data.compressed import is_plain, open_bytes, readable
from softdex.data.layout import STAND_IN, Layout, is_long
from softdex.errors import first_few

NULLS = ["", "null", "NULL", "NaN", "nan", "None", "\\N", "NA", "N/A"]
BLOCK_BYTES = 1 << 22  # parsed at a time; a quoted line break may fall anywhere
LONGEST_FIELD = 1 << 30  # characters; Python's own limit would refuse long texts


@dataclass(frozen=True)
class Delimited:
    """A file of delimited text."""

    layout: Layout
    kind: str = "text"

    @property
    def label(self) -> str:
        """The path."""
        return str(self.layout.path)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.layout.names

    def sample(self, columns: list[str]) -> pa.Table:
        """These columns of the first rows, as text."""
        rows = [row for row in self.layout.sample if len(row) == len(self.names)]
        cells = {name: [row[self.names.index(name)] for row in rows] for name in columns}
        table = pa.table({name: pa.array(column, pa.string()) for name, column in cells.items()})
        for i, column in enumerate(table.columns):
            known = pc.is_in(column, value_set=pa.array(NULLS))
            table = table.set_column(i, columns[i], pc.if_else(known, None, column))
        return table

    def fetch(self, columns: list[str], ids: list[str]) -> pa.Table:
        """All rows of these columns; raises pa.ArrowInvalid if a line does not parse."""
        return read_fast(self.layout, columns, ids)

    def by_line(
        self, columns: list[str], ids: list[str]
    ) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
        """The rows that parse, the line number of each, and those that do not parse."""
        return read_by_line(self.layout, columns, ids)


def read_fast(layout: Layout, columns: list[str], ids: Collection[str]) -> pa.Table:
    """Read columns with the fast parser.

    Args:
        layout: of the file.
        columns: names of the columns to read.
        ids: those that hold ids: they come as int64 if that loses nothing, else as strings.

    Raises:
        pa.ArrowInvalid: a line does not parse; `read_by_line` says which.
    """
    content = _content(layout)
    if next(_inspect(content, layout, columns), None) is None:
        return _empty(columns)
    start = 0
    for _ in range(layout.skip):
        start = content.find(b"\n", start) + 1
    quotes = not is_long(layout.separator) and content.find(b'"', start) >= 0
    table = _parse(content, layout, columns, ids, quotes=quotes)
    # a field may span several lines if its quotes close; one left open swallows the lines below
    if quotes and table.num_rows != _num_lines(content) - layout.skip:
        for number, _, problem in _inspect(content, layout, columns):
            if problem:
                raise pa.ArrowInvalid(f"line {number}: {problem}")
    return table


def read_by_line(
    layout: Layout, columns: list[str], ids: Collection[str]
) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
    """Read columns line by line.

    Returns:
        the rows that parse, the line number of each, and the line numbers of the rest per problem.
    """
    content = _content(layout)
    problems: dict[str, list[int]] = defaultdict(list)
    lines: list[int] = []
    kept = io.StringIO()
    write = csv.writer(kept, delimiter=layout.byte)  # ends lines with CR LF, so it quotes both
    for number, cells, problem in _inspect(content, layout, columns):
        if problem:
            problems[problem].append(number)
        else:
            write.writerow(cells)
            lines.append(number)
    if not lines:
        return _empty(columns), np.zeros(0, np.int64), problems
    clean = Layout(layout.path, layout.byte, "utf-8", layout.names, False, 0, layout.sample)
    text = kept.getvalue().encode(errors="surrogateescape")
    block = min(max(BLOCK_BYTES, len(text)), 2**31 - 2)  # a field may be longer than a block
    table = _parse(text, clean, columns, ids, quotes=True, block=block)
    return table, np.array(lines), problems


def _empty(columns: list[str]) -> pa.Table:
    return pa.table({name: pa.nulls(0) for name in columns})


def _parse(
    content: Any,
    layout: Layout,
    columns: list[str],
    ids: Collection[str],
    *,
    quotes: bool,
    block: int = BLOCK_BYTES,
) -> pa.Table:
    try:
        table = _arrow_csv(content, layout, columns, ids, quotes, block)
    except pa.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        # the type inferred from the first block does not fit further down
        table = _arrow_csv(content, layout, columns, columns, quotes, block)
    if pa.binary() in table.schema.types:
        raise pa.ArrowInvalid("a column that is not valid UTF-8")
    with ThreadPoolExecutor() as pool:
        found = dict(zip(ids, pool.map(as_integers, [table[name] for name in ids]), strict=True))
    return pa.table({name: found.get(name, table[name]) for name in columns})


def as_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as int64 if that loses nothing: not "007", "1.0", "0x1F" or more than 64 bits."""
    try:
        whole = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
    values = (whole.drop_null() if whole.null_count else whole).to_numpy()
    negative = values[values < 0]
    positive = (-negative).view(np.uint64)  # -2^63 has no int64 counterpart
    length = len(values) + len(negative) + _digits_after_first(values)
    length += _digits_after_first(positive)
    return whole if length == (pc.sum(pc.binary_length(column)).as_py() or 0) else column


def _digits_after_first(values: np.ndarray) -> int:
    """Total number of decimal digits of the positive integers, less one per integer."""
    longest = len(str(int(values.max(initial=0))))
    return sum(int(np.count_nonzero(values >= 10**p)) for p in range(1, longest))


def _arrow_csv(
    content: Any,
    layout: Layout,
    columns: list[str],
    texts: Collection[str],
    quotes: bool,
    block: int,
) -> pa.Table:
    return pacsv.read_csv(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=pacsv.ReadOptions(
            column_names=layout.names, skip_rows=layout.skip, block_size=block
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=layout.byte, quote_char='"' if quotes else False, newlines_in_values=quotes
        ),
        convert_options=pacsv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(texts, pa.string()),
            null_values=NULLS,
            strings_can_be_null=True,
        ),
    )


def _content(layout: Layout) -> Any:
    """The file as UTF-8 with one-byte separators; memory-mapped if it is so on disk."""
    with readable(layout.path, layout.encoding), open_bytes(layout.path) as file:
        is_utf8 = codecs.lookup(layout.encoding).name in ("utf-8", "utf-8-sig")
        if is_utf8 and not is_long(layout.separator) and is_plain(layout.path):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        content = file.read()
        if not is_utf8:
            content = content.decode(layout.encoding).encode()
    if is_long(layout.separator):
        content = content.replace(layout.separator.encode(), STAND_IN.encode())
    return content


def _num_lines(content: Any) -> int:
    end = len(content)
    while content[end - 1] in b"\r\n":
        end -= 1
    values = np.frombuffer(content, np.uint8)[:end]
    mark = ord("\n" if content.find(b"\n") >= 0 else "\r")
    blocks = (values[at : at + BLOCK_BYTES] for at in range(0, end, BLOCK_BYTES))
    return 1 + sum(int(np.count_nonzero(block == mark)) for block in blocks)


def explain(problems: dict[str, list[int]], unit: str = "line") -> str:
    """One clause per problem: how many lines have it, and the first of them."""
    parts = []
    for problem, lines in problems.items():
        where = f"{unit} {lines[0]}"
        if len(lines) > 1:
            where = f"{len(lines):,} {unit}s ({first_few(lines)})"
        parts.append(f"{problem}: {where}")
    return "; ".join(parts)


def _inspect(
    content: Any, layout: Layout, columns: Collection[str]
) -> Iterator[tuple[int, list[str], str]]:
    """Number, cells and problem ("" if none) of every line of data that is not blank."""
    places, width = [layout.names.index(name) for name in columns], len(layout.names)
    for number, cells, problem in _records(content, layout):
        if number <= layout.skip or not (cells or problem):
            continue
        if not problem and len(cells) != width:
            problem = f"expected {width} columns, got {len(cells)}"
        elif not problem and any("\udc80" <= c <= "\udcff" for at in places for c in cells[at]):
            problem = "not valid UTF-8 (another encoding? try encoding='latin-1')"
        yield number, cells, problem


def _records(content: Any, layout: Layout) -> Iterator[tuple[int, list[str], str]]:
    source = pa.BufferReader(pa.py_buffer(content))
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
    lines = _Lines(text)
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    reader = csv.reader(
        lines,
        delimiter=layout.byte,
        quoting=csv.QUOTE_NONE if is_long(layout.separator) else csv.QUOTE_MINIMAL,
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
    """Lines of a text; the last ones taken can be put back."""

    def __init__(self, text: IO[str]) -> None:
        self.text, self.taken, self.waiting = text, list[str](), deque[str]()

    def __next__(self) -> str:
        self.taken.append(self.waiting.popleft() if self.waiting else next(self.text))
        return self.taken[-1]

    def put_back_all_but_first(self) -> None:
        self.waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]
