"""softdex evaluate: evaluate a run again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softdex.cli import run
from softdex.cli.arguments import cutoffs
from softdex.cli.options import AsJson, Cutoffs, MaxMemory
from softdex.cli.output import print_json


class IndexMode(StrEnum):
    """The index to rank with."""

    served = "served"
    exact = "exact"
    both = "both"


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    k: Cutoffs = None,
    index: Annotated[
        IndexMode | None, typer.Option(help="Rank with the served index, exactly, or both.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Break down by history or popularity.")] = None,
    data: Annotated[str | None, typer.Option(help="Path of the log, if it has moved.")] = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run again, on the split it was trained with."""
    given = {"index": index and index.value, "k": cutoffs(k), "max_memory": max_memory}
    rules = {name: value for name, value in given.items() if value is not None}
    model, result = run.evaluate(folder, rules, data)
    rows = result.by(by) if by else None
    if as_json:
        print_json(run.summary(model.recipe, result) | ({"by": list(rows)} if rows else {}))
        return
    typer.echo(str(result))
    if rows:
        typer.echo(f"\n{rows}")
