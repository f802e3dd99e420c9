"""Print results on standard output, as tables or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer
from rich.console import Console

from softdex.errors import counted
from softdex.model.artifact import plain
from softdex.table_files import save_table
from softdex.tables import grid


def print_json(value: Any) -> None:
    """Print strict JSON."""
    typer.echo(json.dumps(plain(value), indent=2))


def print_table(table: pa.Table, *, as_json: bool) -> None:
    """Print the rows of a table."""
    if as_json:
        print_json(table.to_pylist())
        return
    rows = [[_cell(v) for v in row.values()] for row in table.to_pylist()]
    Console(highlight=False).print(grid(table.column_names, rows, numbers=False))


def print_or_write(table: pa.Table, out: Path | None, *, as_json: bool) -> None:
    """Write a table to a file, or print its rows; an empty one prints as nothing."""
    if out is not None:
        save_table(out, table)
        print_written(out, table.num_rows, as_json=as_json)
    elif len(table) or as_json:
        print_table(table, as_json=as_json)


def print_written(out: Path, rows: int, *, as_json: bool) -> None:
    """Print which file was written."""
    if as_json:
        print_json({"out": str(out), "rows": rows})
    else:
        typer.echo(f"wrote {out} ({counted(rows, 'rows')})")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
