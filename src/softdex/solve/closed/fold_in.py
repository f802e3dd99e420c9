"""Fold-in: vectors of users and items that were not in training, by the equations of training."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from softdex.data.ragged import Ragged
from softdex.encode.table import Table
from softdex.encode.terms import Terms, as_double
from softdex.encode.version import Version
from softdex.shapes import (
    DOUBLES,
    FLOATS,
    Layout,
    Sizes,
    Tensors,
    arguments,
    check_made,
    kept,
    moderate,
    most_of,
)
from softdex.solve.closed.normal_equations import (
    Shared,
    from_terms,
    items_side,
    row_sums,
    shared_by_items,
    shared_by_users,
    users_side,
)


@final
class FoldIn(nn.Module):
    """Encode a user as their trained vector, or solve for one from their history.

    Args:
        vectors: user vectors (U, D).
        total: each user's summed confidence (U,).
        terms: the loss, as `Quadratic.terms` returns it.
        items: the scorer's item table.
    """

    tensors: ClassVar[Layout] = {
        "vectors.weight": (FLOATS, "UD"),
        "total": (FLOATS, "U"),
        "terms": (DOUBLES, "T"),
    }
    reads_items = True
    reads_history = True
    answers_strangers = False
    history_first = True
    total: Tensor
    terms: Tensor

    def __init__(self, vectors: Tensor, total: Tensor, terms: Tensor, items: Table) -> None:
        super().__init__()
        self.vectors = Table(vectors)
        self.register_buffer("total", total)
        self.register_buffer("terms", terms)
        self.items = items
        self.loss = from_terms(terms)
        self.query_bytes = 4 * self.vectors.dim
        self._shared: tuple[Version, Shared] | None = None  # for one version of the items

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse a loss without a minimum, totals below 0, and numbers that could overflow."""
        from_terms(tensors["terms"])
        moderate({"vectors.weight": tensors["vectors.weight"]}, sizes)
        check_made("the encoder", most_of(tensors["total"]))
        if bool((tensors["total"] < 0).any()):
            raise ValueError("encoder.total holds numbers below 0")

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Queries (B, D): each user's trained vector; for -1, one solved from the history."""
        weight = self.vectors.weight
        rows = torch.as_tensor(users, device=weight.device)
        query = self.vectors(rows)
        new = np.flatnonzero(rows.cpu().numpy() < 0)
        if len(new) and history is not None:
            query = query.clone()
            events = self._events(history.take(new))
            query[torch.from_numpy(new).to(weight.device)] = self.new_users(events)
        return query

    @torch.no_grad()
    def summands(self, user: int, history: Ragged) -> Terms:
        """Return the terms of one user's query, through the inverse A of their normal matrix:

            query = A (w b) + sum over the history of A (t_j x_j)

        The own term of a user in training is what the trained vector has beyond that sum.
        """
        from softdex.solve.closed.row_systems import factor, systems_of  # loads numba

        events, weight = self._events(history), self.items.weight
        side, shared = users_side(events, self.loss).to(weight.device), self._shared_by_users()
        (_, systems, right), *_ = systems_of(side, shared, weight)
        ids = torch.from_numpy(events.indices.astype(np.int64)).to(weight.device)
        pulls = side.pull.double()[:, None] * weight[ids].double()
        sides = torch.cat([pulls, right - pulls.sum(0)])
        found = as_double(torch.cholesky_solve(sides.T[None], factor(systems))[0].T)
        items, rest = found[:-1], found[-1]
        own = None
        if user >= 0:
            own = as_double(self.vectors.weight[user]) - items.sum(0) - rest
        return Terms("solve", events.indices, items, own, rest)

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over another item table."""
        return type(self)(**arguments(kept(self)), items=items).eval()

    def with_users(self, matrix: sp.csr_matrix, order: np.ndarray) -> Self:
        """Return the encoder with new users from their events, new users x items.

        Args:
            matrix: events of the new users.
            order: the former row of each user; those from the former number of users on are new.
        """
        vectors = torch.cat([self.vectors.weight, self.new_users(matrix)])
        total = torch.cat([self.total, torch.from_numpy(row_sums(matrix)).to(self.total)])
        return type(self)(vectors[order], total[order], self.terms, self.items).eval()

    def new_users(self, matrix: sp.csr_matrix) -> Tensor:
        """Solve for vectors (U, D) of new users, from confidences users x items."""
        from softdex.solve.closed.row_systems import solve_exactly  # loads numba

        weight = self.items.weight
        side = users_side(matrix, self.loss).to(weight.device)
        return solve_exactly(side, self._shared_by_users(), weight)[0]

    def new_items(self, matrix: sp.csr_matrix) -> Tensor:
        """Solve for vectors (N, D) of new items, from confidences items x users.

        The sum over items in exact RGx does not include the new items.
        """
        from softdex.solve.closed.row_systems import solve_exactly  # loads numba

        weight = self.vectors.weight
        total = self.total.cpu().numpy().astype(np.float64)
        side = items_side(matrix, total, self.loss).to(weight.device)
        shared = shared_by_items(self.loss, weight, side.fixed, self.items.weight.sum(0))
        return solve_exactly(side, shared, weight)[0]

    def _shared_by_users(self) -> Shared:
        """Return what the systems of users share, kept for one version of the items."""
        kept = self._shared
        if kept is None or kept[0] != self.items.version:
            found = shared_by_users(self.loss, self.items.weight)
            kept = self._shared = self.items.version, found
        return kept[1]

    def _events(self, history: Ragged) -> sp.csr_matrix:
        """Return histories as events of confidence 1, users x items; repeats count once."""
        events = history.csr(len(self.items))
        events.data[:] = 1.0
        return events
