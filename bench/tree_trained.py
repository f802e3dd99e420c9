"""How far trained trees stay behind the best k items, by their labels and their leaves.

    python bench/tree_trained.py [items, default 16384] [users] [epochs] [seeds]

A synthetic world whose truth says which labels count, so that no estimate is to blame. Trees: of
the world's own categories, and random. Regret: the share of the best k items' probability that the
k items found lack, given the user; "all leaves" is what the scorer itself would choose, so the rest
is the beam's.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch

from _harness import report
from softdex import synthetic
from softdex.data.interactions import Interactions
from softdex.index.tree.tree import Tree
from softdex.recipes.tree import tree
from softdex.solve.gradient.feed import Windows
from softdex.solve.loop import Run
from softdex.solve.tree.rectify import rectified
from softdex.solve.tree.relearn import place

K, ASKED, ROWS = 20, 500, 1024  # ROWS: instances whose labels are found at a time
BEAMS = {"20": 20, "40": 40, "80": 80, "150": 150, "all leaves": math.inf}


def labels(
    index: Tree, feed: Windows, log: Interactions, eta: torch.Tensor, kind: str
) -> torch.Tensor:
    """What the labels of all instances count, by the truth."""
    ends = torch.tensor(log.histories.indptr[1:], device=feed.at.device)
    user = torch.searchsorted(ends, feed.at, right=True)
    rows = torch.arange(feed.size, device=feed.at.device).split(ROWS)
    found = [rectified(index, eta[user[at]].log(), feed.instances(at)[1], kind) for at in rows]
    return torch.cat([each.to(torch.uint8) for each in found])


def regrets(
    log: Interactions,
    eta: torch.Tensor,
    order: np.ndarray | None,
    kind: str,
    epochs: int,
    seed: int,
) -> list[float]:
    """The regret of each beam, after a training."""
    job = tree(
        log, leaves="random", beam=K, sampling="uniform", negatives=30, max_history=69,
        epochs=epochs, batch_size=512, lr=0.01, patience=0, seed=seed,
    )  # fmt: skip
    run = Run(job, log, quiet=True)
    trainer: Any = run.trainer
    index, feed = trainer.index, trainer.feed
    if order is not None:
        slot_of = torch.empty_like(index.slot_of)
        slot_of[torch.from_numpy(order).to(slot_of)] = (index.item_of >= 0).nonzero()[:, 0]
        place(index, slot_of)
    if kind != "plain":
        feed.labels = labels(index, feed, log, eta, kind)
    run.advance(epochs)
    run.finish()
    users = np.arange(min(ASKED, len(eta)))
    query, truth = job.encoder(users, history=log.histories.take(users)), eta[: len(users)]
    best = truth.topk(K).values.sum(1)
    found = []
    for beam in BEAMS.values():
        ids = index.search(query, K, effort=beam).ids
        found.append(float((1 - truth.gather(1, ids).sum(1) / best).mean()))
    return found


def main() -> None:
    given = [int(float(a)) for a in sys.argv[1:]]
    items, users, epochs, seeds = [*given, *(16384, 12000, 1, 1)[len(given) :]]
    world = synthetic.world(
        users=users, items=items, events=100, seed=0, depth=7, skew=0.6, noise=0.0
    )
    log = world.interactions(repeats=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    eta = torch.from_numpy(world.eta(np.arange(users)).astype(np.float32)).to(device)
    orders = {"categories": np.argsort(world.slot_of), "random": None}
    figures: dict[str, Any] = {}
    for leaves, order in orders.items():
        for kind in ("plain", "child", "path"):
            each = [regrets(log, eta, order, kind, epochs, seed) for seed in range(seeds)]
            mean = np.mean(each, 0).round(5).tolist()
            figures[f"{leaves}, {kind}"] = dict(zip(BEAMS, mean, strict=True))
            print(f"{leaves}, {kind}: {mean}", file=sys.stderr, flush=True)
    report(
        "tree_trained",
        f"{items:,} items, {users:,} users, {len(log):,} events, {epochs} epochs, seeds {seeds}; "
        f"top {K}; share of the best items' probability that is not found, by beam",
        device=str(device),
        figures=figures,
    )


if __name__ == "__main__":
    main()
