"""Solve one linear system per row, exactly or by a few steps of conjugate gradients.

    (w_r G + sum_j a_j x_j x_j' + reg_r) y_r = b_r

Conjugate gradients work in the eigenbasis of G, where the shared part is a diagonal: a step costs
what the row's events cost, and that diagonal is the preconditioner. On a CPU a compiled function
takes one row at a time; on a GPU the same steps are taken for all rows at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from softdex.errors import SoftdexError
from softdex.messages import say_if_compiling
from softdex.solve.closed.normal_equations import Shared, Side

CG_STEPS = 4  # scores are then within a percent of exact
EVENTS_PER_CHUNK = 32_768  # that a thread takes at a time
LONG_ROW = 16_384  # rows with more events are solved by all threads together
GATHERED_FLOATS = 4_000_000  # of gathered vectors, held at a time by the exact solver
RIDGES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)  # shares of the mean diagonal, tried in turn
DIVERGED = "vectors grew beyond all bounds. Raise lam, or choose less extreme options."


def solve_exactly(side: Side, shared: Shared, x: Tensor) -> tuple[Tensor, Tensor]:
    """Solve each row's system by a Cholesky decomposition in float64.

    Args:
        side: the events and weights of the rows.
        shared: what the systems of all rows share.
        x: vectors of the other side (C, D).

    Returns:
        solutions y (R, D), and each row's part of the loss, y'Ay - 2 b'y (R,).
    """
    y, part = x.new_zeros(len(side.weight), x.shape[1]), x.new_zeros(len(side.weight))
    for rows, systems, b in systems_of(side, shared, x):
        found = torch.cholesky_solve(b[:, :, None], factor(systems))[:, :, 0]
        y[rows], part[rows] = found.to(x.dtype), -(b * found).sum(1).to(x.dtype)
    return y, part


def systems_of(side: Side, shared: Shared, x: Tensor) -> Any:
    """Yield blocks of (rows, their matrices, their right-hand sides), grouped by length."""
    lengths = side.indptr.diff()
    order = torch.argsort(lengths, stable=True)
    dim, start = x.shape[1], 0
    gram, pull = shared.gram.double(), shared.pull.double()
    while start < len(order):
        width = int(lengths[order[start]])
        most = max(1, GATHERED_FLOATS // (dim * max(dim, 2 * width + 8)))
        rows = order[start : start + most]
        rows = rows[lengths[rows] <= 2 * width + 8]
        start += len(rows)
        matrix = side.weight[rows].double()[:, None, None] * gram
        b = side.weight[rows].double()[:, None] * pull
        longest, step = int(lengths[rows].max()), max(1, GATHERED_FLOATS // (dim * len(rows)))
        for first in range(0, longest, step):  # once, unless a single row is too long
            place = torch.arange(first, min(first + step, longest), device=x.device)
            real = place < lengths[rows, None]
            at = torch.where(real, side.indptr[rows, None] + place, 0)
            z = x[side.other[at].long()].double()
            extra, lift = (t[at].double() * real for t in (side.extra, side.pull))
            matrix += (z * extra[:, :, None]).transpose(1, 2) @ z
            b += (lift[:, None, :] @ z)[:, 0]
        matrix.diagonal(dim1=1, dim2=2).add_(side.reg[rows].double()[:, None])
        yield rows, matrix, b


def factor(systems: Tensor) -> Tensor:
    """Cholesky factors (R, D, D); a singular matrix gets the smallest sufficient ridge."""
    found, info = torch.linalg.cholesky_ex(systems)
    for ridge in RIDGES:
        bad = info > 0
        if not bool(bad.any()):
            break
        lifted = systems[bad]
        diagonal = lifted.diagonal(dim1=1, dim2=2)
        diagonal += diagonal.mean(1, keepdim=True) * ridge + 1e-300
        found[bad], info[bad] = torch.linalg.cholesky_ex(lifted)
    if bool((info > 0).any()):
        raise SoftdexError(f"least squares: {DIVERGED}")
    return found


def eigenbasis(shared: Shared) -> tuple[Tensor, Tensor]:
    """Eigenvalues (D,) and eigenvectors (D, D) of the Gram matrix, from float64 on the CPU."""
    like, gram = shared.gram, shared.gram.double().cpu().numpy()
    if not np.isfinite(gram).all():
        raise SoftdexError(f"least squares: {DIVERGED}")
    values, vectors = np.linalg.eigh(gram)
    return tuple(torch.from_numpy(t).to(like) for t in (values.clip(0), vectors))  # type: ignore[return-value]


def solve_by_cg(
    side: Side, values: Tensor, pull: Tensor, x: Tensor, steps: int = CG_STEPS
) -> tuple[Tensor, Tensor]:
    """Solve each row's system by a few steps of conjugate gradients, in the eigenbasis.

    Args:
        side: the events and weights of the rows.
        values: eigenvalues of the Gram matrix (D,).
        pull: the shared right-hand side, in the eigenbasis (D,).
        x: vectors of the other side, in the eigenbasis (C, D).
        steps: per system; D steps would solve it exactly.

    Returns:
        solutions y in the eigenbasis (R, D), and each row's part of the loss, y'Ay - 2 b'y (R,).
    """
    if x.device.type == "cpu":
        return _on_cpu(side, values, pull, x, steps)
    return _all_at_once(side, values, pull, x, steps)


def _cg(
    product: Callable[[Tensor], Tensor], diagonal: Tensor, b: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Preconditioned conjugate gradients from 0, for all rows of b at once."""
    inverse = torch.where(diagonal > 0, 1 / diagonal, 0)
    y, r, p = torch.zeros_like(b), b.clone(), inverse * b
    size = (r * p).sum(-1, keepdim=True)
    for _ in range(steps):
        q = product(p)
        curve = (p * q).sum(-1, keepdim=True)
        step = torch.where(curve > 0, size / curve, 0)
        y, r = y + step * p, r - step * q
        new = (r * inverse * r).sum(-1, keepdim=True)
        p = inverse * r + torch.where(size > 0, new / size, 0) * p
        size = new
    return y, -(y * (b + r)).sum(-1)


