"""Train tables by Newton steps: a loss over the queries of all users, and a regulariser.

Several ranks take the loss of a block of the users each; all hold all vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from softdex import group
from softdex.data.interactions import Interactions
from softdex.encode.history import Mixed
from softdex.encode.table import Table
from softdex.errors import SoftdexError, choose
from softdex.machine import pick_device
from softdex.messages import say
from softdex.objective.squared import frequency_reg
from softdex.score.product import Dot
from softdex.solve.closed.blocks import edges_by_cost, own_of, rows_of, summed
from softdex.solve.closed.newton_cg import (
    PRODUCTS,
    Trust,
    Vectors,
    first_trust,
    flatten,
    newton_step,
    unflatten,
)
from softdex.solve.closed.normal_equations import Quadratic, items_side, row_sums, users_side
from softdex.solve.loop import Probe, Progress, Schedule

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


class SparseRows(NamedTuple):
    """A sparse matrix in CSR form."""

    indptr: Tensor
    ids: Tensor
    values: Tensor


class _SparseProduct(torch.autograd.Function):
    """A x for sparse A and dense x. A' is given too, so it has derivatives of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseRows, transposed: SparseRows) -> Tensor:
        ctx.matrices = transposed, matrix
        values, ids, indptr = matrix.values, matrix.ids, matrix.indptr
        return embedding_bag(
            ids, x, indptr, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        return sparse_product(given[0].contiguous(), *ctx.matrices), None, None


def sparse_product(x: Tensor, matrix: SparseRows, transposed: SparseRows) -> Tensor:
    """A x for dense x (R, D), given A and A'; differentiable any number of times."""
    return _SparseProduct.apply(x, matrix, transposed)  # type: ignore[no-untyped-call]


class _Copied(torch.autograd.Function):
    """A tensor that all ranks have and read; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return _Summed.apply(given[0])  # type: ignore[no-untyped-call]


class _Summed(torch.autograd.Function):
    """The sum of the ranks' tensors, which all ranks have; its gradient is that of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return summed(x.clone())[0]

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return _Copied.apply(given[0])  # type: ignore[no-untyped-call]


def over_ranks(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The sum of the ranks' losses, as a function of the vector that all have.

    Differentiable twice: value, gradient and Hessian products are the same on all ranks.
    """
    if group.size() == 1:
        return loss
    return lambda x: _Summed.apply(loss(_Copied.apply(x)))  # type: ignore[no-untyped-call]


def share_of(encoder: Any) -> float:
    """The weight of a user's own vector in the query; the rest is the mean of the history."""
    return float(encoder.share) if isinstance(encoder, Mixed) else 1.0


def query_of(
    encoder: Any, log: Interactions, like: Tensor, rows: slice = slice(None)
) -> Callable[[Vectors], Tensor]:
    """The function from the tables' vectors to the queries of these users (U, D), as served.

    For `Mixed` it is share * own + (1 - share) * A items, where the sparse A takes the mean over
    the last items of each history. Unlike in sampled training the target is not excluded from that
    mean: one query meets all items at once, including its own history. So part of an event's score
    is |item|^2 (1 - share) / length, which says nothing about other items. Items of the history
    score too high, which is harmless where serving masks them; but with a small `lam` or short
    histories the loss can be lowered that way instead of by learning.
    """
    share = share_of(encoder)
    if share == 1:
        return lambda vectors: vectors["users"][rows]
    recent = log.histories.last(encoder.most)
    weight = (1 - share) / np.maximum(recent.lengths, 1)
    shape = (len(recent), log.num_items)
    mean = sp.csr_matrix((weight[recent.row_of], recent.ids, recent.indptr), shape=shape)[rows]
    both = _to_tensors(mean, like), _to_tensors(mean.T.tocsr(), like)
    if share == 0:
        return lambda vectors: sparse_product(vectors["items"], *both)
    return lambda vectors: share * vectors["users"][rows] + sparse_product(vectors["items"], *both)


def _to_tensors(matrix: sp.csr_matrix, like: Tensor) -> SparseRows:
    where = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    indptr, ids = (x.to(like.device) for x in where)
    return SparseRows(indptr, ids, torch.from_numpy(matrix.data).to(like))


class LossOfEvents(Protocol):
    """A twice differentiable scalar loss of all events, given all queries and items.

    `rg_of_vectors` and `squared_of_vectors` are, once their options are bound.
    """

    def __call__(
        self, query: Tensor, items: Tensor, row: Tensor, item: Tensor, *, weight: Tensor | None
    ) -> Tensor:
        """Sum over events (row, item) with these weights, for queries (U, D) and items (N, D)."""
        ...


class Penalty(NamedTuple):
    """The regulariser lam * sum_r total_r^nu |v_r|^2 of both tables.

    Attributes:
        users, items: totals of their rows (U,) and (N,).
        lam, nu: strength and exponent.
    """

    users: Tensor
    items: Tensor
    lam: float
    nu: float


def penalty(loss: Quadratic, log: Interactions) -> Penalty:
    """The regulariser that alternating least squares uses for the same loss and log."""
    (by_user, by_item), unit = log.confidences, replace(loss, lam=1.0, nu=1.0)
    items = items_side(by_item, row_sums(by_user), unit)
    return Penalty(users_side(by_user, unit).reg, items.reg, loss.lam, loss.nu)


class NewtonSettings(NamedTuple):
    """How precisely steps are solved.

    Attributes:
        products: Hessian products per step, at most.
        tolerance: stop once the gradient is this small relative to the largest one so far.
        precision: `float32` or `float64`.
    """

    products: int = PRODUCTS
    tolerance: float = 1e-6
    precision: str = "float32"


class Newton(NamedTuple):
    """The job of training tables by Newton steps; an epoch is one step.

    Attributes:
        encoder: `Mixed`, or any encoder whose queries are rows of its own table `vectors`.
        scorer: an inner product without bias.
        loss: of all queries and items.
        penalty: added to it.
        schedule: number of steps, patience and device.
        settings: how precisely steps are solved.
    """

    encoder: Any
    scorer: Dot
    loss: LossOfEvents
    penalty: Penalty
    schedule: Schedule
    settings: NewtonSettings = NewtonSettings()

    def trainer(self, log: Interactions) -> NewtonSteps:
        """Start a run; the tables move to its device."""
        choose("newton_cg", "precision", self.settings.precision, list(PRECISIONS))
        if not isinstance(self.scorer, Dot) or self.scorer.bias is not None:
            raise SoftdexError("newton_cg: expected a plain dot product as score.")
        nn.ModuleList([self.encoder, self.scorer]).to(pick_device(self.schedule.device))
        return NewtonSteps(self, log)

    def memory(self, log: Interactions) -> int:
        """Bytes at the peak.

        Per event of the rank, what automatic differentiation keeps to differentiate twice; in
        multiples of the tables, the state, the directions of conjugate gradients and the best
        epoch.
        """
        tables = tables_of(self.encoder, self.scorer).values()
        each = PRECISIONS[self.settings.precision].itemsize
        cells, dim = sum(t.weight.numel() for t in tables), self.scorer.items.dim
        history = 32 * len(log) if share_of(self.encoder) < 1 else 0
        events = (40 + 9 * each * dim) * len(log) + history
        return 16 * each * cells + events // group.size()

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """Report nothing but the loss."""
        return None


def tables_of(encoder: Any, scorer: Dot) -> dict[str, Table]:
    """The tables that scores depend on, by name; without "users" if their share is 0."""
    own = {"users": encoder.vectors} if share_of(encoder) > 0 else {}
    return own | {"items": scorer.items}


class NewtonSteps:
    """All vectors as one flat vector, and the objective as a function of it."""

    updates_all = True
    unit = "step"

    def __init__(self, job: Newton, log: Interactions) -> None:
        self.settings, self.tables = job.settings, tables_of(job.encoder, job.scorer)
        now = {n: t.weight.to(PRECISIONS[job.settings.precision]) for n, t in self.tables.items()}
        self.at = flatten(now)
        total = {n: getattr(job.penalty, n).to(self.at) for n in now}
        scale = {n: torch.where(t > 0, t, 1.0)[:, None].expand_as(now[n]) for n, t in total.items()}
        self.scale = flatten(scale)
        self.trust, self.value = first_trust(self.at, self.scale), math.nan
        by_user, by_item = log.confidences
        blocks = {
            "users": own_of(edges_by_cost(by_user.indptr)),
            "items": own_of(edges_by_cost(by_item.indptr)),
        }
        matrix = rows_of(by_user, blocks["users"])
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        self.events = max(1, by_user.nnz)
        pairs = [
            torch.from_numpy(x.astype(np.int64)).to(self.at.device) for x in (row, matrix.indices)
        ]
        weight = None if log.weight is None else torch.from_numpy(matrix.data).to(self.at)
        query = query_of(job.encoder, log, self.at, blocks["users"])
        if group.size() > 1:
            say(f"users in {group.size()} blocks, one per rank; all have both tables")

        def objective(flat: Tensor) -> Tensor:
            vectors = unflatten(flat, now)
            loss = job.loss(query(vectors), vectors["items"], *pairs, weight=weight)
            for name in vectors:
                own = vectors[name][blocks[name]], total[name][blocks[name]]
                loss = loss + frequency_reg(*own, job.penalty.lam, job.penalty.nu)
            return loss

        self.objective = over_ranks(objective)

    def state(self) -> dict[str, Tensor]:
        """All vectors in the precision of the steps, and what the last step handed on."""
        kept = torch.tensor([*self.trust, self.value], dtype=torch.float64)
        return {"vectors": self.at, "trust": kept}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a saved state."""
        *trust, self.value = state["trust"].tolist()
        self.at, self.trust = state["vectors"].to(self.at, copy=True), Trust(*trust)
        self._write()

    def so_far(self, progress: Progress) -> tuple[float, None]:
        """Nothing of a step counts before its end."""
        return 0.0, None

    def searched(self) -> None:
        """Every item is scored."""
        return

    def served(self) -> None:
        """Serve without an index: every item is scored."""
        return

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """Take one step, and return the objective per event after it.

        Nothing changes before its end, so a run that is stopped inside repeats the step.
        """
        if progress.step == 0:
            self.at, found = newton_step(
                self.objective,
                self.at,
                self.scale,
                self.trust,
                products=self.settings.products,
                tolerance=self.settings.tolerance,
                pause=pause,
            )
            self.trust, self.value = found.trust, found.loss
            self._write()
            progress.step = 1
            pause()
        return self.value / self.events

    @torch.no_grad()
    def _write(self) -> None:
        like = {n: t.weight for n, t in self.tables.items()}
        for name, vectors in unflatten(self.at, like).items():
            self.tables[name].weight.copy_(vectors)
