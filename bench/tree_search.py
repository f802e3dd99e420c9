"""Beam search down a tree beside the same scorer asked about every item, random weights.

python bench/tree_search.py [items ...]

Node scorings, milliseconds of a single query, queries a second of a batch, and the share of the
best 20 items that the beam finds, which says little here: with random weights a node knows nothing
of its leaves.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch

from _harness import milliseconds, peak, report, reset_peak
from softdex.index.tree import build as tree_build
from softdex.index.tree.tree import Tree
from softdex.score.din import random_din, windows_of

HISTORY, DIM, BEAM, K = 69, 24, 150, 20
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BATCH, MOST = (1024, 2**34) if GPU else (32, 2**29)
BRUTE = 10**6 if GPU else 10**5  # items that are also scored one by one


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
        "queries a second": round(1e3 * BATCH / milliseconds(ask(BATCH, BEAM), 3, warm=1)),
    }
    if items <= BRUTE:
        some = max(1, min(BATCH, 10**6 // items))
        row["every item, single ms"] = milliseconds(ask(1, math.inf), 3, warm=1)
        batch = milliseconds(ask(some, math.inf), 1, warm=1)
        row["every item, queries a second"] = round(1e3 * some / batch, 1)
        best, found = ask(some, math.inf)().ids, ask(some, BEAM)().ids
        shared = (found.unsqueeze(2) == best.unsqueeze(1)).any(2).float()
        row["recall@20 of the beam"] = round(float(shared.mean()), 4)
    row["peak GB"] = peak(ask(1, BEAM))
    return row


def main() -> None:
    sizes = [int(float(a)) for a in sys.argv[1:]] or [10**4, 10**5, 10**6]
    report(
        "tree_search",
        f"binary tree, beam {BEAM}, top {K}, DIN dim {DIM}, 32 units of attention, {HISTORY} items "
        f"of history, random weights; batch {BATCH}; median",
        device=torch.cuda.get_device_name() if GPU else "cpu",
        threads=torch.get_num_threads(),
        figures={f"{items:,}": measured(items) for items in sizes},
    )


if __name__ == "__main__":
    main()
