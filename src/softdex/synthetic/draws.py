"""Draws: the events of a synthetic world, walking down its tree of items level by level.

Shapes: E events, U users.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from softdex.synthetic.world import World

ATTEMPTS = 20
CELLS = 4_000_000  # (user, item) probabilities held at a time


def drawn(
    world: World, draw: np.random.Generator, *, repeats: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the user and the item row of each event (E,), user by user in the order of events."""
    lengths = draw.gamma(2.0, world.events / 2, world.num_users).astype(np.int64)
    lengths = np.maximum(1, lengths if repeats else np.minimum(lengths, world.num_items // 2))
    user = np.repeat(np.arange(world.num_users), lengths)
    if world.stickiness:
        return user, in_order(world, lengths, draw, repeats=repeats)
    item = _items(world, user, draw)
    if repeats:
        return user, item
    return _without_repeats(world, user, item, lengths, draw)


def in_order(
    world: World, lengths: np.ndarray, draw: np.random.Generator, *, repeats: bool
) -> np.ndarray:
    """Draw the events of every user one after the other, the first from eta(y | u)."""
    start = np.cumsum(lengths) - lengths
    item, last = np.zeros(lengths.sum(), np.int64), np.full(world.num_users, -1)
    had: set[int] = set()
    for t in range(lengths.max()):
        now = left = np.flatnonzero(lengths > t)
        for _ in range(ATTEMPTS):
            found = _items(world, left, draw, last[left])
            keys = (left * world.num_items + found).tolist()
            new = np.array([repeats or key not in had for key in keys])
            item[start[left[new]] + t] = found[new]
            had.update(itertools.compress(keys, new))
            left = left[~new]
            if not len(left):
                break
        for user in left:  # who has had nearly all that is likely
            eta = world.eta(np.array([user]), last[[user]])[0] + 1e-300
            eta[item[start[user] : start[user] + t]] = 0
            item[start[user] + t] = draw.choice(world.num_items, p=eta / eta.sum())
            had.add(user * world.num_items + item[start[user] + t])
        last[now] = item[start[now] + t]
    return item


def _items(
    world: World, user: np.ndarray, draw: np.random.Generator, last: np.ndarray | None = None
) -> np.ndarray:
    """Draw one item per event (E,), from eta(y | u) or eta(y | u, last)."""
    node = np.zeros(len(user), np.int64)
    for level in range(len(world.levels)):
        node = _children(world, level, node, user, draw)
        if level == 0 and last is not None:
            stays = (draw.random(len(user)) < world.stickiness) & (last >= 0)
            node = np.where(stays, world.category(last), node)
    item_of = np.argsort(world.slot_of)
    structured = item_of[node]
    cdf = np.cumsum(world.popularity)
    anything = np.searchsorted(cdf, draw.random(len(user)) * cdf[-1], side="right")
    return np.where(draw.random(len(user)) < world.noise, anything, structured)


def _children(
    world: World, level: int, node: np.ndarray, user: np.ndarray, draw: np.random.Generator
) -> np.ndarray:
    """Draw a child of each event's node (E,), on this level."""
    mass, vectors = world.levels[level], world.vectors[level]
    chosen = np.empty_like(node)
    size = max(1, CELLS // (4 * world.arity))
    for start in range(0, len(node), size):
        part = slice(start, start + size)
        children = node[part, None] * world.arity + np.arange(world.arity)
        with np.errstate(divide="ignore"):
            logits = np.log(mass[children])
        logits += np.einsum("ed,ead->ea", world.taste[user[part]], vectors[children])
        weights = np.cumsum(np.exp(logits - logits.max(1, keepdims=True)), 1)
        threshold = draw.random((len(weights), 1)) * weights[:, -1:]
        chosen[part] = children[np.arange(len(weights)), (weights > threshold).argmax(1)]
    return chosen


def _without_repeats(
    world: World,
    user: np.ndarray,
    item: np.ndarray,
    lengths: np.ndarray,
    draw: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Redraw repeats until every user has the number of distinct items set beforehand.

    A stopping rule that depends on the draws would favour likely items late in a history.
    """
    for attempt in range(ATTEMPTS):
        _, first = np.unique(user * np.int64(world.num_items) + item, return_index=True)
        first = first[np.lexsort((first, user[first]))]
        user, item = user[first], item[first]
        count = np.bincount(user, minlength=world.num_users)
        rank = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
        user, item = user[rank < lengths[user]], item[rank < lengths[user]]
        short = np.maximum(0, lengths - count)
        if not short.any() or attempt == ATTEMPTS - 1:
            break
        more = np.repeat(np.arange(world.num_users), short * 2 ** min(attempt, 6))
        user, item = np.append(user, more), np.append(item, _items(world, more, draw))
    return user, item
