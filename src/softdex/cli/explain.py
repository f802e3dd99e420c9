"""softdex explain: the shares of a score, or the beam search of a tree model as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.arguments import words
from softdex.cli.options import AsJson, Model, unfold
from softdex.cli.output import print_json, print_table
from softdex.cli.rules import RuleOptions
from softdex.errors import SoftdexError
from softdex.explain.draw import draw
from softdex.explain.look import look
from softdex.explain.near import draw_near, near
from softdex.files import check_page, save_text
from softdex.model.saving import load

PAGE = Path("explain.html")


@unfold
def explain(
    model: Model,
    rules: RuleOptions,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User key.")] = None,
    history: Annotated[
        str | None, typer.Option(help="Item keys, comma-separated: a user not in training.")
    ] = None,
    item: Annotated[
        str | None,
        typer.Option("--item", "-i", help="Item key; alone: draw the subtree around it."),
    ] = None,
    k: Annotated[
        int | None, typer.Option(help="Length of the list, 10 by default; or shares to print.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write; explain.html by default.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Item columns to show, comma-separated; they name nodes of a tree.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print what a user's history adds to an item's score, or draw the search of a tree model.

    With --user or --history and --item, the share of each item of the history in the score, of any
    model. With one of them alone, a page: the beam search of a tree model, or the subtree around
    the item.
    """
    past = None if history is None else words(history, "--history")
    names = words(columns, "--columns")
    if (user is None) == (past is None) and (item is None or user is not None):
        given = sum(each is not None for each in (user, past))
        raise SoftdexError(
            f"explain: expected --user or --history, with or without --item, or --item alone, got "
            f"{given} of the first two."
        )
    if item is not None and rules != RuleOptions():
        raise SoftdexError("explain: rules have no effect with --item. Leave them out.")
    if item is not None and (user is not None or past is not None):
        if out is not None:
            raise SoftdexError("explain: --out is for pages, shares are printed. Leave it out.")
        why = load(model).explain(user, item, history=past, k=k, columns=names)
        print_json(why.json()) if as_json else typer.echo(str(why))
        return
    out = PAGE if out is None else out
    check_page(out, "explain")
    options = rules.given()
    if options.pop("at_most"):
        raise SoftdexError("explain: --at-most has no effect on a beam search. Leave it out.")
    if item is not None:
        if k is not None:
            raise SoftdexError("explain: --k has no effect with --item alone. Leave it out.")
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
