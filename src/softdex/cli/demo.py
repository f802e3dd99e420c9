"""softdex demo: recipes on a synthetic world, against the best possible lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from softdex import recipes, synthetic
from softdex.cli.compare import finish, save_plan, typed
from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.compare import Comparison, compare
from softdex.data import split
from softdex.data.interactions import Interactions
from softdex.evaluate.result import Result
from softdex.messages import say
from softdex.model.retriever import Retriever
from softdex.model.saving import MODEL_FILE
from softdex.table_files import save_table
from softdex.tables import Rows

CLICKS, ITEMS, MODELS = "clicks.parquet", "items.parquet", "models"
WORLD: dict[str, Any] = {
    "strength": 1.5,
    "stickiness": 0.7,
}  # tastes and an order that models can read
CUTOFFS = (1, 5, 10, 20, 50)
DEFAULTS: dict[str, dict[str, Any]] = {  # what each shows on this world within some seconds
    "popular": {},
    "item_cf": {},
    "rg2": {"dim": 32, "epochs": 20},
    "fastvae": {"dim": 32, "negatives": 100, "epochs": 8, "lr": 0.012},
    "bir": {
        "dim": 32, "encoder": "mix", "max_history": 5, "batch_size": 256, "epochs": 4, "lr": 0.02,
    },
    "dtr": {"beam": 20, "arity": 8, "negatives": 6, "max_history": 4, "epochs": 2},
    "sasrec": {
        "dim": 48, "layers": 1, "heads": 1, "hidden": 64, "max_history": 20, "epochs": 8,
        "lr": 0.008,
    },
}  # fmt: skip
SMALL = {"dim": 32, "negatives": 100, "epochs": 20}  # of --full: enough here
SMALLER: dict[str, dict[str, Any]] = {"sasrec": {"hidden": 64, "max_history": 30, "lr": 0.003}}
RELATIVES = (  # of recipes that are shown
    "aobpr", "bce", "dns", "g_tower", "mns", "pris", "self_adversarial", "sml", "sparsemax", "ssl",
    "uib", "warp", "din", "jtm", "otm", "plt", "tdm",
)  # fmt: skip
LEAD = (
    "A synthetic world (seed {seed}) in which the probability of every item for every user is "
    "known, so the best possible list is known too: no model can do better on average."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, models and report.")] = Path("demo"),
    users: Annotated[int, typer.Option(help="Users of the world.")] = 2000,
    items: Annotated[int, typer.Option(help="Items of the world.")] = 1200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the world.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Sixteen recipes, in minutes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train recipes on a synthetic world and compare them with the best possible lists."""
    outcome = run_demo(out, users, items, seed, full=full)
    if as_json:
        print_json(outcome.json())
    else:
        typer.echo(f"{outcome.table()}\n\n{outcome.following()}")
    finish(outcome.found, "stopped.")


@dataclass(frozen=True)
class Outcome:
    """What the demo found: a comparison, and the result of the best possible lists."""

    found: Comparison
    best: Result
    k: int
    out: Path

    @property
    def report(self) -> Path:
        """The page that was written."""
        return self.out / "report.html"

    def columns(self) -> dict[str, dict[str, Any]]:
        """Return what is shown beside the metrics, per recipe."""
        found, recall = self.found, f"recall@{self.k}"
        return {
            name: {
                "share of the best": f"{found.results[name][recall] / self.best[recall]:.0%}",
                **columns,
                "fit seconds": f"{found.seconds[name]:.1f}",
            }
            for name, columns in found.extra.items()
        }

    def table(self) -> Rows:
        """Return one row per recipe, the best first, and the best possible last."""
        metrics = [f"recall@{self.k}", f"ndcg@{self.k}"]
        rows = []
        for name in self.found.pairs.names:
            shown = {m: self.found.results[name].shown(m) for m in metrics}
            share = self.columns()[name]["share of the best"]
            seconds = f"{self.found.seconds[name]:.1f}"
            rows.append({"": name, **shown, "of the best": share, "fit s": seconds})
        shown = {m: self.best.shown(m) for m in metrics}
        rows.append({"": "best possible", **shown, "of the best": "", "fit s": ""})
        return Rows("", rows)

    def following(self) -> str:
        """Return what was written, and commands to go on with."""
        first, *others = (str(self.out / MODELS / name) for name in self.found.pairs.names[:2])
        return "\n".join(
            [
                f"wrote {self.report}, and the models into {self.out / MODELS}. Next:",
                f"  softdex look {' '.join([first, *others])}",
                f"  softdex fit {self.out / CLICKS} --items {self.out / ITEMS} --out runs/first",
                f"  softdex recommend runs/first --user {self.found.log.users.values[0]} "
                "--columns title,category",
            ]
        )

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
    columns = world.item_table().append_column("title", [synthetic.titles(items, seed)])
    catalogue = columns.add_column(0, "item", log.items.all())
    for name, table in ((CLICKS, log.to_arrow()), (ITEMS, catalogue)):
        save_table(out / name, table)
    say(f"a world of {users:,} users, {items:,} items and {len(log):,} events: {out}")
    return world, replace(log, item_table=columns)


def run_demo(out: Path, users: int, items: int, seed: int, *, full: bool = False) -> Outcome:
    """Make the world, write its log, compare the recipes, write the report and the models."""
    world, log = write_world(out, users, items, seed)
    parts = split.leave_last(log)
    cutoffs = tuple(k for k in CUTOFFS if k <= items)
    k = max(c for c in cutoffs if c <= 20)
    best = world.evaluate(parts.test, cutoffs)

    def against_best(model: Retriever, result: Result) -> dict[str, str]:
        return {f"regret@{k}": f"{world.regret(model, k, holdout=parts.test):.4f}"}

    found = compare(parts, _all() if full else DEFAULTS, k=cutoffs, extra=against_best)
    outcome = Outcome(found, best, k, out)
    lead = LEAD.format(seed=seed)
    found.report(
        outcome.report, title="softdex demo", lead=lead, data=log.describe(), ceiling=best,
        command=typed(),
    )  # fmt: skip
    files = {"source": str(out / CLICKS), "items": str(out / ITEMS)}
    plan = {"data": files, "split": {"name": "leave_last"}, "evaluate": {"k": list(cutoffs)}}
    for name in found.results:
        found.model(name).save(out / MODELS / name / MODEL_FILE)
        save_plan(plan, found, name, out / MODELS / name)
    return outcome


def _all() -> dict[str, dict[str, Any]]:
    """Return the options of each recipe of --full: small, where it has the option."""
    options = {}
    for name in recipes.methods():
        if name in RELATIVES:
            continue
        known = set(recipes.choices(name)) - set(recipes.unread(name, recipes.options(name)))
        small = {n: v for n, v in SMALL.items() if n in known}
        options[name] = DEFAULTS["dtr"] if name == "dtr" else {**small, **SMALLER.get(name, {})}
    return options
