"""Beam search: from the top down, keep the best nodes of each level.

Shapes: B queries, M nodes, E excluded items, S slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from softdex.data.ragged import Ragged
from softdex.encode.history import padded
from softdex.errors import ShapeError
from softdex.index.contract import Filter, Hits
from softdex.index.flat import ranked, top_k

if TYPE_CHECKING:
    from softdex.index.tree.tree import Tree

NOWHERE = -torch.inf
LEAVES = 1024  # leaves scored at a time in an exact search
COUNT_BYTES = 16  # memory of a (query, slot) pair of a mask per query


class Level(NamedTuple):
    """Nodes of a level (B, M), counted within it, and their log-probabilities or scores (B, M)."""

    nodes: Tensor
    values: Tensor


def search(
    tree: Tree, query: Any, k: int, filter: Filter | None, width: float, max_memory: int
) -> Hits:
    """Return the top k items by a beam of `width`; an infinite one scores every leaf."""
    if k < 1:
        raise ShapeError(f"search: expected k >= 1, got {k}.")
    exact = math.isinf(width) or tree.depth == 1
    widest = LEAVES if exact else max(tree.sizes[0], tree.arity * max(1, int(width)))
    widest = min(len(tree.item_of), widest)
    each = tree.scorer.pair_bytes * widest
    if filter is not None and filter.allows_per_query:
        each += COUNT_BYTES * len(tree.item_of)
    size = max(1, max_memory // each)
    found = []
    for start in range(0, max(1, tree.scorer.num_queries(query)), size):
        part, mine = query[start : start + size], filter and filter.of(start, start + size)
        if exact:
            found.append(ranked(_blocks(tree, part, widest), k, mine))
        else:
            leaves = levels(tree, part, k, Allowed(tree, mine), width)[-1]
            found.append(_best(tree, leaves, k))
    return Hits(*(torch.cat(column) for column in zip(*found, strict=True)))


def levels(tree: Tree, query: Any, k: int, allowed: Allowed, width: float) -> list[Level]:
    """Return the nodes that a search looks at on each level, by falling score."""
    found: list[Level] = []
    for level in range(1, tree.depth + 1):
        seen = tree.seen(query, level)
        if not found:
            scores = tree.scores(seen, level)
            nodes = torch.arange(tree.sizes[0], device=scores.device).expand(len(scores), -1)
            above = torch.zeros_like(scores)
        else:
            kept, values = _kept(found[-1], k, allowed, level - 1, width)
            nodes = tree.children(kept.clamp(min=0))
            scores = tree.scores(seen, level, nodes)
            outside = (kept < 0).repeat_interleave(tree.arity, 1)
            scores = scores.masked_fill(outside, NOWHERE)
            above = values.repeat_interleave(tree.arity, 1)
        if tree.product:
            scores = logsigmoid(scores) + above
        if allowed.filters:
            scores = scores.masked_fill(allowed.count(nodes, level) < 1, NOWHERE)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        found.append(Level(nodes.gather(1, order), scores))
    return found


@final
class Allowed:
    """Counts the items under a node that may come back.

    Args:
        tree: the nodes' tree.
        filter: what may come back; None: every living item.
    """

    def __init__(self, tree: Tree, filter: Filter | None) -> None:
        self.tree, self.before = tree, tree.before
        self.excluded: Tensor | None = None
        allow, exclude = (None, None) if filter is None else (filter.allow, filter.exclude)
        self.filters = allow is not None or exclude is not None
        here = tree.full[tree.starts[-1] :]
        if allow is not None:
            here = here & allow.to(here.device)[..., tree.item_of.clamp(min=0).long()]
            self.before = pad(here.cumsum(-1), (1, 0))
        if exclude is not None:
            self.excluded = _slots(tree, exclude, here)

    def count(self, nodes: Tensor, level: int) -> Tensor:
        """Return the number of allowed items under nodes (B, M) of a level."""
        width = self.tree.width(level)
        first = nodes * width
        count = _at(self.before, first + width) - _at(self.before, first)
        if self.excluded is not None:
            edges = torch.cat([first, first + width], 1).contiguous()
            low, high = torch.searchsorted(self.excluded, edges).chunk(2, 1)
            count = count - (high - low)
        return count


def _blocks(tree: Tree, query: Any, width: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the scores of all items, `width` at a time, -inf for those that cannot be found."""
    levels = tree.seen_by_items(query)
    living = tree.alive & (tree.slot_of >= 0)
    for start in range(0, tree.num_items, width):
        ids = torch.arange(start, min(start + width, tree.num_items), device=living.device)
        yield start, tree.item_scores(levels, ids).masked_fill(~living[ids], NOWHERE)


def _kept(level: Level, k: int, allowed: Allowed, number: int, width: float) -> Level:
    """Return the head of a sorted level that the beam keeps, padded with -1.

    The beam widens where its nodes hold fewer than k allowed items.
    """
    nodes, scores = level
    most = int(min(nodes.shape[1], max(width, 1)))
    real = scores > NOWHERE
    if most < k and len(nodes):  # every node holds an item, so otherwise there are enough
        counts = allowed.count(nodes, number) * real
        enough = (counts.cumsum(1) - counts < k).sum(1, keepdim=True).clamp(min=most)
        real &= torch.arange(nodes.shape[1], device=nodes.device) < enough
        most = min(int(enough.max()), nodes.shape[1])
    nodes, scores, real = nodes[:, :most], scores[:, :most], real[:, :most]
    return Level(torch.where(real, nodes, -1), scores)


def _best(tree: Tree, leaves: Level, k: int) -> Hits:
    """Return the top k items of the leaves, ties by item id."""
    nodes, scores = leaves
    ids = torch.where(scores > NOWHERE, tree.item_of[nodes].long(), tree.num_items)
    ids, order = ids.sort(dim=1)
    best = top_k(scores.gather(1, order), min(k, ids.shape[1]))
    ids = torch.where(best.scores > NOWHERE, ids.gather(1, best.ids), -1)
    short = k - ids.shape[1]
    return Hits(
        pad(ids, (0, max(0, short)), value=-1),
        pad(best.scores, (0, max(0, short)), value=NOWHERE).float(),
    )


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values (S,), or (B, S) per query, at places (B, M)."""
    return values[places] if values.ndim == 1 else values.gather(1, places)


def _slots(tree: Tree, exclude: Ragged, here: Tensor) -> Tensor:
    """Return the slots (B, E) of excluded items that could come back otherwise.

    They are sorted and distinct, and padded with the number of slots.
    """
    ids = padded(exclude, max(1, int(exclude.lengths.max(initial=0)))).to(here.device)
    slot = torch.where(ids >= 0, tree.slot_of[ids.clamp(min=0)], -1)
    out = here.shape[-1]
    slot = torch.where((slot >= 0) & _at(here, slot.clamp(min=0)), slot, out).sort(1).values
    again = pad(slot[:, 1:] == slot[:, :-1], (1, 0))
    return torch.where(again, out, slot).sort(1).values.contiguous()
