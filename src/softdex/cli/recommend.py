"""softdex recommend: the best items per user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softdex.cli.arguments import shard as shard_of
from softdex.cli.arguments import words
from softdex.cli.options import AsJson, Columns, ListLength, MaxMemory, Model, TableFile, unfold
from softdex.cli.output import print_or_write, print_written
from softdex.cli.rules import RuleOptions
from softdex.errors import SoftdexError
from softdex.model.asking import whole
from softdex.model.key_files import users_in
from softdex.model.saving import load
from softdex.table_files import check_table_file


@unfold
def recommend(
    model: Model,
    rules: RuleOptions,
    user: Annotated[
        list[str] | None, typer.Option("--user", "-u", help="User key; repeat for more.")
    ] = None,
    user_file: Annotated[Path | None, typer.Option(help="Table with a column of users.")] = None,
    history: Annotated[
        list[str] | None, typer.Option(help="Item keys, comma-separated: a user not in training.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every user; needs --out.")] = False,
    shard: Annotated[
        str | None, typer.Option(help="i/n: the users of shard i of n, from 0 to n - 1.")
    ] = None,
    out: TableFile = None,
    k: ListLength = 10,
    columns: Columns = "",
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Include items the user has interacted with.")
    ] = False,
    unknown: Annotated[
        str | None,
        typer.Option(help="Unknown users: error, popular or skip; popular by default with --all."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="best items, or a sample of the model's softmax.")
    ] = "best",
    temperature: Annotated[
        float | None, typer.Option(help="Divides the scores of a sample; the model's by default.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a sample.")] = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Recommend items to users by key, by history, or to everyone."""
    users = _users(user, user_file, history, out, everyone=everyone)
    part = shard_of(shard)
    if part and (out is None or history):
        raise SoftdexError("recommend: --shard needs --out FILE, and users by key or --all.")
    past = [words(h, "--history") for h in history] if history else None
    options: dict[str, Any] = rules.given() | {
        "k": whole("recommend", k),
        "exclude_seen": not keep_seen,
        "columns": words(columns, "--columns"),
        "unknown": unknown or ("popular" if everyone else "error"),
        "mode": mode,
        "temperature": temperature,
        "seed": seed,
    }
    if max_memory:
        options["max_memory"] = max_memory
    if out is not None:
        check_table_file(out, "recommend")
    fitted = load(model)
    if out is None or past is not None:
        table = fitted.recommend(users, history=past, **options).table
        print_or_write(table, out, as_json=as_json)
    else:
        rows = fitted.recommend_all(out, users=users, shard=part, **options)
        print_written(out, rows, as_json=as_json)


def _users(
    keys: list[str] | None,
    file: Path | None,
    history: list[str] | None,
    out: Path | None,
    *,
    everyone: bool,
) -> Any:
    """Return the users asked about; None for everyone, and for histories alone."""
    if everyone and (keys or file or history):
        raise SoftdexError("recommend: expected --all, or users, not both.")
    if everyone and out is None:
        raise SoftdexError("recommend: --all needs --out FILE, such as recs.parquet or recs.csv.")
    if keys and file:
        raise SoftdexError("recommend: expected --user or --user-file, not both.")
    if not everyone and not (keys or file or history):
        raise SoftdexError(
            "recommend: expected --user KEY, --user-file FILE, --history i1,i2 or --all --out FILE."
        )
    return users_in(file) if file else keys or None
