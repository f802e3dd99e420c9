"""Trees in training: the labels of each level, what they stand against, and where a tree begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from softdex.errors import SoftdexError, choose
from softdex.index.contract import Index
from softdex.index.tree import Tree
from softdex.interactions import Interactions
from softdex.objective.layerwise import level_binary, level_softmax
from softdex.objective.sampled import sampled_softmax
from softdex.solve.compose import Loss

SAMPLINGS = ("tree", "uniform", "siblings")


def tree_loss(objective: str, sampling: str, negatives: int) -> Loss:
    """The sum of the losses of all levels of a tree, over their number.

    Args:
        objective: of each level, `softmax` or `binary`.
        sampling: what labels stand against: the nodes that walks come by (`tree`), any nodes of
            the level (`uniform`), or those of the same parent (`siblings`; on the first level
            all).
        negatives: nodes a level; one with no more than one more is taken whole. `siblings` are as
            many as there are.
    """

    def loss(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        assert isinstance(index, Tree)
        slot, losses = index.slot_of[target], []
        paths = index.walk(query, negatives, generator=generator, to=target) if walks else []
        for level in range(1, index.depth + 1):
            own = slot // index.width(level)
            seen, size = index.seen(query, level), index.sizes[level - 1]
            if level == 1 if sampling == "siblings" else size <= negatives + 1:
                losses.append(whole(index.scores(seen, level), own))
                continue
            if walks:
                drawn, logq = paths[level - 1].draws
                own_logq = paths[level - 1].logq
            elif sampling == "siblings":
                drawn = index.children(own.unsqueeze(1) // index.arity)
            else:
                shape, living = (len(own), negatives), index.living[level - 1]
                drawn = torch.randint(size, shape, generator=generator, device=own.device)
                logq = torch.full(shape, -np.log(living), device=own.device)
                own_logq = logq[:, 0]
            both = torch.cat([own.unsqueeze(1), drawn], 1)
            scores = index.scores(seen, level, both)
            pos, neg = scores[:, :1], scores[:, 1:]
            hit = (drawn == own.unsqueeze(1)) | (neg == -torch.inf)
            if objective == "binary":
                losses.append(level_binary(pos[:, 0], neg, hit))
            else:
                losses.append(sampled_softmax(pos[:, 0], neg, logq, own_logq, hit))
        return torch.stack(losses).mean(0)

    def whole(scores: Tensor, own: Tensor) -> Tensor:
        pos = scores.gather(1, own.unsqueeze(1))
        if objective == "softmax":
            return level_softmax(pos[:, 0], scores)
        nodes = torch.arange(scores.shape[1], device=own.device)
        hit = (nodes == own.unsqueeze(1)) | (scores == -torch.inf)
        return level_binary(pos[:, 0], scores, hit)

    walks = sampling == "tree"
    return loss


def categories(train: Interactions, column: str) -> np.ndarray:
    """The number of each item's category (I,), -1 for none; of a list the first counts."""
    if train.item_table is None:
        raise SoftdexError(
            "fit: a tree by category reads the item table, and the log has none. Read it with "
            "items=, or --items."
        )
    choose("fit", "column", column, train.item_table.column_names)
    values = train.item_table[column].combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pa.array([cell[0] if cell else None for cell in values.to_pylist()])
    codes = values.dictionary_encode().indices
    return np.asarray(codes.fill_null(-1), np.int64)
