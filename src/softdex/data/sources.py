"""Sources: where the columns of a log come from - a table in memory, Parquet or text files."""

from __future__ import annotations

import datetime as dt
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from softdex.data import delimited
from softdex.data.interactions import Interactions
from softdex.data.keys import chunked, plain, without_views
from softdex.errors import DataError, nearest, some

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter")
PARQUET = (".parquet", ".pq")
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
KINDS = (pa.int64(), pa.float64())  # what text is tried as, in this order
DATES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
EXPECTED = (
    "Expected a path, an Arrow-speaking table, a scipy sparse matrix or an iterable of (user, "
    "item[, time[, weight]]) tuples."
)


@dataclass(frozen=True)
class Loaded:
    """A table; where its rows stand (parts of it with their line numbers); lines left out of it.

    Attributes:
        places: a label and the line or row numbers of each part; None if nobody looked.
        problems: by label, what is wrong with the lines that do not parse.
    """

    table: pa.Table
    places: list[tuple[str, np.ndarray]] | None = None
    problems: dict[str, dict[str, list[int]]] = field(default_factory=dict)


@dataclass
class Source:
    """Where columns come from: a table in memory, Parquet files, or text files."""

    label: str
    names: list[str]
    table: pa.Table | None = None
    parquet: list[Path] = field(default_factory=list)
    text: list[delimited.Layout] = field(default_factory=list)

    def load(self, columns: list[str], ids: list[str]) -> Loaded:
        """These columns: the fast way if that goes, else line by line."""
        if not self.text:
            return Loaded(concatenate([table for _, table in self._tables(columns)]))
        try:
            return Loaded(concatenate([delimited.load(t, columns, ids) for t in self.text]))
        except pa.ArrowInvalid:
            return self.locate(columns, ids)

    def locate(self, columns: list[str], ids: list[str]) -> Loaded:
        """These columns with the place of each row."""
        tables, places, problems = [], [], {}
        for label, table in self._tables(columns):
            tables.append(table)
            places.append((label, np.arange(table.num_rows)))
        for shape in self.text:
            try:
                table, lines, bad = delimited.load_lines(shape, columns, ids)
            except pa.ArrowInvalid as error:
                raise DataError(f"read: {shape.path} does not parse ({_first(error)}).") from None
            tables.append(table)
            places.append((str(shape.path), lines))
            if bad:
                problems[str(shape.path)] = bad
        return Loaded(concatenate(tables), places, problems)

    def _tables(self, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
        if self.table is not None:
            found = {name: without_views(self.table[name]) for name in columns}
            yield self.label, pa.table(found)
        for path in self.parquet:
            missing = set(columns) - set(_schema(path).names)
            if missing:
                raise DataError(
                    f"read: {path} has no column {some(sorted(missing))}, which {self.parquet[0]} "
                    "has. Read files with the same columns together."
                )
            try:
                yield str(path), pq.read_table(path, columns=columns, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"read: cannot read {path} ({_first(error)}).") from None


def _first(error: BaseException) -> str:
    """The first line of an error: the rest is for those who know Arrow."""
    return str(error).strip().split("\n")[0].rstrip(".")


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """One table of several; ids that are integers here and strings there become strings."""
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
            f"read: column {name!r} has the types {some(sorted(kinds))} in different files. Cast "
            "it to one."
        ) from None


def open_source(source: Any, separator: str | None, encoding: str) -> Source:
    """Find out what a source is and which columns it has; nothing is loaded yet."""
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
    table = _from_table(source) if _speaks_arrow(source) else _from_tuples(source)
    _refuse_twins("the table", table.column_names)
    return Source("a table", table.column_names, table=table)


def _speaks_arrow(source: Any) -> bool:
    return (
        isinstance(source, (pa.Table, pa.RecordBatch, Mapping))
        or hasattr(source, "__arrow_c_stream__")
        or hasattr(source, "__arrow_c_array__")
    )


