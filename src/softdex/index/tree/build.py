"""Which item lies at which leaf of a tree: shapes, and orders of items to fill them by.

An order of the items decides the tree: the item of rank r lies in slot floor(r slots / items), so
the nodes of a level differ by one item at most, and free slots lie evenly. `by_vectors` puts items
that are alike under the same nodes, by balanced splits in two of ever smaller ranges.
"""

from __future__ import annotations

import math
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numba
import numpy as np
import torch

from softdex.errors import DataError, ShapeError, first_few
from softdex.messages import say_if_compiling

SAMPLE = 1024  # items of a range that its direction is found with
POWERS, ROUNDS = 3, 2  # steps towards the principal direction, and of balanced 2-means after them
ALONE = 2**17  # most items of a range that one thread takes, with a copy of their vectors
SHARES = 8  # ranges for each thread, at least, where items are fewer
BLOCK = 8192  # vectors checked at a time
FAST = {"contract", "reassoc", "nsz"}


class Shape(NamedTuple):
    """A tree: level 1 has `roots` nodes, every node `arity` children, level `depth` is the slots.

    Node i of level j owns the slots from i w up to (i + 1) w, with w = arity ** (depth - j).
    """

    roots: int
    arity: int
    depth: int

    @property
    def slots(self) -> int:
        """Leaves, free ones among them."""
        return self.roots * self.arity ** (self.depth - 1)

    @property
    def level_sizes(self) -> list[int]:
        """Nodes of levels 1 to depth."""
        return [self.roots * self.arity**level for level in range(self.depth)]


_Range = tuple[int, int, int]  # the slots first ... last - 1, and how many of them a node has


class _Job(NamedTuple):
    """Items to split, those of all slots or those after the first `low`."""

    vectors: np.ndarray  # (N, D): row i is item i's or, if they move along, that of order[i]
    moves: bool
    order: np.ndarray  # (N,) int32: what is computed
    keys: np.ndarray  # (N,) int64: what they are split by
    spare: np.ndarray  # (N,) int64
    low: int
    items: int  # of the tree, as are the rest
    slots: int
    arity: int
    seed: np.uint64


class _Room(NamedTuple):
    """What a thread works in."""

    sample: np.ndarray  # (SAMPLE, D), less their mean
    weight: np.ndarray  # (SAMPLE,)
    keys: np.ndarray  # (SAMPLE,)
    spare: np.ndarray  # (SAMPLE,)
    mean: np.ndarray  # (D,)
    total: np.ndarray  # (D,)
    direction: np.ndarray  # (D,)


