"""Regret of trained trees, by their labels, their leaves and the beam.

    python bench/tree_trained.py [ITEMS] [USERS] [EPOCHS] [SEEDS]

The truth of a synthetic world decides which labels count, so that no estimate interferes. Trees: of
the world's own categories, and random. Regret: the share of the best k items' probability, given
the user, that the k items found lack; "all leaves" is the scorer's own choice, and what a beam
lacks beyond it is the beam's loss.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _harness import DEVICE, report, sized
from _options import parser, run, size
from softdex.index.tree.tree import Tree
from softdex.solve.gradient.feed import Windows
from softdex.solve.loop import Run
from softdex.solve.tree.rectify import rectified
from softdex.solve.tree.relearn import place

K, ASKED, ROWS = 20, 500, 1024  # ROWS: instances labelled at a time
EVENTS, BATCH = sized((100, 512), (20, 64))  # events per user
BEAMS = {"20": 20, "40": 40, "80": 80, "150": 150, "all leaves": math.inf}
FULL, SMALL = (16384, 12000, 1, 1), (64, 20, 1, 1)

PARSER = parser(__file__, __doc__)
for name, default in zip(("items", "users", "epochs", "seeds"), sized(FULL, SMALL), strict=True):
    PARSER.add_argument(name, nargs="?", type=size, default=default)


def labels(
    index: Tree, feed: Windows, log: sdx.Interactions, eta: torch.Tensor, kind: str
) -> torch.Tensor:
    """The labels (N, J) of all instances, by the truth."""
    ends = torch.tensor(log.histories.indptr[1:], device=feed.at.device)
    user = torch.searchsorted(ends, feed.at, right=True)
    rows = torch.arange(feed.size, device=feed.at.device).split(ROWS)
    found = [rectified(index, eta[user[at]].log(), feed.instances(at)[1], kind) for at in rows]
    return torch.cat([each.to(torch.uint8) for each in found])


def regrets(
    log: sdx.Interactions,
    eta: torch.Tensor,
    order: np.ndarray | None,
    kind: str,
    epochs: int,
    seed: int,
) -> list[float]:
    """The regret of each beam after training."""
    options = {
        "leaves": "random", "beam": K, "sampling": "uniform", "negatives": 30, "max_history": 69,
        "epochs": epochs, "batch_size": BATCH, "lr": 0.01, "patience": 0, "seed": seed,
    }  # fmt: skip
    job = sdx.recipes.make("tree", log, sdx.recipes.options("tree") | options)
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


def main(given: Namespace) -> None:
    items, users, epochs, seeds = given.items, given.users, given.epochs, given.seeds
    world = sdx.synthetic.world(
        users=users, items=items, events=EVENTS, seed=0, depth=7, skew=0.6, noise=0.0
    )
    log = world.interactions(repeats=True)
    eta = torch.from_numpy(world.eta(np.arange(users)).astype(np.float32)).to(DEVICE)
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
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
