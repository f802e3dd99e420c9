"""Alternating least squares: solve for all users with the items fixed, then the other way round.

Each half-sweep has a closed form; solved exactly, it never raises the loss. With a few steps of
conjugate gradients instead, a sweep costs O(events D + (users + items) D^2) and holds nothing but
the events and the two tables.

Several ranks solve a block of the users and a block of the items each. What all systems share is
summed over the ranks; the side that is held fixed goes to all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import scipy.sparse as sp
import torch
from torch import Tensor

from softdex import group
from softdex.data.interactions import Interactions
from softdex.encode.table import Table
from softdex.errors import SoftdexError
from softdex.machine import pick_device
from softdex.messages import say
from softdex.score.product import Dot
from softdex.solve.closed.blocks import (
    Blocks,
    agreed,
    edges_by_cost,
    joined,
    own_of,
    rows_of,
    summed,
)
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
from softdex.solve.closed.row_systems import (
    eigenbasis,
    factor,
    solve_by_cg,
    solve_exactly,
    systems_of,
)
from softdex.solve.closed.svd import closed_form
from softdex.solve.loop import Probe, Progress, Schedule


class Alternating(NamedTuple):
    """The job of training a user table and an item table by alternating least squares.

    Attributes:
        encoder: holds the user table `vectors`.
        scorer: holds the item table.
        loss: what is minimised.
        steps: of conjugate gradients per system; 0 solves each system exactly.
        schedule: number of sweeps, patience and device.
    """

    encoder: Any
    scorer: Dot
    loss: Quadratic
    steps: int
    schedule: Schedule

    def trainer(self, log: Interactions) -> Sweeps:
        """Start a run; the tables move to its device."""
        device = pick_device(self.schedule.device)
        self.encoder.to(device)
        self.scorer.to(device)
        tables = self.encoder.vectors, self.scorer.items
        return Sweeps(*tables, *log.confidences, self.loss, self.steps)

    def memory(self, log: Interactions) -> int:
        """Bytes at the peak: both orientations of the log, and four copies of the tables.

        The tables themselves, in the eigenbasis, the solutions, and those of the best epoch. A rank
        holds all of the log and of the tables, but systems and solutions of its own blocks only.
        """
        tables = self.encoder.vectors.weight.nbytes + self.scorer.items.weight.nbytes
        shared, own = 16 * len(log) + 2 * tables, 44 * len(log) + 2 * tables
        return shared + own // group.size()

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """Report nothing but the loss."""
        return None


class Sweeps:
    """Solve for users and items in turn, in place."""

    updates_all = True
    unit = "sweep"

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
        self.user_blocks = Blocks(users, by_user.indptr)
        self.item_blocks = Blocks(items, by_item.indptr)
        device = users.weight.device
        own_users, own_items = self.user_blocks.rows, self.item_blocks.rows
        self.of_users = users_side(rows_of(by_user, own_users), loss).to(device)
        of_items = items_side(rows_of(by_item, own_items), row_sums(by_user), loss)
        self.of_items = of_items.to(device)
        self.events = max(1, by_user.nnz)
        if group.size() > 1:
            say(f"users and items in {group.size()} blocks, one per rank; all have both tables")

    def state(self) -> dict[str, Tensor]:
        """Both tables, by name."""
        return {"users": self.users.weight, "items": self.items.weight}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the tables of a saved state."""
        self.users.weight.copy_(state["users"])
        self.items.weight.copy_(state["items"])

    def so_far(self, progress: Progress) -> tuple[float, None]:
        """Half a sweep is one side."""
        return progress.step / 2, None

    def searched(self) -> None:
        """Every item is scored."""
        return

    def served(self) -> None:
        """Serve without an index: every item is scored."""
        return

    @torch.no_grad()
    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """Run the rest of a sweep, and return the loss per event after it.

        With several ranks it does not pause in the middle, where they hold their own users only.
        """
        if progress.step == 0:
            self.solve_users()
            progress.step = 1
            if group.size() == 1:
                pause()
        loss = self.solve_items()
        progress.step = 2
        return loss / self.events

    def solve_users(self) -> None:
        """Replace the users by the minimiser for fixed items."""
        shared = shared_by_users(self.loss, self.item_blocks.own, summed)
        solve_side(self.of_users, shared, self.user_blocks, self.item_blocks, self.steps)

    def solve_items(self) -> float:
        """Replace the items by the minimiser for fixed users, and return the loss there."""
        loss, side, own = self.loss, self.of_items, self.user_blocks.rows
        coupled = loss.beta > 0 and not loss.frobenius
        (total,) = summed(self.item_blocks.own.sum(0))
        if coupled and self.steps == 0:
            total = self._coupled_sum()
        fixed, bound = side.fixed[own], self.user_blocks.own @ total
        shared = shared_by_items(loss, self.user_blocks.own, fixed, total, summed)
        value = solve_side(side, shared, self.item_blocks, self.user_blocks, self.steps)
        users, shifted = self.user_blocks.own, torch.zeros_like(value)
        if coupled:  # the sum of the items was held fixed: from the bound to the loss
            (total,) = summed(self.item_blocks.own.sum(0))
            sums = users @ total
            value += (loss.beta / loss.items) * (fixed * sums * (2 * bound - sums)).sum()
            if self.steps > 0:
                shifted = self._shift(sums - bound)
        value += (self.of_users.reg * users.square().sum(1)).double().sum()
        value += loss.centre**2 * loss.items * fixed.double().sum()
        self.item_blocks.share(self.item_blocks.own)
        return float(summed(value)[0] + shifted)

    def _shift(self, moved: Tensor) -> Tensor:
        """Shift all items by the vector that minimises the loss, and return the change of the loss.

        With their sum held fixed, the items follow its change (P s - P s_old, `moved`) slowly.
        Along a common shift m the loss is a small quadratic, here as if each row had been solved
        exactly:

            ((1 - beta) N G + sum_events a p p' + sum_y reg_y) m = beta P' diag(w) moved
        """
        loss, p, fixed = self.loss, self.user_blocks.own, self.of_items.fixed[self.user_blocks.rows]
        events = torch.segment_reduce(self.of_users.extra, "sum", offsets=self.of_users.indptr)
        weight = (1 - loss.beta) * loss.items * fixed + events
        left = ((p * weight[:, None]).T @ p).double()
        left.diagonal().add_(self.of_items.reg.double().sum())
        left, right = summed(left, loss.beta * (p.T @ (fixed * moved)).double())
        (shift,) = agreed(torch.linalg.pinv(left, hermitian=True) @ right)  # 0 where it is flat
        self.item_blocks.keep(self.item_blocks.own + shift.to(p.dtype))
        return -(shift @ right)

    def _coupled_sum(self) -> Tensor:
        """The sum s of the items at the minimum of exact RGx over all items at once:

        (I - (beta / N) (sum_y A_y^-1) G) s = sum_y A_y^-1 b_y
        """
        self.user_blocks.share(self.user_blocks.own)
        loss, side, users = self.loss, self.of_items, self.users.weight
        zero, own = torch.zeros_like(users[0]), self.user_blocks.rows
        shared = shared_by_items(loss, users[own], side.fixed[own], zero, summed)
        inverse, right = zero.new_zeros(len(zero), len(zero)).double(), zero.double()
        for _, systems, b in systems_of(side, shared, users):
            each = torch.cholesky_inverse(factor(systems))
            inverse += each.sum(0)
            right = right + (each @ b[:, :, None]).sum(0)[:, 0]
        inverse, right = summed(inverse, right)
        left = torch.eye(len(zero), dtype=torch.float64, device=users.device)
        left -= (loss.beta / loss.items) * inverse @ shared.gram.double()
        # without a regulariser and with beta = 1 the sum is undetermined: take the smallest
        (total,) = agreed((torch.linalg.pinv(left, atol=1e-6) @ right).to(users.dtype))
        return total


