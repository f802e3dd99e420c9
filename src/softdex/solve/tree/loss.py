"""The loss of a tree: the labels of each level against its negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from softdex.index.contract import Index
from softdex.index.tree.beam import Level
from softdex.index.tree.tree import Path, Tree
from softdex.objective.layerwise import level_binary, level_softmax
from softdex.objective.sampled import sampled_softmax
from softdex.share import draw

SAMPLINGS = ("tree", "uniform", "siblings", "beam")


@dataclass(frozen=True)
class TreeLoss:
    """The loss per level, divided by the number of levels.

    Attributes:
        objective: of each level, `softmax` or `binary`.
        sampling: where a level's negatives come from: sampled walks (`tree`), `uniform` nodes of
            the level, `siblings` of the label, or the nodes that a `beam` search visits, with the
            label only if it is among them. The last two take the whole first level.
        negatives: nodes per level; a level with at most one more is taken whole. `siblings` take
            all there are; a `beam` is as wide as this number needs.
        own: an ancestor is a label only where the path from there to the item leads through the
            best of siblings by the present scores (OTM); for `binary`.
    """

    objective: str
    sampling: str
    negatives: int
    own: bool = False

    def __call__(
        self, index: Index, query: Tensor, target: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Losses (B, J) per level of items (B,) for histories (B, L)."""
        tree = cast(Tree, index)
        slot, levels = tree.slot_of[target], range(1, tree.depth + 1)
        losses, some, against = [], [], []
        paths, ones = [], torch.ones_like(slot, dtype=torch.float32).expand(tree.depth, -1).T
        labels, there = ones, ones
        if self.sampling == "tree":
            paths = tree.walk(query, self.negatives, generator=generator, to=target)
        elif self.sampling == "beam":
            paths, there = _looked_at(tree, query, slot, self.negatives)
        if self.own:
            labels = _led_to(tree, query, slot)
        for level in levels:  # the first ones are the smallest
            own = slot // tree.width(level)
            if self._is_whole(tree, level):
                scores = tree.scores(tree.seen(query, level), level)
                losses.append(self._whole(scores, own, labels[:, level - 1]))
            else:
                some.append(level)
                against.append(
                    paths[level - 1] if paths else self._drawn(tree, level, own, generator)
                )
        if some:
            losses.append(self._some(tree, query, some, against, labels, there))
        return torch.cat(losses).view(tree.depth, -1).T / tree.depth

    def _is_whole(self, index: Tree, level: int) -> bool:
        if self.sampling in ("siblings", "beam"):
            return level == 1
        return index.sizes[level - 1] <= self.negatives + 1

    def _drawn(self, index: Tree, level: int, own: Tensor, generator: torch.Generator) -> Path:
        """The negatives of a level with their log-probabilities."""
        if self.sampling == "siblings":
            nodes = index.children(own.unsqueeze(1) // index.arity)
        else:
            size, n, device = index.sizes[level - 1], self.negatives, own.device
            nodes = draw(
                len(own),
                lambda rows: torch.randint(size, (rows, n), generator=generator, device=device),
            )
        logq = torch.full(nodes.shape, -math.log(index.living[level - 1]), device=own.device)
        return Path(Level(nodes, logq), own, logq[:, 0])

    def _some(
        self,
        index: Tree,
        query: Tensor,
        levels: list[int],
        against: list[Path],
        labels: Tensor,
        there: Tensor,
    ) -> Tensor:
        """Losses of these levels, concatenated: each is a batch of its own."""
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
            label, counts = (each[:, levels[0] - 1 :].T.flatten() for each in (labels, there))
            return level_binary(pos, neg, hit, label, counts)
        logq = torch.cat([path.draws.values for path in against])
        return sampled_softmax(pos, neg, logq, torch.cat([path.logq for path in against]), hit)

    def _whole(self, scores: Tensor, own: Tensor, label: Tensor) -> Tensor:
        """Loss of a level against all of its other nodes."""
        pos = scores.gather(1, own.unsqueeze(1))
        if self.objective == "softmax":
            return level_softmax(pos[:, 0], scores)
        nodes = torch.arange(scores.shape[1], device=own.device)
        hit = (nodes == own.unsqueeze(1)) | (scores == -torch.inf)
        return level_binary(pos[:, 0], scores, hit, label)


@torch.no_grad()
def _looked_at(index: Tree, query: Tensor, slot: Tensor, count: int) -> tuple[list[Path], Tensor]:
    """The nodes that a beam search visits per level, and whether the label is among them (B, J).

    Levels below the first have about `count` nodes each; the label fills the places that are left.
    """
    looked = index.beam(query, 1, beam=max(1, count // index.arity))
    widest = max((nodes.shape[1] for nodes, _ in looked[1:]), default=0)
    found, there = [], []
    for level, (nodes, scores) in enumerate(looked, 1):
        own = (slot // index.width(level)).unsqueeze(1)
        there.append(((nodes == own) & (scores > -torch.inf)).any(1).float())
        nodes = torch.where(scores > -torch.inf, nodes, own)
        nodes = torch.cat([nodes, own.expand(-1, max(0, widest - nodes.shape[1]))], 1)
        nothing = torch.zeros_like(nodes, dtype=torch.float32)  # not used
        found.append(Path(Level(nodes, nothing), own[:, 0], nothing[:, 0]))
    return found, torch.stack(there, 1)


@torch.no_grad()
def _led_to(index: Tree, query: Tensor, slot: Tensor) -> Tensor:
    """Where the path from a level down to the slot leads through the best of siblings (B, J)."""
    label = torch.ones_like(slot, dtype=torch.float32)
    labels = [label]
    for level in range(index.depth, 1, -1):
        own = slot // index.width(level)
        siblings = index.children(own.unsqueeze(1) // index.arity)
        best = index.scores(index.seen(query, level), level, siblings).argmax(1)
        label = label * (best == own % index.arity)
        labels.append(label)
    return torch.stack(labels[::-1], 1)
