"""softdex similar: the nearest items per item."""

from __future__ import annotations

from typing import Annotated

import typer

from softdex.cli.arguments import words
from softdex.cli.options import AsJson, Columns, ListLength, Model
from softdex.cli.output import print_table
from softdex.model.saving import load


def similar(
    model: Model,
    item: Annotated[list[str], typer.Option("--item", "-i", help="Item key; repeat for more.")],
    k: ListLength = 10,
    columns: Columns = "",
    as_json: AsJson = False,
) -> None:
    """List the items most similar to an item."""
    table = load(model).similar(item, k, columns=words(columns, "--columns")).table
    print_table(table, as_json=as_json)
