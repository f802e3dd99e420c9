"""One request of a sequence model: the time from a raw history to 100 items, and of many at once.

python bench/latency.py [items, default 1e5 1e6]
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np
import torch

from _harness import report, seconds
from sequence_step import HISTORY, log_of
from softdex.model.learn import assemble
from softdex.model.retriever import Retriever
from softdex.recipes.sequence import sequence

REQUESTS, MANY, K = 200, 2000, 100


def model_of(items: int) -> Retriever:
    """Untrained, but for clusters in the items' vectors, without which no index can prune."""
    log = log_of(items)
    job = sequence(log, dim=64, hidden=128, max_history=HISTORY, device="cpu")
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(2000, 64, generator=draw)
    which = torch.randint(2000, (items,), generator=draw)
    noise = torch.randn(items, 64, generator=draw)
    job.scorer.items.weight.copy_((centres[which] + 0.5 * noise) / 8)  # type: ignore[union-attr]
    return assemble("sasrec", {}, log, job.encoder, job.scorer)  # type: ignore[arg-type]


def measured(model: Retriever, items: int) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    histories = draw.integers(0, items, (MANY, HISTORY)).tolist()
    model.recommend(history=histories[:1], k=K)
    each = [seconds(lambda h=h: model.recommend(history=[h], k=K)) for h in histories[:REQUESTS]]
    return {
        "single, median ms": round(statistics.median(each) * 1e3, 3),
        "single, 95 % ms": round(float(np.quantile(each, 0.95)) * 1e3, 3),
        "many at once, a second": round(MANY / seconds(lambda: model.recommend(history=histories))),
    }


def main() -> None:
    figures: dict[str, Any] = {}
    for items in [int(float(a)) for a in sys.argv[1:]] or [10**5, 10**6]:
        model = model_of(items)
        figures[f"{items:,} exact"] = measured(model, items)
        model.build_index("imi", recall=0.95, k=K)
        figures[f"{items:,} imi at recall .95"] = measured(model, items)
    report(
        "latency",
        f"sasrec, 2 layers, dim 64, histories of {HISTORY}, seen items left out; {REQUESTS} single "
        f"requests for {K} items by recommend(history=...), and {MANY:,} in one call for 10",
        device="cpu",
        threads=torch.get_num_threads(),
        figures=figures,
    )


if __name__ == "__main__":
    main()