def _all_at_once(
    side: Side, values: Tensor, pull: Tensor, x: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Conjugate gradients for all rows at once, by products with sparse matrices."""
    shape = (len(side.weight), len(x))
    other = side.other.to(side.indptr.dtype)
    diagonal = side.weight[:, None] * values + side.reg[:, None]

    def sparse(at_events: Tensor) -> Tensor:
        with warnings.catch_warnings():  # torch calls the layout beta; users cannot act on that
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                side.indptr, other, at_events, shape, check_invariants=False
            )

    none = sparse(torch.zeros_like(side.extra))

    def product(p: Tensor) -> Tensor:
        dots = torch.sparse.sampled_addmm(none, p, x.T, beta=0.0).values()
        return diagonal * p + sparse(side.extra * dots) @ x

    b = side.weight[:, None] * pull + sparse(side.pull) @ x
    return _cg(product, diagonal, b, steps)


def _on_cpu(
    side: Side, values: Tensor, pull: Tensor, x: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    y = torch.empty(len(side.weight), x.shape[1], dtype=x.dtype)
    part = torch.empty(len(side.weight), dtype=x.dtype)
    lengths = side.indptr.diff()
    for row in torch.nonzero(lengths > LONG_ROW)[:, 0].tolist():
        y[row], part[row] = _long_row(side, row, values, pull, x, steps)
    arrays = [t.numpy() for t in (*side[:6], values, pull, x, y, part)]
    say_if_compiling(_cg_rows, "the solver")
    edges = _chunks(side.indptr.numpy())
    # asking numba for its number of threads would start its pool, which resets that of torch
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        work = [pool.submit(_cg_rows, *arrays, steps, LONG_ROW, *ends) for ends in edges]  # type: ignore[call-arg]
        try:
            for done in work:
                done.result()
        except BaseException:  # e.g. Ctrl-C: do not wait for chunks that have not begun
            pool.shutdown(cancel_futures=True)
            raise
    return y, part


def _long_row(
    side: Side, row: int, values: Tensor, pull: Tensor, x: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    events = slice(int(side.indptr[row]), int(side.indptr[row + 1]))
    z = x[side.other[events].long()]
    diagonal = side.weight[row] * values + side.reg[row]
    b = side.weight[row] * pull + side.pull[events] @ z
    return _cg(lambda p: diagonal * p + (side.extra[events] * (z @ p)) @ z, diagonal, b, steps)


def _chunks(indptr: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of rows of about equal cost."""
    rows = len(indptr) - 1
    cost = indptr[1:] + 8 * np.arange(1, rows + 1)
    wanted = np.arange(EVENTS_PER_CHUNK, cost[-1] if rows else 0, EVENTS_PER_CHUNK)
    edges = np.unique(np.concatenate([[0], np.searchsorted(cost, wanted), [rows]]))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


@numba.njit(nogil=True, fastmath=True, cache=True)
def _cg_rows(  # type: ignore[no-untyped-def]  # noqa: C901
    indptr, other, extra, lift, weight, reg, values, pull, x, out, part, steps, long, first, last
):
    """`_cg` for the rows first to last that are not long, one after another."""
    most, dim = 0, x.shape[1]
    for i in range(first, last):
        n = indptr[i + 1] - indptr[i]
        if n <= long:
            most = max(most, n)
    near = np.empty((most, dim), x.dtype)  # the vectors of a row's events, gathered once
    b = np.empty(dim, x.dtype)  # one array each: loops over rows of a matrix are not vectorised
    d, inverse, y = np.empty_like(b), np.empty_like(b), np.empty_like(b)
    r, p, q = np.empty_like(b), np.empty_like(b), np.empty_like(b)
    for i in range(first, last):
        start, n = indptr[i], indptr[i + 1] - indptr[i]
        if n > long:
            continue
        for k in range(dim):
            b[k] = weight[i] * pull[k]
            d[k] = weight[i] * values[k] + reg[i]
        for j in range(n):
            met = x[other[start + j]]
            for k in range(dim):
                near[j, k] = met[k]
                b[k] += lift[start + j] * met[k]
        for k in range(dim):
            inverse[k] = 1 / d[k] if d[k] > 0 else 0
            y[k] = 0
            r[k] = b[k]
            p[k] = inverse[k] * b[k]
        size = _dot(r, p)
        for _ in range(min(steps, n + 1)):
            if not size > 0:
                break
            for k in range(dim):
                q[k] = d[k] * p[k]
            _add_events(near, extra, start, n, p, q)
            curve = _dot(p, q)
            if not curve > 0:
                break
            step = size / curve
            for k in range(dim):
                y[k] += step * p[k]
                r[k] -= step * q[k]
                q[k] = inverse[k] * r[k]
            new = _dot(r, q)
            for k in range(dim):
                p[k] = q[k] + (new / size) * p[k]
            size = new
        for k in range(dim):
            out[i, k] = y[k]
            r[k] += b[k]
        part[i] = -_dot(y, r)


@numba.njit(nogil=True, fastmath=True, cache=True)
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = a.dtype.type(0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@numba.njit(nogil=True, fastmath=True, cache=True)
def _add_events(near, extra, start, n, p, q):  # type: ignore[no-untyped-def]
    """Add sum_j a_j x_j (x_j . p) to q, four events at a time."""
    dim, zero = len(p), p.dtype.type(0)
    whole = n - n % 4
    for j in range(0, whole, 4):
        x0, x1, x2, x3 = near[j], near[j + 1], near[j + 2], near[j + 3]
        s0, s1, s2, s3 = zero, zero, zero, zero
        for k in range(dim):
            s0 += x0[k] * p[k]
            s1 += x1[k] * p[k]
            s2 += x2[k] * p[k]
            s3 += x3[k] * p[k]
        s0 *= extra[start + j]
        s1 *= extra[start + j + 1]
        s2 *= extra[start + j + 2]
        s3 *= extra[start + j + 3]
        for k in range(dim):
            q[k] += s0 * x0[k] + s1 * x1[k] + s2 * x2[k] + s3 * x3[k]
    for j in range(whole, n):
        x0 = near[j]
        s0 = extra[start + j] * _dot(x0, p)
        for k in range(dim):
            q[k] += s0 * x0[k]
