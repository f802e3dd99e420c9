"""Quadratic losses of scores: their values, and that each half-sweep ends at the minimum.

The oracle is a matrix of all scores, weights and targets, with regularisers summed by loops. All
numbers of the tiny log are multiples of powers of 2, so float32 weights are exact ones too.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import softdex as sdx
from softdex.encode.table import Table
from softdex.objective.squared import frequency_reg, squared_of_vectors
from softdex.objective.taylor import rg_of_vectors
from softdex.solve.closed import normal_equations
from softdex.solve.closed.als import Sweeps
from softdex.solve.closed.normal_equations import (
    Quadratic,
    Side,
    from_terms,
    ials,
    items_side,
    objective,
    rg,
    shared_by_items,
    users_side,
)
from softdex.solve.closed.row_systems import solve_exactly

USERS, ITEMS, DIM = 12, 8, 3
LAM = 0.125
KINDS: dict[str, dict[str, Any]] = {
    "ials": {"alpha": 0.25},
    "rg2": {"alpha": 0.0},
    "rg2 alpha": {"alpha": 0.25},
    "rgx exact": {"alpha": 0.0, "beta": 1.0},
    "rgx exact alpha": {"alpha": 0.25, "beta": 0.5},
    "rgx exact alpha whole": {"alpha": 0.25, "beta": 1.0},
    "rgx frobenius": {"alpha": 0.0, "beta": 0.5, "interaction": "frobenius"},
    "rgx frobenius alpha": {"alpha": 0.25, "beta": 0.5, "interaction": "frobenius"},
    "sampled": {"alpha": 0.0, "sampled": 3},
    "sampled alpha rgx": {"alpha": 0.25, "beta": 0.5, "sampled": 1},
}
COUPLED = [kind for kind, options in KINDS.items() if "exact" in kind or "sampled alpha" in kind]
CASES = [(kind, False) for kind in KINDS]  # Eq. 19 has no weights
CASES += [(kind, True) for kind in KINDS if "sampled" not in kind]
REGS = [("l2", 0.0), ("sum_w", 1.0), ("frequency", 0.5)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def log_of(weighted: bool) -> sp.csr_matrix:
    """Confidences; user 4 and item 2 have none."""
    draw = np.random.default_rng(3)
    dense = (draw.random((USERS, ITEMS)) < 0.4).astype(np.float64)
    if weighted:
        dense *= draw.integers(1, 9, dense.shape) / 4
    dense[4] = dense[:, 2] = 0
    return sp.csr_matrix(dense)


def quadratic(kind: str, reg: str = "sum_w", nu: float = 1.0) -> Quadratic:
    make = ials if kind == "ials" else rg
    power = normal_equations.reg_exponent(reg, nu)
    return make(ITEMS, lam=LAM, nu=power, **KINDS[kind])


class Oracle:
    """Return the loss from all scores at once; vectors of rows without weight must be 0."""

    def __init__(self, kind: str, log: sp.csr_matrix, nu: float = 1.0, lam: float = LAM) -> None:
        self.options, self.c = KINDS[kind], torch.from_numpy(log.toarray())
        self.ials, self.lam = kind == "ials", lam
        n, c, alpha = ITEMS, self.c, self.options["alpha"]
        total = c.sum(1, keepdim=True)  # c_x
        if self.ials:  # every cell to 0, events to 1
            self.weight = torch.full_like(c, alpha)
            self.wanted = torch.zeros_like(c)
            self.pulled = c
        else:  # RG2 Eq. 32 for all cells, Eq. 19 for those of sampled negatives; events to 1
            share = (self.options["sampled"] + 1) / n if "sampled" in self.options else 1.0
            self.weight = total / (2 * n) * torch.where(c > 0, 1.0, share)
            self.wanted = torch.where(c > 0, n * c / total, 0.0) - 1
            self.pulled = alpha * c
        whole = self.weight + self.pulled
        self.reg_users, self.reg_items = (
            torch.tensor([lam * float(row.sum()) ** nu for row in table]).double()
            for table in (whole, whole.T)
        )

    def __call__(self, users: Tensor, items: Tensor) -> Tensor:
        o = users @ items.T
        fit = (self.weight * (o - self.wanted) ** 2).sum() + (self.pulled * (o - 1) ** 2).sum()
        w, beta = self.c.sum(1) / (2 * ITEMS), self.options.get("beta", 0.0)
        if "sampled" in self.options:
            w = w * (self.options["sampled"] + 1) / ITEMS
        printed = self.options.get("interaction") == "frobenius"
        mixed = o.square().sum(1) if printed else o.sum(1) ** 2 / ITEMS
        rows = self.reg_users @ users.square().sum(1) + self.reg_items @ items.square().sum(1)
        return fit - beta * (w @ mixed) + rows

    def slope(self, users: Tensor, items: Tensor, of: str) -> float:
        """Return the largest derivative with respect to the vectors of one side."""
        tables = {"users": users.clone().requires_grad_(), "items": items.clone().requires_grad_()}
        value = self(tables["users"], tables["items"])
        return float(torch.autograd.grad(value, tables[of])[0].abs().max())


def double(side: Side) -> Side:
    return Side(*(t.double() if t.is_floating_point() else t for t in side))


def sweeps(log: sp.csr_matrix, loss: Quadratic, items: Tensor, steps: int = 0) -> Sweeps:
    """Prepare the solver in float64, starting from these items."""
    tables = Table(torch.zeros(log.shape[0], items.shape[1]).to(items)), Table(items.clone())
    made = Sweeps(*tables, log, log.T.tocsr(), loss, steps)
    if items.dtype == torch.float64:
        made.of_users, made.of_items = double(made.of_users), double(made.of_items)
    return made


def vectors(run: Sweeps) -> tuple[Tensor, Tensor]:
    return run.users.weight, run.items.weight


def scores(run: Sweeps) -> Tensor:
    return run.users.weight @ run.items.weight.T


def random_vectors(seed: int = 0) -> tuple[Tensor, Tensor]:
    users = normal(USERS, DIM, seed=seed)
    users[4] = 0  # has no events; users without weight are held at 0
    return users, normal(ITEMS, DIM, seed=seed + 1)


# the objective -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reg", "nu"), REGS)
@pytest.mark.parametrize(("kind", "weighted"), CASES)
def test_the_objective_is_the_sum_over_all_users_and_items(
    kind: str, reg: str, nu: float, weighted: bool
) -> None:
    """RG2 Eqs. 31-32, 14, 18-19, and iALS: equal up to the value at 0, which is stated too."""
    log, loss = log_of(weighted), quadratic(kind, reg, nu)
    brute = Oracle(kind, log, nu)
    side, reg_items = double(users_side(log, loss)), brute.reg_items
    totals = np.asarray(log.sum(1)).ravel()
    assert torch.allclose(items_side(log.T.tocsr(), totals, loss).reg.double(), reg_items)

    def ours(users: Tensor, items: Tensor) -> Tensor:
        return objective(loss, side, users, items, reg_items)

    zero = torch.zeros(USERS, DIM).double(), torch.zeros(ITEMS, DIM).double()
    share = 0 if kind == "ials" else (KINDS[kind].get("sampled", ITEMS - 1) + 1) / ITEMS
    assert torch.allclose(ours(*zero), torch.tensor(share * log.sum() / 2))
    for seed in range(3):
        here = random_vectors(seed)
        close = 1e-12 if nu != 0.5 else 1e-6  # roots are not exact in float32
        assert torch.allclose(
            ours(*here) - ours(*zero), brute(*here) - brute(*zero), rtol=close, atol=0
        )


@pytest.mark.parametrize("nu", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "weighted"), [c for c in CASES if "sampled" not in c[0]])
def test_the_objective_is_that_of_the_losses_written_as_functions(
    kind: str, nu: float, weighted: bool
) -> None:
    """[RG-V] or [IALS], with [FREQ] of both sides, less alpha or 1 for each unit of confidence."""
    log, loss = log_of(weighted), quadratic(kind, "frequency", nu)
    users, items = random_vectors()
    coo = log.tocoo()
    row, item = torch.from_numpy(coo.row).long(), torch.from_numpy(coo.col).long()
    c, options = torch.from_numpy(coo.data), dict(KINDS[kind])
    by_user, by_item = c.new_zeros(USERS).index_add(0, row, c), c.new_zeros(ITEMS)
    by_item = by_item.index_add(0, item, c)
    if kind == "ials":
        alpha, constant = options["alpha"], c.sum()
        theirs = squared_of_vectors(users, items, row, item, weight=c, background=alpha)
        rows, columns = alpha * ITEMS + by_user, alpha * USERS + by_item
    else:
        alpha, constant = options["alpha"], options["alpha"] * c.sum()
        theirs = rg_of_vectors(users, items, row, item, weight=c, **options)
        rows, columns = (0.5 + alpha) * by_user, c.sum() / (2 * ITEMS) + alpha * by_item
    regs = [frequency_reg(v, t, LAM, nu) for v, t in ((users, rows), (items, columns))]
    side = double(users_side(log, loss))
    ours = objective(loss, side, users, items, LAM * columns**nu)
    assert torch.allclose(ours + constant, theirs + sum(regs), rtol=1e-12)


def test_weights_of_all_sampled_negatives_are_those_of_rg2() -> None:
    """RG2 Eqs. 18-19 at n = N - 1."""
    cases: list[dict[str, Any]] = [{"alpha": 0.0}, {"alpha": 0.3, "beta": 0.5}]
    for options in cases:
        whole = rg(ITEMS, lam=LAM, nu=1.0, **options)
        assert rg(ITEMS, lam=LAM, nu=1.0, sampled=ITEMS - 1, **options) == whole
        assert rg(ITEMS, lam=LAM, nu=1.0, sampled=ITEMS - 2, **options) != whole


def test_the_objective_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    log, loss = log_of(True), quadratic("rgx exact alpha")
    here = loss, double(users_side(log, loss)), *random_vectors(), normal(ITEMS).abs()
    whole = objective(*here)
    monkeypatch.setattr(normal_equations, "EVENTS_AT_A_TIME", 3)
    assert torch.allclose(objective(*here), whole, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_can_be_written_as_numbers_and_read_again(kind: str) -> None:
    loss = quadratic(kind, "frequency", 0.7)
    assert from_terms(loss.terms()) == loss


@pytest.mark.parametrize(("options", "words"), [
    ({"sampled": 0}, "1 to 7 sampled items, got 0"),
    ({"sampled": 8}, "1 to 7 sampled items, got 8"),
])  # fmt: skip
def test_losses_that_are_none_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"^rg: .*{words}"):
        rg(ITEMS, alpha=0.0, lam=LAM, nu=1.0, **options)


# each half of a sweep ----------------------------------------------------------------------------


@pytest.mark.parametrize(("reg", "nu"), REGS)
@pytest.mark.parametrize(("kind", "weighted"), CASES)
def test_each_half_of_a_sweep_ends_where_the_loss_is_flat(
    kind: str, reg: str, nu: float, weighted: bool
) -> None:
    """RG2 Eqs. 36-37; exact RGx couples the items, and is solved by the sum that they come to."""
    log = log_of(weighted)
    brute, run = Oracle(kind, log, nu), sweeps(log, quadratic(kind, reg, nu), normal(ITEMS, DIM))
    flat = 1e-11 if nu != 0.5 else 1e-5
    assert brute.slope(*vectors(run), "users") > 0.1
    run.solve_users()
    assert brute.slope(*vectors(run), "users") < flat
    assert brute.slope(*vectors(run), "items") > 0.1
    run.solve_items()
    assert brute.slope(*vectors(run), "items") < flat


@pytest.mark.parametrize("kind", ["rg2", "rg2 alpha"])
def test_the_item_step_has_a_minus_where_published_code_has_a_plus(kind: str) -> None:
    """b = (1/2 + alpha) sum p - sum w p (RG2 Eq. 37); with + the loss is higher, and not flat."""
    log = log_of(True)
    brute, run = Oracle(kind, log), sweeps(log, quadratic(kind), normal(ITEMS, DIM))
    run.solve_users()
    users, side = run.users.weight, run.of_items
    shared = shared_by_items(run.loss, users, side.fixed, 0 * users[0])
    assert torch.allclose(shared.pull, -(side.fixed @ users))
    plus = solve_exactly(side, shared._replace(pull=-shared.pull), users)[0]
    run.solve_items()
    assert brute.slope(users, plus, "items") > 0.1
    assert brute(users, plus) > brute(users, run.items.weight) + 0.01


@pytest.mark.parametrize("steps", [0, DIM])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_never_rises(kind: str, steps: int) -> None:
    """Conjugate gradient steps on items of exact RGx lower only a bound, which is enough."""
    log = log_of(weighted="sampled" not in kind)
    brute = Oracle(kind, log)
    run = sweeps(log, quadratic(kind), normal(ITEMS, DIM), steps)
    values = [brute(*vectors(run))]
    for _ in range(12):
        run.solve_users()
        values.append(brute(*vectors(run)))
        run.solve_items()
        values.append(brute(*vectors(run)))
    falls = -torch.stack(values).diff()
    assert (falls > -1e-12).all()
    assert (falls[:4] > 1e-4).all()


@pytest.mark.parametrize("steps", [0, 1, DIM])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_that_a_sweep_reports_is_the_objective(kind: str, steps: int) -> None:
    """Even with too few steps to solve the systems, unless items are coupled."""
    if steps == 1 and kind in COUPLED:
        steps = DIM + 1
    log, loss = log_of(weighted="sampled" not in kind), quadratic(kind)
    run = sweeps(log, loss, normal(ITEMS, DIM), steps)
    for _ in range(3):
        run.solve_users()
        said = run.solve_items()
        users, items = vectors(run)
        value = objective(loss, run.of_users, users, items, run.of_items.reg)
        assert said == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("kind", COUPLED)
def test_quick_steps_of_coupled_items_are_best_along_a_shift_of_them_all(kind: str) -> None:
    """The sum of the items is held fixed, then all items are shifted to the minimum."""
    log = log_of(weighted="sampled" not in kind)
    brute = Oracle(kind, log)
    run = sweeps(log, quadratic(kind), normal(ITEMS, DIM) + 1, DIM)
    for _ in range(2):
        run.solve_users()
        run.solve_items()
        users, items = (t.clone().requires_grad_() for t in vectors(run))
        slopes = torch.autograd.grad(brute(users, items), items)[0]
        assert slopes.sum(0).abs().max() < 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_reported_in_float32_too(kind: str) -> None:
    log, loss = log_of(weighted="sampled" not in kind), quadratic(kind)
    run = sweeps(log, loss, normal(ITEMS, DIM).float(), 4)
    run.solve_users()
    said = run.solve_items()
    assert run.items.weight.dtype == torch.float32
    users, items = (t.double() for t in vectors(run))
    reg = run.of_items.reg.double()
    value = objective(loss, double(run.of_users), users, items, reg)
    assert said == pytest.approx(value.item(), rel=1e-5)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in COUPLED])
def test_conjugate_gradients_take_the_very_steps_of_the_exact_solver(kind: str) -> None:
    """In another basis: both tables are rotated, which leaves the scores unchanged."""
    log = log_of(weighted="sampled" not in kind)
    exact, quick = (sweeps(log, quadratic(kind), normal(ITEMS, DIM), s) for s in (0, DIM))
    for _ in range(3):
        for run in (exact, quick):
            run.solve_users()
            run.solve_items()
        assert torch.allclose(scores(exact), scores(quick), atol=1e-10)
    assert (exact.items.weight - quick.items.weight).abs().max() > 0.1


# RGx and RG2 -------------------------------------------------------------------------------------


def paths(log: sp.csr_matrix, losses: list[Quadratic], items: Tensor, first: str) -> list[Tensor]:
    """Return the scores after each of five sweeps, per loss."""
    found = []
    for loss in losses:
        run, seen = sweeps(log, loss, items), []
        run.users.weight = normal(log.shape[0], items.shape[1], seed=5)
        for _ in range(5):
            halves = [run.solve_users, run.solve_items]
            for half in halves if first == "users" else halves[::-1]:
                half()
            seen.append(scores(run))
        found.append(torch.stack(seen))
    return found


@pytest.mark.parametrize("beta", [0.3, 1.0])
@pytest.mark.parametrize("nu", [0.0, 1.0])
def test_exact_rgx_is_rg2_if_items_are_solved_first_or_start_centred(
    nu: float, beta: float
) -> None:
    """alpha = 0. Otherwise the first users differ, and with them all that follows."""
    log = log_of(True)
    losses = [rg(ITEMS, alpha=0.0, lam=LAM, nu=nu, beta=b) for b in (0.0, beta)]
    items = normal(ITEMS, DIM) + 1
    rg2, rgx = paths(log, losses, items, "items")
    assert torch.allclose(rg2, rgx, atol=1e-10)
    rg2, rgx = paths(log, losses, items - items.mean(0), "users")
    assert torch.allclose(rg2, rgx, atol=1e-10)
    rg2, rgx = paths(log, losses, items, "users")
    assert (rg2[-1] - rgx[-1]).abs().max() > 1e-3


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_items_sum_to_zero_after_each_exact_step(beta: float) -> None:
    """alpha = 0, any users: 1'o = 0, so that the interaction vanishes."""
    log = log_of(True)
    run = sweeps(log, rg(ITEMS, alpha=0.0, lam=LAM, nu=1.0, beta=beta), normal(ITEMS, DIM) + 1)
    for _ in range(3):
        run.solve_users()
        run.solve_items()
        assert run.items.weight.sum(0).abs().max() < 1e-12
        assert run.items.weight.abs().max() > 0.01


