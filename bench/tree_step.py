"""A training step of the trees: instances a second, memory, and where the time goes; and the
attention of one level by itself, beside the same by tensor operations.

python bench/tree_step.py [items, default 3706] [negatives] [max_history] [batch_size]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from _harness import milliseconds, peak, report, reset_peak
from softdex.data.interactions import Interactions
from softdex.data.keys import range_keys
from softdex.kernels.dispatch import attend, attend_plain
from softdex.recipes.tree import tree

USERS, EVENTS = 2000, 100
DIM, UNITS = 24, 32
GPU = torch.cuda.is_available()
RECIPES: dict[str, dict[str, Any]] = {
    "dtr, tree": {"sampling": "tree"},
    "dtr, uniform": {"sampling": "uniform"},
    "tdm": {"sampling": "uniform", "objective": "binary", "negatives": 6},
    "plt": {"sampling": "siblings", "objective": "binary"},
}


def log_of(items: int) -> Interactions:
    draw = np.random.default_rng(0)
    size = USERS * EVENTS
    item = (draw.random(size) ** 2 * items).astype(np.int32)
    user = np.repeat(np.arange(USERS, dtype=np.int32), EVENTS)
    return Interactions(range_keys(USERS), range_keys(items), user, item, time=np.arange(size))


def measured(log: Interactions, options: dict[str, Any], precision: str) -> dict[str, float]:
    reset_peak()
    job = tree(log, precision=precision, per_row=True, **{"leaves": "random"} | options)
    trainer = job.trainer(log)
    trainer.modules.train()
    size = job.settings.batch_size
    at = torch.randperm(trainer.feed.size)[:size].to(trainer.device)
    replay = trainer.replay
    work = trainer.step if replay is None else lambda at: replay(trainer.step, at)
    rounds, warm = (20, 5) if GPU else (5, 2)
    whole = milliseconds(lambda: work(at), rounds, warm=warm)
    row = {"ms": whole, "instances a second": round(1e3 * size / whole)}
    if options["sampling"] == "tree" and not GPU:
        query, target, _ = trainer.feed.batch(at, trainer.generator)
        walk = {"generator": trainer.generator, "to": target}
        count = int(job.parts.draws // trainer.index.depth)  # type: ignore[attr-defined]
        walks = milliseconds(lambda: trainer.index.walk(query, count, **walk), rounds, warm=1)  # type: ignore[attr-defined]
        row["share of the walks"] = round(walks / whole, 3)
    row["peak GB"] = peak(lambda: work(at))
    return row


def attention(options: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of weights and their gradients, of a batch of one level."""
    size, length = options.get("batch_size", 128), options.get("max_history", 20)
    shape = size, options.get("negatives", 20) + 1
    device = torch.device("cuda" if GPU else "cpu")

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device).requires_grad_()

    given = [
        random(size, length, DIM), random(size, length, UNITS), random(*shape, DIM),
        random(DIM, UNITS), random(*shape, UNITS), random(UNITS), random(UNITS), random(), random(),
    ]  # fmt: skip
    real = torch.ones(size, length, dtype=torch.bool, device=device)
    rounds = 20 if GPU else 7
    return {
        "compiled ms": milliseconds(lambda: attend(*given, real).sum().backward(), rounds, warm=3),
        "by tensor operations ms": milliseconds(
            lambda: attend_plain(*given, real).sum().backward(), rounds, warm=3
        ),
    }


def main() -> None:
    items, *rest = [int(float(a)) for a in sys.argv[1:]] or [3706]
    names = ("negatives", "max_history", "batch_size")
    given = dict(zip(names, rest, strict=False))
    log = log_of(items)
    figures: dict[str, Any] = {"attention, one level": attention(given)}
    for precision in ("float32", "bf16") if GPU else ("float32",):
        for name, options in RECIPES.items():
            figures[f"{name}, {precision}"] = measured(log, given | options, precision)
    report(
        "tree_step",
        f"{items:,} items, {given or 'the defaults of the device'}, binary tree, row-wise Adam; "
        "median, each step synchronised",
        device=torch.cuda.get_device_name() if GPU else "cpu",
        threads=torch.get_num_threads(),
        figures=figures,
    )


if __name__ == "__main__":
    main()
