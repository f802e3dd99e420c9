"""Rounds: learn the tree again from the scorer that was trained on it, then go on training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softdex.index.contract import copy_into
from softdex.index.tree import build as tree_build
from softdex.index.tree import learn as tree_learn
from softdex.index.tree.tree import Tree
from softdex.messages import say
from softdex.solve.gradient.feed import Windows
from softdex.solve.gradient.rowwise import RowAdam

BY = ("softmax", "binary", "cluster")
BATCH = 1024  # instances scored at a time; on a GPU up to eight times as many
MEMORY = 2**30  # bytes for it; on a GPU up to half of what is free
HELD = 4096  # maximum number of held-out instances


class Rounds(NamedTuple):
    """When and how a tree is learned.

    Attributes:
        starts: the first epoch of each round but the first.
        by: how an item's place is scored: `softmax` among candidates (DTR), `binary` scores of a
            path (JTM), or a `cluster`ing of leaf vectors (TDM).
        per_item: maximum number of instances per item.
        gap: levels per stage.
        rule: of the assignment, see `index.tree.learn.deal`.
        move: whether leaf vectors and their moments move with the items.
    """

    starts: tuple[int, ...]
    by: str = "softmax"
    per_item: int = 64
    gap: int = 7
    rule: str = "auction"
    move: bool = True


def starts_of(rounds: int, epochs: int) -> tuple[int, ...]:
    """The first epochs of rounds of about equal length, but the first round's."""
    return tuple(r * epochs // rounds for r in range(1, rounds))


@torch.no_grad()
def relearn(
    tree: Tree, feed: Windows, optimizer: RowAdam, rounds: Rounds, generator: torch.Generator
) -> dict[str, Any]:
    """Learn a tree in place.

    Returns:
        figures for the record of the epoch: the fraction of items that moved, the gain of the first
        stage per instance, and the held-out log-probability per level before and after.
    """
    began = time.perf_counter()
    asked, held = chosen_instances(feed, rounds.per_item, generator)
    rows = rows_at_a_time(tree, rounds.gap)
    old = tree.slot_of.clone()
    likely = mean_log_prob(tree, feed, held)
    figures: dict[str, Any] = {}
    if rounds.by == "cluster":
        new = _clustered(tree, optimizer.table.weight)
    else:
        learned = tree_learn.learn(
            tree,
            lambda: batches(feed, asked, rows),
            gap=rounds.gap,
            binary=rounds.by == "binary",
            rule=rounds.rule,
        )
        new = learned.slot_of
        figures["gain"] = round((learned.after - learned.before) / max(1, len(asked)), 5)
    place(tree, new)
    if rounds.move:
        for tensor in (optimizer.table.weight, *optimizer.state().values()):
            leaves = tensor[tree.starts[-1] :]
            leaves[new] = leaves[old]
        torch.autograd.graph.increment_version(optimizer.table.weight)
    figures["moved"] = round(float((new != old).float().mean()), 5)
    if len(held):
        figures |= {"held_before": likely, "held_after": mean_log_prob(tree, feed, held)}
    say(f"learned the tree in {time.perf_counter() - began:.1f} s: {figures['moved']:.0%} moved")
    return figures


def rows_at_a_time(tree: Tree, gap: int) -> int:
    """The number of instances whose candidate nodes are scored at a time."""
    most, room = BATCH, MEMORY
    if tree.item_of.is_cuda:
        most, room = 8 * BATCH, torch.cuda.mem_get_info(tree.item_of.device)[0] // 2
    widest = max(stage.wide for stage in tree_learn.stages(tree, gap))
    return max(1, min(most, room // (tree.scorer.pair_bytes * widest)))


def chosen_instances(
    feed: Windows, per_item: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random instances, up to `per_item` per item, and held-out ones."""
    mixed = torch.randperm(feed.size, generator=generator, device=feed.at.device)
    mixed = mixed[feed.weight[mixed] > 0]
    some = min(HELD, feed.size // 10)
    held, mixed = mixed[:some], mixed[some:]
    item = feed.ids[feed.at[mixed]]
    order = item.argsort(stable=True)
    sorted_item = item[order]
    rank = torch.arange(len(order), device=order.device)
    rank -= torch.searchsorted(sorted_item, sorted_item)
    return mixed[order[rank < per_item]], held


def batches(feed: Windows, at: Tensor, rows: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Histories and items of these instances, in batches."""
    for start in range(0, len(at), rows):
        yield feed.instances(at[start : start + rows])


def mean_log_prob(tree: Tree, feed: Windows, at: Tensor) -> list[float]:
    """Per level, the mean log-probability that a walk passes the target's ancestor."""
    total = torch.zeros(tree.depth, dtype=torch.float64)
    draw = torch.Generator(tree.item_of.device)  # of walks whose draws are not used
    for query, item in batches(feed, at):
        paths = tree.walk(query, 1, generator=draw, to=item)
        total += torch.stack([path.logq.double().sum() for path in paths]).cpu()
    return [round(value, 5) for value in (total / max(1, len(at))).tolist()]


def place(tree: Tree, slot_of: Tensor) -> None:
    """Assign the items of a tree to other slots, in place."""
    item_of = torch.full_like(tree.item_of, -1)
    placed = (slot_of >= 0).nonzero()[:, 0]
    item_of[slot_of[placed]] = placed.to(item_of)
    made: Any = type(tree)
    copy_into(tree, made(tree.scorer, **(tree.state() | {"item_of": item_of})))


def _clustered(tree: Tree, table: Tensor) -> Tensor:
    """Slots by a balanced clustering of the leaf vectors."""
    shape = tree_build.Shape(tree.sizes[0], tree.arity, tree.depth)
    vectors = table[tree.starts[-1] :][tree.slot_of].float().cpu().numpy()
    item_of = tree_build.item_of(tree_build.by_vectors(vectors, shape), shape)
    slot_of = np.empty(tree.num_items, np.int64)
    slot_of[item_of[item_of >= 0]] = np.flatnonzero(item_of >= 0)
    return torch.from_numpy(slot_of).to(tree.slot_of.device)
