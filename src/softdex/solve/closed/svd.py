"""RG2 in closed form: with alpha = 0 its minimum is a truncated singular value decomposition.

A user's events then have the weight of all other items, so RG2 is least squares with one weight
w_x = c_x / 2N per user and targets S_xy = N c_xy / c_x - 1 (c_x is the sum of the confidences
c_xy). The rows of S sum to 0, hence

    W^1/2 S = B (1 - 11'/N),    B_xy = c_xy (N / 2 c_x)^1/2,

a matrix as sparse as the log times a projection. No users x items array is ever made.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from softdex.errors import ShapeError, SoftdexError
from softdex.solve.closed.blocks import agreed, edges_by_cost, joined, own_of, rows_of, summed
from softdex.solve.closed.normal_equations import Quadratic, rg, row_sums

ITERATIONS = 30  # at most; real logs take 4 to 8
OVERSAMPLE = 32  # extra vectors, which speed up convergence
TOLERANCE = 1e-6  # of the last relative gain; what remains is several times smaller
DEGREE = 4  # products with the matrix and its transpose per iteration
ROUNDING = 1e-6  # singular values below this share of the first count as 0
WIDEST = 1e8  # largest amplification per iteration that loses no digits


def why_not(loss: Quadratic) -> str | None:
    """A sentence that says why a loss has no closed form, or None if it has one."""
    if loss.centre == 0:
        return "iALS weighs events and other items differently, where one weight per user is needed"
    if loss.extra[1] != 0:
        return "weights for sampled negatives differ between events and other items"
    if loss.extra[0] != 0:
        return "alpha above 0 gives events weights of their own, where one per user is needed"
    if loss.lam > 0 and loss.nu != 1:
        return (
            f"with nu={loss.nu:g} the regulariser is not proportional to the users' weights, "
            "which makes it a nuclear-norm problem (reg='sum_w' has a closed form)"
        )
    if loss.beta > 1 or (loss.frobenius and loss.beta == 1):
        return f"with beta={loss.beta:g} the loss may have no minimum"
    scores = loss.weight[0]
    if scores > 0 and loss.frobenius:
        return "reg='scores' takes the exact interaction only"
    plain = rg(loss.items, alpha=0, lam=0 if scores > 0 else loss.lam, nu=loss.nu, scores=scores)
    if replace(loss, beta=0, frobenius=False) != plain:
        return "the weights are not those of RG2"
    return None


def closed_form(
    matrix: sp.csr_matrix,
    loss: Quadratic,
    dim: int,
    *,
    seed: int = 0,
    iterations: int = ITERATIONS,
    oversample: int = OVERSAMPLE,
    tolerance: float = TOLERANCE,
) -> tuple[Tensor, Tensor]:
    """The user and item vectors of length `dim` that minimise RG2 with alpha = 0 and nu = 1.

        P = (sum w / N)^1/4 W^-1/2 U D^1/2,   Q = (N / sum w)^1/4 V D^1/2,   D = (Sigma - tau)+

    where U Sigma V' are the first `dim` singular vectors and values of W^1/2 S, and
    tau = lam (N sum w)^1/2. The loss there is sum_x c_x / 2 - sum D^2; the first term is its value
    at 0. Users without events are at 0. The scores are unique iff singular values `dim` and
    `dim` + 1 differ, or the former is at most tau.

    Args:
        matrix: confidences, users x items, in the type to compute in (float32 or float64).
        loss: one for which `why_not` returns None.
        dim: length of the vectors; coordinates past the rank are 0.
        seed: of the random start.
        iterations, oversample, tolerance: see `truncated_svd`.

    Returns:
        P (U, dim), Q (N, dim).

    With a regulariser of all scores instead of the vectors it is `full_matrix_form`.

    Relations: exact RGx has the minimum of RG2. With interaction='frobenius' it is that of RG2 with
    both factors divided by (1 - beta)^1/2.
    """
    reason = why_not(loss)
    if reason is not None:
        raise SoftdexError(f"svd: {reason}. Use solver='als'.")
    items = matrix.shape[1]
    if items != loss.items:
        raise ShapeError(f"svd: expected a log of {loss.items} items, got {items}.")
    if loss.weight[0] > 0:
        return full_matrix_form(
            matrix, loss.weight[0], dim,
            seed=seed, iterations=iterations, oversample=oversample, tolerance=tolerance,
        )  # fmt: skip
    total = row_sums(matrix)
    scale = _over(items, 2 * total) ** 0.5
    left, values, right = truncated_svd(
        matrix,
        scale,
        dim,
        seed=seed,
        iterations=iterations,
        oversample=oversample,
        tolerance=tolerance,
    )
    weight = float(total.sum()) / (2 * items)  # sum w
    kept = (values - loss.lam * (items * weight) ** 0.5).clamp(min=0).sqrt()
    if loss.frobenius:
        kept = kept / (1 - loss.beta) ** 0.5
    share = (weight / items or 1.0) ** 0.25
    p = torch.from_numpy(2 * scale)[:, None] * left * (kept * share)
    return p.to(right.dtype), (right * (kept / share)).to(right.dtype)


def full_matrix_form(
    matrix: sp.csr_matrix,
    lam: float,
    dim: int,
    *,
    seed: int = 0,
    iterations: int = ITERATIONS,
    oversample: int = OVERSAMPLE,
    tolerance: float = TOLERANCE,
) -> tuple[Tensor, Tensor]:
    """The vectors that minimise RG2 with the regulariser lam |P Q'|^2 (RG2, Eq. 48).

        P = (W + lam)^-1/2 U Sigma^1/2,   Q = V Sigma^1/2,   U Sigma V' of (W + lam)^-1/2 W S

    Args:
        matrix: confidences, users x items.
        lam: strength of the regulariser.
        dim: length of the vectors.
        seed: of the random start.
        iterations, oversample, tolerance: see `truncated_svd`.

    Returns:
        P (U, dim), Q (N, dim).
    """
    total, items = row_sums(matrix), matrix.shape[1]
    weight = total / (2 * items)
    scale = (_over(items, 2 * total) * _over(weight, weight + lam)) ** 0.5
    left, values, right = truncated_svd(
        matrix,
        scale,
        dim,
        seed=seed,
        iterations=iterations,
        oversample=oversample,
        tolerance=tolerance,
    )
    p = torch.from_numpy(_over(1.0, weight + lam) ** 0.5)[:, None] * left * values.sqrt()
    return p.to(right.dtype), (right * values.sqrt()).to(right.dtype)


def truncated_svd(
    matrix: sp.csr_matrix,
    scale: np.ndarray,
    dim: int,
    *,
    seed: int,
    iterations: int,
    oversample: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The first singular vectors and values of A = diag(scale) matrix (1 - 11'/N).

    Subspace iteration from random vectors: a Chebyshev polynomial of A'A, small where the
    unwanted singular values are, then QR, then the best vectors in the span (Rayleigh-Ritz).
    Costs iterations * (nnz + (U + N) D) * D with D = dim + oversample, and holds about 12 blocks of
    (U + N) x D. Several ranks take a block of the rows each; what they make of the items is summed.

    Args:
        matrix: users x items.
        scale: a factor per row (U,).
        dim: number of singular vectors.
        seed: of the random start.
        iterations: at most this many.
        oversample: extra vectors in the subspace.
        tolerance: stop once an iteration adds less than this share of the sum of squared values.

    Returns:
        left (U, dim), values (dim,) in float64 in descending order, right (N, dim). Past the rank,
        values and left vectors are 0.
    """
    edges = edges_by_cost(matrix.indptr)
    own, items = rows_of(matrix, own_of(edges)), matrix.shape[1]
    data = own.data * np.repeat(scale[own_of(edges)], np.diff(own.indptr)).astype(own.dtype)
    rows = sp.csr_matrix((data, own.indices, own.indptr), shape=own.shape)
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(items, min(dim + oversample, items), generator=generator)
    v, before = torch.linalg.qr(_centred(v.to(torch.from_numpy(data[:0]).dtype)))[0], 0.0
    for done in itertools.count(1):
        y = _forward(rows, v)
        squares, turn = _ritz(y)
        v, y = v @ turn, y @ turn
        found = float(squares[:dim].sum())
        if done >= iterations or found - before <= tolerance * found:
            break
        before = found
        (v,) = agreed(torch.linalg.qr(chebyshev(rows, v, y, squares))[0])
    values = squares[:dim].sqrt()
    real = values > values.amax() * ROUNDING
    left = torch.where(real, y[:, :dim] / values, 0)
    out = torch.zeros(dim, dtype=torch.float64)
    out[: len(values)] = torch.where(real, values, 0)
    return joined(_wide(left, dim), edges), out, _wide(v[:, :dim], dim)


