"""Alternating least squares: all users with the items fixed, then all items with the users fixed.

Each half is a closed form, so solved exactly the loss never rises. With a few steps of conjugate
gradients instead a sweep costs O(events D + (users + items) D^2); it holds nothing beside the
events and the two tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import scipy.sparse as sp
import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.encode.table import Table
from softdex.machine import pick_device
from softdex.score.product import Dot
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import (
    Quadratic,
    Shared,
    Side,
    items_side,
    row_sums,
    shared_by_items,
    shared_by_users,
    users_side,
)
from softdex.solve.closed.rows import eigenbasis, factor, solve_by_cg, solve_exactly, systems_of
from softdex.solve.closed.svd import closed_form
from softdex.solve.loop import Probe, Progress, Schedule


class Job(NamedTuple):
    """Tables of users and items to be solved for; `steps` 0 solves each system exactly."""

    encoder: Any
    scorer: Dot
    loss: Quadratic
    steps: int
    schedule: Schedule

    def trainer(self, log: Interactions) -> Sweeps:
        """The run, ready to start."""
        device = pick_device(self.schedule.device)
        self.encoder.to(device)
        self.scorer.to(device)
        tables = self.encoder.vectors, self.scorer.items
        return Sweeps(*tables, *log.confidences, self.loss, self.steps)

    def memory(self, log: Interactions) -> int:
        """Events from both sides; tables, their turned copies, results, and the best epoch."""
        tables = self.encoder.vectors.weight.nbytes + self.scorer.items.weight.nbytes
        return 60 * len(log) + 4 * tables

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """Nothing beside the loss."""
        return None


class Sweeps:
    """Users and items in turn, in place."""

    updates_all = True

    def __init__(
        self,
        users: Table,
        items: Table,
        by_user: sp.csr_matrix,
        by_item: sp.csr_matrix,
        loss: Quadratic,
        steps: int,
    ) -> None:
        self.users, self.items, self.loss, self.steps = users, items, loss, steps
        device = users.weight.device
        self.of_users = users_side(by_user, loss).to(device)
        self.of_items = items_side(by_item, row_sums(by_user), loss).to(device)
        self.events = max(1, by_user.nnz)

    def state(self) -> dict[str, Tensor]:
        """Both tables."""
        return {"users": self.users.weight, "items": self.items.weight}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to saved tables."""
        self.users.weight.copy_(state["users"])
        self.items.weight.copy_(state["items"])

    def searched(self) -> None:
        """Every item is scored."""
        return

    def served(self) -> None:
        """Every item is scored."""
        return

    @torch.no_grad()
    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """The rest of a sweep, and the loss per event after it."""
        if progress.step == 0:
            self.solve_users()
            progress.step = 1
            pause()
        loss = self.solve_items()
        progress.step = 2
        return loss / self.events

    def solve_users(self) -> None:
        """The best users for the items as they are."""
        shared = shared_by_users(self.loss, self.items.weight)
        solve(self.of_users, shared, self.users, self.items, self.steps)

    def solve_items(self) -> float:
        """The best items for the users as they are, and the loss they come to."""
        loss, users, side = self.loss, self.users, self.of_items
        coupled = loss.beta > 0 and not loss.frobenius
        total = self.items.weight.sum(0)
        if coupled and self.steps == 0:
            total = _coupled_sum(loss, side, users.weight)
        bound = users.weight @ total
        shared = shared_by_items(loss, users.weight, side.fixed, total)
        value = solve(side, shared, self.items, users, self.steps)
        if coupled:  # the sum was taken as it had been: what the bound is above the loss
            sums = users.weight @ self.items.weight.sum(0)
            value += (loss.beta / loss.items) * (side.fixed * sums * (2 * bound - sums)).sum()
            if self.steps > 0:
                value += self._shift(sums - bound)
        value += (self.of_users.reg * users.weight.square().sum(1)).double().sum()
        value += loss.centre**2 * loss.items * side.fixed.double().sum()
        return float(value)

    def _shift(self, moved: Tensor) -> Tensor:
        """Move all items alike to where the loss is least, and by how much it falls.

        With their sum taken as it had been, the items follow its change (P s - P s_old, `moved`)
        slowly; along a shift m of them all the loss is a small quadratic, here as if each row had
        been solved exactly:

            ((1 - beta) N G + sum_events a p p' + sum_y reg_y) m = beta P' diag(w) moved
        """
        loss, p, fixed = self.loss, self.users.weight, self.of_items.fixed
        events = torch.segment_reduce(self.of_users.extra, "sum", offsets=self.of_users.indptr)
        weight = (1 - loss.beta) * loss.items * fixed + events
        left = ((p * weight[:, None]).T @ p).double()
        left.diagonal().add_(self.of_items.reg.double().sum())
        right = loss.beta * (p.T @ (fixed * moved)).double()
        shift = torch.linalg.pinv(left, hermitian=True) @ right  # 0 where nothing weighs on it
        self.items.weight += shift.to(p.dtype)
        return -(shift @ right)


