"""Agreement of learned trees with categories that they were not trained on.

    python bench/tree_purity.py COLUMN MODEL.sdx [MODEL.sdx ...]

Per level: the share of the other items under an item's node that have a category in common with it,
mean over items; beside it the same for random orders of the items.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import quality
import softdex as sdx
from _data import tree_model
from _harness import TINY, report
from _options import parser, run, unless_tiny

SHUFFLES = 5

PARSER = parser(__file__, __doc__)
PARSER.add_argument("column", help="of the item table", **unless_tiny("genres"))
PARSER.add_argument("model", type=Path, nargs="*" if TINY else "+")


def categories(model: sdx.Retriever, column: str) -> sp.csr_matrix:
    """Items x categories: 1 where an item has the category."""
    if model.item_table is None or column not in model.item_table.column_names:
        raise sdx.DataError(f"the model's items have no column {column!r}.")
    cells = [
        cell if isinstance(cell, list) else [cell] for cell in model.item_table[column].to_pylist()
    ]
    names = {name: i for i, name in enumerate(sorted({c for cell in cells for c in cell if c}))}
    pairs = [(row, names[c]) for row, cell in enumerate(cells) for c in cell if c]
    row, word = np.array(pairs).T
    return sp.csr_matrix((np.ones(len(row), np.float32), (row, word)), (len(cells), len(names)))


def purity(slot: np.ndarray, width: int, alike: sp.csr_matrix) -> float:
    """Mean share of the other items under an item's node with a category in common."""
    order = np.argsort(slot, kind="stable")
    node = slot[order] // width
    starts = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    shares = []
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            both = (alike[group] @ alike[group].T > 0).toarray()
            shares.extend((both.sum(1) - both.diagonal()) / (len(group) - 1))
    return float(np.mean(shares)) if shares else float("nan")


def main(given: Namespace) -> None:
    column = given.column
    figures: dict[str, Any] = {}
    for path in given.model or [quality.tiny_tree()]:
        model = tree_model(path)
        tree, alike = model.index, categories(model, column)
        slot, draw = tree.slot_of.numpy(), np.random.default_rng(0)
        levels = range(1, tree.depth)
        orders = {"as learned": [slot], "random": [draw.permutation(slot) for _ in range(SHUFFLES)]}
        figures[str(path)] = {
            name: [
                round(float(np.mean([purity(o, tree.width(j), alike) for o in each])), 4)
                for j in levels
            ]
            for name, each in orders.items()
        }
    report("tree_purity", f"share of neighbours with a common value of {column}", figures=figures)


if __name__ == "__main__":
    run(PARSER, main)