def solve_side(side: Side, shared: Shared, rows: Blocks, fixed: Blocks, steps: int) -> Tensor:
    """Solve this rank's block of one side, and return the sum of its rows' parts of the loss.

    With conjugate gradients both tables are rotated into the eigenbasis of the fixed table's Gram
    matrix, which leaves all scores as they are.

    Args:
        side: the events and weights of the block's rows.
        shared: what the systems of all rows share.
        rows: the table solved for.
        fixed: the other table; all ranks get all of it.
        steps: of conjugate gradients; 0 solves exactly.
    """
    if steps == 0:
        fixed.share(fixed.own)
        found, parts = solve_exactly(side, shared, fixed.table.weight)
    else:
        values, basis = agreed(*eigenbasis(shared))
        fixed.share(fixed.own @ basis)
        found, parts = solve_by_cg(side, values, shared.pull @ basis, fixed.table.weight, steps)
    rows.keep(found)
    return parts.double().sum()


def initial(log: Interactions, loss: Quadratic, dim: int, seed: int) -> tuple[FoldIn, Dot]:
    """Encoder and scorer to start from: each item is the sum of random codes of its users.

    Items with the same users start alike, which saves about a sweep.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(log.num_users, dim, generator=generator) / dim**0.5
    by_item = log.confidences[1]
    edges = edges_by_cost(by_item.indptr)
    items = torch.from_numpy(rows_of(by_item, own_of(edges)) @ codes.numpy())
    return with_fold_in(log, loss, torch.zeros(log.num_users, dim), joined(items, edges))


def from_svd(log: Interactions, loss: Quadratic, dim: int, seed: int) -> tuple[FoldIn, Dot]:
    """Encoder and scorer at the minimum, for losses with a closed form over users and items."""
    return with_fold_in(log, loss, *closed_form(log.confidences[0], loss, dim, seed=seed))


def with_fold_in(
    log: Interactions, loss: Quadratic, users: Tensor, items: Tensor
) -> tuple[FoldIn, Dot]:
    """Encoder and scorer with these user vectors (U, D) and item vectors (N, D)."""
    scorer = Dot(items)
    total = torch.from_numpy(row_sums(log.confidences[0])).float()
    try:
        return FoldIn(users, total, loss.terms(), scorer.items), scorer
    except ValueError:
        raise SoftdexError(
            "least squares: the weights of the loss lie beyond 2e9. Scale the weights of the log "
            "down (weight=), or choose less extreme options."
        ) from None
