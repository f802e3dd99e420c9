"""Deal items out to columns of limited room, by weights: an auction, or the papers' greedy rule.

Shapes: I items, G groups, C columns per group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.index.tree.beam import NOWHERE

RULES = ("auction", "greedy")
SHARE = 0.1  # step of a bid, as a fraction of the mean margin of the best column over the next
BIDS = 500  # rounds of an auction, at most


def deal(
    weight: Tensor, group: Tensor, room: Tensor, stays: Tensor, *, rule: str = "auction"
) -> Tensor:
    """Return a column for each item (I,); no column gets more items than it has room for.

    Args:
        weight: of each item for the columns of its group (I, C).
        group: of each item (I,).
        room: of the columns (G, C), in every group enough for its items.
        stays: the column where an item was (I,), -1 for none.
        rule: `auction`: columns in excess demand raise their price, which comes close to the
            greatest sum of weights. `greedy`: the fullest column keeps the items that were there,
            then those of the largest weight, and is closed; the other items go to their best open
            column; and so on (TDM, JTM, DTR).
    """
    weight = torch.where(room[group] > 0, weight, NOWHERE)
    if rule == "auction":
        return _auction(weight, group, room, stays)
    return _greedy(weight, group, room, stays)


def _auction(weight: Tensor, group: Tensor, room: Tensor, stays: Tensor) -> Tensor:
    """Let items bid for columns the margin over their next best one (Bertsekas).

    A column keeps its highest bids; its price is the lowest of them.
    """
    columns, places = weight.shape[1], room.flatten()
    two = weight.topk(min(2, columns), 1).values
    step = SHARE * (two[:, 0] - two[:, -1]).nan_to_num(posinf=0.0).mean()
    loyal = (stays >= 0).nonzero()[:, 0]
    weight[loyal, stays[loyal]] += step  # an item without a preference stays if nobody else bids
    price = torch.zeros_like(places, dtype=weight.dtype)
    held, bid = torch.full_like(group, -1), torch.zeros_like(weight[:, 0])
    for _ in range(BIDS):
        free = (held < 0).nonzero()[:, 0]
        if not len(free):
            break
        net = weight[free] - price.view_as(room)[group[free]]
        best = net.topk(min(2, columns), 1)
        margin = (best.values[:, 0] - best.values[:, -1]).nan_to_num(posinf=0.0)
        held[free] = group[free] * columns + best.indices[:, 0]
        bid[free] = price[held[free]] + margin + step
        rank, order = _ranked(held, bid)
        place = places[held[order]]
        last = order[rank == place - 1]
        price[held[last]] = bid[last]
        held[order[rank >= place]] = -1
    return _filled(weight, group, room, torch.where(held < 0, -1, held % columns))


def _ranked(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Sort items by key, then by falling value; return the rank within each key, and the order."""
    order = value.argsort(descending=True, stable=True)
    order = order[key[order].argsort(stable=True)]
    sorted_key = key[order]
    first = torch.searchsorted(sorted_key, sorted_key)
    return torch.arange(len(key), device=key.device) - first, order


def _filled(weight: Tensor, group: Tensor, room: Tensor, chosen: Tensor) -> Tensor:
    """Give items without a column (-1) the best one that has room left."""
    columns, todo = weight.shape[1], (chosen < 0).nonzero()[:, 0]
    taken = (group * columns + chosen)[chosen >= 0]
    left = room.flatten() - torch.bincount(taken, minlength=room.numel())
    while len(todo):
        open_to = torch.where(left.view_as(room)[group[todo]] > 0, weight[todo], NOWHERE)
        best = open_to.max(1)
        key = group[todo] * columns + best.indices
        rank, order = _ranked(key, best.values)
        taken = order[rank < left[key[order]]]
        chosen[todo[taken]] = best.indices[taken]
        left -= torch.bincount(key[taken], minlength=len(left))
        todo = todo[chosen[todo] < 0]
    return chosen


def _greedy(weight: Tensor, group: Tensor, room: Tensor, stays: Tensor) -> Tensor:
    columns = weight.shape[1]
    chosen = weight.argmax(1)
    closed = torch.zeros_like(room, dtype=torch.bool)
    most = weight.max(1).values
    for _ in range(columns):
        key = group * columns + chosen
        load = torch.bincount(key, minlength=room.numel()).view_as(room)
        over = torch.where(closed, 0, load - room)
        if not (over > 0).any():
            break
        fullest = torch.where(over > 0, load, 0).argmax(1)  # of each group
        closing = over.gather(1, fullest.unsqueeze(1)).squeeze(1) > 0
        here = ((chosen == fullest[group]) & closing[group]).nonzero()[:, 0]
        closed[closing.nonzero()[:, 0], fullest[closing]] = True
        loyal = (stays[here] == chosen[here]) * (most.max() - most.min() + 1).double()
        rank, order = _ranked(group[here], most[here] + loyal)
        out = here[order[rank >= room[group[here], chosen[here]][order]]]
        openly = torch.where(closed[group[out]], NOWHERE, weight[out])
        chosen[out] = openly.argmax(1)
    return chosen
