"""Table 3 of FastVAE on the paper's data; appends one JSON line per run, unless it is there.

    python bench/fastvae_quality.py TASK OUT.jsonl [recipe=fastvae] [seed=0] [NAME=VALUE ...]

Tasks: `gowalla` (40,988 items) and `ml-10m` (its 10-core, 5,942 items), each user's items split
80/20. A tenth of train is held out for early stopping (ndcg@20); the model is then trained again on
all of train for the best number of epochs, and measured once on all test users. `gowalla-valid` and
`ml-10m-valid` report the held-out tenth instead, for choosing options; `tune=24` searches there
first. With `patience=0` nothing is held out: all of train, for the given epochs. `history` is that
of the training with the held-out tenth; `timed=true` as in `bench/quality.py`.
"""

from __future__ import annotations

from argparse import Namespace

import softdex as sdx
from _data import need
from _harness import surroundings
from _options import parser, run, unless_tiny, written
from _training import key_of, trained, write

FILES = {"gowalla": "gowalla-fastvae.parquet", "ml-10m": "ml-10m-implicit.parquet"}
TASKS = [*FILES, *(f"{name}-valid" for name in FILES)]

PARSER = parser(__file__, __doc__)
PARSER.add_argument("task", choices=TASKS, **unless_tiny("gowalla"))
PARSER.add_argument("out", **written("fastvae.jsonl"))
PARSER.recipe_options({"recipe": "fastvae", "tune": None, "timed": False})


def main(given: Namespace) -> None:
    task, path, options = given.task, given.out, given.options
    recipe, count = given.own["recipe"], given.own["tune"]
    own = {name: value for name, value in given.own.items() if value not in (None, False)}
    asked = options | own
    key = key_of(path, [task, asked])
    if key is None:
        return
    log = sdx.read(need(FILES[task.removesuffix("-valid")]), quiet=True)
    log = log.k_core(10) if task.startswith("ml") else log
    train, _, test = sdx.split.fastvae(log, seed=0, max_users=None)
    part, _, valid = sdx.split.per_user(train, (0.9, 0.1), seed=0)
    measured = not task.endswith("-valid")
    timed = given.own["timed"]
    if measured and options.get("patience") == 0 and count is None:
        made = trained(recipe, train, None, options, timed=timed)
    else:
        made = trained(recipe, part, valid, options, tune=count, timed=timed, refit=measured)
    model = made.model
    holdout = test if measured else valid
    result = model.evaluate(holdout, (20, 50), index="exact")
    line = {
        "key": key,
        "benchmark": f"fastvae_quality {task}",
        "card": holdout.card.sha256,
        "metrics": {n: round(result[n], 5) for n in ("ndcg@50", "recall@50", "ndcg@20")},
        "errors": {n: round(result.standard_error(n), 5) for n in ("ndcg@50", "recall@50")},
        **made.figures(),
        **surroundings(),
    }
    shown = {n: line[n] for n in ("benchmark", "recipe", "metrics", "best_epoch", "seconds")}
    write(path, line, shown | {"given": asked})


if __name__ == "__main__":
    run(PARSER, main)
