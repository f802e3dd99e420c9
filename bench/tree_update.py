"""Seconds of learning a tree once, by items and instances, beside the node scores that it needs.

    python bench/tree_update.py [ITEMSxEACH ...]

EACH is the number of instances per item; without sizes: 2e3x10 2e3x40 8e3x10. The scorer is
untrained: only time matters here. "evaluations" scores the same nodes for the same histories and
does nothing else, which is the limit.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError, Namespace
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _data import log_of, trainer_of
from _harness import peak, report, reset_peak, sized, wait
from _options import parser, run, size
from softdex.index.tree.learn import stages
from softdex.index.tree.tree import Tree
from softdex.solve.tree.relearn import Rounds, relearn, rows_at_a_time

EVENTS, HISTORY = 100, 20  # per user


def items_by_each(text: str) -> tuple[int, int]:
    """Items and instances per item, written 2e3x10."""
    try:
        items, each = text.split("x")
    except ValueError:
        raise ArgumentTypeError(f"expected ITEMSxEACH such as 2e3x10, got {text!r}") from None
    return size(items), size(each)


SIZES = sized([(2000, 10), (2000, 40), (8000, 10)], [(100, 3)])
PARSER = parser(__file__, __doc__)
PARSER.add_argument("sizes", nargs="*", type=items_by_each, default=SIZES, metavar="ITEMSxEACH")


def even_log(items: int, each: int) -> sdx.Interactions:
    """Every item equally often, in random order."""
    item = np.random.default_rng(0).permutation(np.repeat(np.arange(items), each))
    users = -(-len(item) // EVENTS)
    return log_of(np.repeat(np.arange(users), EVENTS)[: len(item)], item, users, items)


def synchronised() -> float:
    wait()
    return time.perf_counter()


def measured(items: int, each: int) -> dict[str, Any]:
    reset_peak()
    log = even_log(items, each)
    trainer = trainer_of("tree", log, leaves="random", max_history=HISTORY, per_row=True)
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
        found = relearn(index, feed, trainer.optimizers[0], how, trainer.generator)
        figures[f"{rule} s"] = round(synchronised() - began, 2)
        figures[f"{rule}, gain per instance"] = found["gain"]
        print(f"{items:,} items, {each} each: {figures}", file=sys.stderr, flush=True)
    figures["evaluations"] = feed.size * wide
    figures["evaluations s"] = round(each_s * feed.size, 2)
    figures["peak GB"] = peak(lambda: None)
    return figures


@torch.no_grad()
def bare(index: Tree, feed: Any) -> int:
    """Score what all stages score, for a few batches; return the number of instances."""
    rows = sized(rows_at_a_time(index, 7), 32)
    for start in range(0, 3 * rows, rows):
        at = torch.arange(start, start + rows, device=index.item_of.device) % feed.size
        query, item = feed.instances(at)
        for stage in stages(index, 7):
            above = index.slot_of[item] // index.width(stage.upto) // stage.wide * stage.wide
            nodes = above.unsqueeze(1) + torch.arange(stage.wide, device=at.device)
            index.scores(index.seen(query, stage.upto), stage.upto, nodes)
    return 3 * rows


def main(given: Namespace) -> None:
    report(
        "tree_update",
        f"history {HISTORY}, binary tree, beam 150, gap 7",
        figures={
            f"{items:,} items, {each} instances each": measured(items, each)
            for items, each in given.sizes
        },
    )


if __name__ == "__main__":
    run(PARSER, main)
