"""softdex explain: the beam search of a tree model as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.arguments import words
from softdex.cli.options import AsJson, unfold
from softdex.cli.output import print_json, print_table
from softdex.cli.rules import RuleOptions
from softdex.errors import SoftdexError
from softdex.explain.draw import draw
from softdex.explain.look import TREES, look
from softdex.explain.near import draw_near, near
from softdex.files import check_page, save_text
from softdex.model.saving import load


@unfold
def explain(
    model: Annotated[Path, typer.Argument(help=f"Run folder or saved model: {TREES}.")],
    rules: RuleOptions,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User key.")] = None,
    history: Annotated[
        str | None, typer.Option(help="Item keys, comma-separated: a user not in training.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", "-i", help="Item key: draw the subtree around it.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Length of the list; 10 by default.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("explain.html"),
    columns: Annotated[
        str, typer.Option(help="Item columns that name items and nodes, comma-separated.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Draw the beam search of a tree model for one user, or the subtree around an item."""
    past = None if history is None else words(history, "--history")
    names = words(columns, "--columns")
    given = sum(each is not None for each in (user, past, item))
    if given != 1:
        raise SoftdexError(f"explain: expected one of --user, --history and --item, got {given}.")
    check_page(out, "explain")
    options = rules.given()
    if options.pop("at_most"):
        raise SoftdexError("explain: --at-most has no effect on a beam search. Leave it out.")
    if item is not None:
        if k is not None or rules != RuleOptions():
            raise SoftdexError("explain: --k and rules have no effect with --item. Leave them out.")
        part = near(load(model), item, names)
        table, page = part.table, draw_near(part)
    else:
        length = 10 if k is None else k
        search = look(load(model), user, history=past, k=length, columns=names, **options)
        table, page = search.table, draw(search)
    save_text(out, page)
    if as_json:
        print_json({"out": str(out), "items": table.to_pylist()})
        return
    print_table(table, as_json=False)
    typer.echo(f"\nwrote {out}")
