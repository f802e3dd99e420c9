"""Any recipe on real data; one JSON line a run, skipped if it is there already.

    python bench/quality.py TASK OUT.jsonl [recipe=ssm] [name=value ...]

Tasks: `gowalla-test` and `amazon-book-kgat-test` (the split that ships with the data; `-valid` cuts
10 % of train off instead, for tuning), `ml-1m` and `ml-10m-implicit` (80/10/10 per user, early
stop), `next-ml-1m`, `next-amazon-beauty`, `next-nowplaying-sessions` (each user's last item, early
stop on the one before), `dtr-ml-1m`, `dtr-amazon-beauty` (S0's protocol: held-out users, nothing
masked; "masked" leaves out what the user has had). `seed=0 device=auto` and every option of the
recipe can be given; `tune=24` looks for the others among so many settings first, on validation;
`save=PATH` keeps the model.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import softdex as sdx
from _harness import machine, need
from softdex.model.card import versions


def split(task: str) -> sdx.Split:
    if task.startswith("next-"):
        path = need(f"{task.removeprefix('next-')}.parquet")
        return sdx.split.leave_last(sdx.read(path, time="position", quiet=True))
    if task.startswith("dtr-"):
        name = task.removeprefix("dtr-")
        items = need(f"{name}.items.parquet")
        log = sdx.read(need(f"{name}.parquet"), time="position", items=items, quiet=True)
        return sdx.split.dtr(log)
    if task.startswith("ml-"):
        return sdx.split.rg(sdx.read(need(f"{task}.parquet"), quiet=True), seed=0)
    name, _, part = task.rpartition("-")
    log = sdx.read(need(f"{name}.parquet"), quiet=True)
    return sdx.split.lightgcn(log, valid=0.1 if part == "valid" else 0.0)


def main() -> None:
    task, out, *pairs = sys.argv[1:]
    options: dict[str, Any] = {}
    for name, _, value in (pair.partition("=") for pair in pairs):
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    recipe = options.pop("recipe", "ssm")
    key = hashlib.sha256(json.dumps([task, recipe, options], sort_keys=True).encode()).hexdigest()
    path = Path(out)
    if path.exists() and key in path.read_text():
        return
    train, valid, test = split(task)
    asked = valid if task.endswith("-valid") and valid is not None else test
    early = valid if task.startswith(("ml-", "next-", "dtr-")) else None
    count, kept = options.pop("tune", None), options.pop("save", None)
    began = time.perf_counter()
    if count is not None and early is None:
        raise SystemExit(f"{task} has no validation part to tune on")
    if count is not None and valid is not None:
        model = sdx.tune(recipe, train, valid, settings=count, **options).model
    else:
        model = sdx.fit(recipe, train, valid=early, **options)
    seconds = time.perf_counter() - began
    if kept is not None:
        model.save(kept)
    result = model.evaluate(asked, (10, 20))
    names = ["recall@10", "recall@20", "ndcg@20", "ndcg@10", "mrr@10"]
    more: dict[str, Any] = {}
    if task.startswith("dtr-") and early is not None:
        names = ["f@20", "precision@20", "recall@20"]
        for part, holdout in (("masked", asked), ("masked validation", early)):
            unseen = replace(holdout, masked=model.seen.take(holdout.users))
            hidden = model.evaluate(unseen, 20)
            more[part] = {n: round(hidden[n], 5) for n in (*names, "ndcg@20")}
    training = model.card.training or {"history": [], "best_epoch": None}
    history = training["history"]
    line = {
        "key": key,
        "benchmark": f"quality {task}",
        "recipe": recipe,
        "options": model.options,
        "card": asked.card.sha256,
        "metrics": {n: round(result[n], 5) for n in names},
        "errors": {n: round(result.standard_error(n), 5) for n in ("recall@20", names[0])},
        **more,
        "validation": max((h["metric"] for h in history if "metric" in h), default=None),
        "best_epoch": training["best_epoch"],
        "history": history,
        "seconds": round(seconds, 1),
        "seconds_per_epoch": round(seconds / max(1, len(history)), 3),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": versions(),
        "machine": machine(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps({n: line[n] for n in ("benchmark", "recipe", "metrics", "seconds_per_epoch")}))


if __name__ == "__main__":
    main()
