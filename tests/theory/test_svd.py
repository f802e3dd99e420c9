"""RG2 with alpha = 0 is a thresholded singular value decomposition (RG2 A.6 stops short of it).

    min  sum_xy w_x (S_xy - p_x . q_y)^2 + lam N sum_x w_x |p_x|^2 + lam (sum w) |Q|^2
    = |W^1/2 S|^2 - sum D^2,   D = (sigma - tau)+,   tau = lam (N sum w)^1/2

with w_x = c_x / 2N and S = N c_xy / c_x - 1. Oracles are dense matrices in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from marks import slow
from softdex.errors import ShapeError, SoftdexError
from softdex.solve.closed.normal_equations import (
    Quadratic,
    Side,
    ials,
    items_side,
    objective,
    rg,
    shared_by_items,
    shared_by_users,
    users_side,
)
from softdex.solve.closed.row_systems import solve_exactly
from softdex.solve.closed.svd import DEGREE, chebyshev, closed_form, full_matrix_form, why_not

TIGHT: dict[str, Any] = {"tolerance": 1e-15, "iterations": 200}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"weighted": True},
    "empty users": {"empty": 5},
}


class Log:
    """Confidences as a dense matrix, and the quantities of the theorem."""

    def __init__(self, c: np.ndarray) -> None:
        self.c, self.matrix, self.items = c, sp.csr_matrix(c), c.shape[1]
        self.total = c.sum(1)
        self.w = self.total / (2 * self.items)
        self.s = self.items * c / np.maximum(self.total, 1e-300)[:, None] - 1
        self.half = self.w[:, None] ** 0.5 * self.s
        self.sigma = np.linalg.svd(self.half, compute_uv=False)

    def loss(self, lam: float, **other: Any) -> Quadratic:
        return rg(self.items, **{"alpha": 0.0, "lam": lam, "nu": 1.0} | other)

    def tau(self, lam: float) -> float:
        return lam * (self.total.sum() / 2) ** 0.5

    def lam(self, kept: float) -> float:
        """Return lam that puts tau between two singular values (the first is 1), by the digits."""
        k = int(kept)
        tau = self.sigma[k - 1] + (self.sigma[k] - self.sigma[k - 1]) * (kept - k)
        return float(tau / self.tau(1.0))

    def kept(self, lam: float, dim: int) -> np.ndarray:
        return np.clip(self.sigma[:dim] - self.tau(lam), 0, None)

    def least(self, lam: float, dim: int) -> float:
        """The minimum as `normal_equations.objective` counts: its value at 0 is half the events."""
        return float(self.total.sum() / 2 - (self.kept(lam, dim) ** 2).sum())

    def sides(self, loss: Quadratic) -> tuple[Side, Side]:
        both = users_side(self.matrix, loss), items_side(self.matrix.T.tocsr(), self.total, loss)
        floats = (
            Side(*(t.double() if t.is_floating_point() else t for t in side)) for side in both
        )
        return tuple(floats)  # type: ignore[return-value]

    def value(self, loss: Quadratic, p: Tensor, q: Tensor) -> float:
        """The objective of `normal_equations`, in float64."""
        of_users, of_items = self.sides(loss)
        return objective(loss, of_users, p.double(), q.double(), of_items.reg).item()

    def dense(self, p: Tensor, q: Tensor, *, alpha: float = 0.0, beta: float = 0.0) -> Tensor:
        """sum w (o - S)^2 - (beta / N) sum w (sum o)^2 + alpha sum c (o - 1)^2, from all scores."""
        w, s, c = (torch.from_numpy(x) for x in (self.w, self.s, self.c))
        o = p @ q.T
        own = w @ ((o - s) ** 2).sum(1) - (beta / self.items) * (w @ o.sum(1) ** 2)
        return own + alpha * (c * (o - 1) ** 2).sum()

    def reg(self, p: Tensor, q: Tensor, lam: float) -> Tensor:
        """lam (N sum_x w_x |p_x|^2 + sum w |Q|^2)."""
        w = torch.from_numpy(self.w)
        return lam * (self.items * (w @ p.square().sum(1)) + w.sum() * q.square().sum())


def random_log(
    seed: int = 0,
    users: int = 30,
    items: int = 20,
    *,
    weighted: bool = False,
    empty: int = 0,
    share: float = 0.2,
) -> Log:
    """Items of uneven popularity; at least one event per user who is not to be empty."""
    rng = np.random.default_rng(seed)
    c = (rng.random((users, items)) < share * rng.random(items) * 2).astype(float)
    c[np.arange(users), rng.integers(items, size=users)] = 1
    if weighted:
        c *= 10 ** rng.uniform(-1, 1, c.shape)
    c[rng.permutation(users)[:empty]] = 0
    return Log(c)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def als(
    log: Log,
    loss: Quadratic,
    dim: int,
    sweeps: int = 400,
    seed: int = 0,
    items_reg: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Alternate exact solutions in float64, starting from random items."""
    of_users, of_items = log.sides(loss)
    if items_reg is not None:
        of_items = of_items._replace(reg=items_reg)
    q = random(log.items, dim, seed=seed) * 0.1
    for _ in range(sweeps):
        p = solve_exactly(of_users, shared_by_users(loss, q), q)[0]
        shared = shared_by_items(loss, p, of_items.fixed, q.sum(0))
        q = solve_exactly(of_items, shared, p)[0]
    return p, q


