"""Learn the tree: items move to leaves whose ancestors suit the histories they were found after.

Top down, a few levels at a time: an item under node p weighs each of p's descendants `gap` levels
down by how well they suit its instances, and items are dealt out to them by these weights, each
descendant getting as many as it had (S0, Eq. 31). Shapes: N instances, I items, G nodes of a level,
C of their descendants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from softdex.errors import choose
from softdex.index.tree.tree import NOWHERE, Tree

RULES = ("auction", "greedy")
SHARE = 0.1  # of what the best column is worth more than the next: a bid is so much more
WIDEST = 128  # candidates under a node
BIDS = 500  # rounds of an auction, at most
LEAST = -1e4  # what a node where nothing lives weighs for an instance

Batches = Callable[[], Iterable[tuple[Any, Tensor]]]
"""Queries, and the item (B,) that each found; the same ones whenever it is called."""


class Learned(NamedTuple):
    """Where items lie now: the slot of each (I,), and the sum of their weights in the first stage,
    with the old places and with the new ones."""

    slot_of: Tensor
    before: float
    after: float


@torch.no_grad()
def learn(
    tree: Tree, batches: Batches, *, gap: int = 7, binary: bool = False, rule: str = "auction"
) -> Learned:
    """New slots for the items of a tree, among the slots that are taken.

    Args:
        tree: as it is, with the scorer that was trained on it.
        batches: instances, of items that have a place.
        gap: levels of a stage, fewer where nodes have many children; the first stage is level 1.
        binary: weigh a node by the yes and no of its path below the last stage (JTM), and not by
            its log-softmax among the candidates (DTR).
        rule: of the deal: an `auction`, near the best there is, or the papers' `greedy` one.
    """
    choose("learn", "rule", rule, RULES)
    at, sums = torch.zeros_like(tree.slot_of), []
    for stage in stages(tree, gap):
        weight = by_histories(tree, batches, binary=binary)(at, stage)
        room = _under(tree, tree.item_of >= 0, stage)
        old = tree.slot_of // tree.width(stage.upto)
        stays = torch.where(old // stage.wide == at, old % stage.wide, -1)
        chosen = deal(weight, at, room, stays, rule=rule)
        if stage.above == 0:
            sums = [weight.gather(1, c.unsqueeze(1)).double().sum() for c in (stays, chosen)]
        at = at * stage.wide + chosen
    return Learned(at, *map(float, sums))


@torch.no_grad()
def seat(tree: Tree, items: int, weigh: Weigh) -> Tensor:
    """Slots for new items (I,), among free ones and then those of what is gone, of which there must
    be enough."""
    at = torch.zeros(items, dtype=torch.int64, device=tree.slot_of.device)
    free = tree.item_of < 0
    places = free if int(free.sum()) >= items else open_slots(tree)
    for stage in stages(tree, 1):
        room = _under(tree, places, stage)
        at = at * stage.wide + deal(weigh(at, stage), at, room, torch.full_like(at, -1))
    return at


def open_slots(tree: Tree) -> Tensor:
    """Where nothing lives (S,)."""
    return ~tree.full[tree.starts[-1] :]


class Stage(NamedTuple):
    """Items go from nodes of level `above`, 0 for all as one, to their `wide` descendants on level
    `upto`."""

    above: int
    upto: int
    wide: int


Weigh = Callable[[Tensor, Stage], Tensor]
"""Nodes where items are (I,) -> what the descendants of each weigh for its item (I, C)."""


def stages(tree: Tree, gap: int) -> list[Stage]:
    """From the top to the leaves."""
    gap = min(gap, max(1, int(math.log2(WIDEST) / math.log2(tree.arity))))
    ends = sorted({1, *range(tree.depth, 1, -gap)})
    below = [Stage(a, b, tree.arity ** (b - a)) for a, b in itertools.pairwise(ends)]
    return [Stage(0, 1, tree.sizes[0]), *below]


def _under(tree: Tree, slots: Tensor, stage: Stage) -> Tensor:
    """How many of these slots each candidate of a stage has (G, C)."""
    return slots.view(tree.sizes[stage.upto - 1], -1).sum(1).view(-1, stage.wide)


def by_histories(tree: Tree, batches: Batches, *, binary: bool = False) -> Weigh:
    """Weights over all the instances of an item, see `learn`."""

    def weigh(at: Tensor, stage: Stage) -> Tensor:
        total = torch.zeros(len(at), stage.wide, device=at.device)
        for query, item in batches():
            each = torch.zeros(len(item), stage.wide, device=at.device)
            for level in range(stage.above + 1, stage.upto + 1) if binary else (stage.upto,):
                count = stage.wide // tree.arity ** (stage.upto - level)
                nodes = at[item].unsqueeze(1) * count + torch.arange(count, device=at.device)
                scores = tree.scores(tree.seen(query, level), level, nodes)
                part = logsigmoid(scores) if binary else scores.log_softmax(1)
                part = part.nan_to_num(nan=0.0).clamp(min=LEAST)  # nan: nothing lives there
                each += part.repeat_interleave(stage.wide // count, 1)
            total.index_add_(0, item, each)
        return total

    return weigh


def deal(
    weight: Tensor, group: Tensor, room: Tensor, stays: Tensor, *, rule: str = "auction"
) -> Tensor:
    """A column for each item, so that each column of a group gets as many items as it has room for.

    Args:
        weight: of items for the columns of their group (I, C).
        group: of each item (I,).
        room: of columns (G, C); in each group enough for its items.
        stays: the column where an item was (I,), -1 for none.
        rule: `auction`: columns that too many want raise their price until they do not, which
            comes near the greatest sum of weights. `greedy`: the fullest column keeps those that
            were there and then those it weighs most for, and is closed; the others go to the best
            that is open; and so on (TDM, JTM, DTR).
    """
    weight = torch.where(room[group] > 0, weight, NOWHERE)
    if rule == "auction":
        return _auction(weight, group, room, stays)
    return _greedy(weight, group, room, stays)


def _auction(weight: Tensor, group: Tensor, room: Tensor, stays: Tensor) -> Tensor:
    """Items bid for columns what these are worth more to them than the next best; a column keeps
    its highest bids, and its price is the least of them (Bertsekas)."""
    columns, places = weight.shape[1], room.flatten()
    two = weight.topk(min(2, columns), 1).values
    step = SHARE * (two[:, 0] - two[:, -1]).nan_to_num(posinf=0.0).mean()
    loyal = (stays >= 0).nonzero()[:, 0]
    weight[loyal, stays[loyal]] += step  # who has nothing to say stays, if nobody wants the place
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
    """Items by key, the greatest values first: the rank of each under its key, and which it is."""
    order = value.argsort(descending=True, stable=True)
    order = order[key[order].argsort(stable=True)]
    sorted_key = key[order]
    first = torch.searchsorted(sorted_key, sorted_key)
    return torch.arange(len(key), device=key.device) - first, order


def _filled(weight: Tensor, group: Tensor, room: Tensor, chosen: Tensor) -> Tensor:
    """Items that have none yet (-1) get the best column that has room left."""
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
