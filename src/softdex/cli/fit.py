"""softdex fit: train a recipe on a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softdex.cli.arguments import pairs
from softdex.cli.complete import recipe_names, recipe_options
from softdex.cli.options import AsJson, LogOptions, unfold
from softdex.errors import SoftdexError
from softdex.listing import listing
from softdex.messages import say


@unfold
def fit(
    *,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", "-r", autocompletion=recipe_names, help="Recipe; see `softdex recipes`."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE by default.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", autocompletion=recipe_options, help="Recipe option, name=value."
        ),
    ] = None,
    log: LogOptions,
    start: Annotated[
        str | None, typer.Option(help="Saved model or run to start from, matched by key.")
    ] = None,
    tune: Annotated[
        int | None, typer.Option(help="First tune this many settings on validation.")
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Train again on train and validation at the end.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the stopped run in --out.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model in the run folder.")
    ] = False,
    shard: Annotated[
        bool | None,
        typer.Option(
            "--shard/--no-shard",
            help="With torchrun: whether each process holds a block of the rows of the tables, or "
            "all of them; by default as memory demands.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe on a log; write a run folder with config, metrics and model."""
    from softdex.cli import run  # loads torch, which completion need not
    from softdex.cli.config import plan_of
    from softdex.cli.output import print_json
    from softdex.group import joined, was_restarted
    from softdex.plan import CONFIG

    config = log.config
    if resume and config is None and log.source is None:
        if out is None:
            raise SoftdexError("fit: --resume needs --out, the folder of the stopped run.")
        config = out / CONFIG
    plan = plan_of(log, config)
    given = {"refit": refit or None, "max_memory": log.max_memory, "start": start, "tune": tune}
    given["shard"] = shard
    plan.setdefault("train", {}).update({n: v for n, v in given.items() if v is not None})
    if recipe:
        plan["recipe"] = recipe
    if out:
        plan["out"] = str(out)
    plan.setdefault("options", {}).update(pairs(option, "--option"))
    device = str(plan["options"].get("device", "auto"))
    with joined(device):
        if "recipe" not in plan:
            plan["recipe"] = listing().default
            say(
                f"recipe: {plan['recipe']}, quick and good untuned; --recipe chooses another, "
                "`softdex recipes` lists them"
            )
        _, result, folder = run.fit(plan, force=force, resume=resume or was_restarted())
    if result is None:  # another rank has it
        return
    if as_json:
        print_json({**run.summary(plan["recipe"], result), "out": str(folder)})
        return
    typer.echo(f"{result}\n")
    typer.echo(f"saved {folder}. Next: softdex recommend {folder} --user KEY")