def slope(value: Tensor, at: list[Tensor]) -> float:
    """The largest entry of a gradient."""
    return max(float(g.abs().max()) for g in torch.autograd.grad(value, at))


def scores(vectors: tuple[Tensor, Tensor]) -> Tensor:
    return vectors[0] @ vectors[1].T


def free(*at: Tensor) -> list[Tensor]:
    return [t.clone().requires_grad_() for t in at]


# threshold and mapping ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kept", [3.5, 9.5])
def test_the_gradient_is_zero_at_the_closed_form_and_not_beside_it(case: str, kept: float) -> None:
    log = random_log(**CASES[case])
    lam = log.lam(kept)
    p, q = free(*closed_form(log.matrix, log.loss(lam), 6, **TIGHT))
    assert p.abs().max() > 0.1
    assert slope(log.dense(p, q) + log.reg(p, q, lam), [p, q]) < 1e-8
    assert slope(log.dense(p, q) + log.reg(p, q, 1.01 * lam), [p, q]) > 1e-3
    assert slope(log.dense(p, q) + log.reg(p, 1.01 * q, lam), [p, q]) > 1e-3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dim", [1, 6, 60])
def test_the_minimum_is_what_the_squares_above_the_threshold_leave(case: str, dim: int) -> None:
    log = random_log(**CASES[case])
    lam = log.lam(8.5)
    loss = log.loss(lam)
    p, q = closed_form(log.matrix, loss, dim, **TIGHT)
    least = (log.half**2).sum() - (log.kept(lam, dim) ** 2).sum()
    assert float(log.dense(p, q) + log.reg(p, q, lam)) == pytest.approx(least, rel=1e-10)
    assert log.value(loss, p, q) == pytest.approx(log.least(lam, dim), rel=1e-6)
    assert log.value(loss, 0 * p, 0 * q) == pytest.approx(log.total.sum() / 2, rel=1e-6)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_direction_is_kept_iff_its_singular_value_is_above_tau(k: int) -> None:
    log = random_log()
    just = log.sigma[k - 1] / log.tau(1.0)
    for lam, rank in ((0.999 * just, k), (1.001 * just, k - 1)):
        p, q = closed_form(log.matrix, log.loss(lam), 10)
        assert np.linalg.matrix_rank((p @ q.T).numpy()) == rank
        assert int((q.abs().sum(0) > 0).sum()) == rank


