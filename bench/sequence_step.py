"""A training step of `sasrec` as the catalogue grows: all items against draws from the multi-index.

python bench/sequence_step.py [items ...] [float32] [bf16]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from _harness import milliseconds, peak, report, reset_peak
from softdex.data.interactions import Interactions
from softdex.data.keys import range_keys
from softdex.recipes.sequence import sequence

USERS, HISTORY, BATCH, DIM, NEGATIVES = 2000, 50, 128, 128, 100
GPU = torch.cuda.is_available()
OBJECTIVES: dict[str, dict[str, Any]] = {
    "all items": {"objective": "softmax"},
    "uniform, shared": {"objective": "ssm", "index": "uniform", "negatives": 2000},
    "imi_popularity": {"objective": "ssm", "index": "imi_popularity", "negatives": NEGATIVES},
}


def log_of(items: int) -> Interactions:
    """Random histories, popular items more often."""
    draw = np.random.default_rng(0)
    size = USERS * (HISTORY + 1)
    item = (draw.random(size) ** 2 * items).astype(np.int32)
    user = np.repeat(np.arange(USERS, dtype=np.int32), HISTORY + 1)
    return Interactions(range_keys(USERS), range_keys(items), user, item, time=np.arange(size))


def step(log: Interactions, options: dict[str, Any], precision: str) -> dict[str, float | str]:
    reset_peak()
    try:
        job = sequence(
            log, dim=DIM, max_history=HISTORY, batch_size=BATCH, precision=precision, per_row=True,
            **options,
        )  # fmt: skip
        trainer = job.trainer(log)
        trainer.modules.train()
        at = torch.arange(BATCH, device=trainer.device)
        replay = trainer.replay
        work = trainer.step if replay is None else lambda at: replay(trainer.step, at)
        found = milliseconds(lambda: work(at), 20 if GPU else 3, warm=5 if GPU else 1)
        row: dict[str, float | str] = {"ms": found, "peak GB": peak(lambda: work(at))}
        if job.settings.refit_every and options.get("index", "").startswith("imi"):
            row["refit ms"] = milliseconds(trainer.refit, 3, warm=1)
    except torch.OutOfMemoryError:
        return {"ms": "out of memory"}
    return row


def main() -> None:
    kinds = [a for a in sys.argv[1:] if a in ("float32", "bf16")]
    sizes = [int(float(a)) for a in sys.argv[1:] if a not in kinds] or [10**5, 10**6, 5 * 10**6]
    figures = {}
    for items in sizes:
        log = log_of(items)
        for precision in kinds or (("float32", "bf16") if GPU else ("float32",)):
            for name, options in OBJECTIVES.items():
                figures[f"{items:,} {name} {precision}"] = step(log, options, precision)
    report(
        "sequence_step",
        f"sasrec, history {HISTORY}, batch {BATCH}, dim {DIM}, 2 layers, {NEGATIVES} draws a "
        "position from 64 x 64 cells, or 2,000 uniform ones for the batch; row-wise Adam; median, "
        "each step synchronised",
        device=torch.cuda.get_device_name() if GPU else "cpu",
        threads=torch.get_num_threads(),
        figures=figures,
    )


if __name__ == "__main__":
    main()
