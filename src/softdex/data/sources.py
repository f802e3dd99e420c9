"""Sources: the columns of a table in memory, of Parquet files, or of text files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from softdex.data import delimited
from softdex.data.arrow import without_views
from softdex.data.interactions import Interactions
from softdex.data.layout import Layout, guess_layout
from softdex.errors import DataError, did_you_mean, first_few

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter")
PARQUET = (".parquet", ".pq")
SAMPLE_ROWS = 1000
EXPECTED = (
    "Expected a path, an Arrow-compatible table, a scipy sparse matrix or an iterable of (user, "
    "item[, time[, weight]]) tuples."
)


@dataclass(frozen=True)
class Fetched:
    """Columns that were read, and which lines of their files they came from.

    Attributes:
        table: the rows that parse.
        places: per file, its label and the line or row number of each row; None if not known.
        problems: per label, the line numbers of the lines that do not parse, per problem.
    """

    table: pa.Table
    places: list[tuple[str, np.ndarray]] | None = None
    problems: dict[str, dict[str, list[int]]] = field(default_factory=dict)


@dataclass
class Source:
    """A table in memory, Parquet files, or text files.

    Attributes:
        label: names the source in messages.
        names: its columns.
        table, parquet, text: one of them; the others are empty.
    """

    label: str
    names: list[str]
    table: pa.Table | None = None
    parquet: list[Path] = field(default_factory=list)
    text: list[Layout] = field(default_factory=list)

    def fetch(self, columns: list[str], ids: list[str]) -> Fetched:
        """Read columns the fast way, or line by line where that fails."""
        if not self.text:
            return Fetched(concatenate([table for _, table in self._tables(columns)]))
        try:
            return Fetched(concatenate([delimited.read_fast(t, columns, ids) for t in self.text]))
        except pa.ArrowInvalid:
            return self.fetch_with_places(columns, ids)

    def fetch_with_places(self, columns: list[str], ids: list[str]) -> Fetched:
        """Read columns together with the line or row number of each row."""
        tables, places, problems = [], [], {}
        for label, table in self._tables(columns):
            tables.append(table)
            places.append((label, np.arange(table.num_rows)))
        for layout in self.text:
            try:
                table, lines, bad = delimited.read_by_line(layout, columns, ids)
            except pa.ArrowInvalid as error:
                reason = _first_line(error)
                raise DataError(f"read: {layout.path} does not parse ({reason}).") from None
            tables.append(table)
            places.append((str(layout.path), lines))
            if bad:
                problems[str(layout.path)] = bad
        return Fetched(concatenate(tables), places, problems)

    def sample(self, columns: list[str]) -> pa.Table:
        """The first rows of these columns, to see what they hold."""
        if self.text:
            rows = [row for row in self.text[0].sample if len(row) == len(self.names)]
            cells = {name: [row[self.names.index(name)] for row in rows] for name in columns}
            return pa.table({name: _or_null(column) for name, column in cells.items()})
        if self.table is not None:
            return self.table.select(columns).slice(0, SAMPLE_ROWS)
        with pq.ParquetFile(self.parquet[0]) as file:
            for batch in file.iter_batches(SAMPLE_ROWS, columns=columns):
                return pa.table(batch)
        return pa.table({name: pa.nulls(0) for name in columns})

    def _tables(self, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
        if self.table is not None:
            found = {name: without_views(self.table[name]) for name in columns}
            yield self.label, pa.table(found)
        for path in self.parquet:
            missing = set(columns) - set(_schema(path).names)
            if missing:
                raise DataError(
                    f"read: {path} has no column {first_few(sorted(missing))}, which "
                    f"{self.parquet[0]} has. Read files with the same columns together."
                )
            try:
                yield str(path), pq.read_table(path, columns=columns, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"read: cannot read {path} ({_first_line(error)}).") from None


def _or_null(cells: list[str]) -> pa.Array:
    return pa.array([None if c in delimited.NULLS else c for c in cells], pa.string())


def _first_line(error: BaseException) -> str:
    """The first line of an error; the rest only helps those who know Arrow."""
    return str(error).strip().split("\n")[0].rstrip(".")


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Join tables; ids that are integers in one and strings in another become strings."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    return pa.table({name: _join(name, [t.select([name]) for t in tables]) for name in names})


def _join(name: str, parts: list[pa.Table]) -> pa.ChunkedArray:
    text = pa.schema([(name, pa.string())])
    try:
        return pa.concat_tables(parts, promote_options="permissive")[name]
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kinds = {str(p.schema.field(name).type) for p in parts}
    try:
        return pa.concat_tables([p.cast(text) for p in parts])[name]
    except pa.ArrowException:
        raise DataError(
            f"read: column {name!r} has the types {first_few(sorted(kinds))} in different files. "
            "Cast it to one."
        ) from None


def open_source(source: Any, separator: str | None, encoding: str) -> Source:
    """Find out what a source is and which columns it has; nothing is read yet."""
    if isinstance(source, (str, os.PathLike)):
        return _from_paths(_paths(source), separator, encoding)
    if (
        isinstance(source, (list, tuple))
        and source
        and all(isinstance(s, (str, os.PathLike)) for s in source)
    ):
        return _from_paths([p for s in source for p in _paths(s)], separator, encoding)
    if isinstance(source, Interactions):
        raise DataError("read: this is a log already. Use it as it is.")
    table = _from_arrow(source) if _has_arrow_interface(source) else _from_tuples(source)
    _refuse_duplicates("the table", table.column_names)
    return Source("a table", table.column_names, table=table)


def _has_arrow_interface(source: Any) -> bool:
    return (
        isinstance(source, (pa.Table, pa.RecordBatch, Mapping))
        or hasattr(source, "__arrow_c_stream__")
        or hasattr(source, "__arrow_c_array__")
    )


def _from_arrow(source: Any) -> pa.Table:
    try:
        table = pa.table(source)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        reason = "; ".join(map(str, error.args)) or str(error)
        raise DataError(
            f"read: this {type(source).__name__} does not convert to an Arrow table ({reason}). "
            "Expected columns of equal length, each of one type: cast mixed ones to strings."
        ) from None
    # polars exports the addresses of Python objects as eight bytes
    objects = [f.name for f in table.schema if f.type == pa.binary(8)]
    if objects and type(source).__module__.startswith("polars"):
        raise DataError(
            f"read: column {first_few(objects)} holds Python objects. Cast it to strings first."
        )
    return table


def _from_tuples(source: Any) -> pa.Table:
    try:
        rows = list(source) if isinstance(source, Iterable) else None
    except TypeError:
        rows = None
    if rows is None or isinstance(source, (bytes, bytearray)):
        lazy = " Collect it first." if hasattr(source, "collect") else ""
        raise DataError(f"read: cannot read {type(source).__name__}.{lazy} {EXPECTED}")
    if not rows:
        raise DataError(f"read: the source is empty. {EXPECTED}")
    strange = [r for r in rows if isinstance(r, (str, bytes, Mapping, Set)) or not _has_len(r)]
    widths = sorted({len(r) for r in rows if _has_len(r)})
    if strange or len(widths) != 1 or not 2 <= widths[0] <= 4:
        raise DataError(
            "read: expected tuples (user, item[, time[, weight]]) of one length, got "
            f"{str((strange or rows)[0])[:60]!r} and lengths {first_few(widths) or 'none'}. Pass "
            "other columns as a dict of lists, or as a pandas, polars or pyarrow table."
        )
    names = ("user", "item", "time", "weight")[: widths[0]]
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return pa.table({name: _cells(name, cells) for name, cells in columns})


def _has_len(row: object) -> bool:
    return hasattr(row, "__len__") and getattr(row, "ndim", 1) == 1


def _cells(name: str, cells: tuple[Any, ...]) -> pa.Array:
    try:
        return pa.array(cells)
    except OverflowError:
        raise DataError(
            f"read: column {name!r} holds integers of more than 64 bits. Use strings."
        ) from None
    except pa.ArrowException:
        kinds = sorted({type(c).__name__ for c in cells})
        raise DataError(
            f"read: column {name!r} mixes {', '.join(kinds)}. Use one type, e.g. strings."
            if len(kinds) > 1
            else f"read: column {name!r} holds {kinds[0]} objects. Use numbers or strings."
        ) from None


def _paths(source: str | os.PathLike[str]) -> list[Path]:
    """The files that a path, a folder or a glob stands for."""
    path = Path(source)
    try:
        path = path.expanduser()
        if path.is_dir():
            return _tables_in(path)
        if path.exists():
            return [path]
        folder = path.parent
        beside = [p.name for p in folder.iterdir()][:500] if folder.is_dir() else None
    except (OSError, RuntimeError) as error:
        raise DataError(f"read: no file {str(path)[:80]!r} ({str(error)[:60]}).") from None
    if any(c in str(path) for c in "*?["):
        matches = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if matches:
            return [p for match in matches for p in _paths(match)]
        raise DataError(f"read: nothing matches {path}. Is the folder right?")
    hint = f"Folder {folder} is missing too." if beside is None else did_you_mean(path.name, beside)
    if hint.startswith("Known"):
        hint = f"Folder {folder} holds {first_few(sorted(beside or []))}."
    raise DataError(
        f"read: no file {str(path) if str(path).isprintable() else repr(str(path))}. {hint}"
    )


def _tables_in(folder: Path) -> list[Path]:
    inside = sorted(p for p in folder.iterdir() if p.is_file() and _is_table(p))
    if not inside:
        raise DataError(
            f"read: folder {folder} holds no table. Expected files that end in "
            f"{', '.join((*PARQUET, *TEXT))} or .gz."
        )
    return inside


def _is_table(path: Path) -> bool:
    suffixes = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    return bool(suffixes) and suffixes[-1] in (*TEXT, *PARQUET) and path.name[0] not in "._"


def _from_paths(paths: list[Path], separator: str | None, encoding: str) -> Source:
    label = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files ({paths[0]}, ...)"
    is_parquet = [_is_parquet(p) for p in paths]
    if all(is_parquet):
        names = _schema(paths[0]).names
        _refuse_duplicates(label, names)
        return Source(label, names, parquet=paths)
    if any(is_parquet):
        raise DataError(f"read: {label} mixes Parquet and text files. Read one kind at a time.")
    text = [guess_layout(p, separator, encoding) for p in paths]
    for other in text[1:]:
        if sorted(other.names) != sorted(text[0].names):
            raise DataError(
                f"read: {other.path} has columns {first_few(other.names, 12)}; {text[0].path} has "
                f"{first_few(text[0].names, 12)}. Read files with the same columns together."
            )
    return Source(label, text[0].names, text=text)


def _refuse_duplicates(label: str, names: list[str]) -> None:
    twice = [n for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise DataError(f"read: {label} has duplicate columns ({first_few(twice)}). Rename them.")


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"read: {path} is not a readable Parquet file ({_first_line(error)}). Is it complete?"
        ) from None


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix.lower() in PARQUET or file.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(f"read: cannot read {path} ({error.strerror}).") from None
