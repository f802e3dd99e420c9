"""The demo: a world with a known best answer, every recipe trained on it, one report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from softdex import recipes, report, run, split, synthetic
from softdex.artifact import write_atomically
from softdex.evaluate import Result
from softdex.retrieve import versions
from softdex.tables import Rows, say

CUTOFFS = (1, 5, 10, 20, 50)
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


def run_demo(out: Path, users: int, items: int, seed: int) -> Outcome:
    """Make the world, write its log, train and measure every recipe, write the report."""
    world = synthetic.world(users=users, items=items, seed=seed)
    log = world.interactions()
    catalogue = world.item_table().add_column(0, "item", log.items.all())
    for name, table in (("clicks.parquet", log.to_arrow()), ("items.parquet", catalogue)):
        write_atomically(out / name, lambda file, table=table: pq.write_table(table, file))
    say(f"a world of {users:,} users, {items:,} items and {len(log):,} events: {out}")
    parts = split.leave_last(log)
    cutoffs = tuple(k for k in CUTOFFS if k <= items)
    k = max(c for c in cutoffs if c <= 20)
    best = world.evaluate(parts.test, cutoffs)
    results, extra = {}, {}
    for name in recipes.names():
        began = time.perf_counter()
        model = recipes.fit(name, parts.train)
        seconds = time.perf_counter() - began
        results[name] = model.evaluate(parts.test, cutoffs)
        extra[name] = {
            "share of the best": f"{results[name][f'recall@{k}'] / best[f'recall@{k}']:.0%}",
            f"regret@{k}": f"{world.regret(model, k, holdout=parts.test):.4f}",
            "fit seconds": f"{seconds:.1f}",
        }
        say(f"trained and measured {name}")
    facts = [
        ("The log", log.describe()),
        ("Protocol card", parts.card.json()),
        ("Versions", versions()),
    ]
    page = report.build(
        "softdex demo", LEAD.format(seed=seed), results, ceiling=best, extra=extra, facts=facts
    )
    run.save_text(out / "report.html", page)
    a_user = str(log.users.values[0])
    return Outcome(results, best, extra, k, a_user, out / "report.html")
