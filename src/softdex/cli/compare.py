"""softdex compare: several recipes on one split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex import recipes
from softdex.cli.arguments import words
from softdex.cli.options import AsJson, LogOptions, unfold
from softdex.cli.output import print_json
from softdex.cli.plan import plan_of, prepare
from softdex.cli.run import summary
from softdex.compare import Comparison, check_recipes, parse_seconds
from softdex.compare import compare as compare_recipes
from softdex.errors import SoftdexError
from softdex.messages import say


@unfold
def compare(
    *,
    names: Annotated[
        str, typer.Option("--recipes", help="Recipes, comma-separated; all by default.")
    ] = "",
    report: Annotated[Path | None, typer.Option(help="HTML report to write.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time after which no recipe starts, e.g. 10m.")
    ] = None,
    log: LogOptions,
    as_json: AsJson = False,
) -> None:
    """Train several recipes on one split and tell which differences are real."""
    plan = plan_of(log, log.config)
    if plan.keys() & {"recipe", "options", "train"}:
        say(f"compare: {log.config} gives data, split and evaluate; recipes take their defaults")
    chosen = check_recipes(words(names, "--recipes") or recipes.methods())
    seconds = None if budget is None else parse_seconds(budget)
    whole, parts = prepare(plan)
    found = compare_recipes(parts, chosen, budget=seconds, **plan.get("evaluate", {}))
    if report is not None:
        found.report(report, lead=str(plan["data"]["source"]), data=whole.describe())
    if as_json:
        print_json({name: summary(name, result) for name, result in found.results.items()})
    else:
        typer.echo(str(found))
        if report is not None:
            typer.echo(f"\nwrote {report}")
    finish(found)


def finish(found: Comparison) -> None:
    """Exit with 130 after Ctrl-C; raise if a recipe failed."""
    if found.stopped == "interrupt":
        raise typer.Exit(130)
    if found.failed:
        why = "; ".join(f"{name} {found.missing[name]}" for name in found.failed)
        raise SoftdexError(f"compare: {why}.")
