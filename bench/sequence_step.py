"""Milliseconds and memory of a training step of `sasrec`, by the number of items and the negatives.

    python bench/sequence_step.py [ITEMS ...] [float32] [bf16]

All items, uniform draws shared by the batch, and draws from the multi-index.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

import softdex as sdx
from _data import random_log, step_of, trainer_of
from _harness import GPU, milliseconds, peak, report, reset_peak, sized
from _options import parser, run, size

USERS, HISTORY, BATCH, DIM = sized((2000, 50, 128, 128), (40, 10, 16, 8))
NEGATIVES, SHARED, WORDS = sized((100, 2000, 64), (5, 20, 4))
PRECISIONS = ("float32", "bf16")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "all items": {"objective": "softmax"},
    "uniform, shared": {"objective": "ssm", "index": "uniform", "negatives": SHARED},
    "imi_popularity": {
        "objective": "ssm", "index": "imi_popularity", "negatives": NEGATIVES, "codewords": WORDS
    },
}  # fmt: skip


def word(text: str) -> int | str:
    """A number of items, or a precision."""
    return text if text in PRECISIONS else size(text)


PARSER = parser(__file__, __doc__)
PARSER.add_argument("sizes", nargs="*", type=word, metavar="ITEMS|PRECISION")


def step(log: sdx.Interactions, options: dict[str, Any], precision: str) -> dict[str, float | str]:
    reset_peak()
    try:
        trainer = trainer_of(
            "sequence", log, dim=DIM, max_history=HISTORY, batch_size=BATCH, precision=precision,
            per_row=True, **options,
        )  # fmt: skip
        work = step_of(trainer)
        found = milliseconds(work, 20 if GPU else 3, warm=5 if GPU else 1)
        row: dict[str, float | str] = {"ms": found, "peak GB": peak(work)}
        if options.get("index", "").startswith("imi"):
            row["refit ms"] = milliseconds(trainer.refit, 3, warm=1)
    except torch.OutOfMemoryError:
        return {"ms": "out of memory"}
    return row


def main(given: Namespace) -> None:
    kinds = [word for word in given.sizes if word in PRECISIONS]
    sizes = [word for word in given.sizes if word not in PRECISIONS]
    figures = {}
    for items in sizes or sized([10**5, 10**6, 5 * 10**6], [300]):
        log = random_log(USERS, items, HISTORY + 1)
        for precision in kinds or PRECISIONS[: 2 if GPU else 1]:
            for name, options in OBJECTIVES.items():
                figures[f"{items:,} {name} {precision}"] = step(log, options, precision)
    report(
        "sequence_step",
        f"sasrec, history {HISTORY}, batch {BATCH}, dim {DIM}, 2 layers, {NEGATIVES} draws per "
        f"position from {WORDS} x {WORDS} cells, or {SHARED} uniform ones per batch; row-wise "
        "Adam; median, each step synchronised",
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
