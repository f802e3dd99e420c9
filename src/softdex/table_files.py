"""Table files: written in the format that their name ends in, completely or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from softdex.errors import SoftdexError
from softdex.files import check_file, write_atomically

Write = Callable[[pa.Table], object]
ROWS = 10_000  # rows that are turned into text at a time


def save_table(path: Path, table: pa.Table) -> None:
    """Write a table in the format that the name ends in."""
    save_tables(path, iter([table]))


def save_tables(path: Path, tables: Iterator[pa.Table]) -> int:
    """Stream tables, at least one, into a file; return the number of rows."""
    open_writer, packed = format_of(path, "save")
    count = 0

    def fill(file: Any) -> None:
        nonlocal count
        first = next(tables)
        unpacked = gzip.GzipFile("", "wb", 6, file, 0) if packed else nullcontext(file)
        with unpacked as inner, open_writer(inner, first.schema) as write:
            for table in chain([first], tables):
                write(table)
                count += table.num_rows

    write_atomically(path, fill)
    return count


def check_table_file(path: Path, where: str) -> None:
    """Refuse a name of no known format, and a place that cannot be written to."""
    check_file(path, where)
    format_of(path, where)


def format_of(path: Path, where: str) -> tuple[Any, bool]:
    """Return the writer of the format that a name ends in, and whether it is compressed."""
    name = path.name.lower()
    packed = name.endswith((".csv.gz", ".tsv.gz", ".jsonl.gz"))
    suffix = Path(name.removesuffix(".gz") if packed else name).suffix
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise SoftdexError(
            f"{where}: expected a file name ending in {known}, .csv.gz, .tsv.gz or .jsonl.gz, got "
            f"{path.name!r}."
        )
    return FORMATS[suffix], packed


# inside ------------------------------------------------------------------------------------------


@contextmanager
def _parquet(file: Any, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(file, schema) as writer:
        yield writer.write_table


@contextmanager
def _arrow(file: Any, schema: pa.Schema) -> Iterator[Write]:
    with pa.ipc.new_file(file, schema) as writer:
        yield writer.write_table


def _text(separator: str) -> Callable[[Any, pa.Schema], AbstractContextManager[Write]]:
    @contextmanager
    def opened(file: Any, schema: pa.Schema) -> Iterator[Write]:
        flat = _flat(schema.empty_table())
        options = pcsv.WriteOptions(delimiter=separator, quoting_style="needed")
        with pcsv.CSVWriter(file, flat.schema, write_options=options) as writer:
            yield lambda table: writer.write_table(_flat(table))

    return opened


@contextmanager
def _lines(file: Any, schema: pa.Schema) -> Iterator[Write]:
    def write(table: pa.Table) -> None:
        for part in table.to_batches(ROWS):
            rows = (json.dumps(row, default=str) + "\n" for row in _finite(part).to_pylist())
            file.write("".join(rows).encode())

    yield write


def _finite(part: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with null for numbers that JSON does not have."""
    columns = [
        pc.if_else(pc.is_finite(column), column, None)
        if pa.types.is_floating(column.type) else column
        for column in part.columns
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=part.schema.names)


def _flat(table: pa.Table) -> pa.Table:
    """Return a table that CSV can hold: lists as their values with | between them."""
    columns = [
        pa.array([_word(cell) for cell in column.to_pylist()], pa.string())
        if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType)
        else column
        for column in table.columns
    ]  # fmt: skip
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _word(cell: Any) -> str | None:
    if isinstance(cell, Iterable) and not isinstance(cell, (str, bytes, dict)):
        return "|".join(map(str, cell))
    return None if cell is None else str(cell)


FORMATS: dict[str, Callable[[Any, pa.Schema], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _text(","),
    ".tsv": _text("\t"),
    ".jsonl": _lines,
}
