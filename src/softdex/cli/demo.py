"""The demo: a world with a known best answer, the recipes trained on it, one report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softdex import recipes, synthetic
from softdex.cli import run
from softdex.data import split
from softdex.data.interactions import Interactions
from softdex.evaluate import report
from softdex.evaluate.result import Result
from softdex.fit import fit
from softdex.messages import say
from softdex.model.retriever import versions
from softdex.tables import Rows

CUTOFFS = (1, 5, 10, 20, 50)
SMALL = {"dim": 32, "negatives": 100, "epochs": 20}  # enough here, and done in three minutes
SMALLER: dict[str, dict[str, Any]] = {"sasrec": {"hidden": 64, "max_history": 30, "lr": 0.003}}
RELATIVES = ("bce", "dns", "g_tower", "mns", "self_adversarial", "ssl")  # of others that are shown
TREES = ("din", "dtr", "jtm", "otm", "plt", "tdm")  # take a quarter of an hour, or a GPU
LEAD = (
    "A synthetic world (seed {seed}) in which the probability of every item for every user is "
    "known, so the best possible list is known too: no model can do better on average."
)


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    results: dict[str, Result]
    best: Result
    extra: dict[str, dict[str, Any]]
    k: int
    a_user: str
    report: Path

    def table(self) -> Rows:
        """One row a recipe, the best possible last."""
        names = [f"recall@{self.k}", f"ndcg@{self.k}"]
        rows = [
            {"": name, **{m: result.shown(m) for m in names}, **self.extra[name]}
            for name, result in self.results.items()
        ]
        blank = dict.fromkeys(next(iter(self.extra.values())), "")
        rows.append({"": "best possible", **{m: self.best.shown(m) for m in names}, **blank})
        return Rows("", rows)

    def json(self) -> dict[str, Any]:
        """The same as plain values."""
        results = {name: dict(result) | self.extra[name] for name, result in self.results.items()}
        return {"results": results, "best possible": dict(self.best), "report": str(self.report)}


def write_world(
    out: Path, users: int, items: int, seed: int
) -> tuple[synthetic.World, Interactions]:
    """Make a world and write its log and item table."""
    world = synthetic.world(users=users, items=items, seed=seed)
    log = world.interactions()
    catalogue = world.item_table().add_column(0, "item", log.items.all())
    for name, table in (("clicks.parquet", log.to_arrow()), ("items.parquet", catalogue)):
        run.save_table(out / name, table)
    say(f"a world of {users:,} users, {items:,} items and {len(log):,} events: {out}")
    return world, log


def run_demo(out: Path, users: int, items: int, seed: int) -> Outcome:
    """Make the world, write its log, train and measure the recipes, write the report."""
    world, log = write_world(out, users, items, seed)
    parts = split.leave_last(log)
    cutoffs = tuple(k for k in CUTOFFS if k <= items)
    k = max(c for c in cutoffs if c <= 20)
    best = world.evaluate(parts.test, cutoffs)
    results, extra, training = {}, {}, {}
    for name in recipes.methods():
        if name in RELATIVES + TREES:
            continue
        began = time.perf_counter()
        known = set(recipes.choices(name)) - set(recipes.unread(name, recipes.options(name)))
        small: dict[str, Any] = {n: v for n, v in SMALL.items() if n in known}
        model = fit(name, parts.train, valid=parts.valid, **small, **SMALLER.get(name, {}))
        seconds = time.perf_counter() - began
        results[name] = model.evaluate(parts.test, cutoffs)
        extra[name] = {
            "share of the best": f"{results[name][f'recall@{k}'] / best[f'recall@{k}']:.0%}",
            f"regret@{k}": f"{world.regret(model, k, holdout=parts.test):.4f}",
            "fit seconds": f"{seconds:.1f}",
        }
        training[name] = model.info.get("training", {}).get("history", [])
        say(f"trained and measured {name} in {time.perf_counter() - began:.1f} s")
    facts = [
        ("The log", log.describe()),
        ("Protocol card", parts.card.json()),
        ("Versions", versions()),
    ]
    page = report.build(
        "softdex demo",
        LEAD.format(seed=seed),
        results,
        ceiling=best,
        extra=extra,
        training={name: records for name, records in training.items() if records},
        facts=facts,
    )
    run.save_text(out / "report.html", page)
    a_user = str(log.users.values[0])
    return Outcome(results, best, extra, k, a_user, out / "report.html")