def _ritz(y: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values of y (U, L), descending, and its right singular vectors (L, L)."""
    wide = y.double()
    squares, turn = agreed(*torch.linalg.eigh(*summed(wide.T @ wide)))
    return squares.flip(0).clamp(min=0), turn.flip(1).to(y.dtype)


def chebyshev(rows: sp.csr_matrix, v: Tensor, y: Tensor, squares: Tensor) -> Tensor:
    """Apply a Chebyshev polynomial of A'A: T_k((A'A - e) / e) v.

    |T_k| is at most 1 for squared values up to 2e, and grows as fast as a polynomial can above.

    Args:
        rows: A without the projection (U, N), of this rank.
        v: (N, L).
        y: A v (U, L), likewise.
        squares: squared singular values, descending; 2e is the last.
    """
    first = float(squares[0])
    e = max(float(squares[-1]), first * 1e-10) / 2
    growth = math.acosh(max(first / e - 1, 1.0))
    degree = min(DEGREE, max(1, int(math.log(WIDEST) / max(growth, 1.0))))
    before, now = v, _backward(rows, y) / e - v
    for _ in range(degree - 1):
        following = _backward(rows, _forward(rows, now)) * (2 / e) - 2 * now - before
        before, now = now, following
    return now


def _forward(rows: sp.csr_matrix, v: Tensor) -> Tensor:
    return torch.from_numpy(rows @ _centred(v).numpy())


def _backward(rows: sp.csr_matrix, y: Tensor) -> Tensor:
    return _centred(*summed(torch.from_numpy(rows.T @ y.numpy())))


def _centred(v: Tensor) -> Tensor:
    return v - v.mean(0, dtype=torch.float64).to(v.dtype)


def _wide(block: Tensor, dim: int) -> Tensor:
    """Pad with columns of 0 up to `dim`."""
    return torch.nn.functional.pad(block, (0, dim - block.shape[1]))


def _over(above: np.ndarray | float, below: np.ndarray) -> np.ndarray:
    """The ratio, and 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)
