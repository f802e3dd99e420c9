"""Train tables by Newton steps: the queries of all users, a loss over them, a regulariser."""

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

from softdex.data.interactions import Interactions
from softdex.encode.history import Mixed
from softdex.encode.table import Table
from softdex.errors import SoftdexError, choose
from softdex.machine import pick_device
from softdex.objective.squared import frequency_reg
from softdex.score.product import Dot
from softdex.solve.closed.newton_cg import (
    PRODUCTS,
    Trust,
    Vectors,
    apart,
    first_trust,
    flat,
    newton_step,
)
from softdex.solve.closed.normal_equations import Quadratic, items_side, row_sums, users_side
from softdex.solve.loop import Probe, Progress, Schedule

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


class Rows(NamedTuple):
    """A sparse matrix, row by row, for products with dense ones."""

    indptr: Tensor
    ids: Tensor
    values: Tensor


class Product(torch.autograd.Function):
    """A x for sparse A and dense x (R, D); A' is at hand, so it has derivatives of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
        """A x."""
        ctx.matrices = transposed, matrix
        values, ids, indptr = matrix.values, matrix.ids, matrix.indptr
        return embedding_bag(
            ids, x, indptr, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        """A' g."""
        return product(given[0].contiguous(), *ctx.matrices), None, None


