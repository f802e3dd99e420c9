"""Attention on a CPU: `dispatch.attend` and its gradient in compiled code.

For one history item, `see_da vectors_kd` is the same matrix for all nodes, so the hidden units are
a product of the nodes and that matrix. Its last row is the item's own share, which meets a 1
appended to every node. Rows are padded to whole vector instructions.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softdex.kernels.lanes import LANES, bend, load, mul_add, next_rows, product, store, total_of
from softdex.kernels.threads import spread
from softdex.messages import say_if_compiling

FAST = {"contract", "reassoc", "nsz"}
BLOCK = 64  # nodes per block: their hidden units stay in the first-level cache
CHUNKS = 16  # partial sums over histories: fixed, so that threads do not change the result
WORTH_A_THREAD = 3_000_000  # multiplications that pay for a thread


def forward(*given: Tensor) -> Tensor:
    """Return the weights (B, N, L) for the arguments of `dispatch.attend`."""
    arrays, see = _arrays(*given), given[3]
    (size, length, _), count = given[0].shape, given[2].shape[-2]
    threads = _threads(size * count * length * see.numel())
    least = -(-threads // max(1, size))  # parts per history, so that each thread has one
    parts = max(1, -(-count // (BLOCK * least))) * least
    out = np.zeros((size, count, length), arrays[0].dtype)  # torch would start its own threads
    say_if_compiling(_weights, "attention")
    spread(lambda first: _weights(*arrays, out, parts, first, threads), threads)  # type: ignore[call-arg]
    return torch.from_numpy(out)


def backward(grad: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments but `real`, from that of the weights (B, N, L)."""
    vectors, attention, nodes, see, own, slope, weigh, *_ = (t.detach() for t in given)
    arrays, (dim, width), shared = _arrays(*given), see.shape, nodes.ndim == 2
    chunks = max(1, min(len(vectors), CHUNKS))
    lead = (chunks,) if shared else ()
    shapes = [vectors.shape, attention.shape, (*lead, *nodes.shape), (*lead, *own.shape)]
    shapes += [(chunks, dim, _whole(width)), (chunks, 2, _whole(width))]
    found = [np.zeros(shape, arrays[0].dtype) for shape in shapes]
    ends = np.zeros((chunks, 2))
    turned = pad(see.T, (0, _whole(dim) - dim)).contiguous()
    arrays += [turned.numpy(), grad.contiguous().numpy()]
    threads = min(chunks, _threads(3 * grad.numel() * see.numel()))
    say_if_compiling(_grads, "the gradient of attention")
    spread(lambda first: _grads(*arrays, *found, ends, chunks, first, threads), threads)  # type: ignore[call-arg]
    for i in range(2 if shared else 4, len(found)):
        found[i] = found[i].sum(0)
    of_vectors, of_attention, of_nodes, of_own, of_see, of_units = map(torch.from_numpy, found)
    above, below = of_units[:, :width]
    return (
        of_vectors, of_attention, of_nodes, of_see[:, :width], of_own,
        weigh * below, above + slope * below, *torch.from_numpy(ends.sum(0)).to(see),
    )  # fmt: skip


