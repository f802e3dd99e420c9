"""Grow a tree: seat new items at leaves among similar items; a full tree gets one more level."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.data.ragged import Ragged
from softdex.encode.table import Table
from softdex.errors import DataError
from softdex.index.tree.learn import Stage, Weigh, by_histories, open_slots, seat
from softdex.index.tree.tree import Tree
from softdex.score.din import Din

EVENTS = 1024  # scored at a time
BLOCK = 256  # new items whose similarity to all slots is held at a time


class Model(Protocol):
    """The part of a `Retriever` that places new items."""

    encoder: Any
    seen: Ragged
    item_table: pa.Table | None


def with_items(tree: Tree, model: Model, log: Interactions, order: np.ndarray) -> Tree:
    """Return the tree with new items, placed by their events, or else by their columns.

    Args:
        tree: the model's.
        model: to encode users with.
        log: the new items and their events; no events: `log.item_table` places them.
        order: the former id of each item; those from the former number of items on are new.
    """
    new = log.num_items
    if not len(log) and (model.item_table is None or log.item_table is None):
        raise DataError(
            "add_items: the model has no item columns to place new items by. Give a log of their "
            "events, or fit with an item table."
        )
    tree = _with_room(tree, new)
    if len(log):
        weigh = by_log(tree, log, model)
    else:
        weigh = by_table(tree, model.item_table, log.item_table)
    item_of = _seated(tree, torch.arange(len(tree.alive), len(order)), weigh)
    alive = torch.cat([tree.alive, tree.alive.new_ones(new)])
    grown = Tree(tree.scorer, **(tree.state() | {"item_of": item_of, "alive": alive}))
    return grown.over(grown.scorer, order)


def reinserted(tree: Tree, items: Tensor) -> Tree:
    """Return the tree with these known items; those whose leaf was reused get another one."""
    lost = items[tree.slot_of[items] < 0]
    if len(lost):
        tree = tree.insert(items[tree.slot_of[items] >= 0])
        tree = _with_room(tree, len(lost))
        item_of = _seated(tree, lost, lambda at, stage: torch.zeros(len(at), stage.wide))
        tree = Tree(tree.scorer, **(tree.state() | {"item_of": item_of}))
    return tree.insert(items)


def _with_room(tree: Tree, new: int) -> Tree:
    """Return a copy that has leaves for `new` more items."""
    tree = Tree(copy.deepcopy(tree.scorer), **tree.state())
    while int(open_slots(tree).sum()) < new:
        tree = deeper(tree)
    return tree


def _seated(tree: Tree, items: Tensor, weigh: Weigh) -> Tensor:
    """Seat new items and give their leaves vectors; return the item of each slot (S,)."""
    slots = seat(tree, len(items), weigh)
    _give_vectors(tree, slots)
    item_of = tree.item_of.clone()
    item_of[slots] = items.to(item_of)
    return item_of


def deeper(tree: Tree) -> Tree:
    """Return the tree with one more level: the item of each leaf moves to its first child.

    A tree of one level, which is scored whole, doubles that level instead.
    """
    scorer: Any = tree.scorer
    leaves = scorer.nodes.weight[tree.starts[-1] :]
    flat = tree.depth == 1
    below = leaves if flat else leaves.repeat_interleave(tree.arity, 0)
    table = Table(torch.cat([scorer.nodes.weight, below])).eval()
    kept = {n: t for n, t in scorer.state_dict().items() if not n.startswith("nodes.")}
    made = Din(table, **kept).eval()
    free = torch.full_like(tree.item_of, -1)
    if flat:
        item_of = torch.cat([tree.item_of, free])
    else:
        item_of = free.repeat_interleave(tree.arity)
        item_of[:: tree.arity] = tree.item_of
    changed = {"item_of": item_of, "depth": torch.tensor(tree.depth + (not flat))}
    return Tree(made, **(tree.state() | changed))


@torch.no_grad()
def _give_vectors(tree: Tree, slots: Tensor) -> None:
    """Set the vectors of new leaves to the mean of the nearest leaves with a living item."""
    table = tree.scorer.nodes.weight
    leaves, live = table[tree.starts[-1] :], ~open_slots(tree)
    todo, mean_of_all = slots, leaves[live].mean(0)
    for level in range(tree.depth - 1, 0, -1):
        width = tree.width(level)
        around = (todo // width * width).unsqueeze(1) + torch.arange(width, device=todo.device)
        lives = live[around]
        count = lives.sum(1, keepdim=True)
        mean = (leaves[around] * lives.unsqueeze(2)).sum(1) / count.clamp(min=1)
        found = count[:, 0] > 0
        leaves[todo[found]] = mean[found]
        todo = todo[~found]
    leaves[todo] = mean_of_all
    torch.autograd.graph.increment_version(table)


def by_log(tree: Tree, log: Interactions, model: Model) -> Weigh:
    """Weight nodes by their scores for the histories of the new items' users."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(log), EVENTS):
            users = log.user[start : start + EVENTS].astype(np.int64)
            item = torch.from_numpy(log.item[start : start + EVENTS].astype(np.int64))
            query = model.encoder(users, model.seen.take(users))
            yield query, item.to(query.device)

    return by_histories(tree, batches)


def by_table(tree: Tree, known: pa.Table, new: pa.Table) -> Weigh:
    """Weight nodes by the mean similarity of their items to the new ones.

    Two items are similar by the values that they share; rare values count more.
    """
    shared = [name for name in new.column_names if name in known.column_names]
    if not shared:
        raise DataError(
            f"add_items: the table has none of the model's item columns "
            f"({', '.join(known.column_names)}). Give one, or a log of the items' events."
        )
    words: dict[Any, int] = {}
    old_matrix, new_matrix = (_words(table.select(shared), words) for table in (known, new))
    old_matrix.resize(known.num_rows, new_matrix.shape[1])  # the last words occur in new items only
    rare = np.log1p(known.num_rows / np.maximum(1, old_matrix.sum(0).A1))
    slot = tree.slot_of.cpu().numpy()
    lives = (~open_slots(tree)).cpu().numpy().astype(np.float32)

    def weigh(at: Tensor, stage: Stage) -> Tensor:
        found = []
        size = tree.sizes[stage.upto - 1]
        living = np.maximum(1, lives.reshape(size, -1).sum(1))
        for start in range(0, len(at), BLOCK):
            some = new_matrix[start : start + BLOCK].multiply(rare).tocsr()
            like = (some @ old_matrix.T).toarray()
            on_slots = np.zeros((len(like), len(lives)), np.float32)
            on_slots[:, slot[slot >= 0]] = like[:, slot >= 0]
            nodes = (on_slots * lives).reshape(len(like), size, -1).sum(2) / living
            mine = at[start : start + BLOCK].unsqueeze(1) * stage.wide
            mine = mine + torch.arange(stage.wide, device=at.device)
            found.append(torch.from_numpy(nodes).to(at.device).float().gather(1, mine))
        return torch.cat(found)

    return weigh


def _words(table: pa.Table, words: dict[Any, int]) -> sp.csr_matrix:
    """Return which rows have which values of any column, (rows, words); `words` is extended."""
    row, column = [], []
    for name in table.column_names:
        for i, cell in enumerate(table[name].to_pylist()):
            for value in cell if isinstance(cell, list) else [cell]:
                if value is not None:
                    row.append(i)
                    column.append(words.setdefault((name, value), len(words)))
    ones = np.ones(len(row), np.float32)
    return sp.csr_matrix((ones, (row, column)), (table.num_rows, max(1, len(words))))