def shape_for(items: int, arity: int, beam: int, room: float = 0.0) -> Shape:
    """The shape for so many items and the share `room` of free slots beside them.

    Level 1 is the first that a beam cannot hold whole: it has more than `beam` nodes, at most
    arity * beam; or it is the slots, where the items are few. Less than one slot in `beam` is
    there for the shape alone.
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
    """The item of each slot, (slots,) int32, -1 where a slot is free, from an order (I,)."""
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
    """A random order, (I,) int32."""
    if items < 1:
        raise ShapeError(f"random: expected at least one item, got {items}.")
    return np.random.default_rng(seed).permutation(np.arange(items, dtype=np.int32))


def by_category(categories: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """An order (I,) int32 of items by category (I,): categories, and items in each, at random.

    -1, no category, is one of them.
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
    """An order (I,) int32 of items by vectors (I, D): near ones come under the same nodes.

    The nodes of level 1, and then the children of every node, are halved again and again. The
    items of a range of nodes are split where the slots demand it, by their inner products with
    the difference of two means: those of a balanced 2-means that starts from the principal
    direction of at most SAMPLE items. Items that are alike in this are split by their numbers.
    The order depends on the seed, not on the number of threads. Memory: 20 bytes for an item and
    copies of an eighth of the vectors at most; of all of them only if they are not float32,
    contiguous and writeable, or their largest number is beyond 2 ** 30 or below 2 ** -30.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.shape[1] or vectors.dtype.kind not in "fiu":
        got = f"{vectors.dtype} {vectors.shape}"
        raise ShapeError(f"by_vectors: expected vectors (I, D) of numbers, got {got}.")
    items = len(vectors)
    _check_fit("by_vectors", items, shape)
    say_if_compiling(_split_all, "the splits of a tree")
    threads = torch.get_num_threads()
    alone = min(ALONE, max(SAMPLE, items // (SHARES * threads)))
    pool = ThreadPoolExecutor(threads)
    try:
        job = _Job(
            vectors=_ready(vectors, pool),
            moves=False,
            order=np.arange(items, dtype=np.int32),
            keys=np.empty(items, np.int64),
            spare=np.empty(items, np.int64),
            low=0,
            items=items,
            slots=shape.slots,
            arity=shape.arity,
            seed=np.random.default_rng(seed).integers(2**64, dtype=np.uint64),
        )
        ranges: list[_Range] = [(0, shape.slots, shape.slots // shape.roots)]
        work: set[Future[list[_Range]]] = set()
        while ranges or work:
            work |= {pool.submit(_work, job, alone, *one) for one in ranges}
            done, work = wait(work, return_when=FIRST_COMPLETED)
            ranges = [one for part in done for one in part.result()]
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C: do not wait for what has not begun
    return job.order


def _check_fit(where: str, items: int, shape: Shape) -> None:
    if min(shape) < 1:
        raise ShapeError(f"{where}: expected a shape of numbers of at least 1, got {shape}.")
    if not 1 <= items <= shape.slots:
        raise ShapeError(f"{where}: expected 1 to {shape.slots} items for {shape}, got {items}.")


def _ready(vectors: np.ndarray, pool: ThreadPoolExecutor) -> np.ndarray:
    """The vectors as float32, checked, and scaled if their squares might overflow."""
    with np.errstate(over="ignore"):
        vectors = np.require(vectors, np.float32, ["C", "A", "W"])

    def most(start: int) -> float:
        part = vectors[start : start + BLOCK]
        return max(float(part.max()), -float(part.min()))

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


def _work(job: _Job, alone: int, first: int, last: int, node: int) -> list[_Range]:
    """Split a range to the end, or once if it is long; the ranges that are still to be split."""
    low, high = _rank(first, job), _rank(last, job)
    dim, size = job.vectors.shape[1], min(SAMPLE, high - low)
    room = _Room(
        np.empty((size, dim), np.float32),
        np.empty(size, np.float32),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        *np.empty((3, dim), np.float32),
    )
    if high - low > alone:
        middle, node = _split(job, room, first, last, node)
        return [(first, middle, node), (middle, last, node)]
    order, keys, spare = (array[low:high] for array in (job.order, job.keys, job.spare))
    near = job.vectors.take(order, 0)
    part = job._replace(vectors=near, moves=True, order=order, keys=keys, spare=spare, low=low)
    _split_all(part, room, first, last, node)
    return []


@numba.njit(nogil=True, cache=True)
def _split_all(job, room, first, last, node):  # type: ignore[no-untyped-def]
    """Split a range until its parts are single slots, one after the other."""
    todo = np.empty((128, 3), np.int64)
    todo[0] = first, last, node
    held = 1
    while held > 0:
        held -= 1
        first, last, node = todo[held]
        low, high = _rank(first, job), _rank(last, job)
        if high - low == 2:  # any split does
            a, b = job.order[low], job.order[low + 1]
            job.order[low], job.order[low + 1] = min(a, b), max(a, b)
        elif high - low > 2:
            middle, node = _split(job, room, first, last, node)
            todo[held] = first, middle, node
            todo[held + 1] = middle, last, node
            held += 2


@numba.njit(nogil=True, cache=True)
def _rank(slot, job):  # type: ignore[no-untyped-def]
    """How many items lie in the slots before this one."""
    return -(-slot * job.items // job.slots) - job.low


@numba.njit(nogil=True, cache=True)
def _split(job, room, first, last, node):  # type: ignore[no-untyped-def]
    """Split a range of more than one slot in two: the slot where, and the slots of a node there."""
    while last - first == node:
        node //= job.arity
    middle = first + (last - first) // node // 2 * node
    low, cut, high = _rank(first, job), _rank(middle, job), _rank(last, job)
    if low < cut < high:
        state = _next(_next(job.seed + np.uint64(first)) + np.uint64(last))
        _aim(job, low, cut, high, state, room)
        _part(job, low, cut, high, state, room)
    return middle, node


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _part(job, low, cut, high, state, room):  # type: ignore[no-untyped-def]
    """Move the items from `low` to `high` that are lowest along the direction before `cut`."""
    vectors, order, keys, spare = job.vectors, job.order, job.keys, job.spare
    mean, direction = room.mean, room.direction
    for i in range(low, high):
        row, score = vectors[i if job.moves else order[i]], np.float32(0)
        for d in range(len(mean)):
            score += (row[d] - mean[d]) * direction[d]
        keys[i] = _key(score, order[i])
        spare[i] = keys[i]
    last = _select(spare, low, high, cut - 1, state)
    wrong, other = low, cut  # as many on either side; their places are listed without branches
    for i in range(low, cut):
        spare[wrong] = i
        wrong += np.int64(keys[i] > last)
    for i in range(cut, high):
        spare[other] = i
        other += np.int64(keys[i] <= last)
    for i in range(wrong - low):
        p, q = spare[low + i], spare[cut + i]
        order[p], order[q] = order[q], order[p]
        if job.moves:
            a, b = vectors[p], vectors[q]
            for d in range(len(mean)):
                a[d], b[d] = b[d], a[d]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _aim(job, low, cut, high, state, room):  # type: ignore[no-untyped-def]
    """Find the mean of a range, and the direction in which its two parts should differ.

    Each step weighs the sample, and its weighted sum is the next direction: by random numbers at
    first, then by scores (a power iteration), then by the side of the split (a round of 2-means:
    as the mean of all is 0, the sum of one side points from the one mean to the other).
    """
    sample, weight, direction = room.sample, room.weight, room.direction
    size = _draw(job, low, high, state, room)
    left = max(1, (cut - low) * size // (high - low))
    for step in range(1 + POWERS + ROUNDS):
        if step == 0:
            for j in range(size):
                state = _next(state) if j % 4 == 0 else state
                weight[j] = state >> np.uint64(j % 4 * 16) & np.uint64(0xFFFF)
        else:
            for j in range(size):
                row, score = sample[j], np.float32(0)
                for d in range(len(direction)):
                    score += row[d] * direction[d]
                weight[j] = score
        if step > POWERS:
            for j in range(size):
                room.keys[j] = _key(weight[j], j)
                room.spare[j] = room.keys[j]
            last = _select(room.spare, 0, size, left - 1, state)
            for j in range(size):
                weight[j] = room.keys[j] > last
        _sum(sample, weight, size, room.total)
        length = 0.0
        for d in range(len(direction)):
            length += np.float64(room.total[d]) ** 2
        scale = 1 / np.sqrt(length) if length > 0 else 0.0
        for d in range(len(direction)):
            direction[d] = scale * room.total[d]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _draw(job, low, high, state, room):  # type: ignore[no-untyped-def]
    """Fill the sample from a range, evenly where it is longer, less its mean; its size."""
    sample, weight, mean = room.sample, room.weight, room.mean
    items = high - low
    size = min(items, len(sample))
    share = np.float32(1 / size)
    for j in range(size):
        at = low + j
        if size < items:
            state = _next(state)
            at = low + (j * items + np.int64(state % np.uint64(items))) // size
        row, place = job.vectors[at if job.moves else job.order[at]], sample[j]
        for d in range(len(mean)):
            place[d] = row[d]
        weight[j] = share
    _sum(sample, weight, size, mean)
    for j in range(size):
        row = sample[j]
        for d in range(len(mean)):
            row[d] -= mean[d]
    return size


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _sum(points, weight, size, total):  # type: ignore[no-untyped-def]
    """The weighted sum of the first points; four at a time, as each waits for the total."""
    for d in range(len(total)):
        total[d] = 0
    fours = size - size % 4
    for j in range(0, fours, 4):
        a, b, c, e = points[j], points[j + 1], points[j + 2], points[j + 3]
        s, t, u, v = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        for d in range(len(total)):
            total[d] += (s * a[d] + t * b[d]) + (u * c[d] + v * e[d])
    for j in range(fours, size):
        a, s = points[j], weight[j]
        for d in range(len(total)):
            total[d] += s * a[d]


@numba.njit(nogil=True, cache=True)
def _key(score, item):  # type: ignore[no-untyped-def]
    """One number in the order of scores, and of items where they are equal."""
    bits = np.int64(np.float32(score).view(np.int32))
    if bits < 0:
        bits = np.int64(-(2**31)) - bits  # -0 becomes 0
    return (bits << 32) | np.int64(item)


@numba.njit(nogil=True, cache=True)
def _select(keys, low, high, k, state):  # type: ignore[no-untyped-def]
    """The key that would be at place k if the different keys from low to high were sorted.

    Quickselect without branches that depend on keys, which are thrice as slow; the pivot is the
    middle one of three at random places.
    """
    while high - low > 1:
        state = _next(state)
        p, q = _within(low, high, state), _within(low, high, state >> np.uint64(21))
        r = _within(low, high, state >> np.uint64(42))
        a, b, c = keys[p], keys[q], keys[r]
        pivot = max(min(a, b), min(max(a, b), c))
        at = p if pivot == a else q if pivot == b else r
        keys[at], keys[high - 1] = keys[high - 1], pivot
        end = low
        for i in range(low, high):
            key = keys[i]
            keys[i] = keys[end]
            keys[end] = key
            end += np.int64(key < pivot)
        if end == k:
            return pivot
        low, high = (end + 1, high) if end < k else (low, end)
    return keys[k]


@numba.njit(nogil=True, cache=True)
def _within(low, high, bits):  # type: ignore[no-untyped-def]
    """A place from low to high - 1 by the last 21 bits of a random number."""
    share = bits & np.uint64(2**21 - 1)
    return low + np.int64(share * np.uint64(high - low) >> np.uint64(21))


@numba.njit(nogil=True, cache=True)
def _next(state):  # type: ignore[no-untyped-def]
    """The next random number (splitmix64)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
