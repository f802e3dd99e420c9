"""softdex events: the event file of a server as a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.data.event_file import read_event_file
from softdex.errors import choose, counted
from softdex.table_files import check_table_file, save_table


def events(
    action: Annotated[str, typer.Argument(help="export: write the events as a log.")],
    file: Annotated[Path, typer.Argument(help="Event file of softdex serve.")],
    out: Annotated[
        Path, typer.Argument(help="File to write: .parquet, .arrow, .csv, .tsv or .jsonl.")
    ],
    as_json: AsJson = False,
) -> None:
    """Export the events that a server has kept, also while it runs."""
    choose("events", "action", action, ("export",))
    check_table_file(out, "events")
    found = read_event_file(file, "events")
    save_table(out, found.table)
    if as_json:
        print_json({"out": str(out), "events": found.table.num_rows, "until": found.until})
    else:
        typer.echo(f"wrote {out} ({counted(found.table.num_rows, 'events')})")
