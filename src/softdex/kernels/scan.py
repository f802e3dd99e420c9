"""Search an inverted multi-index on a CPU: open the best cells, score their items, keep the top k.

Cell (a, b) has the number a C + b and, for a query z, the priority

    z . words[0, a] + z . words[1, b] + |z| reach + bias

where reach grows with the distance of its items from the sum of its words, and bias is their mean
offset. Scores are exact. Items are first bounded by 8-bit codes, which take a quarter of the
memory; an item whose bound is below the current top k is skipped.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba.core import cgutils, types
from numba.extending import intrinsic

from softdex.data.ragged import Ragged
from softdex.errors import ShapeError
from softdex.messages import say_if_compiling

REACH = 2.4  # standard deviations of a cell's items from their words, added to its priority
LEAST = np.float32(-3e38)  # below the priority of every cell with items
PROBES = 1024  # evenly spread items, whose cells estimate how many items lie above a priority
BANDS = 64  # of priorities: cells are sorted only within the last band that is opened
BATCH = 64  # queries per thread at a time
AHEAD = 6  # cells prefetched
BLOCK = 65_536  # vectors prepared at a time


class Lists(NamedTuple):
    """N items in cell order, and figures of the C * C cells."""

    words: np.ndarray  # (2, C, D)
    starts: np.ndarray  # (C * C + 1,) int32: a cell holds positions starts[cell:cell + 2]
    ids: np.ndarray  # (N,) int32
    vectors: np.ndarray  # (N, D)
    offsets: np.ndarray  # (N,), or empty
    codes: np.ndarray  # (N, D) int8: vectors[p] is about margins[p, 0] * codes[p]
    margins: np.ndarray  # (N, 2): unit of the codes; largest error of a score for |z| = 1
    reach: np.ndarray  # (C, C), -inf where a cell is empty
    bias: np.ndarray  # (C, C), or (0, C)
    crest: np.ndarray  # (2, C): maximum of reach and of bias in a row of cells
    probes: np.ndarray  # (2, PROBES): a and b of the probes' cells


class _Room(NamedTuple):
    """Scratch memory of one thread."""

    cells: np.ndarray  # collected cells, by number
    priorities: np.ndarray
    ranked: np.ndarray  # places in `cells`, band by band
    ends: np.ndarray  # of each band in `ranked`
    sizes: np.ndarray  # items of each band
    place: np.ndarray  # positions of candidates
    upper: np.ndarray  # upper bounds of their scores
    lower: np.ndarray  # lower bounds


def prepare(
    words: np.ndarray,
    starts: np.ndarray,
    ids: np.ndarray,
    vectors: np.ndarray,
    offsets: np.ndarray | None = None,
) -> Lists:
    """Prepare items for `scan`.

    Args:
        words: codebooks (2, C, D).
        starts: position at which each cell begins (C * C + 1,).
        ids: items in cell order (N,).
        vectors: of these items (N, D), finite.
        offsets: of these items (N,), finite; None where the scorer has none.
    """
    (_, width, dim), items, sizes = words.shape, len(ids), np.diff(starts)
    cell = np.repeat(np.arange(width * width), sizes)
    codes, margins = np.empty((items, dim), np.int8), np.empty((items, 2), np.float32)
    far = np.empty(items)
    lost = np.sqrt(dim) / (2 * _steps(dim)) + 2.0**-16  # the query is rounded too, and all sums
    for start in range(0, items, BLOCK):
        part = slice(start, start + BLOCK)
        x, (a, b) = vectors[part], np.divmod(cell[part], width)
        unit = np.maximum(np.abs(x).max(1), np.float32(1e-30)) / 127
        codes[part] = np.rint(x / unit[:, None])
        error = np.linalg.norm(x - codes[part] * unit[:, None], axis=1)
        margins[part] = np.stack([unit, error + lost * np.linalg.norm(x, axis=1)], 1)
        far[part] = np.square(x - words[0, a] - words[1, b]).sum(1)

    def mean(of: np.ndarray) -> np.ndarray:
        return (np.bincount(cell, of, width * width) / np.maximum(sizes, 1)).reshape(width, width)

    full = sizes.reshape(width, width) > 0
    reach = np.where(full, REACH * np.sqrt(mean(far) / dim), -np.inf).astype(np.float32)
    bias = (np.zeros((0, width)) if offsets is None else mean(offsets)).astype(np.float32)
    return Lists(
        np.ascontiguousarray(words, np.float32),
        np.ascontiguousarray(starts, np.int32),
        np.ascontiguousarray(ids, np.int32),
        np.ascontiguousarray(vectors, np.float32),
        np.ascontiguousarray([] if offsets is None else offsets, np.float32),
        codes,
        margins,
        reach,
        bias,
        np.stack([reach.max(1), np.zeros_like(reach[0]) if offsets is None else bias.max(1)]),
        np.stack(np.divmod(cell[np.arange(PROBES) * items // PROBES], width)),
    )


def _steps(dim: int) -> int:
    """Return the largest integer of a quantised query, such that inner products fit an int32."""
    return int(min(2**15 - 1, (2**31 - 1) // (128 * dim)))


def scan(
    query: np.ndarray,
    lists: Lists,
    k: int,
    effort: float,
    *,
    exclude: Ragged | None = None,
    allow: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the top k items of the cells opened for each query, by score and then id.

    Cells are opened by priority, ties by number, until max(effort, k) allowed items were scored.

    Args:
        query: (B, D).
        lists: from `prepare`.
        k: items per query.
        effort: items scored per query, at least.
        exclude: item ids per query that must not come back.
        allow: mask over items, (I,) for all queries or (B, I) per query.

    Returns:
        ids (B, K) int64, -1 where there are no more, and scores (B, K), -inf there.
    """
    if k < 1 or query.ndim != 2 or query.shape[1] != lists.words.shape[2]:
        asked = f"query (B, {lists.words.shape[2]}) and k >= 1"
        raise ShapeError(f"scan: expected {asked}, got {query.shape} and {k}.")
    query = np.ascontiguousarray(query, np.float32)
    found = np.full((len(query), k), -1, np.int64)
    scores = np.full((len(query), k), -np.inf, np.float32)
    indptr, barred = np.zeros(len(query) + 1, np.int64), np.zeros(0, np.int32)
    if exclude is not None:
        if len(exclude) != len(query):
            raise ShapeError(f"scan: expected {len(query)} rows of exclude, got {len(exclude)}.")
        order = np.lexsort((exclude.ids, exclude.row_of))
        indptr, barred = exclude.indptr.astype(np.int64), exclude.ids[order].astype(np.int32)
    allow = np.zeros((1, 0), np.bool_) if allow is None else np.atleast_2d(allow)
    if len(allow) not in (1, len(query)):
        raise ShapeError(f"scan: expected {len(query)} rows of allow, got {len(allow)}.")
    allow = np.ascontiguousarray(allow, np.bool_)
    need = math.ceil(min(max(effort, k), len(lists.ids)))
    alike = _alike(query, lists.words[0])
    args = (query, lists, indptr, barred, allow, need, _steps(query.shape[1]), found, scores, alike)
    say_if_compiling(_scan, "the search")
    threads = torch.get_num_threads()
    size = max(1, min(BATCH, len(query) // (4 * threads)))
    edges = [(i, min(i + size, len(query))) for i in range(0, len(query), size)]
    if threads == 1 or len(edges) == 1:
        for ends in edges:
            _scan(*args, *ends)
        return found, scores
    with ThreadPoolExecutor(threads) as pool:
        work = [pool.submit(_scan, *args, *ends) for ends in edges]
        try:
            for done in work:
                done.result()
        except BaseException:  # such as Ctrl-C: do not wait for batches that have not begun
            pool.shutdown(cancel_futures=True)
            raise
    return found, scores


def _alike(query: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Order queries so that neighbours open many of the same cells, which then stay in cache."""
    if len(query) < BATCH:
        return np.arange(len(query))
    products = torch.from_numpy(query) @ torch.from_numpy(words).T
    return products.argmax(1).argsort(stable=True).numpy()


@numba.njit(nogil=True, cache=True)
def _scan(  # type: ignore[no-untyped-def]
    query, lists, indptr, barred, allow, need, steps, found, scores, order, first, last
):
    """Answer the queries order[first:last]."""
    width, k = lists.words.shape[1], found.shape[1]
    whole, most = width * width, 2 * k + 256
    room = _Room(
        np.empty(whole, np.int32),
        np.empty(whole, np.float32),
        np.empty(whole, np.int32),
        np.empty(BANDS, np.int64),
        np.empty(BANDS, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.float32),
        np.empty(most, np.float32),
    )
    height = np.empty(PROBES, np.float32)
    slots = 1024
    for turn in range(first, last):
        while slots < 8 * (indptr[order[turn] + 1] - indptr[order[turn]]):
            slots *= 2
    mark = np.zeros(slots, np.bool_)
    for turn in range(first, last):
        i = order[turn]
        z, mine = query[i], barred[indptr[i] : indptr[i + 1]]
        for j in range(len(mine)):
            mark[mine[j] & (slots - 1)] = True
        norm, unit, small = _small(z, steps)
        left, right = _products(lists.words[0], z), _products(lists.words[1], z)
        for j in range(len(height)):
            a, b = lists.probes[0, j], lists.probes[1, j]
            height[j] = left[a] + right[b] + norm * lists.reach[a, b]
            if len(lists.bias):
                height[j] += lists.bias[a, b]
        asked = z, norm, unit, small, mark, mine, allow[i if len(allow) > 1 else 0], need, k
        share = int(1.3 * need * len(height) / len(lists.ids)) + 3
        scored, held = np.int64(0), np.int64(0)  # as later: plain zeros compile `_open` twice
        beat, high = LEAST, np.float32(np.inf)
        while scored < need and high > LEAST:
            low = _level(height, share) if share < len(height) else LEAST
            n = _collect(left, right, norm, lists, low, high, room)
            _rank(lists.starts, n, room)
            scored, held, beat = _open(lists, room, n, asked, scored, held, beat)
            high, share = low, 4 * share
        for j in range(len(mine)):
            mark[mine[j] & (slots - 1)] = False
        for j in range(_settle(lists, room, z, k, held)):
            found[i, j] = lists.ids[room.place[j]]
            scores[i, j] = room.lower[j]


@numba.njit(nogil=True, cache=True)
def _small(z, steps):  # type: ignore[no-untyped-def]
    """Return the norm of a query, the unit of its quantised form, and that form."""
    most = np.float32(1e-30)
    for d in range(len(z)):
        most = max(most, abs(z[d]))
    unit, small = most / np.float32(steps), np.empty(len(z), np.int16)
    for d in range(len(z)):
        small[d] = np.int16(np.rint(z[d] / unit))
    return np.sqrt(_dot(z, z)), unit, small


@numba.njit(nogil=True, cache=True)
def _products(words, z):  # type: ignore[no-untyped-def]
    out = np.empty(len(words), np.float32)
    for a in range(len(words)):
        out[a] = _dot(words[a], z)
    return out


@numba.njit(nogil=True, cache=True)
def _level(values, wanted):  # type: ignore[no-untyped-def]
    """Return a threshold that `wanted` values reach, and few more."""
    low, high = values.min(), values.max()
    for _ in range(16):
        middle = np.float32(0.5) * (low + high)
        count = np.int32(0)
        for j in range(len(values)):
            count += np.int32(values[j] >= middle)
        if count >= wanted:
            low = middle
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def _collect(left, right, norm, lists, low, high, room):  # type: ignore[no-untyped-def]
    """Collect the cells with low <= priority < high; return their number."""
    width, n, top = len(left), 0, right.max()
    here = np.empty(width, np.float32)
    flags = np.zeros((width + 7) // 8 * 8, np.bool_)
    eights = flags.view(np.int64)
    cells, priorities = room.cells, room.priorities
    for a in range(width):
        mine = left[a]
        if not mine + top + norm * lists.crest[0, a] + lists.crest[1, a] >= low:
            continue
        row = lists.reach[a]
        for b in range(width):
            here[b] = mine + right[b] + norm * row[b]
        if len(lists.bias):
            for b in range(width):
                here[b] += lists.bias[a, b]
        hits = np.int32(0)
        for b in range(width):
            hit = (here[b] >= low) & (here[b] < high)
            flags[b] = hit
            hits += np.int32(hit)
        if hits == 0:
            continue
        for eight in range(len(eights)):
            if eights[eight] == 0:
                continue
            for b in range(8 * eight, 8 * eight + 8):
                if flags[b]:
                    cells[n] = a * width + b
                    priorities[n] = here[b]
                    n += 1
    return n


@numba.njit(nogil=True, cache=True)
def _rank(starts, n, room):  # type: ignore[no-untyped-def]
    """Sort the n collected cells into bands of falling priority."""
    cells, priorities, ends, sizes = room.cells, room.priorities, room.ends, room.sizes
    for band in range(BANDS):
        ends[band] = sizes[band] = 0
    if n == 0:
        return
    peak, least = priorities[:n].max(), priorities[:n].min()
    scale = np.float32(BANDS) / (peak - least) if peak > least else np.float32(0)
    for j in range(n):
        band = _band(priorities[j], peak, scale)
        ends[band] += 1
        sizes[band] += starts[cells[j] + 1] - starts[cells[j]]
    total = 0
    for band in range(BANDS):
        total, ends[band] = total + ends[band], total
    for j in range(n):
        band = _band(priorities[j], peak, scale)
        room.ranked[ends[band]] = j
        ends[band] += 1


@numba.njit(nogil=True, cache=True)
def _band(priority, peak, scale):  # type: ignore[no-untyped-def]
    x = (peak - priority) * scale
    return int(x) if x < BANDS - 1 else BANDS - 1


@numba.njit(nogil=True, cache=True)
def _open(  # type: ignore[no-untyped-def]  # noqa: C901
    lists, room, n, asked, scored, held, beat
):
    """Bound the scores in the n ranked cells until `need` items are scored.

    Returns (scored, held, the bound to beat). One function: a call with many arrays costs more than
    a cell.
    """
    z, norm, unit, small, mark, mine, allow, need, k = asked
    starts, ids, codes, margins = lists.starts, lists.ids, lists.codes, lists.margins
    cells, ranked, place, upper, lower = room.cells, room.ranked, room.place, room.upper, room.lower
    flat_codes, flat_margins, dim, begin = codes.reshape(-1), margins.reshape(-1), len(z), 0
    filtered, offsets = len(mine) > 0 or len(allow) > 0, len(lists.offsets) > 0
    zero = np.float32(0)
    for band in range(BANDS):
        end = room.ends[band]
        if scored + room.sizes[band] >= need:
            keys = np.empty(end - begin, np.int64)
            for j in range(begin, end):
                keys[j - begin] = _key(room.priorities[ranked[j]], cells[ranked[j]])
            order, was = np.argsort(keys), ranked[begin:end].copy()
            for j in range(begin, end):
                ranked[j] = was[order[end - 1 - j]]
        for j in range(begin, end):
            if scored >= need:
                return scored, held, beat
            if j + AHEAD < n:
                cell = cells[ranked[j + AHEAD]]
                _prefetch(flat_margins, starts[cell] * 2)
                for at in range(starts[cell] * dim, starts[cell + 1] * dim, 64):
                    _prefetch(flat_codes, at)
            cell = cells[ranked[j]]
            for p in range(starts[cell], starts[cell + 1]):
                if filtered and _barred(ids[p], mark, mine, allow):
                    continue
                scored += 1
                score = unit * margins[p, 0] * _rough(codes, p, small)
                error, offset = norm * margins[p, 1], lists.offsets[p] if offsets else zero
                if score + error + offset < beat:
                    continue
                place[held], upper[held] = p, score + error + offset
                lower[held] = score - error + offset
                held += 1
                if held == len(place):
                    held = _drop(room, held, k)
                    if held > len(place) // 4 * 3:  # ties, or near ties
                        held = _settle(lists, room, z, k, held)
                    beat = _level(lower[:held], k)
        begin = end
    return scored, held, beat


@numba.njit(nogil=True, cache=True)
def _barred(item, mark, mine, allow):  # type: ignore[no-untyped-def]
    """Return whether an item is filtered out; `mark` is set for excluded ids and their aliases."""
    if len(allow) and not allow[item]:
        return True
    if not mark[item & (len(mark) - 1)]:
        return False
    j = np.searchsorted(mine, item)
    return j < len(mine) and mine[j] == item


@numba.njit(nogil=True, cache=True)
def _drop(room, held, k):  # type: ignore[no-untyped-def]
    """Drop candidates that are certainly below k others; return how many remain."""
    beat, n = _level(room.lower[:held], k), 0
    place, upper, lower = room.place, room.upper, room.lower
    for j in range(held):
        if upper[j] >= beat:
            place[n], upper[n], lower[n] = place[j], upper[j], lower[j]
            n += 1
    return n


@numba.njit(nogil=True, cache=True)
def _settle(lists, room, z, k, held):  # type: ignore[no-untyped-def]
    """Score the candidates exactly and keep the top k in order; return how many there are."""
    if held > k:
        held = _drop(room, held, k)
    place, dim, flat = room.place[:held].copy(), len(z), lists.vectors.reshape(-1)
    keys = np.empty(held, np.int64)
    for j in range(-AHEAD, held):
        if j + AHEAD < held:
            for at in range(place[j + AHEAD] * dim, (place[j + AHEAD] + 1) * dim, 16):
                _prefetch(flat, at)
        if j >= 0:
            score = _dot(lists.vectors[place[j]], z)
            if len(lists.offsets):
                score += lists.offsets[place[j]]
            room.lower[j] = score
            keys[j] = _key(score, lists.ids[place[j]])
    order, scores, kept = np.argsort(keys), room.lower[:held].copy(), min(held, k)
    for j in range(kept):
        best = order[held - 1 - j]
        room.place[j], room.upper[j], room.lower[j] = place[best], scores[best], scores[best]
    return kept


@numba.njit(nogil=True, cache=True)
def _key(score, item):  # type: ignore[no-untyped-def]
    """Return an integer that sorts by score, equal scores by falling item id."""
    bits = np.int64(np.float32(score).view(np.int32))
    if bits < 0:
        bits = np.int64(-(2**31)) - bits  # -0 becomes 0
    return (bits << 32) | np.int64(0x7FFFFFFF - item)


@numba.njit(nogil=True, cache=True)
def _rough(codes, p, small):  # type: ignore[no-untyped-def]
    """Return the inner product of an item's codes with a quantised query."""
    code, total = codes[p], np.int32(0)
    for d in range(len(small)):
        total = np.int32(total + np.int32(np.int32(code[d]) * np.int32(small[d])))
    return np.float32(total)


@numba.njit(nogil=True, fastmath=True, cache=True)
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(len(a)):
        total += a[d] * b[d]
    return total


def _ask(context, array, at):  # type: ignore[no-untyped-def]
    """Emit a prefetch of an entry of a flat array."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte, number, ir = cgutils.voidptr_t, cgutils.int32_t, cgutils.ir  # type: ignore[attr-defined]
        place = builder.bitcast(builder.gep(data, [args[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [place, number(0), number(3), number(1)])  # read, keep in cache
        return context.get_dummy_value()

    return types.void(array, at), code


_prefetch: Any = intrinsic(_ask)
