"""Seconds and memory of evaluating 1,000 users over a million items, beside bare matmul + topk."""

from __future__ import annotations

import statistics
from argparse import Namespace

import numpy as np
import torch

import softdex as sdx
from _data import log_of
from _harness import alternating, peak_of, report, sized
from _options import parser, run
from softdex.encode.table import Users
from softdex.model.learn import assemble
from softdex.score.product import Dot

USERS, ITEMS, DIM, K = sized((1000, 1_000_000, 64, 50), (50, 2000, 16, 50))

PARSER = parser(__file__, __doc__)


def main(given: Namespace) -> None:
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS), 20)
    log = log_of(user, draw.integers(0, ITEMS, len(user)), USERS, ITEMS)
    train, _, test = sdx.split.per_user(log, (0.5, 0.5))
    queries, items = torch.randn(USERS, DIM), torch.randn(ITEMS, DIM)
    model = assemble("random", {}, train, Users(queries), Dot(items))

    def ours() -> sdx.Result:
        return model.evaluate(test, K, index="exact", max_memory="1GB")

    def bare() -> None:
        width = 8192
        best = [(queries @ items[s : s + width].T).topk(K) for s in range(0, ITEMS, width)]
        torch.cat([b.values for b in best], 1).topk(K)

    _, memory = peak_of(ours)
    times = alternating({"matmul + topk": bare, "evaluate": ours}, 5)
    middle = {name: statistics.median(t) for name, t in times.items()}
    report(
        "evaluate_million",
        f"{USERS} users x {ITEMS} items, {DIM}-d float32, exact, k={K}, 10 masked and 10 targets "
        "per user, all metrics; bare: blocked product + topk, nothing masked; median of 5 in turn",
        seconds=times,
        ratio=round(middle["evaluate"] / middle["matmul + topk"], 2),
        **{name: memory[name] for name in ("peak_gb", "peak_above_start_gb")},
        vectors_gb=round(items.nbytes / 1e9, 3),
    )


if __name__ == "__main__":
    run(PARSER, main)
