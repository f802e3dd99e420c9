"""Balance: order vectors by balanced splits in two, so that near ones come under the same nodes.

A range of slots is halved until its parts are single slots. The items of a range are split where
the slots demand it, by their inner products with a direction: the difference of the two means of a
balanced 2-means that starts from the principal direction of a sample.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numba
import numpy as np
import torch

from softdex.messages import say_if_compiling

SAMPLE = 1024  # items of a range that determine its direction, at most
POWERS, ROUNDS = 3, 2  # power iterations, and rounds of balanced 2-means after them
ALONE = 2**17  # largest range that one thread splits to the end, on a copy of its vectors
SHARES = 8  # ranges per thread, at least, where items are fewer
FAST = {"contract", "reassoc", "nsz"}

Range = tuple[int, int, int]
"""The slots first ... last - 1, and how many of them a node of the present level has."""


class _Task(NamedTuple):
    """Items to split: those of all slots, or those after the first `low`."""

    vectors: np.ndarray  # (N, D): row i is item i's or, if they move along, that of order[i]
    moves: bool
    order: np.ndarray  # (N,) int32: the result
    keys: np.ndarray  # (N,) int64: what items are split by
    spare: np.ndarray  # (N,) int64
    low: int
    items: int  # of the whole tree, as are the rest
    slots: int
    arity: int
    seed: np.uint64


class _Room(NamedTuple):
    """Scratch memory of one thread."""

    sample: np.ndarray  # (SAMPLE, D), centred
    weight: np.ndarray  # (SAMPLE,)
    keys: np.ndarray  # (SAMPLE,)
    spare: np.ndarray  # (SAMPLE,)
    mean: np.ndarray  # (D,)
    total: np.ndarray  # (D,)
    direction: np.ndarray  # (D,)


def balanced_order(
    vectors: np.ndarray, slots: int, roots: int, arity: int, seed: np.uint64
) -> np.ndarray:
    """Return an order of items (I,) int32 in which near vectors are neighbours.

    The order depends on the seed, not on the number of threads.

    Args:
        vectors: of the items (I, D), float32 and finite.
        slots: leaves of the tree; the item of rank r lies in slot floor(r slots / I).
        roots: nodes of level 1.
        arity: children per node.
        seed: of the sample and of the first direction.
    """
    say_if_compiling(_split_all, "the splits of a tree")
    items, threads = len(vectors), torch.get_num_threads()
    alone = min(ALONE, max(SAMPLE, items // (SHARES * threads)))
    task = _Task(
        vectors=vectors,
        moves=False,
        order=np.arange(items, dtype=np.int32),
        keys=np.empty(items, np.int64),
        spare=np.empty(items, np.int64),
        low=0,
        items=items,
        slots=slots,
        arity=arity,
        seed=seed,
    )
    pool = ThreadPoolExecutor(threads)
    try:
        ranges: list[Range] = [(0, slots, slots // roots)]
        work: set[Future[list[Range]]] = set()
        while ranges or work:
            work |= {pool.submit(_work, task, alone, *one) for one in ranges}
            done, work = wait(work, return_when=FIRST_COMPLETED)
            ranges = [one for part in done for one in part.result()]
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C: do not wait for tasks not begun
    return task.order


def _work(task: _Task, alone: int, first: int, last: int, node: int) -> list[Range]:
    """Split a range to the end, or once if it is long; return the ranges that remain."""
    low, high = _rank(first, task), _rank(last, task)
    dim, size = task.vectors.shape[1], min(SAMPLE, high - low)
    room = _Room(
        np.empty((size, dim), np.float32),
        np.empty(size, np.float32),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        *np.empty((3, dim), np.float32),
    )
    if high - low > alone:
        middle, node = _split(task, room, first, last, node)
        return [(first, middle, node), (middle, last, node)]
    order, keys, spare = (array[low:high] for array in (task.order, task.keys, task.spare))
    near = task.vectors.take(order, 0)
    part = task._replace(vectors=near, moves=True, order=order, keys=keys, spare=spare, low=low)
    _split_all(part, room, first, last, node)
    return []


@numba.njit(nogil=True, cache=True)
def _split_all(task, room, first, last, node):  # type: ignore[no-untyped-def]
    """Split a range until its parts are single slots."""
    todo = np.empty((128, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = first, last, node  # a whole row takes long to compile
    held = 1
    while held > 0:
        held -= 1
        first, last, node = todo[held]
        low, high = _rank(first, task), _rank(last, task)
        if high - low == 2:  # any split will do
            a, b = task.order[low], task.order[low + 1]
            task.order[low], task.order[low + 1] = min(a, b), max(a, b)
        elif high - low > 2:
            middle, node = _split(task, room, first, last, node)
            todo[held, 0], todo[held, 1], todo[held, 2] = first, middle, node
            held += 1
            todo[held, 0], todo[held, 1], todo[held, 2] = middle, last, node
            held += 1


@numba.njit(nogil=True, cache=True)
def _rank(slot, task):  # type: ignore[no-untyped-def]
    """Return how many items lie in the slots before this one."""
    return -(-slot * task.items // task.slots) - task.low


@numba.njit(nogil=True, cache=True)
def _split(task, room, first, last, node):  # type: ignore[no-untyped-def]
    """Split a range in two; return the slot between them, and the slots per node there."""
    while last - first == node:
        node //= task.arity
    middle = first + (last - first) // node // 2 * node
    low, cut, high = _rank(first, task), _rank(middle, task), _rank(last, task)
    if low < cut < high:
        state = _next(_next(task.seed + np.uint64(first)) + np.uint64(last))
        _aim(task, low, cut, high, state, room)
        _part(task, low, cut, high, state, room)
    return middle, node


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _part(task, low, cut, high, state, room):  # type: ignore[no-untyped-def]
    """Move the items that are lowest along the direction to the places before `cut`."""
    vectors, order, keys, spare = task.vectors, task.order, task.keys, task.spare
    mean, direction = room.mean, room.direction
    for i in range(low, high):
        row, score = vectors[i if task.moves else order[i]], np.float32(0)
        for d in range(len(mean)):
            score += (row[d] - mean[d]) * direction[d]
        keys[i] = _key(score, order[i])
        spare[i] = keys[i]
    last = _select(spare, low, high, cut - 1, state)
    wrong, other = low, cut  # equally many on either side; listed without branches
    for i in range(low, cut):
        spare[wrong] = i
        wrong += np.int64(keys[i] > last)
    for i in range(cut, high):
        spare[other] = i
        other += np.int64(keys[i] <= last)
    for i in range(wrong - low):
        p, q = spare[low + i], spare[cut + i]
        order[p], order[q] = order[q], order[p]
        if task.moves:
            a, b = vectors[p], vectors[q]
            for d in range(len(mean)):
                a[d], b[d] = b[d], a[d]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _aim(task, low, cut, high, state, room):  # type: ignore[no-untyped-def]
    """Find the mean of a range, and the direction in which its two parts should differ.

    Each step weights the sample, and the weighted sum is the next direction. The weights are random
    at first, then the scores (power iteration), then the side of the split (a round of 2-means: as
    the sample is centred, the sum of one side points from one mean to the other).
    """
    sample, weight, direction = room.sample, room.weight, room.direction
    size = _draw(task, low, high, state, room)
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
def _draw(task, low, high, state, room):  # type: ignore[no-untyped-def]
    """Fill the centred sample, evenly spread where the range is longer; return its size."""
    sample, weight, mean = room.sample, room.weight, room.mean
    items = high - low
    size = min(items, len(sample))
    share = np.float32(1 / size)
    for j in range(size):
        at = low + j
        if size < items:
            state = _next(state)
            at = low + (j * items + np.int64(state % np.uint64(items))) // size
        row, place = task.vectors[at if task.moves else task.order[at]], sample[j]
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
    """Sum the first points by weight; four at a time, since each waits for the total."""
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
    """Return an integer that sorts by score, equal scores by item."""
    bits = np.int64(np.float32(score).view(np.int32))
    if bits < 0:
        bits = np.int64(-(2**31)) - bits  # -0 becomes 0
    return (bits << 32) | np.int64(item)


@numba.njit(nogil=True, cache=True)
def _select(keys, low, high, k, state):  # type: ignore[no-untyped-def]
    """Return the k-th smallest of the distinct keys between low and high.

    Quickselect with the median of three random keys as pivot. Branches on keys would make it three
    times slower.
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
    """Return a place from low to high - 1, chosen by the last 21 bits of a random number."""
    share = bits & np.uint64(2**21 - 1)
    return low + np.int64(share * np.uint64(high - low) >> np.uint64(21))


@numba.njit(nogil=True, cache=True)
def _next(state):  # type: ignore[no-untyped-def]
    """Return the next random number (splitmix64)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
