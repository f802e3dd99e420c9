"""softdex recipes: what can be trained. It imports no numbers, so that it answers at once."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from softdex.cli.complete import recipe_names
from softdex.errors import choose
from softdex.listing import listing
from softdex.tables import render

HEADER = ("recipe", "", "speed", "new users", "cold items", "GPU")
LEGEND = """\
speed       a million events on two cores, with the defaults (minutes: below an hour)
new users   by recommend(history=...); encoder=mix: with this option
cold items  by add_items. features=: without events, if fitted with this option; columns: the same,
            by the item table; few events: after their first ones
GPU         training can use one; best: and should
every option of a family: {families}
softdex recipes NAME explains one. Without --recipe, `softdex fit LOG` takes {default}."""


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Recipe to show.", autocompletion=recipe_names)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recipes by what you have, or the options of one."""
    known = listing().recipes
    if name is not None:
        choose("recipes", "recipe", name, list(known))
    if as_json:
        chosen = {n: known[n]["options"] for n in known if name in (None, n)}
        typer.echo(json.dumps(chosen, indent=2))
    elif name is not None:
        defaults, docs = known[name]["options"], listing().docs(name)
        rows = [[f"-o {o}={json.dumps(defaults[o])}", text] for o, text in docs.items()]
        typer.echo(f"{name}: {known[name]['about']}\n")
        typer.echo(render("", ["option and default", ""], rows, numbers=False))
    else:
        typer.echo(table())


def table() -> str:
    """The table of recipes: a row each, in groups by what people have."""
    groups = listing().groups
    rows = {name: (name, *row) for group in groups.values() for name, row in group.items()}
    columns = zip(HEADER, *rows.values(), strict=True)
    widths = [max(map(len, column)) for column in columns]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()

    families = ", ".join(n for n in listing().recipes if n not in rows)
    lines = [line(HEADER)]
    for title, group in groups.items():
        lines += ["", f"{title}:", *(line(rows[name]) for name in group)]
    return "\n".join([*lines, "", LEGEND.format(families=families, default=listing().default)])
