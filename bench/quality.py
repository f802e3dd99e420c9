"""Quality of any recipe on real data; appends one JSON line per run, unless it is there.

    python bench/quality.py TASK OUT.jsonl [recipe=ssm] [NAME=VALUE ...]

Tasks: `gowalla-test` and `amazon-book-kgat-test` (the split that ships with the data; `-valid`
holds out 10 % of train instead, for tuning), `ml-1m` and `ml-10m-implicit` (80/10/10 per user,
early stopping), `rg-ml-1m` and so on (the same as RG2 has it: ratings from 3 on, 5-core), `next-
ml-1m`, `next-amazon-beauty`, `next-nowplaying-sessions` (each user's last item, early stopping on
the one before), `xir-lastfm-hetrec` and so on (BIR's protocol: 80/20 per user, no validation),
`dtr-ml-1m`, `dtr-amazon-beauty` (DTR's protocol: held-out users, nothing masked; "masked" excludes
items the user has already interacted with; `fold=1` to `fold=9` ask other tenths of the users).
NAME=VALUE takes `seed=0`, `device=auto` and every other option of the recipe; `tune=24` tries so
many settings of the others on validation first; `save=PATH` saves the model; `timed=true` trains
one epoch first, or the best setting again, so that the seconds per epoch in `history` (`trained`:
so far, without measuring) are those of a process that is warm.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import softdex as sdx
from _data import need
from _harness import scratch, surroundings
from _options import parser, run, unless_tiny, written
from _training import key_of, trained, write


def task(text: str) -> str:
    """A data set with a split in its name."""
    if not re.fullmatch(r"(ml|rg|next|dtr|xir)-.+|.+-(test|valid)", text):
        raise ArgumentTypeError(f"expected a task such as ml-1m or gowalla-test, got {text!r}")
    return text


PARSER = parser(__file__, __doc__)
PARSER.add_argument("task", type=task, **unless_tiny("ml-1m"))
PARSER.add_argument("out", **written("quality.jsonl"))
PARSER.recipe_options({"recipe": "ssm", "tune": None, "save": None, "fold": 0, "timed": False})


def split(task: str, fold: int = 0) -> sdx.Split:
    """The split of a task; `fold` is of DTR's protocol."""
    if task.startswith("next-"):
        path = need(f"{task.removeprefix('next-')}.parquet")
        return sdx.split.leave_last(sdx.read(path, time="position", quiet=True))
    if task.startswith("dtr-"):
        name = task.removeprefix("dtr-")
        items = need(f"{name}.items.parquet")
        log = sdx.read(need(f"{name}.parquet"), time="position", items=items, quiet=True)
        log = log.compact()  # films that nobody rated are no items of the protocol
        return sdx.split.dtr(log, fold=fold)
    if task.startswith("xir-"):
        log = sdx.read(need(f"{task.removeprefix('xir-')}.parquet"), quiet=True)
        return sdx.split.xir(log.deduplicate(), seed=0)
    if task.startswith("rg-"):
        log = sdx.read(need(f"{task.removeprefix('rg-')}.parquet"), time=False, quiet=True)
        log = log if log.rating is None else log.min_rating(3)
        return sdx.split.rg(log.deduplicate().k_core(5), seed=0)
    if task.startswith("ml-"):
        return sdx.split.rg(sdx.read(need(f"{task}.parquet"), quiet=True), seed=0)
    name, _, part = task.rpartition("-")
    log = sdx.read(need(f"{name}.parquet"), quiet=True)
    return sdx.split.lightgcn(log, valid=0.1 if part == "valid" else 0.0)


def tiny_runs(task: str, *options: str) -> Path:
    """Run a task with each of these options, tiny; the file of the runs."""
    path = scratch() / "runs.jsonl"
    for line in options:
        main(PARSER.parse([task, str(path), *line.split()]))
    return path


def tiny_tree() -> Path:
    """Train a tiny tree; the file of the model."""
    path = scratch() / "tree.sdx"
    tiny_runs("dtr-ml-1m", f"recipe=dtr beam=20 dim=8 negatives=5 save={path}")
    return path


def main(given: Namespace) -> None:
    task, path, options = given.task, given.out, given.options
    recipe, count, kept = (given.own[name] for name in ("recipe", "tune", "save"))
    asked = {name: value for name, value in given.own.items() if name != "recipe" and value}
    key = key_of(path, [task, recipe, options | asked])
    if key is None:
        return
    train, valid, test = split(task, given.own["fold"])
    measured = valid if task.endswith("-valid") and valid is not None else test
    early = None if task.endswith(("-test", "-valid")) else valid
    if count is not None and early is None:
        raise sdx.DataError(f"tune={count}: {task} has no validation part to tune on")
    made = trained(recipe, train, early, options, tune=count, timed=given.own["timed"])
    model = made.model
    if kept is not None:
        model.save(str(kept))
    long = task.startswith("dtr-")
    result = model.evaluate(measured, (20, 40, 60) if long else (10, 20, 50))
    names = ["recall@10", "recall@20", "ndcg@20", "ndcg@10", "mrr@10", "ndcg@50"]
    more: dict[str, Any] = {}
    if long and early is not None:
        names = [f"{n}@{k}" for k in (20, 40, 60) for n in ("f", "precision", "recall")]
        for part, holdout in (("masked", measured), ("masked validation", early)):
            unseen = replace(holdout, masked=model.seen.take(holdout.users))
            hidden = model.evaluate(unseen, (20, 40, 60))
            more[part] = {n: round(hidden[n], 5) for n in (*names, "ndcg@20")}
    line = {
        "key": key,
        "benchmark": f"quality {task}",
        "card": measured.card.sha256,
        "metrics": {n: round(result[n], 5) for n in names},
        "errors": {n: round(result.standard_error(n), 5) for n in ("recall@20", names[0])},
        **more,
        **made.figures(),
        **surroundings(),
    }
    shown = ("benchmark", "recipe", "metrics", "seconds_per_epoch")
    write(path, line, {n: line[n] for n in shown})


if __name__ == "__main__":
    run(PARSER, main)
