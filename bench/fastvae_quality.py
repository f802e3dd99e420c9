"""Table 3 of FastVAE on the very data; one JSON line a run, skipped if it is there already.

    python bench/fastvae_quality.py TASK OUT.jsonl [recipe=fastvae] [seed=0] [name=value ...]

Tasks: `gowalla` (40,988 items) and `ml-10m` (its 10-core, 5,942 items), each user's items cut
80/20. A tenth of train is held out to stop early (ndcg@20); then the model is trained again on all
of train for as many epochs, and all users of test are asked once. `gowalla-valid` and
`ml-10m-valid` report that held-out tenth instead, for choosing options; `tune=24` looks for them
there first. With `patience=0` nothing is held out: all of train, for the epochs that are given.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import softdex as sdx
from _harness import machine, need
from softdex.model.card import versions

FILES = {"gowalla": "gowalla-fastvae.parquet", "ml-10m": "ml-10m-implicit.parquet"}


def main() -> None:
    task, out, *pairs = sys.argv[1:]
    options: dict[str, Any] = {"recipe": "fastvae"}
    for name, _, value in (pair.partition("=") for pair in pairs):
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    key = hashlib.sha256(json.dumps([task, options], sort_keys=True).encode()).hexdigest()
    path = Path(out)
    if path.exists() and key in path.read_text():
        return
    log = sdx.read(need(FILES[task.removesuffix("-valid")]), quiet=True)
    log = log.k_core(10) if task.startswith("ml") else log
    train, _, test = sdx.split.fastvae(log, seed=0, max_users=None)
    part, _, valid = sdx.split.per_user(train, (0.9, 0.1), seed=0)
    recipe, count = options.pop("recipe"), options.pop("tune", None)
    measured = not task.endswith("-valid")
    began = time.perf_counter()
    if count is not None:
        found = sdx.tune(recipe, part, valid, settings=count, **options)
        options = dict(found.options)
    if measured and options.get("patience") == 0:
        model = sdx.fit(recipe, train, **options)
    else:
        model = sdx.fit(recipe, part, valid=valid, refit=measured, **options)
    seconds = time.perf_counter() - began
    asked = test if measured else valid
    result = model.evaluate(asked, (20, 50), index="exact")
    training = model.card.training
    line = {
        "key": key,
        "benchmark": f"fastvae_quality {task}",
        "recipe": recipe,
        "options": model.options,
        "card": asked.card.sha256,
        "metrics": {n: round(result[n], 5) for n in ("ndcg@50", "recall@50", "ndcg@20")},
        "errors": {n: round(result.standard_error(n), 5) for n in ("ndcg@50", "recall@50")},
        "best_epoch": training["best_epoch"],
        "last": training["history"][-1],
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": versions(),
        "machine": machine(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    shown = {n: line[n] for n in ("benchmark", "recipe", "metrics", "best_epoch", "seconds")}
    print(json.dumps(shown | {"given": pairs}), flush=True)


if __name__ == "__main__":
    main()
