"""softdex evaluate: evaluate a run again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softdex.cli import run
from softdex.cli.arguments import cutoffs, words
from softdex.cli.options import AsJson, Cutoffs, MaxMemory
from softdex.cli.output import print_json


class IndexMode(StrEnum):
    """The index to rank with."""

    served = "served"
    exact = "exact"
    both = "both"


class Leak(StrEnum):
    """What to do about targets that the model was trained on."""

    refuse = "refuse"
    allow = "allow"


class KnownUsers(StrEnum):
    """What users in training are ranked by."""

    history = "history"
    trained = "trained"


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    k: Cutoffs = None,
    index: Annotated[
        IndexMode | None, typer.Option(help="Rank with the served index, exactly, or both.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Break down by history or popularity.")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Metrics to report, comma-separated, e.g. ndcg,recall.")
    ] = None,
    lists: Annotated[
        Path | None, typer.Option(help="Evaluate this file of lists (user, item, rank or score).")
    ] = None,
    leak: Annotated[
        Leak | None, typer.Option(help="Targets that the model was trained on: refuse or allow.")
    ] = None,
    known_users: Annotated[
        KnownUsers | None,
        typer.Option(help="Rank known users by their history, or as they were trained."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Path of the log, if it has moved.")] = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run again, or lists made elsewhere, on the split it was trained with."""
    given = {
        "index": index and index.value, "k": cutoffs(k), "max_memory": max_memory,
        "metrics": words(metrics, "--metrics") if metrics else None,
        "leak": leak and leak.value, "known_users": known_users and known_users.value,
    }  # fmt: skip
    rules = {name: value for name, value in given.items() if value is not None}
    name, result = run.evaluate(folder, rules, data, lists)
    rows = result.by(by) if by else None
    if as_json:
        print_json(run.summary(name, result) | ({"by": list(rows)} if rows else {}))
        return
    typer.echo(str(result))
    if rows:
        typer.echo(f"\n{rows}")