@pytest.mark.parametrize(("kind", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_exact_rgx_without_a_regulariser_takes_the_least_sum(
    kind: torch.dtype, close: float
) -> None:
    """alpha = 0, beta = 1: a shift of all items changes nothing, so that any sum would do."""
    log, loss = log_of(True), rg(ITEMS, alpha=0.0, lam=0.0, nu=1.0, beta=1.0)
    run = sweeps(log, loss, (normal(ITEMS, DIM) + 1).to(kind))
    for _ in range(3):
        run.solve_users()
        run.solve_items()
        assert run.items.weight.sum(0).abs().max() < close * run.items.weight.abs().max()


def test_exact_rgx_is_not_rg2_with_alpha() -> None:
    log = log_of(True)
    losses = [rg(ITEMS, alpha=0.25, lam=LAM, nu=0.0, beta=b) for b in (0.0, 1.0)]
    items = normal(ITEMS, DIM)
    rg2, rgx = paths(log, losses, items - items.mean(0), "items")
    assert (rg2[-1] - rgx[-1]).abs().max() > 1e-2


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("nu", [0.0, 1.0])
def test_printed_rgx_is_rg2_rescaled(nu: float, beta: float) -> None:
    """alpha = 0: from scaled items on every sweep, from any after convergence (RG2 Eq. 31)."""
    log, root = log_of(True), (1 - beta) ** 0.5
    plain = rg(ITEMS, alpha=0.0, lam=LAM, nu=nu)
    printed = replace(plain, beta=beta, frobenius=True)
    items = normal(ITEMS, DIM)
    one, other = sweeps(log, plain, items), sweeps(log, printed, items / root)
    for _ in range(3):
        for run in (one, other):
            run.solve_users()
            run.solve_items()
        for mine, theirs in zip(vectors(one), vectors(other), strict=True):
            assert torch.allclose(mine / root, theirs, atol=1e-10)
    one, other = sweeps(log, plain, items), sweeps(log, printed, items)
    for run in (one, other):
        for _ in range(100):
            run.solve_users()
            run.solve_items()
    assert scores(one).abs().max() > 0.5
    assert torch.allclose(scores(one), (1 - beta) * scores(other), atol=1e-7)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_printed_rgx_with_alpha_is_rg2_with_another_alpha_and_target(beta: float) -> None:
    """alpha / (1 - beta), pulled to 1 - beta; the regulariser must not depend on alpha."""
    log, alpha, rest = log_of(True), 0.25, 1 - beta
    printed = rg(ITEMS, alpha=alpha, lam=LAM, nu=0.0, beta=beta, interaction="frobenius")
    other = rg(ITEMS, alpha=alpha / rest, lam=LAM, nu=0.0)
    other = replace(other, pull=(0.5 + alpha / rest * rest, 0.0))
    items = normal(ITEMS, DIM)
    ours, theirs = sweeps(log, printed, items / rest**0.5), sweeps(log, other, items)
    for _ in range(3):
        for run in (ours, theirs):
            run.solve_users()
            run.solve_items()
        assert torch.allclose(rest * scores(ours), scores(theirs), atol=1e-6)  # float32 weights
    assert (rest * scores(ours) - scores(ours)).abs().max() > 0.01
    # that is what the target means: alpha' (o - (1 - beta))^2 at events
    c, (users, columns) = torch.from_numpy(log.toarray()), vectors(theirs)
    zero = torch.zeros_like(users), torch.zeros_like(columns)
    side, none = double(users_side(log, other)), torch.zeros(ITEMS).double()
    w, o = c.sum(1, keepdim=True) / (2 * ITEMS), users @ columns.T
    wanted = torch.where(c > 0, ITEMS * c / c.sum(1, keepdim=True), 0.0) - 1
    brute = [
        (w * (s - wanted) ** 2).sum() + alpha / rest * (c * (s - rest) ** 2).sum()
        for s in (o, 0 * o)
    ]
    values = [objective(other, side, *v, none) for v in ((users, columns), zero)]
    rows = (side.reg * users.square().sum(1)).sum()
    assert torch.allclose(values[0] - values[1] - rows, brute[0] - brute[1], rtol=1e-6)


# implicit ----------------------------------------------------------------------------------------


def implicit_als(**options: Any) -> Any:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # deadlocks with a thread pool
    als = pytest.importorskip("implicit.cpu.als")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about that thread pool
        return als.AlternatingLeastSquares(
            factors=DIM, dtype=np.float64, use_cg=False, num_threads=1, **options
        )


def as_confidences(side: Side, c: Tensor) -> Side:
    """Every cell is drawn to 0 with weight 1, an event to 1 with weight c in its place."""
    return side._replace(weight=torch.ones_like(side.weight), extra=c - 1, pull=c)


def test_a_half_sweep_is_that_of_implicit() -> None:
    """A = Y'Y + sum (c - 1) y y', b = sum c y, with a c for each event."""
    log = log_of(True)
    log.data += 1
    items, users = normal(ITEMS, DIM), normal(USERS, DIM, seed=1)
    theirs = implicit_als(regularization=0.25)
    theirs.user_factors, theirs.item_factors = users.numpy(), items.numpy()
    run = sweeps(log, ials(ITEMS, alpha=1.0, lam=0.25, nu=0.0), items)
    run.of_users = as_confidences(run.of_users, torch.from_numpy(log.data))
    run.of_items = as_confidences(run.of_items, torch.from_numpy(log.T.tocsr().data))
    run.solve_users()
    found = theirs.recalculate_user(np.arange(USERS), log)
    assert np.allclose(run.users.weight.numpy(), found, atol=1e-12)
    run.users.weight = users
    run.solve_items()
    found = theirs.recalculate_item(np.arange(ITEMS), log.T.tocsr())
    assert np.allclose(run.items.weight.numpy(), found, atol=1e-12)


def test_sweeps_are_those_of_implicit_where_all_events_count_alike() -> None:
    """w = 1, a = c - 1, t = c, the constants of one loss; and c / (c - 1) is iALS rescaled."""
    log, c, start = log_of(False), 5.0, normal(ITEMS, DIM)
    theirs = implicit_als(regularization=0.25, iterations=4, alpha=c)
    theirs.user_factors, theirs.item_factors = np.zeros((USERS, DIM)), start.numpy().copy()
    theirs.fit(log, show_progress=False)
    loss = Quadratic((1, 0), (c - 1, 0), (c, 0), 0, 0.25, 0, 0, False, ITEMS)
    run = sweeps(log, loss, start)
    for _ in range(4):
        run.solve_users()
        run.solve_items()
    assert np.allclose(run.users.weight.numpy(), theirs.user_factors, atol=1e-10)
    assert np.allclose(run.items.weight.numpy(), theirs.item_factors, atol=1e-10)
