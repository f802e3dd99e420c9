"""Milliseconds and memory of a training step of `ssm`, by the number of items.

Row-wise updates beside a dense Adam, which touches every row.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import nn

from _data import log_of, step_of, trainer_of
from _harness import DEVICE, GPU, milliseconds, peak, peak_of, report, reset_peak, sized
from _options import parser, run
from softdex.objective.sampled import sampled_softmax

USERS, DIM, BATCH, DRAWS = sized((100_000, 64, 2048, 1000), (100, 8, 32, 10))
EVENTS = sized(1_000_000, 1000)
SIZES = sized((10**5, 10**6, 10**7) if GPU else (10**5, 10**6), (100, 200))

PARSER = parser(__file__, __doc__)


def ours(items: int) -> Callable[[], None]:
    """A step of `ssm` on events of random users and items."""
    users = torch.randint(USERS, (EVENTS,)).numpy()
    log = log_of(users, torch.randint(items, (EVENTS,)).numpy(), USERS, items)
    options = {"score": "dot", "dim": DIM, "batch_size": BATCH, "negatives": DRAWS}
    return step_of(trainer_of("ssm", log, **options))


def dense(items: int) -> Callable[[], None]:
    """The same loss with nn.Embedding and torch.optim.Adam."""
    user, item = (nn.Embedding(n, DIM, device=DEVICE) for n in (USERS, items))
    adam = torch.optim.Adam([*user.parameters(), *item.parameters()], 0.01, fused=GPU)

    def step() -> None:
        users, target = (torch.randint(n, (BATCH,), device=DEVICE) for n in (USERS, items))
        ids = torch.randint(items, (DRAWS,), device=DEVICE)
        query = user(users)
        pos, neg = (query * item(target)).sum(1), query @ item(ids).T
        logq = torch.full((DRAWS,), -torch.tensor(float(items)).log().item(), device=DEVICE)
        own_logq = logq[:1].expand(BATCH)
        loss = sampled_softmax(pos, neg, logq, own_logq, ids == target[:, None]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def main(given: Namespace) -> None:
    figures: dict[str, dict[str, float]] = {}
    for items in SIZES:
        reset_peak()
        step = ours(items)
        row = {"row-wise ms": milliseconds(step, 100)}
        if GPU:
            row["row-wise peak GB"] = peak(step)
        else:
            row["row-wise peak above tables GB"] = peak_of(step)[1]["peak_above_start_gb"]
            row["tables GB"] = round((USERS + items) * DIM * 4 * 3 / 1e9, 3)
        del step
        row["dense Adam ms"] = milliseconds(dense(items), 20)
        figures[str(items)] = row
    first = figures[str(SIZES[0])]["row-wise ms"]
    report(
        "step_time",
        f"batch {BATCH}, {DRAWS} shared uniform draws, dim {DIM}, {USERS} users, float32, dot; "
        "median of 100 steps (dense: 20), each synchronised",
        items=figures,
        ratios={n: round(f["row-wise ms"] / first, 3) for n, f in figures.items()},
    )


if __name__ == "__main__":
    run(PARSER, main)