def product(x: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
    """A x, given A and A'."""
    return Product.apply(x, matrix, transposed)  # type: ignore[no-untyped-call]


def query_of(encoder: Any, log: Interactions, like: Tensor) -> Callable[[Vectors], Tensor]:
    """A function from the tables' vectors to the queries of all users (U, D), as served.

    Of `Mixed` it is share * own + (1 - share) * A items, where A (sparse) takes the mean over the
    last items of each history: nothing is padded. Unlike in a sampled training the target is not
    left out of the mean, because one query meets all items at once, its own history included. So
    part of an event's score is |item|^2 (1 - share) / length, which says nothing about other
    items: what a user has had scores too high, which does not matter where it is masked in serving,
    and a small `lam` or a short history lets the loss be lowered that way instead of by learning.
    """
    share = float(encoder.share) if isinstance(encoder, Mixed) else 1.0
    if share == 1:
        return lambda vectors: vectors["users"]
    recent = log.histories.last(encoder.most)
    weight = (1 - share) / np.maximum(recent.lengths, 1)
    shape = (len(recent), log.num_items)
    mean = sp.csr_matrix((weight[recent.row_of], recent.ids, recent.indptr), shape=shape)
    both = _rows(mean, like), _rows(mean.T.tocsr(), like)
    if share == 0:
        return lambda vectors: product(vectors["items"], *both)
    return lambda vectors: share * vectors["users"] + product(vectors["items"], *both)


def _rows(matrix: sp.csr_matrix, like: Tensor) -> Rows:
    where = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    indptr, ids = (x.to(like.device) for x in where)
    return Rows(indptr, ids, torch.from_numpy(matrix.data).to(like))


class Loss(Protocol):
    """A loss of all events, given all queries (U, D) and items (N, D): a scalar that can be
    differentiated twice. `rg_of_vectors` and `squared_of_vectors` are, their options bound."""

    def __call__(
        self, query: Tensor, items: Tensor, row: Tensor, item: Tensor, *, weight: Tensor | None
    ) -> Tensor:
        """The sum over events (row, item) of this weight."""
        ...


class Penalty(NamedTuple):
    """lam * sum_r total_r^nu |v_r|^2, over own vectors of users (U,) and over items (N,)."""

    users: Tensor
    items: Tensor
    lam: float
    nu: float


def penalty(loss: Quadratic, log: Interactions) -> Penalty:
    """The regulariser that alternating least squares has for the same loss and log."""
    (by_user, by_item), plain = log.confidences, replace(loss, lam=1.0, nu=1.0)
    items = items_side(by_item, row_sums(by_user), plain)
    return Penalty(users_side(by_user, plain).reg, items.reg, loss.lam, loss.nu)


class Settings(NamedTuple):
    """How far a step goes: Hessian products at most; the gradient, beside the largest one met, that
    is as good as 0; and the numbers it is all reckoned in."""

    products: int = PRODUCTS
    tolerance: float = 1e-6
    precision: str = "float32"


class Job(NamedTuple):
    """Tables to be trained by Newton steps; an epoch is one step.

    Attributes:
        encoder: `Mixed`, or any whose queries are its own table `vectors` (`Users`, `FoldIn`).
        scorer: a plain inner product.
        loss: of all queries and items.
        penalty: added to it, on the tables' vectors.
    """

    encoder: Any
    scorer: Dot
    loss: Loss
    penalty: Penalty
    schedule: Schedule
    settings: Settings = Settings()

    def trainer(self, log: Interactions) -> Trainer:
        """The run, ready to start."""
        choose("newton_cg", "precision", self.settings.precision, list(PRECISIONS))
        if not isinstance(self.scorer, Dot) or self.scorer.bias is not None:
            raise SoftdexError("newton_cg: expected a plain dot product as score.")
        nn.ModuleList([self.encoder, self.scorer]).to(pick_device(self.schedule.device))
        return Trainer(self, log)

    def memory(self, log: Interactions) -> int:
        """Events with what is remembered at each to differentiate twice, and in a table's size
        the state, the directions of conjugate gradients and the best epoch."""
        tables = tables_of(self.encoder, self.scorer).values()
        each = PRECISIONS[self.settings.precision].itemsize
        cells, dim = sum(t.weight.numel() for t in tables), self.scorer.items.dim
        history = 32 * len(log) if isinstance(self.encoder, Mixed) else 0
        return 16 * each * cells + (40 + 9 * each * dim) * len(log) + history

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """Nothing beside the loss."""
        return None


def tables_of(encoder: Any, scorer: Dot) -> dict[str, Table]:
    """The tables that the queries and scores depend on: no own vectors where their share is 0."""
    alone = isinstance(encoder, Mixed) and float(encoder.share) == 0
    return {"items": scorer.items} if alone else {"users": encoder.vectors, "items": scorer.items}


class Trainer:
    """All vectors as one flat vector, and the objective as a function of it."""

    updates_all = True

    def __init__(self, job: Job, log: Interactions) -> None:
        self.settings, self.tables = job.settings, tables_of(job.encoder, job.scorer)
        now = {n: t.weight.to(PRECISIONS[job.settings.precision]) for n, t in self.tables.items()}
        self.at = flat(now)
        total = {n: getattr(job.penalty, n).to(self.at) for n in now}
        scale = {n: torch.where(t > 0, t, 1.0)[:, None].expand_as(now[n]) for n, t in total.items()}
        self.scale = flat(scale)
        self.trust, self.value = first_trust(self.at, self.scale), math.nan
        matrix = log.confidences[0]
        row = np.repeat(np.arange(log.num_users), np.diff(matrix.indptr))
        self.events = max(1, matrix.nnz)
        pairs = [
            torch.from_numpy(x.astype(np.int64)).to(self.at.device) for x in (row, matrix.indices)
        ]
        weight = None if log.weight is None else torch.from_numpy(matrix.data).to(self.at)
        query = query_of(job.encoder, log, self.at)

        def objective(flat: Tensor) -> Tensor:
            vectors = apart(flat, now)
            loss = job.loss(query(vectors), vectors["items"], *pairs, weight=weight)
            for name, own in vectors.items():
                loss = loss + frequency_reg(own, total[name], job.penalty.lam, job.penalty.nu)
            return loss

        self.objective = objective

    def state(self) -> dict[str, Tensor]:
        """All vectors, in the precision of the steps, and what the last step handed on."""
        kept = torch.tensor([*self.trust, self.value], dtype=torch.float64)
        return {"vectors": self.at, "trust": kept}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        *trust, self.value = state["trust"].tolist()
        self.at, self.trust = state["vectors"].to(self.at, copy=True), Trust(*trust)
        self._write()

    def searched(self) -> None:
        """Every item is scored."""
        return

    def served(self) -> None:
        """Every item is scored."""
        return

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """One step, and the objective per event after it.

        Nothing changes before its end, so a run that is stopped inside does the step again.
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
        for name, vectors in apart(self.at, like).items():
            self.tables[name].weight.copy_(vectors)
