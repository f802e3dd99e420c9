"""How much a tree knows of categories that it was never told.

python bench/tree_purity.py COLUMN MODEL.sdx [MODEL.sdx ...]

Of each level: the mean over items of the share of the other items under the same node that have a
category in common with it; beside it the same for a random order of the items.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import scipy.sparse as sp

import softdex as sdx
from _harness import report
from softdex.index.tree.tree import Tree

SHUFFLES = 5


def categories(model: sdx.Retriever, column: str) -> sp.csr_matrix:
    """Which items have which categories."""
    assert model.item_table is not None
    cells = [
        cell if isinstance(cell, list) else [cell] for cell in model.item_table[column].to_pylist()
    ]
    names = {name: i for i, name in enumerate(sorted({c for cell in cells for c in cell if c}))}
    pairs = [(row, names[c]) for row, cell in enumerate(cells) for c in cell if c]
    row, word = np.array(pairs).T
    return sp.csr_matrix((np.ones(len(row), np.float32), (row, word)), (len(cells), len(names)))


def purity(slot: np.ndarray, width: int, alike: sp.csr_matrix) -> float:
    """The mean share of the others under an item's node that it has something in common with."""
    order = np.argsort(slot, kind="stable")
    node = slot[order] // width
    starts = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    shares = []
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            both = (alike[group] @ alike[group].T > 0).toarray()
            shares.extend((both.sum(1) - both.diagonal()) / (len(group) - 1))
    return float(np.mean(shares)) if shares else float("nan")


def main() -> None:
    column, *paths = sys.argv[1:]
    figures: dict[str, Any] = {}
    for path in paths:
        model = sdx.load(path)
        assert isinstance(model.index, Tree)
        tree, alike = model.index, categories(model, column)
        slot, draw = tree.slot_of.numpy(), np.random.default_rng(0)
        levels = range(1, tree.depth)
        orders = {"as learned": [slot], "random": [draw.permutation(slot) for _ in range(SHUFFLES)]}
        figures[path] = {
            name: [
                round(float(np.mean([purity(o, tree.width(j), alike) for o in each])), 4)
                for j in levels
            ]
            for name, each in orders.items()
        }
    report("tree_purity", f"share of neighbours with a common value of {column}", figures=figures)


if __name__ == "__main__":
    main()
