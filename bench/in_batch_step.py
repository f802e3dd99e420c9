"""Milliseconds and memory of a training step of each in-batch objective.

    python bench/in_batch_step.py [BATCH] [DIM]

Beside them the bare matrix products that scores and gradients need.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

import softdex as sdx
from _data import random_log, step_of, trainer_of
from _harness import DEVICE, GPU, milliseconds, peak, report, reset_peak, sized
from _options import parser, run, size

USERS, ITEMS, EVENTS = sized((100_000, 100_000, 20), (100, 80, 5))  # events per user
OBJECTIVES = ("ssl", "ssl_pop", "mns", "g_tower", "bir", "xir")

PARSER = parser(__file__, __doc__)
PARSER.add_argument("batch", nargs="?", type=size, default=sized(8192, 64))
PARSER.add_argument("dim", nargs="?", type=size, default=sized(128, 8))


def products(batch: int, dim: int, candidates: int) -> dict[str, float]:
    """Scores and both gradients: three products, nothing else."""
    query, items = (torch.randn(n, dim, device=DEVICE) for n in (batch, candidates))

    def work() -> None:
        scores = query @ items.T
        scores @ items
        scores.T @ query

    reset_peak()
    found = milliseconds(work, 20 if GPU else 5)
    return {"ms": found, "peak GB": peak(work)}


def step(
    log: sdx.Interactions, objective: str, batch: int, dim: int, precision: str
) -> dict[str, float]:
    work = step_of(
        trainer_of(objective, log, batch_size=batch, dim=dim, lr=0.001, precision=precision)
    )
    reset_peak()
    found = milliseconds(work, 20 if GPU else 3, warm=5 if GPU else 1)
    return {"ms": found, "peak GB": peak(work)}


def main(given: Namespace) -> None:
    batch, dim = given.batch, given.dim
    figures: dict[str, Any] = {
        "products, batch x batch": products(batch, dim, batch),
        "products, batch x 2 batch": products(batch, dim, 2 * batch),
    }
    log = random_log(USERS, ITEMS, EVENTS)
    for precision in ("float32", "bf16") if GPU else ("float32",):
        for objective in OBJECTIVES:
            figures[f"{objective} {precision}"] = step(log, objective, batch, dim, precision)
    report(
        "in_batch_step",
        f"batch {batch}, dim {dim}, cosine, {USERS:,} users and {ITEMS:,} items, row-wise Adam; "
        "median, each step synchronised; peak of the process (CPU) or of the device (GPU)",
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
