"""Beam search down a tree beside the same scorer over every item, with random weights.

    python bench/tree_search.py [ITEMS ...]

Nodes scored, milliseconds per single query, queries per second in a batch, and recall@20 of the
beam, which means little here: with random weights a node tells nothing about its leaves.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from _harness import DEVICE, GPU, milliseconds, peak, report, reset_peak, sized
from _options import parser, run, size
from softdex.index.tree import build as tree_build
from softdex.index.tree.tree import Tree
from softdex.score.din import random_din, windows_of

HISTORY, DIM, BEAM, K = 69, 24, 150, 20
BATCH, MOST = (1024, 2**34) if GPU else (sized(32, 4), 2**29)
BRUTE = 10**6 if GPU else 10**5  # items up to which all of them are scored, too

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="*", type=size, default=sized([10**4, 10**5, 10**6], [500]))


def tree_of(items: int) -> Tree:
    shape = tree_build.shape_for(items, 2, BEAM)
    generator = torch.Generator().manual_seed(0)
    rows = sum(shape.level_sizes)
    scorer = random_din(rows, DIM, windows_of(HISTORY), scale=1.0, generator=generator)
    item_of = torch.from_numpy(tree_build.item_of(np.arange(items), shape))
    numbers = {"arity": 2, "depth": shape.depth, "product": False}
    kept = {name: torch.tensor(value) for name, value in numbers.items()}
    alive = torch.ones(items, dtype=torch.bool)
    effort = torch.tensor(float(BEAM), dtype=torch.float64)
    return Tree(scorer.eval().to(DEVICE), item_of, alive, effort=effort, **kept).to(DEVICE)


def measured(items: int) -> dict[str, Any]:
    reset_peak()
    tree = tree_of(items)
    history = torch.randint(items, (BATCH, HISTORY), device=DEVICE)
    looked = tree.sizes[0] + sum(min(2 * BEAM, size) for size in tree.sizes[1:])

    def ask(queries: int, effort: float) -> Any:
        return lambda: tree.search(history[:queries], K, effort=effort, max_memory=MOST)

    rounds = 20 if GPU else 5
    row: dict[str, Any] = {
        "levels": tree.depth,
        "nodes scored": looked,
        "single ms": milliseconds(ask(1, BEAM), rounds, warm=2),
        "queries per second": round(1e3 * BATCH / milliseconds(ask(BATCH, BEAM), 3, warm=1)),
    }
    if items <= BRUTE:
        some = max(1, min(BATCH, 10**6 // items))
        row["every item, single ms"] = milliseconds(ask(1, math.inf), 3, warm=1)
        batch = milliseconds(ask(some, math.inf), 1, warm=1)
        row["every item, queries per second"] = round(1e3 * some / batch, 1)
        best, found = ask(some, math.inf)().ids, ask(some, BEAM)().ids
        shared = (found.unsqueeze(2) == best.unsqueeze(1)).any(2).float()
        row["recall@20 of the beam"] = round(float(shared.mean()), 4)
    row["peak GB"] = peak(ask(1, BEAM))
    return row


def main(given: Namespace) -> None:
    report(
        "tree_search",
        f"binary tree, beam {BEAM}, top {K}, DIN dim {DIM}, 32 units of attention, {HISTORY} items "
        f"of history, random weights; batch {BATCH}; median",
        figures={f"{items:,}": measured(items) for items in given.items},
    )


if __name__ == "__main__":
    run(PARSER, main)
