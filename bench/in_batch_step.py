"""A training step of each in-batch objective, beside the bare matrix products that it needs.

python bench/in_batch_step.py [batch, default 8192] [dim, default 128]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from _harness import milliseconds, peak, report, reset_peak
from softdex.encode.table import Users
from softdex.index.flat import Flat
from softdex.score.product import Cosine
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch
from softdex.solve.gradient.trainer import Batch, Composition, Settings, Trainer

USERS = ITEMS = 100_000
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


class Random:
    """Events of random users, popular items more often."""

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        place = torch.rand(len(at), device=DEVICE, generator=generator)
        users = torch.randint(USERS, (len(at),), device=DEVICE, generator=generator)
        target = (place.square() * ITEMS).long()
        return Batch(users, target, torch.full_like(place, 1 / len(at)))


def ours(objective: str, batch: int, dim: int, precision: str) -> Trainer:
    made = torch.Generator(DEVICE).manual_seed(0)
    users, items = (
        torch.randn(n, dim, device=DEVICE, generator=made) * dim**-0.5 for n in (USERS, ITEMS)
    )
    scorer = Cosine(items, torch.tensor(0.1, device=DEVICE))
    logp = -0.5 * torch.arange(1, ITEMS + 1, device=DEVICE).log()
    loss = InBatch(objective, logp.log_softmax(0), batch)
    parts = Composition(Users(users), scorer, Flat(scorer), loss, batch, proposes=False)
    trainer = Trainer(parts, Settings(batch, 0.001, precision=precision), DEVICE)
    trainer.feed = Random()  # type: ignore[assignment]
    trainer.modules.train()
    return trainer


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


def step(objective: str, batch: int, dim: int, precision: str) -> dict[str, float]:
    trainer = ours(objective, batch, dim, precision)
    at = torch.arange(batch, device=DEVICE)
    replay = trainer.replay
    work = trainer.step if replay is None else lambda at: replay(trainer.step, at)
    reset_peak()
    found = milliseconds(lambda: work(at), 20 if GPU else 3, warm=5 if GPU else 1)
    return {"ms": found, "peak GB": peak(lambda: work(at))}


def main() -> None:
    batch, dim = [int(a) for a in sys.argv[1:]] or (8192, 128)
    figures: dict[str, Any] = {
        "products, batch x batch": products(batch, dim, batch),
        "products, batch x 2 batch": products(batch, dim, 2 * batch),
    }
    for precision in ("float32", "bf16") if GPU else ("float32",):
        for objective in OBJECTIVES:
            figures[f"{objective} {precision}"] = step(objective, batch, dim, precision)
    report(
        "in_batch_step",
        f"batch {batch}, dim {dim}, cosine, {USERS:,} users and {ITEMS:,} items, row-wise Adam; "
        "median, each step synchronised; peak of the process (CPU) or of the device (GPU)",
        device=torch.cuda.get_device_name() if GPU else "cpu",
        threads=torch.get_num_threads(),
        figures=figures,
    )


if __name__ == "__main__":
    main()
