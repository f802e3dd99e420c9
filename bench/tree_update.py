"""One learning of a tree as items and instances grow, beside the bare evaluations that it needs.

    python bench/tree_update.py [ITEMSxEACH ...]    (default 2e3x10 2e3x40 8e3x10)

EACH: instances an item.

The scorer is untrained: this is about time. "evaluations": the same nodes of the same histories
scored and nothing done with it, which is the limit.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

from _harness import peak, report, reset_peak
from softdex.data.interactions import Interactions
from softdex.data.keys import range_keys
from softdex.index.tree.learn import stages
from softdex.index.tree.tree import Tree
from softdex.recipes.tree import tree
from softdex.solve.tree.relearn import Rounds, relearn, rows_at_a_time

EVENTS, HISTORY = 100, 20  # of a user
GPU = torch.cuda.is_available()


def log_of(items: int, each: int) -> Interactions:
    """Every item equally often, in random order."""
    draw = np.random.default_rng(0)
    item = draw.permutation(np.repeat(np.arange(items, dtype=np.int32), each))
    users = -(-len(item) // EVENTS)
    user = np.repeat(np.arange(users, dtype=np.int32), EVENTS)[: len(item)]
    return Interactions(range_keys(users), range_keys(items), user, item, time=np.arange(len(item)))


def synchronised() -> float:
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(items: int, each: int) -> dict[str, Any]:
    reset_peak()
    log = log_of(items, each)
    job = tree(log, leaves="random", max_history=HISTORY, per_row=True)
    trainer = job.trainer(log)
    trainer.modules.eval()
    index, feed = trainer.index, trainer.feed
    assert isinstance(index, Tree)
    wide = sum(stage.wide for stage in stages(index, 7))
    bare(index, feed)  # also compiles
    began = synchronised()
    scored = bare(index, feed)
    each_s = (synchronised() - began) / scored
    figures: dict[str, Any] = {}
    for rule in ("auction", "greedy"):
        how = Rounds((), per_item=each, rule=rule)
        began = synchronised()
        found = relearn(index, feed, trainer.optimizers[0], how, trainer.generator)  # type: ignore[arg-type]
        figures[f"{rule} s"] = round(synchronised() - began, 2)
        figures[f"{rule}, gain an instance"] = found["gain"]
        print(f"{items:,} items, {each} each: {figures}", file=sys.stderr, flush=True)
    figures["evaluations"] = feed.size * wide
    figures["evaluations s"] = round(each_s * feed.size, 2)
    figures["peak GB"] = peak(lambda: None)
    return figures


@torch.no_grad()
def bare(index: Tree, feed: Any) -> int:
    """Score what all stages score, for a few batches of instances; how many these were."""
    rows = rows_at_a_time(index, 7)
    for start in range(0, 3 * rows, rows):
        at = torch.arange(start, start + rows, device=index.item_of.device) % feed.size
        query, item = feed.instances(at)
        for stage in stages(index, 7):
            above = index.slot_of[item] // index.width(stage.upto) // stage.wide * stage.wide
            nodes = above.unsqueeze(1) + torch.arange(stage.wide, device=at.device)
            index.scores(index.seen(query, stage.upto), stage.upto, nodes)
    return 3 * rows


def main() -> None:
    asked = sys.argv[1:] or ["2e3x10", "2e3x40", "8e3x10"]
    sizes = [[int(float(a)) for a in each.split("x")] for each in asked]
    report(
        "tree_update",
        f"history {HISTORY}, binary tree, beam 150, gap 7",
        device=torch.cuda.get_device_name() if GPU else "cpu",
        threads=torch.get_num_threads(),
        figures={
            f"{items:,} items, {each} instances each": measured(items, each)
            for items, each in sizes
        },
    )


if __name__ == "__main__":
    main()
