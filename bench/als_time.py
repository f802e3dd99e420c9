"""Time to quality on Gowalla (LightGCN split), beside implicit's ALS in the same run.

    python bench/als_time.py DIM [CHOICES.json]

Each system gets 24 settings, tried on 10 % of train cut off for validation (a fixed sample of 3,000
users, early stop after 4 sweeps without gain, at most 15); the best setting is then trained on all
of train. Seconds count set-up and sweeps, not measuring; what is compiled is compiled before, and
its seconds are stated apart. The choices are kept in CHOICES.json, so that timing can be repeated.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import _rivals
import softdex as sdx
from _harness import need, report

SYSTEMS, COUNT, MOST, SEEDS = ("implicit", "ials", "rg2", "rgx"), 24, 15, (0, 1, 2)


def choices(log: sdx.Interactions, dim: int, path: Path | None) -> dict[str, Any]:
    if path is not None and path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        return known
    train, valid, _ = sdx.split.lightgcn(log, valid=0.1)
    assert valid is not None
    asked = _rivals.sample(valid, 3000)

    def score(model: sdx.Retriever) -> float:
        return model.evaluate(asked, 20)["ndcg@20"]

    found = {
        system: _rivals.tuned(system, train, score, dim=dim, most=MOST, count=COUNT)
        for system in SYSTEMS
    }
    if path is not None:
        path.write_text(json.dumps(found, indent=1))
    return found


def main() -> None:
    dim = int(sys.argv[1])
    log = sdx.read(need("gowalla.parquet"), quiet=True)
    chosen = choices(log, dim, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    train, _, test = sdx.split.lightgcn(log)
    began = time.perf_counter()
    small = train.select(np.arange(2000))
    for system in SYSTEMS:
        list(_rivals.sweeps(system, small, dim, 1, 0))
    warm = time.perf_counter() - began
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    seeds = SEEDS if dim <= 64 else SEEDS[:2]
    for seed in seeds:
        for system in SYSTEMS:
            pick = chosen[system]
            curve = []
            trained = _rivals.sweeps(system, train, dim, pick["sweeps"], seed, **pick["options"])
            for sweep, (spent, model) in enumerate(trained, 1):
                if system == "implicit" and sweep < pick["sweeps"] // 2:
                    continue  # far from its best yet
                result = model.evaluate(test, 20)
                found = round(result["ndcg@20"], 5), round(result["recall@20"], 5)
                curve.append((round(spent, 3), *found))
            runs[system].append({"seed": seed, "seconds_ndcg_recall": curve})
    rival = [run["seconds_ndcg_recall"] for run in runs["implicit"]]
    best = [max(curve, key=lambda point: point[1]) for curve in rival]
    goal, seconds = (float(np.mean([point[i] for point in best])) for i in (1, 0))
    reached = {}
    for system in SYSTEMS[1:]:
        curves = [run["seconds_ndcg_recall"] for run in runs[system]]
        times = [next((p[0] for p in curve if p[1] >= goal), None) for curve in curves]
        reached[system] = {
            "seconds": times,
            "times_faster": [None if t is None else round(seconds / t, 2) for t in times],
        }
    report(
        f"als_time gowalla dim {dim}",
        "24 settings each on validation; test curves of the chosen; measuring not timed",
        card=test.card.sha256,
        choices=chosen,
        goal_ndcg20=round(goal, 5),
        implicit_seconds=round(seconds, 3),
        reached=reached,
        warm_up_seconds=round(warm, 2),
        runs=runs,
    )


if __name__ == "__main__":
    main()