def _arrays(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> list[np.ndarray]:
    """Return what the compiled code takes: nodes with a history axis, hidden units padded."""
    more = _whole(see.shape[1]) - see.shape[1]
    nodes, own = (t if t.ndim == 3 else t.unsqueeze(0) for t in (nodes, own))
    units = torch.stack([weigh, weigh * slope])  # factor of a hidden unit above 0, and below
    ends = torch.stack([bias, last_slope])
    taken = vectors, attention, nodes, own, pad(see, (0, more)), pad(units, (0, more)), ends, real
    return [t.detach().contiguous().numpy() for t in taken]


def _whole(width: int) -> int:
    return -(-width // LANES) * LANES


def _threads(products: int) -> int:
    return max(1, min(torch.get_num_threads(), products // WORTH_A_THREAD))


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _weights(vectors, attention, nodes, own, see, units, ends, real, out, parts, first, step):  # type: ignore[no-untyped-def]
    """Compute every step-th part; a part is a range of the nodes of one history."""
    (size, count, length), (dim, width) = out.shape, see.shape
    most = next_rows(-(-count // parts))
    left, start = np.empty((most, dim + 1), see.dtype), np.empty((most, width), see.dtype)
    hidden, right = np.empty_like(start), np.zeros((dim + 1, width), see.dtype)
    sums = np.empty(most, see.dtype)
    for item in range(first, size * parts, step):
        b, part = item // parts, item % parts
        low, high = part * count // parts, (part + 1) * count // parts
        rows = _lay(nodes[b % len(nodes)], own[b % len(own)], low, high, left, start)
        for k in range(length):
            if real[b, k]:
                _scale(vectors[b, k], attention[b, k], see, right)
                product(hidden, start, left, right, rows, dim + 1)
                _sum(hidden, units, sums, rows)
                for n in range(high - low):
                    weight = sums[n] + ends[0]
                    out[b, low + n, k] = weight if weight > 0 else ends[1] * weight


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _grads(  # type: ignore[no-untyped-def]
    vectors, attention, nodes, own, see, units, ends, real, turned, grad,
    of_vectors, of_attention, of_nodes, of_own, of_see, of_units, of_ends, chunks, first, step,
):  # fmt: skip
    """Accumulate the gradients of every step-th chunk of the histories."""
    (size, count, length), (dim, width) = grad.shape, see.shape
    most, deep, long = min(BLOCK, next_rows(count)), next_rows(dim + 1), turned.shape[1]
    left, start = np.empty((most, dim + 1), see.dtype), np.empty((most, width), see.dtype)
    hidden, right = np.empty_like(start), np.zeros((dim + 1, width), see.dtype)
    sums, across = np.empty(most, see.dtype), np.zeros((deep, most), see.dtype)
    of_right, nothing = np.empty((deep, width), see.dtype), np.zeros((deep, width), see.dtype)
    by_nodes, by_own = np.empty((most, long), see.dtype), np.empty((most, width), see.dtype)
    vector, other = np.zeros((1, long), see.dtype), np.empty_like(turned)
    for chunk in range(first, chunks, step):
        of_bias = of_slope = 0.0  # local: chunks would share a cache line
        for b in range(chunk, size, chunks):
            lead = chunk if len(nodes) == 1 else b
            for low in range(0, count, BLOCK):
                high = min(low + BLOCK, count)
                rows = _lay(nodes[b % len(nodes)], own[b % len(own)], low, high, left, start)
                for n in range(rows):
                    for d in range(dim + 1):
                        across[d, n] = left[n, d]
                by_nodes[:rows], by_own[:rows] = 0, 0
                for k in range(length):
                    if real[b, k]:
                        for d in range(dim):
                            vector[0, d] = vectors[b, k, d]
                        _scale(vectors[b, k], attention[b, k], see, right)
                        product(hidden, start, left, right, rows, dim + 1)
                        _sum(hidden, units, sums, rows)
                        x, y = _pull(grad[b, low:high, k], ends, sums, rows)
                        of_bias, of_slope = of_bias + x, of_slope + y
                        _turn(hidden, units, sums, rows, by_own, of_units[chunk])
                        product(of_right, nothing, across, hidden, deep, rows)
                        _fold(of_right, see, vectors[b, k], of_vectors[b, k], of_see[chunk])
                        _add(of_right[dim], of_attention[b, k])
                        _stretch(turned, vector, other)
                        product(by_nodes, by_nodes, hidden, other, rows, len(other))
                for n in range(high - low):
                    _add(by_nodes[n], of_nodes[lead, low + n])
                    _add(by_own[n], of_own[lead, low + n])
        of_ends[chunk, 0], of_ends[chunk, 1] = of_bias, of_slope


@numba.njit(nogil=True, cache=True)
def _lay(nodes, own, low, high, left, start):  # type: ignore[no-untyped-def]
    """Copy nodes with a 1 appended, and their share, padded with zeros; return the rows."""
    rows, dim, width = next_rows(high - low), nodes.shape[1], own.shape[1]
    left[:rows], start[:rows] = 0, 0
    for n in range(high - low):
        for d in range(dim):
            left[n, d] = nodes[low + n, d]
        left[n, dim] = 1
        for a in range(width):
            start[n, a] = own[low + n, a]
    return rows


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _scale(vector, attention, see, right):  # type: ignore[no-untyped-def]
    """Fill the matrix that nodes are multiplied with; the item's share is its last row."""
    for d in range(len(see)):
        for w in range(0, see.shape[1], LANES):
            store(right, d, w, mul_add(vector[d], load(see, d, w), 0))
    for a in range(len(attention)):
        right[len(see), a] = attention[a]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _stretch(turned, vector, out):  # type: ignore[no-untyped-def]
    """Fill the transposed matrix, without the item's share."""
    for w in range(0, turned.shape[1], LANES):
        by = load(vector, 0, w)
        for a in range(len(turned)):
            store(out, a, w, mul_add(by, load(turned, a, w), 0))


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _sum(hidden, units, sums, rows):  # type: ignore[no-untyped-def]
    """Sum the weighted hidden units of each row."""
    for n in range(0, rows, 2):
        above, below = load(units, 0, 0), load(units, 1, 0)
        x, y = load(hidden, n, 0), load(hidden, n + 1, 0)
        p = mul_add(x, bend(x, above, below), 0)
        q = mul_add(y, bend(y, above, below), 0)
        for w in range(LANES, hidden.shape[1], LANES):
            above, below = load(units, 0, w), load(units, 1, w)
            x, y = load(hidden, n, w), load(hidden, n + 1, w)
            p = mul_add(x, bend(x, above, below), p)
            q = mul_add(y, bend(y, above, below), q)
        sums[n], sums[n + 1] = total_of(p), total_of(q)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _pull(grad, ends, sums, rows):  # type: ignore[no-untyped-def]
    """Replace the sums by their gradients; return those of output bias and slope."""
    of_bias = of_slope = 0.0
    for n in range(len(grad)):
        weight, pull = sums[n] + ends[0], grad[n]
        if weight <= 0:
            of_slope += pull * weight
            pull *= ends[1]
        of_bias += pull
        sums[n] = pull
    sums[len(grad) : rows] = 0
    return of_bias, of_slope


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _turn(hidden, units, pull, rows, by_own, of_units):  # type: ignore[no-untyped-def]
    """Replace the hidden units by their gradients."""
    for w in range(0, hidden.shape[1], LANES):
        above, below = load(units, 0, w), load(units, 1, w)
        up, down = load(of_units, 0, w), load(of_units, 1, w)
        for n in range(rows):
            x = load(hidden, n, w)
            up = mul_add(pull[n], bend(x, x, 0), up)
            down = mul_add(pull[n], bend(x, 0, x), down)
            x = mul_add(pull[n], bend(x, above, below), 0)
            store(hidden, n, w, x)
            store(by_own, n, w, mul_add(1, x, load(by_own, n, w)))
        store(of_units, 0, w, up)
        store(of_units, 1, w, down)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _fold(of_right, see, vector, of_vector, of_see):  # type: ignore[no-untyped-def]
    """Add the gradients of the item's vector and of `see`, from that of their product."""
    for d in range(len(see)):
        x = load(of_right, d, 0)
        total = mul_add(x, load(see, d, 0), 0)
        store(of_see, d, 0, mul_add(vector[d], x, load(of_see, d, 0)))
        for w in range(LANES, see.shape[1], LANES):
            x = load(of_right, d, w)
            total = mul_add(x, load(see, d, w), total)
            store(of_see, d, w, mul_add(vector[d], x, load(of_see, d, w)))
        of_vector[d] += total_of(total)


@numba.njit(nogil=True, cache=True)
def _add(more, total):  # type: ignore[no-untyped-def]
    for i in range(len(total)):
        total[i] += more[i]