def solve(side: Side, shared: Shared, rows: Table, fixed: Table, steps: int) -> Tensor:
    """Solve a side in place, and sum what its rows add to the loss.

    The fixed table is turned into the eigenbasis of its Gram matrix, and the solved one comes out
    in it: the scores do not notice.
    """
    if steps == 0:
        rows.weight, parts = solve_exactly(side, shared, fixed.weight)
    else:
        values, basis = eigenbasis(shared)
        fixed.weight = fixed.weight @ basis
        rows.weight, parts = solve_by_cg(side, values, shared.pull @ basis, fixed.weight, steps)
    return parts.double().sum()


def _coupled_sum(loss: Quadratic, side: Side, users: Tensor) -> Tensor:
    """The sum of the items that exact RGx comes to, when all items are solved together:

    (I - (beta / N) (sum_y A_y^-1) G) s = sum_y A_y^-1 b_y
    """
    none = torch.zeros_like(users[0])
    shared = shared_by_items(loss, users, side.fixed, none)
    inverse, plain = none.new_zeros(len(none), len(none)).double(), none.double()
    for _, systems, b in systems_of(side, shared, users):
        each = torch.cholesky_inverse(factor(systems))
        inverse += each.sum(0)
        plain = plain + (each @ b[:, :, None]).sum(0)[:, 0]
    left = torch.eye(len(none), dtype=torch.float64, device=users.device)
    left -= (loss.beta / loss.items) * inverse @ shared.gram.double()
    # without a regulariser the sum is free where beta is 1: the least sum then
    return (torch.linalg.pinv(left, atol=1e-6) @ plain).to(users.dtype)


def initial(log: Interactions, loss: Quadratic, dim: int, seed: int) -> tuple[FoldIn, Dot]:
    """Encoder and scorer to start from: items are sums of random codes of their users.

    Items had by the same users start alike, which saves about a sweep.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(log.num_users, dim, generator=generator) / dim**0.5
    items = torch.from_numpy(log.confidences[1] @ codes.numpy())
    return with_fold_in(log, loss, torch.zeros(log.num_users, dim), items)


def closed(log: Interactions, loss: Quadratic, dim: int, seed: int) -> tuple[FoldIn, Dot]:
    """Encoder and scorer at the minimum itself, where there is a closed form of it."""
    return with_fold_in(log, loss, *closed_form(log.confidences[0], loss, dim, seed=seed))


def with_fold_in(
    log: Interactions, loss: Quadratic, users: Tensor, items: Tensor
) -> tuple[FoldIn, Dot]:
    """Encoder and scorer of these vectors."""
    scorer = Dot(items)
    total = torch.from_numpy(row_sums(log.confidences[0])).float()
    return FoldIn(users, total, loss.terms(), scorer.items), scorer
