"""Sources: where the columns of a log come from - a table in memory, Parquet or text files."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from softdex import delimited
from softdex.errors import DataError, nearest, some
from softdex.interactions import Interactions

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter")


@dataclass
class Source:
    """Where columns come from: a table in memory, Parquet files, or text files."""

    label: str
    names: list[str]
    table: pa.Table | None = None
    parquet: list[Path] = field(default_factory=list)
    text: list[delimited.Layout] = field(default_factory=list)

    def load(self, columns: list[str], ids: list[str]) -> pa.Table:
        """These columns as they stand."""
        if self.text:
            return concatenate([delimited.load(t, columns, ids) for t in self.text])
        if self.table is not None:
            return self.table.select(columns)
        try:
            return concatenate([pq.read_table(p, columns=columns) for p in self.parquet])
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"read: cannot read {self.label} ({error}).") from None


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """One table of several; ids that are integers here and strings there become strings."""
    if len(tables) == 1:
        return tables[0]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        texts = [t.cast(pa.schema([(n, pa.string()) for n in t.column_names])) for t in tables]
        return pa.concat_tables(texts)


def open_source(source: Any, separator: str | None, encoding: str) -> Source:
    """Find out what a source is and which columns it has; nothing is loaded yet."""
    if isinstance(source, (str, Path)) or (
        isinstance(source, list) and source and all(isinstance(s, (str, Path)) for s in source)
    ):
        return _from_paths(_paths(source), separator, encoding)
    if isinstance(source, Interactions):
        raise DataError("read: this is a log already. Use it as it is.")
    if isinstance(source, (pa.Table, pa.RecordBatch, Mapping)) or hasattr(
        source, "__arrow_c_stream__"
    ):
        table = pa.table(source)
    else:
        table = _from_tuples(source)
    twice = [n for i, n in enumerate(table.column_names) if n in table.column_names[:i]]
    if twice:
        raise DataError(f"read: the table has duplicate columns ({some(twice)}). Rename them.")
    return Source("a table", table.column_names, table=table)


def _from_tuples(source: Any) -> pa.Table:
    if not isinstance(source, Iterable):
        raise DataError(
            f"read: cannot read {type(source).__name__}. Expected a path, an Arrow-speaking table, "
            "a scipy sparse matrix or an iterable of (user, item[, time[, weight]]) tuples."
        )
    rows = list(source)
    if not rows:
        raise DataError(
            "read: the source is empty. Expected (user, item[, time[, weight]]) tuples."
        )
    try:
        widths = {len(r) for r in rows}
    except TypeError:
        widths = set()
    if len(widths) != 1 or not 2 <= max(widths) <= 4 or isinstance(rows[0], str):
        raise DataError(
            "read: expected tuples (user, item[, time[, weight]]) of one length, got "
            f"{rows[0]!r} first and lengths {sorted(widths) or 'none'}."
        )
    names = ("user", "item", "time", "weight")[: max(widths)]
    columns = {}
    for name, cells in zip(names, zip(*rows, strict=True), strict=True):
        try:
            columns[name] = pa.array(cells)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            kinds = sorted({type(c).__name__ for c in cells})
            raise DataError(
                f"read: column {name!r} mixes {', '.join(kinds)}. Use one kind, e.g. strings."
            ) from None
    return pa.table(columns)


def _paths(source: str | Path | list[Any]) -> list[Path]:
    if isinstance(source, list):
        return [p for s in source for p in _paths(s)]
    path = Path(source).expanduser()
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.is_file() and _is_table(p))
        if not inside:
            raise DataError(f"read: folder {path} holds no Parquet or text table.")
        return inside
    if path.exists():
        return [path]
    if any(c in str(path) for c in "*?["):
        matches = [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if matches:
            return matches
        raise DataError(f"read: nothing matches {path}.")
    folder = path.parent
    beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    hint = (
        nearest(path.name, beside[:500]) if folder.is_dir() else f"Folder {folder} is missing too."
    )
    raise DataError(f"read: no file {path}. {hint if 'Known' not in hint else ''}".rstrip())


def _is_table(path: Path) -> bool:
    suffixes = [s for s in path.suffixes if s != ".gz"]
    return (
        bool(suffixes) and suffixes[-1] in (*TEXT, ".parquet", ".pq") and path.name[0] not in "._"
    )


def _from_paths(paths: list[Path], separator: str | None, encoding: str) -> Source:
    label = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files ({paths[0]}, ...)"
    is_parquet = [p.suffix in (".parquet", ".pq") or _magic(p) == b"PAR1" for p in paths]
    if all(is_parquet):
        try:
            names = pq.read_schema(paths[0]).names
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"read: {paths[0]} is not a readable Parquet file ({error}).") from None
        return Source(label, names, parquet=paths)
    if any(is_parquet):
        raise DataError(
            f"read: {label} mixes Parquet and text files. Read them one kind at a time."
        )
    try:
        text = [delimited.layout(p, separator, encoding) for p in paths]
    except (OSError, EOFError) as error:
        raise DataError(f"read: cannot read {label} ({error}).") from None
    except LookupError:
        raise DataError(f"read: unknown encoding {encoding!r}. Try 'utf-8' or 'latin-1'.") from None
    for other in text[1:]:
        if other.names != text[0].names:
            raise DataError(
                f"read: {other.path} has columns {other.names}, {text[0].path} has {text[0].names}."
            )
    return Source(label, text[0].names, text=text)


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)