def test_users_without_events_are_at_zero_and_change_nothing_for_others() -> None:
    log = random_log(empty=5)
    loss = log.loss(log.lam(6.5))
    p, q = closed_form(log.matrix, loss, 8, **TIGHT)
    there = log.total > 0
    assert not p[~there].any()
    alone = closed_form(log.matrix[np.flatnonzero(there)], loss, 8, **TIGHT)
    assert torch.allclose(p[there] @ q.T, alone[0] @ alone[1].T, atol=1e-9)


def test_an_event_of_weight_two_counts_as_two_users_events_do() -> None:
    """Confidences are counts: scaling a row of them scales its weight, not its targets."""
    log = random_log(weighted=True)
    once, twice = log.matrix, sp.vstack([log.matrix, log.matrix]).tocsr()
    loss = log.loss(log.lam(6.5))
    p, q = closed_form(2 * once, loss, 8, **TIGHT)
    p2, q2 = closed_form(twice, loss, 8, **TIGHT)
    assert torch.allclose(p @ q.T, (p2 @ q2.T)[: len(p)], atol=1e-8)


def test_without_a_regulariser_it_is_the_best_approximation_of_the_rank_whatever_nu() -> None:
    log = random_log(weighted=True)
    u, sigma, v = np.linalg.svd(log.half, full_matrices=False)
    best = (u[:, :6] * sigma[:6]) @ v[:6] / log.w[:, None] ** 0.5
    for nu in (0.0, 1.0):
        p, q = closed_form(log.matrix, log.loss(0.0, nu=nu), 6, **TIGHT)
        assert np.allclose((p @ q.T).numpy(), best, atol=1e-6)


# alternating least squares -----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kept", "dim"), [(8.5, 5), *slow((4.5, 5), (9.5, 25))])
def test_als_comes_to_the_same_minimum_from_above(case: str, kept: float, dim: int) -> None:
    log = random_log(int(kept), **CASES[case])
    loss = log.loss(log.lam(kept))
    least = log.value(loss, *closed_form(log.matrix, loss, dim))
    start = log.total.sum() / 2
    early, late = (log.value(loss, *als(log, loss, dim, sweeps)) for sweeps in (2, 400))
    assert abs(late - least) < 1e-5 * (start - least)
    assert early - least > 1e-5 * (start - least)


@pytest.mark.parametrize(("kept", "dim"), [(6.5, 3), (3.1, 3), (3.5, 3), (2.5, 4), (2.1, 4)])
def test_als_nears_it_by_a_factor_known_from_the_singular_values(kept: float, dim: int) -> None:
    """Per sweep, for vectors: max{(1 - 2 tau / sigma)^2 of the first and the last kept, (a / b)^2},
    a the first value left out, b the last kept, or tau where the threshold left it out.

    The largest eigenvalue of the derivative of a sweep, beside those of 1 that turn all vectors.
    """
    log = random_log(users=12, items=10, share=0.4)
    lam = log.lam(kept)
    tau, rank = log.tau(lam), min(int(kept), dim)
    last = tau if rank < dim else log.sigma[dim - 1]
    each = [1 - 2 * tau / log.sigma[0], 1 - 2 * tau / log.sigma[rank - 1], log.sigma[rank] / last]
    w, s = (torch.from_numpy(x) for x in (log.w, log.s))
    eye = lam * torch.eye(dim, dtype=torch.float64)

    def sweep(q: Tensor) -> Tensor:
        p = s @ q @ torch.linalg.inv(q.T @ q + log.items * eye)
        wp = w[:, None] * p
        return s.T @ wp @ torch.linalg.inv(p.T @ wp + w.sum() * eye)

    q = closed_form(log.matrix, log.loss(lam), dim, **TIGHT)[1]
    assert torch.allclose(sweep(q), q, atol=1e-9)
    derivative = torch.func.jacrev(sweep)(q).reshape(q.numel(), q.numel())
    sizes = np.sort(np.linalg.eigvals(derivative.numpy()).real)[::-1]
    turns = rank * (rank - 1) // 2 + rank * (dim - rank)
    assert np.allclose(sizes[:turns], 1, atol=1e-6)
    assert sizes[turns] == pytest.approx(max(x**2 for x in each), rel=1e-6)


