"""Milliseconds and memory of a training step by the number of items: `ssm` on draws that the batch
shares, and `bpr` on draws of each row's own.

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
from softdex.objective.pairwise import bpr
from softdex.objective.sampled import sampled_softmax

USERS, DIM, BATCH, DRAWS, OWN = sized((100_000, 64, 2048, 1000, 20), (100, 8, 32, 10, 2))
EVENTS = sized(1_000_000, 1000)
SIZES = sized((10**4, 10**5, 10**6, *([10**7] if GPU else [])), (100, 200))

PARSER = parser(__file__, __doc__)


def ours(items: int, recipe: str, negatives: int, score: str = "dot") -> Callable[[], None]:
    """A step on events of random users and items."""
    users = torch.randint(USERS, (EVENTS,)).numpy()
    log = log_of(users, torch.randint(items, (EVENTS,)).numpy(), USERS, items)
    options = {"score": score, "dim": DIM, "batch_size": BATCH, "negatives": negatives}
    return step_of(trainer_of(recipe, log, **options))


def dense(items: int, *, own: bool) -> Callable[[], None]:
    """The same losses with nn.Embedding and torch.optim.Adam."""
    user, item = (nn.Embedding(n, DIM, device=DEVICE) for n in (USERS, items))
    adam = torch.optim.Adam([*user.parameters(), *item.parameters()], 0.01, fused=GPU)

    def step() -> None:
        users, target = (torch.randint(n, (BATCH,), device=DEVICE) for n in (USERS, items))
        ids = torch.randint(items, (BATCH, OWN) if own else (DRAWS,), device=DEVICE)
        query, hit = user(users), ids == target[:, None]
        pos = (query * item(target)).sum(1)
        if own:
            loss = bpr(pos, torch.einsum("bd,bnd->bn", query, item(ids)), hit).mean()
        else:
            logq = torch.full((DRAWS,), -torch.tensor(float(items)).log().item(), device=DEVICE)
            own_logq = logq[:1].expand(BATCH)
            loss = sampled_softmax(pos, query @ item(ids).T, logq, own_logq, hit).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def main(given: Namespace) -> None:
    figures: dict[str, dict[str, float]] = {}
    for items in SIZES:
        reset_peak()
        step = ours(items, "ssm", DRAWS)
        row = {"row-wise ms": milliseconds(step, 100)}
        if GPU:
            row["row-wise peak GB"] = peak(step)
        else:
            row["row-wise peak above tables GB"] = peak_of(step)[1]["peak_above_start_gb"]
            row["tables GB"] = round((USERS + items) * DIM * 4 * 3 / 1e9, 3)
        del step
        row["dense Adam ms"] = milliseconds(dense(items, own=False), 20)
        for score in ("dot", "cosine"):
            step = ours(items, "bpr", OWN, score)
            row[f"own draws, {score} ms"] = milliseconds(step, 100)
            if GPU:
                row[f"own draws, {score} peak GB"] = peak(step)
        del step
        row["own draws, dense Adam ms"] = milliseconds(dense(items, own=True), 20)
        figures[str(items)] = row
    first = figures[str(SIZES[0])]
    ways = [name for name in first if name.endswith("ms")]
    report(
        "step_time",
        f"batch {BATCH}, {DRAWS} shared uniform draws (ssm, dot) or {OWN} per row (bpr), "
        f"dim {DIM}, {USERS} users, float32; median of 100 steps (dense: 20), each synchronised",
        items=figures,
        ratios={n: {w: round(f[w] / first[w], 3) for w in ways} for n, f in figures.items()},
    )


if __name__ == "__main__":
    run(PARSER, main)
