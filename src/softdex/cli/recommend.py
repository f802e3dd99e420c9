"""softdex recommend: the best items per user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softdex.cli.arguments import conditions, words
from softdex.cli.options import AsJson, Columns, ListLength, MaxMemory, Model
from softdex.cli.output import print_table, print_written
from softdex.errors import SoftdexError
from softdex.files import save_table
from softdex.model.saving import load


def recommend(
    model: Model,
    user: Annotated[
        list[str] | None, typer.Option("--user", "-u", help="User key; repeat for more.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(help="Item keys, comma-separated: a user not in training.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every user; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Parquet file to write.")] = None,
    k: ListLength = 10,
    where: Annotated[
        list[str] | None, typer.Option(help="Item column=value; repeat for more.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Only this item; repeat for more.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(help="Never this item; repeat for more.")
    ] = None,
    columns: Columns = "",
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Include items the user has interacted with.")
    ] = False,
    unknown: Annotated[str, typer.Option(help="Unknown users: error, popular or skip.")] = "error",
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Recommend items to users by key, by history, or to everyone."""
    fitted = load(model)
    options: dict[str, Any] = {
        "exclude_seen": not keep_seen,
        "where": conditions(where) if where else None,
        "allow": allow or None,
        "deny": deny or None,
        "columns": words(columns, "--columns"),
    }
    if max_memory:
        options["max_memory"] = max_memory
    if everyone:
        if user or history:
            raise SoftdexError("recommend: expected --all, or users, not both.")
        if out is None:
            raise SoftdexError("recommend: --all needs --out FILE.parquet.")
        print_written(out, fitted.recommend_all(out, k, **options), as_json=as_json)
        return
    if not user and not history:
        raise SoftdexError("recommend: expected --user KEY, --history i1,i2 or --all --out FILE.")
    past = [words(h, "--history") for h in history] if history else None
    table = fitted.recommend(user or None, k, history=past, unknown=unknown, **options).table
    if out is None:
        print_table(table, as_json=as_json)
        return
    save_table(out, table)
    print_written(out, table.num_rows, as_json=as_json)
