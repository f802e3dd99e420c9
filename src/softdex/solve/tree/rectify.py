"""Rectified labels: an item's ancestor is a label only where a beam search should pass through it.

`path`: the ancestor at level j is a label if the item is the likeliest of all items below it (DTR,
Eq. 17); beam search is then optimal. `child`: if the item lies under the likelier of the ancestor's
children, as published code has it. `own`: if the path from there to the item leads through the best
of siblings by the scorer that is being trained (OTM); the loss finds that out. Shapes: B rows, I
items, S slots, J levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softdex.encode.sequence import at_the_end
from softdex.index.tree.beam import NOWHERE
from softdex.index.tree.tree import Tree
from softdex.messages import say
from softdex.progress import progress
from softdex.solve.gradient.feed import Windows

KINDS = ("none", "path", "child", "own")
ROWS, CELLS = 2048, 2**26  # histories, and item scores, held at a time

Estimate = Callable[[Tensor], Tensor]
"""Histories (B, L) of item ids, left-padded with -1 -> log-probabilities (B, I) of items, up to a
constant per row."""


def rectified(
    tree: Tree, scores: Tensor, items: Tensor, kind: str, *, normalise: bool = False
) -> Tensor:
    """The weight of the label per level (B, J).

    Args:
        tree: whose levels are labelled.
        scores: log-probabilities (B, I) of items.
        items: the labels (B,).
        kind: `path` or `child`; of equally likely items, the first leaf counts as the likelier.
        normalise: divide by the sum over the level of the probability of each node's likeliest
            item, so that the expected weights of a level sum to 1 (Eq. 16).
    """
    slot = tree.slot_of[items]
    best = scores.new_full((len(scores), len(tree.item_of)), NOWHERE)
    placed = (tree.slot_of >= 0).nonzero()[:, 0]
    best[:, tree.slot_of[placed]] = scores[:, placed]
    total = best.logsumexp(1)
    which = torch.arange(best.shape[1], device=best.device).expand_as(best)
    found = []
    for level in range(tree.depth, 0, -1):
        own = (slot // tree.width(level)).unsqueeze(1)
        if level < tree.depth:
            best, child = best.view(len(best), -1, tree.arity).max(2)
            which = which.view(*best.shape, tree.arity).gather(2, child.unsqueeze(2)).squeeze(2)
        if kind == "path" or level == tree.depth:
            counts = which.gather(1, own).squeeze(1) == slot
        else:
            below = slot // tree.width(level + 1)
            counts = child.gather(1, own).squeeze(1) == below % tree.arity
        weight = counts.to(scores.dtype)
        found.append(weight / (best.logsumexp(1) - total).exp() if normalise else weight)
    return torch.stack(found[::-1], 1)


class Rectify(NamedTuple):
    """Which labels count, by which estimate, whether they are normalised, and `after` how many
    epochs with plain labels."""

    kind: str
    estimate: Estimate | None = None
    normalise: bool = False
    after: int = 0


@torch.no_grad()
def labels_of(tree: Tree, feed: Windows, rectify: Rectify) -> Tensor:
    """The label weights of all rows of a feed (N, J); they hold until the tree changes."""
    began, found = time.perf_counter(), []
    device = tree.item_of.device
    rows = max(1, min(ROWS, CELLS // len(tree.item_of)))
    kind, estimate, normalise, _ = rectify
    assert estimate is not None
    with progress(range(0, feed.size, rows), "rectifying labels") as starts:
        for start in starts:
            at = torch.arange(start, min(start + rows, feed.size), device=device)
            history, item = feed.instances(at)
            each = rectified(tree, estimate(history), item, kind, normalise=normalise)
            found.append(each.to(torch.float32 if normalise else torch.uint8))
    labels = torch.cat(found)
    share = ", ".join(f"{x:.0%}" for x in (labels > 0).float().mean(0).tolist())
    say(f"rectified labels in {time.perf_counter() - began:.1f} s; kept per level: {share}")
    return labels


def estimate_by(encoder: nn.Module, scorer: nn.Module) -> Estimate:
    """Log-probabilities of items by a trained sequence model."""

    def estimate(history: Tensor) -> Tensor:
        made: Any = encoder
        history = history[:, -made.most :]
        empty = (history < 0).sum(1, keepdim=True)  # such models begin at the left
        place = torch.arange(history.shape[1], device=history.device) + empty
        ids = history.gather(1, place.clamp(max=history.shape[1] - 1))
        ids = torch.where(place < history.shape[1], ids, -1)
        return scorer(at_the_end(made.states(ids), ids), slice(None))

    return estimate
