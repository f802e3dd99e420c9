"""Columns that Arrow holds or reads: a table in memory, Parquet files, Arrow IPC files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from softdex.data.arrow import without_views
from softdex.data.compressed import is_plain, open_bytes, readable
from softdex.data.memory import first_line, validated
from softdex.data.paths import ARROW, PARQUET, suffix
from softdex.errors import DataError

SAMPLE_ROWS = 1000
PIECE = 2**22  # rows of a Parquet file that are read at a time where memory matters
MAGIC = {b"PAR1": "Parquet", b"ARRO": "Arrow"}  # the first bytes of a file
BROKEN = (pa.ArrowException, OSError, UnicodeError)
NO_LINES: dict[str, list[int]] = {}


@dataclass(frozen=True)
class InMemory:
    """A table in memory."""

    label: str
    table: pa.Table
    kind: str = "memory"

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.table.column_names

    def sample(self, columns: list[str]) -> pa.Table:
        """The first rows of these columns."""
        return validated(self.table.select(columns).slice(0, SAMPLE_ROWS), self.label)

    def fetch(self, columns: list[str], ids: list[str]) -> pa.Table:
        """All rows of these columns."""
        found = validated(self.table.select(columns), self.label)
        return pa.table({name: without_views(found[name]) for name in columns})

    def by_line(
        self, columns: list[str], ids: list[str]
    ) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
        """All rows with their numbers."""
        table = self.fetch(columns, ids)
        return table, np.arange(table.num_rows), NO_LINES


@dataclass(frozen=True)
class Columnar:
    """A Parquet or an Arrow IPC file."""

    path: Path
    kind: str
    names: list[str]
    groups: tuple[int, ...] = ()  # those of a Parquet file, if not all
    start: int = 0  # number of their first row

    @property
    def label(self) -> str:
        """The path."""
        return str(self.path)

    def sample(self, columns: list[str]) -> pa.Table:
        """The first rows of these columns."""
        with self._whole() as file:
            if self.kind == "Arrow":
                return validated(_arrow(file).select(columns).slice(0, SAMPLE_ROWS), self.label)
            with pq.ParquetFile(file) as opened:
                batches = opened.iter_batches(SAMPLE_ROWS, columns=columns)
                first = next(batches, None)
                found = opened.schema_arrow.empty_table().select(columns)
                return validated(found if first is None else pa.table(first), self.label)

    def fetch(self, columns: list[str], ids: list[str]) -> pa.Table:
        """All rows of these columns."""
        with self._whole() as file:
            if self.kind == "Arrow":
                return InMemory(self.label, _arrow(file)).fetch(columns, ids)
            if self.groups:
                with pq.ParquetFile(file) as opened:
                    return validated(opened.read_row_groups(self.groups, columns), self.label)
            return validated(pq.read_table(file, columns=columns, partitioning=None), self.label)

    def by_line(
        self, columns: list[str], ids: list[str]
    ) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
        """All rows with their numbers."""
        table = self.fetch(columns, ids)
        return table, self.start + np.arange(table.num_rows), NO_LINES

    @contextmanager
    def _whole(self) -> Iterator[Any]:
        try:
            yield _bytes(self.path)
        except BROKEN as error:
            raise DataError(f"read: cannot read {self.path} ({first_line(error)}).") from None


def pieces_of(part: Columnar) -> Iterator[Columnar]:
    """Yield a Parquet file as its row groups, together as long as they have up to PIECE rows."""
    if part.kind != "Parquet":
        yield part
        return
    with part._whole() as file, pq.ParquetFile(file) as opened:
        about = opened.metadata
        rows = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    groups: list[int] = []
    start = held = 0
    for i, count in enumerate(rows):
        if groups and held + count > PIECE:
            yield replace(part, groups=tuple(groups), start=start)
            groups, start, held = [], start + held, 0
        groups.append(i)
        held += count
    yield replace(part, groups=tuple(groups), start=start)


def is_columnar(path: Path) -> bool:
    """Whether a file is Parquet or Arrow IPC, by its name or its first bytes."""
    return bool(_kind(path))


def open_columnar(path: Path) -> Columnar:
    """Read the names of the columns of a file."""
    kind = _kind(path)
    try:
        schema = pq.read_schema(_bytes(path)) if kind == "Parquet" else _arrow(_bytes(path)).schema
        return Columnar(path, kind, schema.names)
    except BROKEN as error:
        raise DataError(
            f"read: {path} is not a readable {kind} file ({first_line(error)}). Is it complete?"
        ) from None


def _kind(path: Path) -> str:
    if suffix(path) in (*PARQUET, *ARROW):
        return "Parquet" if suffix(path) in PARQUET else "Arrow"
    with readable(path), open_bytes(path) as file:
        return MAGIC.get(file.read(4), "")


def _bytes(path: Path) -> Any:
    """What Arrow reads a file from: the file itself, or its content if that is compressed."""
    with readable(path):
        if is_plain(path):
            return pa.OSFile(str(path))
        with open_bytes(path) as file:
            return pa.BufferReader(file.read())


def _arrow(file: Any) -> pa.Table:
    """An IPC file, or a stream if it is none."""
    try:
        return pa.ipc.open_file(file).read_all()
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file).read_all()
