"""Trees in training: the labels of each level, what they stand against, and where a tree begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from softdex.errors import SoftdexError, choose
from softdex.index.contract import Index
from softdex.index.tree import Level, Path, Tree
from softdex.interactions import Interactions
from softdex.objective.layerwise import level_binary, level_softmax
from softdex.objective.sampled import sampled_softmax

SAMPLINGS = ("tree", "uniform", "siblings")


@dataclass(frozen=True)
class TreeLoss:
    """The losses of all levels of a tree, each over their number.

    Attributes:
        objective: of each level, `softmax` or `binary`.
        sampling: what labels stand against: the nodes that walks come by (`tree`), any nodes of
            the level (`uniform`), or those of the same parent (`siblings`; on the first level
            all).
        negatives: nodes a level; one with no more than one more is taken whole. `siblings` are as
            many as there are.
    """

    objective: str
    sampling: str
    negatives: int

    def __call__(
        self, index: Index, query: Tensor, target: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Losses (B, levels) of items (B,) for histories (B, L)."""
        assert isinstance(index, Tree)
        slot, levels = index.slot_of[target], range(1, index.depth + 1)
        losses, some, against = [], [], []
        paths = []
        if self.sampling == "tree":
            paths = index.walk(query, self.negatives, generator=generator, to=target)
        for level in levels:  # the first ones are the smallest
            own = slot // index.width(level)
            if self._is_whole(index, level):
                losses.append(self._whole(index.scores(index.seen(query, level), level), own))
            else:
                some.append(level)
                against.append(
                    paths[level - 1] if paths else self._drawn(index, level, own, generator)
                )
        if some:
            losses.append(self._some(index, query, some, against))
        return torch.cat(losses).view(index.depth, -1).T / index.depth

    def _is_whole(self, index: Tree, level: int) -> bool:
        if self.sampling == "siblings":
            return level == 1
        return index.sizes[level - 1] <= self.negatives + 1

    def _drawn(self, index: Tree, level: int, own: Tensor, generator: torch.Generator) -> Path:
        """What the label of a level stands against, and the log-probability of each."""
        if self.sampling == "siblings":
            nodes = index.children(own.unsqueeze(1) // index.arity)
        else:
            size, shape = index.sizes[level - 1], (len(own), self.negatives)
            nodes = torch.randint(size, shape, generator=generator, device=own.device)
        logq = torch.full(nodes.shape, -math.log(index.living[level - 1]), device=own.device)
        return Path(Level(nodes, logq), own, logq[:, 0])

    def _some(self, index: Tree, query: Tensor, levels: list[int], against: list[Path]) -> Tensor:
        """Losses of these levels one behind the other: each is a batch of its own."""
        rows = torch.cat(
            [
                torch.cat([own.unsqueeze(1), drawn.nodes], 1) + index.starts[level - 1]
                for level, (drawn, own, _) in zip(levels, against, strict=True)
            ]
        )
        scores = index.row_scores(index.seen(query, *levels), rows)
        pos, neg = scores[:, 0], scores[:, 1:]
        hit = (rows[:, 1:] == rows[:, :1]) | (neg == -torch.inf)
        if self.objective == "binary":
            return level_binary(pos, neg, hit)
        logq = torch.cat([path.draws.values for path in against])
        return sampled_softmax(pos, neg, logq, torch.cat([path.logq for path in against]), hit)

    def _whole(self, scores: Tensor, own: Tensor) -> Tensor:
        """Loss of a level against all its other nodes."""
        pos = scores.gather(1, own.unsqueeze(1))
        if self.objective == "softmax":
            return level_softmax(pos[:, 0], scores)
        nodes = torch.arange(scores.shape[1], device=own.device)
        hit = (nodes == own.unsqueeze(1)) | (scores == -torch.inf)
        return level_binary(pos[:, 0], scores, hit)


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
