"""softdex similar: the nearest items per item."""

from __future__ import annotations

from typing import Annotated

import typer

from softdex.cli.arguments import words
from softdex.cli.options import AsJson, Columns, ListLength, Model, TableFile, unfold
from softdex.cli.output import print_or_write
from softdex.cli.rules import RuleOptions
from softdex.model.asking import whole
from softdex.model.saving import load
from softdex.table_files import check_table_file


@unfold
def similar(
    model: Model,
    item: Annotated[list[str], typer.Option("--item", "-i", help="Item key; repeat for more.")],
    rules: RuleOptions,
    k: ListLength = 10,
    columns: Columns = "",
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """List the items most similar to an item."""
    k, options = whole("similar", k), rules.given()
    names = words(columns, "--columns")
    if out is not None:
        check_table_file(out, "similar")
    table = load(model).similar(item, k, columns=names, **options).table
    print_or_write(table, out, as_json=as_json)
