"""The tree above a level: what walks should say of the nodes there, by `Tree.log_prob` itself."""

from __future__ import annotations

import torch

from softdex.index.tree.tree import Tree


def cut(tree: Tree, level: int) -> Tree:
    """The tree that ends at a level: its items are the nodes there, histories are as before."""
    start, size = tree.starts[level - 1], tree.sizes[level - 1]
    item_of = torch.arange(size, dtype=tree.item_of.dtype)
    changed = {"item_of": item_of, "alive": tree.full[start : start + size]}
    made = Tree(tree.scorer, **(tree.state() | changed | {"depth": torch.tensor(level)}))
    made.rows = tree.rows  # type: ignore[method-assign]
    return made
