"""softdex recipes: what can be trained."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from softdex import recipes as catalogue
from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.errors import choose
from softdex.tables import grid


def recipes(
    name: Annotated[str | None, typer.Argument(help="Recipe to show.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes with their options."""
    known = catalogue.names()
    chosen = known if name is None else [choose("recipes", "recipe", name, known)]
    options = {n: catalogue.options(n) for n in chosen}
    if as_json:
        print_json(options)
    elif name is not None:
        meaning = catalogue.docs(name)
        rows = [[f"-o {o}={json.dumps(options[name][o])}", meaning[o]] for o in meaning]
        typer.echo(f"{name}: {catalogue.about(name)}\n")
        Console(highlight=False).print(grid(["option and default", ""], rows, numbers=False))
    else:
        shown = {n: ", ".join(f"{o}={v}" for o, v in given.items()) for n, given in options.items()}
        rows = [[n, catalogue.about(n), shown[n]] for n in chosen]
        table = grid(["recipe", "what it does", "options"], rows, numbers=False)
        Console(highlight=False).print(table)
