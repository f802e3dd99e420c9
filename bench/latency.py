"""Milliseconds from a raw history to 100 items of a sequence model, and requests per second.

python bench/latency.py [ITEMS ...]
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import softdex as sdx
from _data import random_log
from _harness import report, seconds, sized
from _options import parser, run, size
from softdex.model.learn import assemble

USERS, HISTORY, DIM, HIDDEN = sized((2000, 50, 64, 128), (50, 10, 8, 8))
REQUESTS, MANY, K = sized((200, 2000, 100), (3, 20, 10))
CENTRES = sized(2000, 20)
CATEGORIES, DENIED = 100, 10

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="*", type=size, default=sized([10**5, 10**6], [300]))


def model_of(items: int) -> sdx.Retriever:
    """An untrained `sasrec` with clustered item vectors: without clusters no index can prune."""
    log = random_log(USERS, items, HISTORY + 1)
    category = np.random.default_rng(2).zipf(1.3, log.num_items) % CATEGORIES
    log = replace(log, item_table=pa.table({"category": category}))
    given = {"dim": DIM, "hidden": HIDDEN, "max_history": HISTORY, "device": "cpu"}
    job = sdx.recipes.make("sasrec", log, sdx.recipes.options("sasrec") | given)
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(CENTRES, DIM, generator=draw)
    which = torch.randint(CENTRES, (items,), generator=draw)
    noise = torch.randn(items, DIM, generator=draw)
    job.scorer.items.weight.copy_((centres[which] + 0.5 * noise) / 8)
    return assemble("sasrec", {}, log, job.encoder, job.scorer)


def measured(model: sdx.Retriever, items: int) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    histories = draw.integers(0, items, (MANY, HISTORY)).tolist()
    deny = draw.integers(0, items, (MANY, DENIED)).tolist()
    rules: dict[str, dict[str, Any]] = {
        "": {},
        f", {DENIED} denied per user": {"deny": deny},
        ", at most 2 per category": {"at_most": {"category": 2}},
    }
    model.recommend(history=histories[:1], k=K)
    each = [seconds(lambda h=h: model.recommend(history=[h], k=K)) for h in histories[:REQUESTS]]
    return {
        "single, median ms": round(statistics.median(each) * 1e3, 3),
        "single, 95 % ms": round(float(np.quantile(each, 0.95)) * 1e3, 3),
    } | {
        f"many at once{name}, per second": round(
            MANY / seconds(lambda rule=rule: model.recommend(history=histories, **rule))
        )
        for name, rule in rules.items()
    }


def main(given: Namespace) -> None:
    figures: dict[str, Any] = {}
    for items in given.items:
        model = model_of(items)
        figures[f"{items:,} exact"] = measured(model, items)
        model.build_index("imi", recall=0.95, k=K)
        figures[f"{items:,} imi at recall .95"] = measured(model, items)
    report(
        "latency",
        f"sasrec, 2 layers, dim {DIM}, histories of {HISTORY}, seen items excluded; {REQUESTS} "
        f"single requests for {K} items by recommend(history=...), and {MANY:,} in one call for "
        f"10, also with rules ({CATEGORIES} categories of falling size)",
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