# other regularisers ------------------------------------------------------------------------------


def test_plain_l2_is_another_problem_whose_conditions_als_meets() -> None:
    """|W (S - O)|_2 <= lam and <W (S - O), O> = lam |O|_*: the nuclear norm of O is charged."""
    log = random_log(weighted=True)
    lam = 0.25 * float(np.linalg.norm(log.w[:, None] * log.s, 2))
    loss = log.loss(lam, nu=0.0)
    p, q = als(log, loss, 20, 800)
    o = (p @ q.T).numpy()
    rest, nuclear = log.w[:, None] * (log.s - o), np.linalg.norm(o, "nuc")
    assert nuclear > 1
    assert np.linalg.norm(rest, 2) <= lam * (1 + 1e-6)
    assert (rest * o).sum() == pytest.approx(lam * nuclear, rel=1e-6)

    start, least = log.value(loss, 0 * p, 0 * q), log.value(loss, p, q)
    for other in np.geomspace(0.02, 1, 40) * log.sigma[0] / log.tau(1.0):
        o_svd = scores(closed_form(log.matrix, log.loss(float(other)), 20))
        u, sigma, v = np.linalg.svd(o_svd.numpy(), full_matrices=False)
        balanced = torch.from_numpy(u * sigma**0.5), torch.from_numpy(v.T * sigma**0.5)
        assert log.value(loss, *balanced) - least > 1e-3 * (start - least)


@pytest.mark.parametrize("case", CASES)
def test_eq_48_is_a_truncated_decomposition_and_its_printed_updates_come_to_it(case: str) -> None:
    """P = (W + lam)^-1 W S Q (Q'Q)^-1, Q = S'W P (P'WP + lam P'P)^-1."""
    log, dim = random_log(**CASES[case]), 4
    lam = float(np.median(log.w))
    p, q = closed = full_matrix_form(log.matrix, lam, dim, **TIGHT)
    w, ws = torch.from_numpy(log.w)[:, None], torch.from_numpy(log.w[:, None] * log.s)
    q = random(log.items, dim)
    for _ in range(3000):
        p = (ws @ q) @ torch.linalg.inv(q.T @ q) / (w + lam)
        q = ws.T @ p @ torch.linalg.inv(p.T @ (w * p) + lam * p.T @ p)
    assert torch.allclose(p @ q.T, closed[0] @ closed[1].T, atol=1e-7)

    p, q = free(*closed)
    assert slope(log.dense(p, q) + lam * (p @ q.T).square().sum(), [p, q]) < 1e-8
    sigma = np.linalg.svd((log.w / (log.w + lam))[:, None] ** 0.5 * log.half, compute_uv=False)
    least = (log.half**2).sum() - (sigma[:dim] ** 2).sum()
    found = log.dense(*closed) + lam * scores(closed).square().sum()
    assert found.item() == pytest.approx(least)


