"""Nearest items by cosine, in one pass over the co-occurrences and in bounded memory."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import scipy.sparse as sp
import torch

from softdex.solve.closed.blocks import edges_by_cost, joined, own_of

LISTS_BYTES = 128 * 2**20  # of neighbour lists held before they are packed
MODERATE = 30  # the largest weight is scaled unless it lies between 2^-30 and 2^30


def cosine_neighbours(
    matrix: sp.csr_matrix,
    n: int,
    *,
    shrink: float = 0.0,
    user_power: float = 0.0,
    asymmetry: float = 0.5,
) -> sp.csr_matrix:
    """The n most similar items of each item.

        sim(i, j) = sum_u w_u r_ui r_uj / (|c_i|^2a |c_j|^(2 - 2a) + shrink),  w_u = |r_u|^(-2 p)

    with r_u the row of user u and c_i the column of item i.

    Args:
        matrix: users x items, r.
        n: neighbours per item.
        shrink: added to the denominator, so that similarities of few events are smaller.
        user_power: p; above 0, active users count less.
        asymmetry: a; 1/2 is symmetric.

    Returns:
        items x items (float32), at most n entries per row, none on the diagonal. Memory: two
        copies of the matrix, the result, and one row of items per thread. Several ranks make the
        lists of a block of the items each.

    Relations: with the defaults it is the cosine. Where the largest weight is below 2^-30 or above
    2^30, all are scaled by a power of 2 first, so that no square is 0 or infinite.
    """
    by_user = matrix.tocsr().astype(np.float32)
    size = math.frexp(abs(by_user).max())[1] if by_user.nnz else 0
    if abs(size) > MODERATE:
        by_user.data, shrink = np.ldexp(by_user.data, -size), math.ldexp(shrink, -2 * size)
    squared = by_user.multiply(by_user)
    norms = np.asarray(squared.sum(0)).ravel()  # |c_i|^2
    sizes = np.maximum(np.asarray(squared.sum(1)).ravel(), 1e-12)
    by_item = sp.diags(sizes**-user_power) @ by_user if user_power else by_user
    by_item = by_item.astype(np.float32).tocsc()
    left, right = (norms**power for power in (asymmetry, 1 - asymmetry))
    items, threads = by_item.shape[1], torch.get_num_threads()  # numba's number starts its pool
    block = max(threads, min(items, LISTS_BYTES // (8 * n)))
    edges = edges_by_cost(by_item.indptr)
    own = own_of(edges)
    counts = [np.zeros(0, np.int64)]
    columns, values = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    with ThreadPoolExecutor(threads) as pool:
        for start in range(own.start, own.stop, block):
            stop = min(start + block, own.stop)
            ids = np.full((stop - start, n), -1, np.int32)
            sims = np.zeros((stop - start, n), np.float32)
            work = (
                pool.submit(
                    _fill,
                    by_item.indptr, by_item.indices, by_item.data,
                    by_user.indptr, by_user.indices, by_user.data,
                    left, right, shrink, start + thread, stop, threads, ids, sims, start,
                )
                for thread in range(threads)
            )  # fmt: skip
            for done in list(work):
                done.result()
            real = sims > 0  # none, or too small for a float32
            counts.append(real.sum(1))
            columns.append(ids[real])
            values.append(sims[real])
    lengths = joined(torch.from_numpy(np.concatenate(counts)), edges).numpy()
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    cuts = indptr[edges].tolist()
    found = (joined(torch.from_numpy(np.concatenate(x)), cuts).numpy() for x in (values, columns))
    return sp.csr_matrix((*found, indptr), shape=(items, items))


@numba.njit(nogil=True, cache=True)
def _fill(  # type: ignore[no-untyped-def]
    item_ptr, item_users, item_values, user_ptr, user_items, user_values,
    left, right, shrink, first, stop, step, ids, sims, start,
):  # fmt: skip
    """Write the neighbour lists of items first, first + step, ... below stop to ids and sims."""
    n = ids.shape[1]
    dots = np.zeros(len(left), np.float64)
    met, is_met = np.empty(len(left), np.int32), np.zeros(len(left), np.bool_)
    found = np.empty(len(left), np.float64)
    for i in range(first, stop, step):
        count = 0
        for p in range(item_ptr[i], item_ptr[i + 1]):
            user, value = item_users[p], item_values[p]
            for q in range(user_ptr[user], user_ptr[user + 1]):
                j = user_items[q]
                if not is_met[j]:  # a product may be 0: the sum does not tell
                    is_met[j] = True
                    met[count] = j
                    count += 1
                dots[j] += value * user_values[q]
        dots[i] = 0.0
        for c in range(count):
            j = met[c]
            size = left[i] * right[j] + shrink
            dots[j] = dots[j] / size if size > 0 else 0.0
        cut, ties = 0.0, 0
        if count > n:
            for c in range(count):
                found[c] = dots[met[c]]
            cut, ties = _largest(found, count, n), n
            for c in range(count):
                ties -= dots[met[c]] > cut
        cut = max(cut, 0.0)
        place = 0
        for c in range(count):
            j = met[c]
            tied = dots[j] == cut and ties > 0
            if dots[j] > cut or (tied and cut > 0.0):
                ties -= tied
                ids[i - start, place] = j
                sims[i - start, place] = dots[j]
                place += 1
            dots[j], is_met[j] = 0.0, False


@numba.njit(nogil=True, cache=True)
def _largest(values, size, n):  # type: ignore[no-untyped-def]
    """Return the n-th largest of the first values, which change places; `np.partition` would take
    four seconds to compile."""
    low, high, place = 0, size, size - n  # in rising order
    while True:
        a, b, c = values[low], values[(low + high) // 2], values[high - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        less, i, more = low, low, high  # below the pivot; at it; not seen yet; above it
        while i < more:
            value = values[i]
            if value < pivot:
                values[i], values[less] = values[less], value
                less, i = less + 1, i + 1
            elif value > pivot:
                more -= 1
                values[i], values[more] = values[more], value
            else:
                i += 1
        if less <= place < more:
            return pivot
        low, high = (low, less) if place < less else (more, high)