def _from_table(source: Any) -> pa.Table:
    try:
        table = pa.table(source)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        reason = "; ".join(map(str, error.args)) or str(error)
        raise DataError(
            f"read: this {type(source).__name__} does not turn into an Arrow table ({reason}). "
            "Expected columns of equal length, each of one type: cast mixed ones to strings."
        ) from None
    # polars hands out the addresses of Python objects as eight bytes
    objects = [f.name for f in table.schema if f.type == pa.binary(8)]
    if objects and type(source).__module__.startswith("polars"):
        raise DataError(
            f"read: column {some(objects)} holds Python objects. Cast it to strings first."
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
            f"{str((strange or rows)[0])[:60]!r} and lengths {some(widths) or 'none'}. A table "
            "with other columns can come as a dict of lists, or as pandas, polars or pyarrow."
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
            f"read: column {name!r} mixes {', '.join(kinds)}. Use one kind, e.g. strings."
            if len(kinds) > 1
            else f"read: column {name!r} holds {kinds[0]} objects. Use numbers or strings."
        ) from None


def _paths(source: str | os.PathLike[str]) -> list[Path]:
    path = Path(source)
    try:
        path = path.expanduser()
        if path.is_dir():
            return _inside(path)
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
    hint = f"Folder {folder} is missing too." if beside is None else nearest(path.name, beside)
    if hint.startswith("Known"):
        hint = f"Folder {folder} holds {some(sorted(beside or []))}."
    raise DataError(
        f"read: no file {str(path) if str(path).isprintable() else repr(str(path))}. {hint}"
    )


def _inside(folder: Path) -> list[Path]:
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
        _refuse_twins(label, names)
        return Source(label, names, parquet=paths)
    if any(is_parquet):
        raise DataError(
            f"read: {label} mixes Parquet and text files. Read them one kind at a time."
        )
    text = [delimited.layout(p, separator, encoding) for p in paths]
    for other in text[1:]:
        if sorted(other.names) != sorted(text[0].names):
            raise DataError(
                f"read: {other.path} has columns {some(other.names, 12)}; {text[0].path} has "
                f"{some(text[0].names, 12)}. Read files with the same columns together."
            )
    return Source(label, text[0].names, text=text)


def _refuse_twins(label: str, names: list[str]) -> None:
    twice = [n for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise DataError(f"read: {label} has duplicate columns ({some(twice)}). Rename them.")


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"read: {path} is not a readable Parquet file ({_first(error)}). Is it whole?"
        ) from None


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix.lower() in PARQUET or file.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(f"read: cannot read {path} ({error.strerror}).") from None


def nulls(column: pa.ChunkedArray) -> np.ndarray:
    """Mask of the cells that are null or NaN."""
    column = plain(column)
    if not column.null_count and not pa.types.is_floating(column.type):
        return np.zeros(len(column), bool)
    return pc.is_null(column, nan_is_null=True).to_numpy()


def numbers(column: pa.ChunkedArray, what: str, *, dates: bool) -> tuple[np.ndarray, np.ndarray]:
    """A column as int64 or float64, and a mask of the cells that are no number.

    Dates, where they are wanted, become microseconds since 1970 (UTC if they name no zone). Nulls
    are not in the mask; their value means nothing.
    """
    column = plain(column)
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
        return _read_text(column, dates)
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


def _read_text(column: pa.ChunkedArray, dates: bool) -> pa.ChunkedArray:
    """Text as numbers or dates; what is neither, or not of the commoner kind, becomes null."""
    for kind in (*KINDS, *(DATES if dates else ())):
        try:
            read = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return read.cast(pa.int64()) if kind in DATES else read
    cells = column.to_pylist()
    found = [None if cell is None else _number(cell) for cell in cells]
    if dates:
        moments = [None if cell is None else _moment(cell) for cell in cells]
        if sum(m is not None for m in moments) > sum(n is not None for n in found):
            found = moments
    if not all(isinstance(value, int) for value in found if value is not None):
        found = [None if value is None else float(value) for value in found]
    return chunked(pa.array(found, pa.float64() if float in map(type, found) else pa.int64()))


def _number(cell: str) -> float | None:
    if not NUMBER.fullmatch(cell):
        return None
    try:
        value = int(cell)
    except ValueError:
        return float(cell)
    return value if abs(value) < 2**63 else float(cell)


def _moment(cell: str) -> float | None:
    try:
        moment = dt.datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - EPOCH) // MICROSECOND
