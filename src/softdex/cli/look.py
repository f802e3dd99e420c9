"""softdex look: the page of models in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.serve import check_extra, named


def look(
    models: Annotated[
        list[str], typer.Argument(help="Run folder or saved model, or NAME=PATH; several.")
    ],
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 0,
    pictures: Annotated[
        Path | None, typer.Option(help="Folder of pictures of items, named by their keys.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser, if there is one.")] = True,
) -> None:
    """Open a page in the browser: lists, why, what if, two models side by side."""
    check_extra("look")
    from softdex.serve.app import Settings
    from softdex.serve.start import LOOKER_WAITS, made, opened, run

    settings = Settings(
        port=port, pictures=pictures, max_wait=LOOKER_WAITS, timeout=LOOKER_WAITS, drain=0.0
    )
    server, url = made(named(models, "look"), None, settings)

    def tell() -> None:
        how = "" if browser and opened(url) else " (open it in a browser)"
        typer.echo(f"the page is at {url}{how}; Ctrl-C ends it")

    run(server, tell)
