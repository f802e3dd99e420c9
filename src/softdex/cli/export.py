"""softdex export: item vectors for other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.options import AsJson, Model
from softdex.cli.output import print_json
from softdex.errors import counted
from softdex.files import check_file
from softdex.model.export import key_file
from softdex.model.saving import load


def export(
    model: Model,
    faiss: Annotated[Path, typer.Option(help="Index file to write.")],
    factory: Annotated[
        str, typer.Option(help="Index factory string of faiss, e.g. IVF1024,Flat.")
    ] = "Flat",
    as_json: AsJson = False,
) -> None:
    """Export the item vectors as a faiss index with a file of their keys."""
    for file in (faiss, key_file(faiss)):
        check_file(file, "export")
    count = load(model).export_faiss(faiss, factory)
    keys = key_file(faiss)
    if as_json:
        print_json({"out": str(faiss), "keys": str(keys), "items": count})
    else:
        typer.echo(f"wrote {faiss} ({counted(count, 'items')}) and {keys}")