def test_eq_48_as_a_loss_solves_for_every_user_and_item_as_its_closed_form_has_them() -> None:
    """Each row is the least of sum w (o - S)^2 + lam o^2 over all of its cells, one at a time."""
    log, dim = random_log(items=16, users=25, empty=2, weighted=True), 4
    lam = float(np.median(log.w))
    loss = rg(log.items, alpha=0, lam=0, nu=1, scores=lam)
    assert why_not(loss) is None
    p, q = closed_form(log.matrix, loss, dim, **TIGHT)
    assert torch.equal(p, full_matrix_form(log.matrix, lam, dim, **TIGHT)[0])
    of_users, of_items = log.sides(loss)
    users = solve_exactly(of_users, shared_by_users(loss, q), q)[0]
    items = solve_exactly(of_items, shared_by_items(loss, p, of_items.fixed, q.sum(0)), p)[0]
    for found, rows, other, s, w in (
        (users, p, q, log.s, np.repeat(log.w[:, None], log.items, 1)),
        (items, q, p, log.s.T, np.repeat(log.w[None, :], log.items, 0)),
    ):
        assert torch.allclose(found, rows, atol=1e-6)
        for x in range(len(rows)):
            left, right = np.zeros((dim, dim)), np.zeros(dim)
            for y in range(len(other)):
                one = other[y].numpy()
                left += (w[x, y] + lam) * np.outer(one, one)
                right += w[x, y] * s[x, y] * one
            assert np.allclose(np.linalg.solve(left, right), found[x].numpy(), atol=1e-6)


def test_eq_48_takes_no_printed_interaction_and_no_alpha() -> None:
    full = {"lam": 0, "nu": 1, "scores": 0.1}
    assert "exact interaction" in str(
        why_not(rg(20, alpha=0, beta=0.5, interaction="frobenius", **full))
    )
    assert "alpha above 0" in str(why_not(rg(20, alpha=0.1, **full)))


# the interaction of RGx --------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.3, *slow(1.0)])
@pytest.mark.parametrize("case", CASES)
def test_exact_rgx_has_the_minimiser_of_rg2(case: str, beta: float) -> None:
    log, dim = random_log(**CASES[case]), 5
    lam = log.lam(4.5)
    loss = log.loss(lam, beta=beta)
    p, q = free(*closed_form(log.matrix, loss, dim, **TIGHT))
    assert q.sum(0).abs().max() < 1e-9
    assert slope(log.dense(p, q, beta=beta) + log.reg(p, q, lam), [p, q]) < 1e-8
    assert log.value(loss, p, q) == pytest.approx(log.least(lam, dim), rel=1e-6)

    start, least = log.total.sum() / 2, log.least(lam, dim)
    found = als(log, loss, dim, 600)
    assert abs(log.value(loss, *found) - least) < 1e-5 * (start - least)
    assert (scores(found) - p @ q.T).norm() < 0.01 * (p @ q.T).norm()


def test_exact_rgx_has_another_minimiser_once_alpha_is_above_zero() -> None:
    log, alpha, lam = random_log(), 0.05, 0.05
    loss = log.loss(lam, alpha=alpha)
    p, q = free(*als(log, loss, 5, 1500))
    of_users, of_items = log.sides(loss)
    rows = of_users.reg @ p.square().sum(1) + of_items.reg @ q.square().sum(1)
    assert slope(log.dense(p, q, alpha=alpha) + rows, [p, q]) < 1e-4
    rows = of_users.reg @ p.square().sum(1) + of_items.reg @ q.square().sum(1)
    assert slope(log.dense(p, q, alpha=alpha, beta=0.5) + rows, [p, q]) > 1e-2


