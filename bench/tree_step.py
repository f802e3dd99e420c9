"""Instances per second and memory of a training step of the tree recipes.

    python bench/tree_step.py [ITEMS] [NEGATIVES] [MAX_HISTORY] [BATCH_SIZE]

Beside them the share of sampled walks, and the attention of one level beside the same by tensor
operations. What is not given is the default of the device.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

import softdex as sdx
from _data import random_log, step_of, trainer_of
from _harness import DEVICE, GPU, milliseconds, peak, report, reset_peak, sized
from _options import parser, run, size
from softdex.kernels.dispatch import attend, attend_plain

USERS, EVENTS = sized((2000, 100), (20, 20))
DIM, UNITS = 24, 32
OPTIONS = ("negatives", "max_history", "batch_size")
RECIPES: dict[str, dict[str, Any]] = {
    "dtr, tree": {"sampling": "tree"},
    "dtr, uniform": {"sampling": "uniform"},
    "tdm": {"sampling": "uniform", "objective": "binary", "negatives": 6},
    "plt": {"sampling": "siblings", "objective": "binary"},
}


PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="?", type=size, default=sized(3706, 200))
for name, tiny in zip(OPTIONS, (5, 5, 16), strict=True):
    PARSER.add_argument(name, nargs="?", type=size, default=sized(None, tiny))


def measured(log: sdx.Interactions, options: dict[str, Any], precision: str) -> dict[str, float]:
    reset_peak()
    given = {"leaves": "random", "precision": precision, "per_row": True} | options
    trainer = trainer_of("tree", log, **given)
    batch, work = trainer.batch_size, step_of(trainer)
    rounds, warm = (20, 5) if GPU else (5, 2)
    whole = milliseconds(work, rounds, warm=warm)
    row = {"ms": whole, "instances per second": round(1e3 * batch / whole)}
    if options["sampling"] == "tree" and not GPU:
        query, target, _ = trainer.feed.batch(torch.arange(batch), trainer.generator)
        walk = {"generator": trainer.generator, "to": target}
        count = int(trainer.negatives.draws // trainer.index.depth)
        walks = milliseconds(lambda: trainer.index.walk(query, count, **walk), rounds, warm=1)
        row["share of the walks"] = round(walks / whole, 3)
    row["peak GB"] = peak(work)
    return row


def attention(options: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the weights of one batch at one level, and of their gradients."""
    size, length = options.get("batch_size", 128), options.get("max_history", 20)
    shape = size, options.get("negatives", 20) + 1

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=DEVICE).requires_grad_()

    given = [
        random(size, length, DIM), random(size, length, UNITS), random(*shape, DIM),
        random(DIM, UNITS), random(*shape, UNITS), random(UNITS), random(UNITS), random(), random(),
    ]  # fmt: skip
    real = torch.ones(size, length, dtype=torch.bool, device=DEVICE)
    rounds = 20 if GPU else 7
    return {
        "compiled ms": milliseconds(lambda: attend(*given, real).sum().backward(), rounds, warm=3),
        "by tensor operations ms": milliseconds(
            lambda: attend_plain(*given, real).sum().backward(), rounds, warm=3
        ),
    }


def main(given: Namespace) -> None:
    chosen = {name: value for name in OPTIONS if (value := getattr(given, name)) is not None}
    log = random_log(USERS, given.items, EVENTS)
    figures: dict[str, Any] = {"attention, one level": attention(chosen)}
    for precision in ("float32", "bf16") if GPU else ("float32",):
        for name, options in RECIPES.items():
            figures[f"{name}, {precision}"] = measured(log, chosen | options, precision)
    report(
        "tree_step",
        f"{given.items:,} items, {chosen or 'the defaults of the device'}, binary tree, row-wise "
        "Adam; median, each step synchronised",
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
