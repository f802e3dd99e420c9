"""Table 3 of FastVAE on the paper's data; appends one JSON line per run, unless it is there.

    python bench/fastvae_quality.py TASK OUT.jsonl [recipe=fastvae] [seed=0] [NAME=VALUE ...]

Tasks: `gowalla` (40,988 items) and `ml-10m` (its 10-core, 5,942 items), each user's items split
80/20. A tenth of train is held out for early stopping (ndcg@20); the model is then trained again on
all of train for the best number of epochs, and measured once on all test users. `gowalla-valid` and
`ml-10m-valid` report the held-out tenth instead, for choosing options; `tune=24` searches there
first. With `patience=0` nothing is held out: all of train, for the given epochs.
"""

from __future__ import annotations

import hashlib
import json
import time
from argparse import Namespace

import softdex as sdx
from _data import need
from _harness import surroundings
from _options import parser, run, unless_tiny, written

FILES = {"gowalla": "gowalla-fastvae.parquet", "ml-10m": "ml-10m-implicit.parquet"}
TASKS = [*FILES, *(f"{name}-valid" for name in FILES)]

PARSER = parser(__file__, __doc__)
PARSER.add_argument("task", choices=TASKS, **unless_tiny("gowalla"))
PARSER.add_argument("out", **written("fastvae.jsonl"))
PARSER.recipe_options({"recipe": "fastvae", "tune": None})


def main(given: Namespace) -> None:
    task, path, options = given.task, given.out, given.options
    recipe, count = given.own["recipe"], given.own["tune"]
    asked = options | {name: value for name, value in given.own.items() if value is not None}
    key = hashlib.sha256(json.dumps([task, asked], sort_keys=True).encode()).hexdigest()
    if path.exists() and key in path.read_text():
        print(f"fastvae_quality: this run is in {path} already")
        return
    log = sdx.read(need(FILES[task.removesuffix("-valid")]), quiet=True)
    log = log.k_core(10) if task.startswith("ml") else log
    train, _, test = sdx.split.fastvae(log, seed=0, max_users=None)
    part, _, valid = sdx.split.per_user(train, (0.9, 0.1), seed=0)
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
    holdout = test if measured else valid
    result = model.evaluate(holdout, (20, 50), index="exact")
    training = model.card.training
    line = {
        "key": key,
        "benchmark": f"fastvae_quality {task}",
        "recipe": recipe,
        "options": model.options,
        "card": holdout.card.sha256,
        "metrics": {n: round(result[n], 5) for n in ("ndcg@50", "recall@50", "ndcg@20")},
        "errors": {n: round(result.standard_error(n), 5) for n in ("ndcg@50", "recall@50")},
        "best_epoch": training["best_epoch"],
        "last": training["history"][-1],
        "seconds": round(seconds, 1),
        **surroundings(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    shown = {n: line[n] for n in ("benchmark", "recipe", "metrics", "best_epoch", "seconds")}
    print(json.dumps(shown | {"given": asked, "file": str(path)}), flush=True)


if __name__ == "__main__":
    run(PARSER, main)
