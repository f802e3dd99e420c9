"""softdex export: item vectors for other servers, or the page as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.errors import SoftdexError, counted
from softdex.files import check_file
from softdex.model.export import key_file
from softdex.model.saving import load


def export(
    models: Annotated[
        list[str], typer.Argument(help="Run folder or saved model; for a page also NAME=PATH.")
    ],
    faiss: Annotated[Path | None, typer.Option(help="Index file of faiss to write.")] = None,
    factory: Annotated[
        str, typer.Option(help="Index factory string of faiss, e.g. IVF1024,Flat.")
    ] = "Flat",
    page: Annotated[
        Path | None, typer.Option(help="Folder to write the page of `softdex look` into.")
    ] = None,
    users: Annotated[int, typer.Option(help="Users on the page, at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Export the item vectors as a faiss index with a file of keys, or the page as files."""
    if (faiss is None) == (page is None):
        raise SoftdexError("export: expected --faiss FILE or --page FOLDER, one of them.")
    if page is not None:
        _page(models, page, users, as_json=as_json)
    elif faiss is not None:
        if len(models) > 1:
            raise SoftdexError(f"export: an index file is of one model, got {len(models)}.")
        _faiss(Path(models[0]), faiss, factory, as_json=as_json)


def _faiss(model: Path, faiss: Path, factory: str, *, as_json: bool) -> None:
    for file in (faiss, key_file(faiss)):
        check_file(file, "export")
    count = load(model).export_faiss(faiss, factory)
    keys = key_file(faiss)
    if as_json:
        print_json({"out": str(faiss), "keys": str(keys), "items": count})
    else:
        typer.echo(f"wrote {faiss} ({counted(count, 'items')}) and {keys}")


def _page(models: list[str], folder: Path, users: int, *, as_json: bool) -> None:
    from softdex.cli.serve import check_extra, named

    check_extra("export")
    from softdex.serve.still import export_page

    count = export_page(named(models, "export"), folder, users)
    if as_json:
        print_json({"out": str(folder), "users": count})
    else:
        typer.echo(f"wrote {counted(count, 'users')} into {folder}: open {folder / 'index.html'}")
