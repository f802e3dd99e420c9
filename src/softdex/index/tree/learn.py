"""Learn a tree: move items to leaves whose ancestors score high for the item's histories.

Top down, a few levels at a time: an item under node p weights each descendant of p, `gap` levels
down, by its scores for the item's instances; items are then dealt out by these weights, and each
descendant gets as many as it had (DTR, Eq. 31). Shapes: I items, G nodes of a level, C descendants.
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
from softdex.index.tree.deal import RULES, deal
from softdex.index.tree.tree import Tree
from softdex.progress import Work, shown

WIDEST = 128  # candidates under a node, at most
LEAST = -1e4  # weight of an empty node for an instance

Batches = Callable[[], Iterable[tuple[Any, Tensor]]]
"""Yields queries and the item (B,) that each found, the same ones in every call."""


class Learned(NamedTuple):
    """New slots of the items.

    Attributes:
        slot_of: slot of each item (I,).
        before, after: sum of the items' weights in the first stage, in the old and new places.
    """

    slot_of: Tensor
    before: float
    after: float


@torch.no_grad()
def learn(
    tree: Tree, batches: Batches, *, gap: int = 7, binary: bool = False, rule: str = "auction"
) -> Learned:
    """Return new slots for the items of a tree, among the slots that are taken.

    Args:
        tree: with the scorer that was trained on it.
        batches: instances, of items that have a slot.
        gap: levels per stage, fewer where nodes have many children; the first stage is level 1.
        binary: weight a node by the log-sigmoids of its path below the last stage (JTM), not by
            its log-softmax among the candidates (DTR).
        rule: `auction`, close to the optimum, or the papers' `greedy`; see `deal`.
    """
    choose("learn", "rule", rule, RULES)
    at, sums = torch.zeros_like(tree.slot_of), []
    for stage in stages(tree, gap):
        with shown(Work(f"learning level {stage.upto}/{tree.depth} of the tree")):
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
    """Return slots for new items (I,): free ones, or also those of deleted items if these run out.

    Args:
        tree: with enough slots.
        items: number of new items.
        weigh: their weights.
    """
    at = torch.zeros(items, dtype=torch.int64, device=tree.slot_of.device)
    free = tree.item_of < 0
    places = free if int(free.sum()) >= items else open_slots(tree)
    for stage in stages(tree, 1):
        room = _under(tree, places, stage)
        at = at * stage.wide + deal(weigh(at, stage), at, room, torch.full_like(at, -1))
    return at


def open_slots(tree: Tree) -> Tensor:
    """Return which slots hold no living item (S,)."""
    return ~tree.full[tree.starts[-1] :]


class Stage(NamedTuple):
    """Items move from nodes of level `above` to their `wide` descendants on level `upto`.

    Level 0 is one node above all.
    """

    above: int
    upto: int
    wide: int


Weigh = Callable[[Tensor, Stage], Tensor]
"""Nodes where items are (I,) -> weights of their descendants for the items (I, C)."""


def stages(tree: Tree, gap: int) -> list[Stage]:
    """Return the stages from the top to the leaves."""
    gap = min(gap, max(1, int(math.log2(WIDEST) / math.log2(tree.arity))))
    ends = sorted({1, *range(tree.depth, 1, -gap)})
    below = [Stage(a, b, tree.arity ** (b - a)) for a, b in itertools.pairwise(ends)]
    return [Stage(0, 1, tree.sizes[0]), *below]


def _under(tree: Tree, slots: Tensor, stage: Stage) -> Tensor:
    """Return how many of these slots each candidate of a stage has (G, C)."""
    return slots.view(tree.sizes[stage.upto - 1], -1).sum(1).view(-1, stage.wide)


def by_histories(tree: Tree, batches: Batches, *, binary: bool = False) -> Weigh:
    """Return weights that sum over the instances of each item; see `learn`."""

    def weigh(at: Tensor, stage: Stage) -> Tensor:
        total = torch.zeros(len(at), stage.wide, device=at.device)
        for query, item in batches():
            each = torch.zeros(len(item), stage.wide, device=at.device)
            for level in range(stage.above + 1, stage.upto + 1) if binary else (stage.upto,):
                count = stage.wide // tree.arity ** (stage.upto - level)
                nodes = at[item].unsqueeze(1) * count + torch.arange(count, device=at.device)
                scores = tree.scores(tree.seen(query, level), level, nodes)
                part = logsigmoid(scores) if binary else scores.log_softmax(1)
                part = part.nan_to_num(nan=0.0).clamp(min=LEAST)  # nan: no item lives there
                each += part.repeat_interleave(stage.wide // count, 1)
            total.index_add_(0, item, each)
        return total

    return weigh
