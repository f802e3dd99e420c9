"""Build a tree: its shape, and orders of items by which leaves are filled.

An order of the items determines the tree: the item of rank r lies in slot floor(r slots / items).
So the nodes of a level differ by at most one item, and free slots are evenly spread.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from softdex.errors import DataError, ShapeError, first_few
from softdex.kernels.balance import balanced_order

BLOCK = 8192  # vectors checked at a time


class Shape(NamedTuple):
    """A tree: level 1 has `roots` nodes, every node `arity` children, level `depth` is the slots.

    Node i of level j owns the slots from i w up to (i + 1) w, with w = arity ** (depth - j).
    """

    roots: int
    arity: int
    depth: int

    @property
    def slots(self) -> int:
        """Number of leaves, free ones included."""
        return self.roots * self.arity ** (self.depth - 1)

    @property
    def level_sizes(self) -> list[int]:
        """Number of nodes of levels 1 to depth."""
        return [self.roots * self.arity**level for level in range(self.depth)]


def shape_for(items: int, arity: int, beam: int, room: float = 0.0) -> Shape:
    """Return the shape for a number of items.

    Level 1 is the first level too wide for the beam: it has more than `beam` and at most
    arity * beam nodes; with few items it is the slots themselves. The shape alone adds less than
    one free slot per `beam` slots.

    Args:
        items: number of items, at least 1.
        arity: children per node, at least 2.
        beam: width of the beam that will search the tree.
        room: free slots for new items, as a fraction of `items`.
    """
    if items < 1 or arity < 2 or beam < 1 or not 0 <= room < math.inf:
        got = f"items={items}, arity={arity}, beam={beam} and room={room}"
        raise ShapeError(
            f"shape_for: expected items and beam of at least 1, arity of at least 2 and a finite "
            f"room of at least 0, got {got}."
        )
    need, depth = math.ceil(round(items * (1 + room), 6)), 1
    while items > beam and -(-need // arity**depth) > beam:
        depth += 1
    return Shape(-(-need // arity ** (depth - 1)), arity, depth)


def item_of(order: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the item of each slot (slots,) int32, -1 where a slot is free, for an order (I,)."""
    order = np.asarray(order)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise ShapeError(f"item_of: expected item numbers (I,), got {order.dtype} {order.shape}.")
    items = len(order)
    _check_fit("item_of", items, shape)
    seen = np.zeros(items, np.bool_)
    seen[order[(order >= 0) & (order < items)]] = True
    if not seen.all():
        lost = f"{items - int(seen.sum())} are missing ({first_few(np.flatnonzero(~seen))})"
        raise ShapeError(f"item_of: expected each of {items} items once in the order, {lost}.")
    slots = np.full(shape.slots, -1, np.int32)
    slots[np.arange(items) * shape.slots // items] = order
    return slots


def random(items: int, *, seed: int = 0) -> np.ndarray:
    """Return a random order of items (I,) int32."""
    if items < 1:
        raise ShapeError(f"random: expected at least one item, got {items}.")
    return np.random.default_rng(seed).permutation(np.arange(items, dtype=np.int32))


def by_category(categories: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return an order (I,) int32 by category (I,): random categories, random items within each.

    -1 stands for no category, and counts as one.
    """
    categories = np.asarray(categories)
    if categories.ndim != 1 or categories.dtype.kind not in "iu" or not len(categories):
        got = f"{categories.dtype} {categories.shape}"
        raise ShapeError(f"by_category: expected whole numbers (I,) of some items, got {got}.")
    draw = np.random.default_rng(seed)
    names, code = np.unique(categories, return_inverse=True)
    place = draw.permutation(len(names))[code]
    order = random(len(categories), seed=int(draw.integers(2**62)))
    return order[np.argsort(place[order], kind="stable")]


def by_vectors(vectors: np.ndarray, shape: Shape, *, seed: int = 0) -> np.ndarray:
    """Return an order (I,) int32 in which items with near vectors come under the same nodes.

    The nodes of level 1, and then the children of every node, are halved again and again by
    `kernels.balance`; items with equal scores are split by their ids. The order depends on the
    seed, not on the number of threads. Memory: 20 bytes per item, and a copy of up to an eighth of
    the vectors, or of all of them unless they are float32, contiguous, writeable and of moderate
    size (the largest number between 2 ** -30 and 2 ** 30).

    Args:
        vectors: of the items (I, D), finite.
        shape: of the tree.
        seed: of the samples.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.shape[1] or vectors.dtype.kind not in "fiu":
        got = f"{vectors.dtype} {vectors.shape}"
        raise ShapeError(f"by_vectors: expected vectors (I, D) of numbers, got {got}.")
    _check_fit("by_vectors", len(vectors), shape)
    drawn = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
    return balanced_order(_prepared(vectors), shape.slots, shape.roots, shape.arity, drawn)


def _check_fit(where: str, items: int, shape: Shape) -> None:
    if min(shape) < 1:
        raise ShapeError(f"{where}: expected a shape of numbers of at least 1, got {shape}.")
    if not 1 <= items <= shape.slots:
        raise ShapeError(f"{where}: expected 1 to {shape.slots} items for {shape}, got {items}.")


def _prepared(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors as float32, checked, and scaled where their squares could overflow."""
    with np.errstate(over="ignore"):
        vectors = np.require(vectors, np.float32, ["C", "A", "W"])

    def most(start: int) -> float:
        part = vectors[start : start + BLOCK]
        return max(float(part.max()), -float(part.min()))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = np.array(list(pool.map(most, range(0, len(vectors), BLOCK))))
    if not np.isfinite(found).all():
        wrong = np.flatnonzero(~np.isfinite(vectors).all(1))
        raise DataError(
            f"by_vectors: expected finite vectors, got nan or infinity (as float32) for "
            f"{len(wrong)} of {len(vectors)} items ({first_few(wrong)}). Leave them out, or mend "
            "them."
        )
    size = math.frexp(found.max())[1]
    return np.ldexp(vectors, -size) if abs(size) > 30 else vectors
