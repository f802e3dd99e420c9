"""Trace: what a beam search scored and kept, level by level."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softdex.index.contract import Filter
from softdex.index.tree.beam import Allowed
from softdex.index.tree.tree import Tree


class Beam(NamedTuple):
    """A level of the search: its candidates, best first, of which it kept the first `kept`."""

    level: int
    size: int
    scored: int  # candidates, and nodes with nothing allowed below
    nodes: np.ndarray
    scores: np.ndarray
    kept: int


def beams(tree: Tree, query: Any, k: int, filter: Filter, found: int) -> list[Beam]:
    """Return every level of the search for one query; the last one keeps the list.

    Args:
        tree: that is searched.
        query: of one user.
        k: length of the list.
        filter: what may come back.
        found: items of the list.
    """
    levels = tree.beam(query, k, Allowed(tree, filter))
    each, scored = [], tree.living[0]
    for level, (nodes, scores) in enumerate(levels, 1):
        real = scores[0] > -np.inf
        head, values = nodes[0][real], scores[0][real].cpu().numpy()
        inner, size = level < tree.depth, tree.living[level - 1]
        kept = min(levels[level].nodes.shape[1] // tree.arity, len(head)) if inner else found
        each.append(Beam(level, size, scored, head.cpu().numpy(), values, kept))
        if inner:
            below = tree.starts[level] + tree.children(head[None, :kept])
            scored = int(tree.full[below].sum())
    return each


def above(tree: Tree, item: int, level: int) -> int:
    """Return the ancestor of an item on a level."""
    return int(tree.slot_of[item]) // tree.width(level)