def test_exact_rgx_has_another_minimiser_if_items_have_regularisers_of_their_own() -> None:
    log = random_log()
    loss = log.loss(log.lam(4.5))
    of_users, of_items = log.sides(loss)
    counts = torch.from_numpy(log.c.sum(0) + 1)
    own = of_items.reg * counts / counts.mean()
    p, q = free(*als(log, loss, 5, 600, items_reg=own))
    slopes = []
    for beta in (0.0, 0.5):
        rows = of_users.reg @ p.square().sum(1) + own @ q.square().sum(1)
        slopes.append(slope(log.dense(p, q, beta=beta) + rows, [p, q]))
    assert slopes[0] < 1e-5
    assert slopes[1] > 1e-2


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_printed_rgx_is_rg2_with_both_factors_over_the_root_of_one_minus_beta(beta: float) -> None:
    log, dim = random_log(), 5
    lam = log.lam(4.5)
    loss = log.loss(lam, beta=beta, interaction="frobenius")
    p, q = closed_form(log.matrix, loss, dim, **TIGHT)
    plain = closed_form(log.matrix, log.loss(lam), dim, **TIGHT)
    assert torch.allclose((1 - beta) * p @ q.T, plain[0] @ plain[1].T, atol=1e-9)

    p, q = free(p, q)
    less = beta * (torch.from_numpy(log.w) @ (p @ q.T).square().sum(1))
    assert slope(log.dense(p, q) - less + log.reg(p, q, lam), [p, q]) < 1e-7
    start = log.total.sum() / 2
    least = start - (start - log.least(lam, dim)) / (1 - beta)
    assert log.value(loss, p, q) == pytest.approx(least, rel=1e-6)
    assert abs(log.value(loss, *als(log, loss, dim)) - least) < 1e-5 * (start - least)


# what has no closed form -------------------------------------------------------------------------

