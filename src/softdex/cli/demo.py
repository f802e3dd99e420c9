"""softdex demo: recipes on a synthetic world, against the best possible lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from softdex import recipes, synthetic
from softdex.cli.compare import finish
from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.compare import Comparison, compare
from softdex.data import split
from softdex.data.interactions import Interactions
from softdex.evaluate.result import Result
from softdex.messages import say
from softdex.model.retriever import Retriever
from softdex.table_files import save_table
from softdex.tables import Rows

WORLD: dict[str, Any] = {
    "strength": 1.5,
    "stickiness": 0.7,
}  # tastes and an order that models can read
CUTOFFS = (1, 5, 10, 20, 50)
SMALL = {"dim": 32, "negatives": 100, "epochs": 20}  # enough here: three minutes for all recipes
SMALLER: dict[str, dict[str, Any]] = {"sasrec": {"hidden": 64, "max_history": 30, "lr": 0.003}}
RELATIVES = (  # of recipes that are shown
    "aobpr", "bce", "dns", "g_tower", "mns", "pris", "self_adversarial", "sml", "sparsemax", "ssl",
    "uib", "warp",
)  # fmt: skip
TREES = ("din", "dtr", "jtm", "otm", "plt", "tdm")  # take a quarter of an hour, or a GPU
LEAD = (
    "A synthetic world (seed {seed}) in which the probability of every item for every user is "
    "known, so the best possible list is known too: no model can do better on average."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for log, item table and report.")] = Path(
        "demo"
    ),
    users: Annotated[int, typer.Option(help="Users of the world.")] = 2000,
    items: Annotated[int, typer.Option(help="Items of the world.")] = 1200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the world.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train recipes on a synthetic world and compare them with the best possible lists."""
    outcome = run_demo(out, users, items, seed)
    if as_json:
        print_json(outcome.json())
    else:
        typer.echo(
            f"{outcome.table()}\n\nwrote {outcome.report}. Next:\n"
            f"  softdex fit {out / 'clicks.parquet'} --items {out / 'items.parquet'} "
            "--recipe item_cf --out runs/first\n"
            f"  softdex recommend runs/first --user {outcome.a_user} --columns category"
        )
    finish(outcome.found)


@dataclass(frozen=True)
class Outcome:
    """What the demo found: a comparison, and the result of the best possible lists."""

    found: Comparison
    best: Result
    k: int
    a_user: str
    report: Path

    def columns(self) -> dict[str, dict[str, Any]]:
        """Return what is shown beside the metrics, per recipe."""
        seconds = self.found.seconds
        return {n: {**c, "fit seconds": f"{seconds[n]:.1f}"} for n, c in self.found.extra.items()}

    def table(self) -> Rows:
        """Return one row per recipe, the best possible last."""
        metrics, columns = [f"recall@{self.k}", f"ndcg@{self.k}"], self.columns()
        rows = [
            {"": name, **{m: result.shown(m) for m in metrics}, **columns[name]}
            for name, result in self.found.results.items()
        ]
        blank = dict.fromkeys(next(iter(columns.values())), "")
        rows.append({"": "best possible", **{m: self.best.shown(m) for m in metrics}, **blank})
        return Rows("", rows)

    def json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        columns = self.columns()
        results = {name: dict(r) | columns[name] for name, r in self.found.results.items()}
        return {"results": results, "best possible": dict(self.best), "report": str(self.report)}


def write_world(
    out: Path, users: int, items: int, seed: int
) -> tuple[synthetic.World, Interactions]:
    """Make a world and write its log and item table."""
    world = synthetic.world(users=users, items=items, seed=seed, **WORLD)
    log = world.interactions()
    catalogue = world.item_table().add_column(0, "item", log.items.all())
    for name, table in (("clicks.parquet", log.to_arrow()), ("items.parquet", catalogue)):
        save_table(out / name, table)
    say(f"a world of {users:,} users, {items:,} items and {len(log):,} events: {out}")
    return world, log


def run_demo(out: Path, users: int, items: int, seed: int) -> Outcome:
    """Make the world, write its log, compare the recipes, write the report."""
    world, log = write_world(out, users, items, seed)
    parts = split.leave_last(log)
    cutoffs = tuple(k for k in CUTOFFS if k <= items)
    k = max(c for c in cutoffs if c <= 20)
    best = world.evaluate(parts.test, cutoffs)

    def against_best(model: Retriever, result: Result) -> dict[str, str]:
        return {
            "share of the best": f"{result[f'recall@{k}'] / best[f'recall@{k}']:.0%}",
            f"regret@{k}": f"{world.regret(model, k, holdout=parts.test):.4f}",
        }

    found = compare(parts, _options(), k=cutoffs, extra=against_best)
    report = out / "report.html"
    lead = LEAD.format(seed=seed)
    found.report(report, title="softdex demo", lead=lead, data=log.describe(), ceiling=best)
    return Outcome(found, best, k, str(log.users.values[0]), report)


def _options() -> dict[str, dict[str, Any]]:
    """Return the options of each recipe shown: small, where it has the option."""
    options = {}
    for name in recipes.methods():
        if name in RELATIVES + TREES:
            continue
        known = set(recipes.choices(name)) - set(recipes.unread(name, recipes.options(name)))
        small = {n: v for n, v in SMALL.items() if n in known}
        options[name] = {**small, **SMALLER.get(name, {})}
    return options
