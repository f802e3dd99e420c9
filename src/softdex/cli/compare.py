"""softdex compare: several recipes on one split."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from softdex.cli.arguments import words
from softdex.cli.config import plan_of
from softdex.cli.options import AsJson, Columns, LogOptions, unfold
from softdex.cli.output import print_json
from softdex.cli.run import summary
from softdex.compare import Comparison, check_recipes
from softdex.compare import compare as compare_recipes
from softdex.data.labels import Labels
from softdex.errors import SoftdexError
from softdex.files import check_folder, check_page, save_text
from softdex.machine import parse_seconds
from softdex.messages import METRIC, say
from softdex.plan import CONFIG, Plan, prepare, to_toml

STOPPED = "stopped. The same command goes on."


@unfold
def compare(
    *,
    names: Annotated[
        str, typer.Option("--recipes", help="Recipes, comma-separated; by default eight.")
    ] = "",
    budget: Annotated[
        str | None, typer.Option(help="Time for all recipes together, e.g. 10m.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the models; by default runs/compare-LOG."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="HTML report to write.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What recipes are ranked by, e.g. recall@10; else ndcg@20.")
    ] = None,
    columns: Columns = "",
    log: LogOptions,
    as_json: AsJson = False,
) -> None:
    """Train several recipes on one split, choose by validation, report on test.

    The same command goes on where it was stopped; with a larger budget, where that had ended.
    """
    plan = plan_of(log, log.config)
    if plan.keys() & {"recipe", "options", "train"}:
        say(f"compare: {log.config} gives data, split and evaluate; recipes take their defaults")
    chosen = list(check_recipes(words(names, "--recipes"))) if names else None
    shown = words(columns, "--columns") if columns else None
    seconds = None if budget is None else parse_seconds("compare: budget", budget)
    source = plan.get("data", {}).get("source")
    folder = out or Path("runs") / f"compare-{_word(source or '')}"
    check_folder(folder, "compare")
    if report is not None:
        check_page(report, "compare")
    whole, parts = prepare(plan)
    Labels(whole.items, whole.item_table, shown, "compare")  # refuses unknown columns
    rules = plan.get("evaluate", {})
    try:
        found = compare_recipes(
            parts, chosen, budget=seconds, folder=folder, metric=metric, **rules
        )
    except KeyboardInterrupt:  # before the first recipe has finished
        say(STOPPED)
        raise
    for name in found.results:
        save_plan(plan, found, name, folder / name)
    if report is not None:
        found.report(
            report, lead=str(source), data=whole.describe(), columns=shown, command=typed()
        )
    if as_json:
        print_json({name: _figures(found, name) for name in found.ranking})
    else:
        typer.echo(f"{found}\n\nwrote {', '.join(map(str, filter(None, (folder, report))))}. Next:")
        typer.echo(f"  softdex recommend {folder / found.best} --user {whole.users.values[0]}")
    finish(found)


def typed() -> str:
    """The command line that was typed, for a protocol card."""
    return shlex.join(["softdex", *sys.argv[1:]])


def finish(found: Comparison, stopped: str = STOPPED) -> None:
    """Exit with 130 after Ctrl-C; raise if a recipe failed."""
    if found.stopped == "interrupt":
        say(stopped)
        raise typer.Exit(130)
    if found.failed:
        why = "; ".join(f"{name} {found.missing[name]}" for name in found.failed)
        raise SoftdexError(f"compare: {why}.")


def _word(source: str | list[str]) -> str:
    """A word for a folder: what the first file is called."""
    first = source if isinstance(source, str) else source[0]
    return re.sub(r"\W+", "-", Path(first).name.split(".")[0]).strip("-") or "log"


def save_plan(plan: Plan, found: Comparison, name: str, out: Path) -> None:
    """Write the plan of one recipe, so that its folder is one of `softdex fit`."""
    own = {n: value for n, value in plan.items() if n in ("data", "split", "evaluate")}
    own |= {"recipe": name, "out": str(out), "options": found.options[name]}
    save_text(out / CONFIG, to_toml(own))


def _figures(found: Comparison, name: str) -> dict[str, Any]:
    """The result of one recipe as plain values."""
    valid = {f"valid {METRIC}": found.valid[name]} if found.valid else {}
    return {**summary(name, found.results[name]), **valid, "fit s": found.seconds[name]}