WITHOUT = {
    "alpha": (rg(20, alpha=0.1, lam=0.1, nu=1), "alpha"),
    "l2": (rg(20, alpha=0, lam=0.1, nu=0), "nuclear"),
    "frequency": (rg(20, alpha=0, lam=0.1, nu=0.5), "nuclear"),
    "sampled": (rg(20, alpha=0, lam=0.1, nu=1, sampled=7), "sampled"),
    "ials": (ials(20, alpha=0.1, lam=0.1, nu=1), "iALS"),
    "unbounded": (
        replace(rg(20, alpha=0, lam=0.1, nu=1), beta=1.0, frobenius=True),
        "no minimum",
    ),
    "beta": (replace(rg(20, alpha=0, lam=0.1, nu=1), beta=1.1), "no minimum"),
    "foreign": (replace(rg(20, alpha=0, lam=0.1, nu=1), pull=(0.6, 0)), "not those of RG2"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_loss_without_a_closed_form_is_refused_with_the_reason_and_what_to_do(name: str) -> None:
    loss, word = WITHOUT[name]
    reason = why_not(loss)
    assert reason is not None
    assert word in reason
    with pytest.raises(SoftdexError, match=word) as error:
        closed_form(random_log().matrix, loss, 4)
    assert str(error.value).endswith("Use solver='als'.")


def test_a_loss_with_a_closed_form_has_no_reason_against_it() -> None:
    for loss in (
        rg(20, alpha=0, lam=0.1, nu=1),
        rg(20, alpha=0, lam=0.0, nu=0),
        rg(20, alpha=0, lam=0.1, nu=1, beta=1),
        rg(20, alpha=0, lam=0.1, nu=1, beta=0.9, interaction="frobenius"),
        rg(20, alpha=0, lam=0.1, nu=1, sampled=19),
    ):
        assert why_not(loss) is None


def test_a_log_with_another_number_of_items_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"21 items, got 20"):
        closed_form(random_log().matrix, rg(21, alpha=0, lam=0.1, nu=1), 4)


# the subspace iteration --------------------------------------------------------------------------


def planted(seed: int) -> Log:
    """Ten groups that keep to their own tenth of the items, with noise."""
    c = random_log(seed, 300, 250, share=0.01).c
    own = np.arange(300)[:, None] % 10 == np.arange(250) % 10
    c[own & (np.random.default_rng(seed).random(own.shape) < 0.3)] = 1
    return Log(c)


def uneven(seed: int) -> Log:
    """Users whose weights spread over eight decades."""
    c = random_log(seed, 300, 250, share=0.05).c
    return Log(c * 10 ** np.random.default_rng(seed).uniform(0, 8, (300, 1)))


WORLDS: dict[str, Callable[[int], Log]] = {
    "flat": lambda seed: random_log(seed, 300, 250, share=0.05),
    "wide": lambda seed: random_log(seed, 150, 400, share=0.05),
    "planted": planted,
    "uneven": uneven,
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dim", [64, *slow(1, 16, 200)])
def test_in_float32_it_comes_as_low_as_the_dense_decomposition(world: str, dim: int) -> None:
    log = WORLDS[world](dim)
    lam = 0.1 * log.sigma[min(dim, 140)] / log.tau(1.0)
    p, q = closed_form(log.matrix.astype(np.float32), log.loss(lam), dim)
    assert (p.dtype, q.dtype) == (torch.float32, torch.float32)
    p, q = p.double(), q.double()
    found = float(log.dense(p, q) + log.reg(p, q, lam))
    gain = (log.kept(lam, dim) ** 2).sum()
    assert (log.half**2).sum() - found == pytest.approx(gain, rel=1e-6)


def test_the_seed_decides_the_vectors_and_not_the_scores() -> None:
    log = random_log(1, 300, 250, share=0.05)
    loss, matrix = log.loss(log.lam(10.5)), log.matrix.astype(np.float32)
    first, again, other = (closed_form(matrix, loss, 16, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.allclose(first[0] @ first[1].T, other[0] @ other[1].T, atol=1e-3)


def test_one_iteration_is_not_enough_where_the_default_is() -> None:
    log = random_log(0, 300, 250, share=0.05)
    loss = log.loss(log.lam(60.5))
    once, full = (
        log.value(loss, *closed_form(log.matrix, loss, 16, iterations=n)) for n in (1, 30)
    )
    assert once - full > 0.1 * (log.total.sum() / 2 - full)


def test_an_iteration_is_a_chebyshev_polynomial_of_the_squared_singular_values() -> None:
    """Of the first kind and on the interval from 0 to the smallest: below it at most 1."""
    log = random_log()
    _, sigma, v = np.linalg.svd(log.half)
    y, right, e = log.half @ v[:12].T, v[:12].T, sigma[11] ** 2 / 2
    rows = sp.csr_matrix(np.sqrt(log.items / (2 * log.total))[:, None] * log.c)
    found = chebyshev(rows, *(torch.from_numpy(x) for x in (right, y, sigma[:12] ** 2)))
    once = np.polynomial.chebyshev.Chebyshev.basis(DEGREE)(sigma[:12] ** 2 / e - 1)
    assert once[0] > 1e3
    assert np.allclose(found.numpy(), right * once, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dimensions_past_the_rank_are_zero_though_nothing_is_regularised(dtype: type) -> None:
    log = random_log()
    p, q = closed_form(log.matrix.astype(dtype), log.loss(0.0), 25)
    assert (p.shape, q.shape) == ((30, 25), (20, 25))
    assert [int((t.abs().sum(0) > 0).sum()) for t in (p, q)] == [19, 19]
    assert np.allclose((p @ q.T).numpy(), log.s, atol=1e-3)


def test_a_log_without_events_has_all_vectors_at_zero() -> None:
    matrix = sp.csr_matrix((4, 5), dtype=np.float32)
    p, q = closed_form(matrix, rg(5, alpha=0, lam=0.1, nu=1), 3)
    assert (p.shape, q.shape) == ((4, 3), (5, 3))
    assert not p.any()
    assert not q.any()
    assert not full_matrix_form(matrix, 0.0, 3)[0].any()


def test_no_array_of_users_by_items_is_made() -> None:
    """That of this log would take 160 gigabytes."""
    size, rng = 200_000, np.random.default_rng(0)
    at = rng.integers(size, size=(2, 500))
    matrix = sp.csr_matrix((np.ones(500, np.float32), at), shape=(size, size))
    p, q = closed_form(matrix, rg(size, alpha=0, lam=0.0, nu=1), 2, oversample=2, iterations=3)
    assert (p.shape, q.shape) == ((size, 2), (size, 2))
    assert p.isfinite().all()
