"""Optimisers for huge tables: only the rows a batch touched are read and written."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from softdex.encode.table import Table


@final
class RowAdam:
    """Adam on the rows that were touched; rows that were not keep vector, moments and age.

    Each row has its own age t, so its bias correction is that of a dense Adam which has seen just
    the steps in which the row had a gradient. Repeated rows of a batch are summed first. With
    `per_row=True` the second moment is one number a row (the mean of the squared gradient).
    `decay` shrinks a touched row by lr * decay (decoupled).
    """

    def __init__(
        self,
        table: Table,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        per_row: bool = False,
    ) -> None:
        self.table, self.lr, self.betas, self.eps = table, lr, betas, eps
        self.decay, self.per_row = decay, per_row
        weight = table.weight
        self.age = torch.zeros_like(weight[:, :1])
        self.first = torch.zeros_like(weight)
        self.second = torch.zeros_like(weight[:, :1] if per_row else weight)

    @torch.no_grad()
    def step(self) -> None:
        """Apply and forget the gradients since the last step."""
        rows, grads = summed(self.table)
        if rows is None:
            self._update_all(grads)
        elif len(rows):
            self._update(rows, grads)

    def _update(self, rows: Tensor, grads: Tensor) -> None:
        """Rows are unique, except for unused places, which hold row 0 and are multiplied away."""
        used = (rows >= 0).unsqueeze(1).to(grads.dtype)
        at = rows.clamp(min=0)
        weight = self.table.weight
        age, first, second = self.age[at] + 1, self.first[at], self.second[at]
        new_first, new_second, move = self._moments(weight[at], age, first, second, grads)
        self.age.index_add_(0, at, used)
        self.first.index_add_(0, at, (new_first - first) * used)
        self.second.index_add_(0, at, (new_second - second) * used)
        weight.index_add_(0, at, move * used)

    def _update_all(self, grads: Tensor) -> None:
        weight = self.table.weight
        self.age += 1
        self.first, self.second, move = self._moments(
            weight, self.age, self.first, self.second, grads
        )
        weight += move

    def _moments(
        self, weight: Tensor, age: Tensor, first: Tensor, second: Tensor, grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        b1, b2 = self.betas
        square = grads.square().mean(1, keepdim=True) if self.per_row else grads.square()
        first = first * b1 + grads * (1 - b1)
        second = second * b2 + square * (1 - b2)
        mean = first / -torch.expm1(age * math.log(b1))
        spread = (second / -torch.expm1(age * math.log(b2))).sqrt() + self.eps
        return first, second, -self.lr * (mean / spread + self.decay * weight)

    def state(self) -> dict[str, Tensor]:
        """Ages and moments."""
        return {"age": self.age, "first": self.first, "second": self.second}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)


def summed(table: Table) -> tuple[Tensor | None, Tensor]:
    """Gradients of a table's lookups, summed by row.

    Returns:
        rows (M,) and gradients (M, D), M the number of looked-up ids: each row once, -1 with a
        zero gradient in the places that summing left unused. Rows None: gradients of all rows.
        Shapes depend on the batch's shape alone, and nothing waits for the device.
    """
    touched = table.touched()
    dim, device = table.dim, table.weight.device
    sparse = [(ids, grad) for ids, grad in touched if ids is not None]
    dense = [grad for ids, grad in touched if ids is None]
    if dense:
        total = torch.stack(dense).sum(0) if len(dense) > 1 else dense[0].clone()
        for ids, grad in sparse:
            total.index_add_(0, ids.reshape(-1).clamp(min=0), grad.reshape(-1, dim))
        return None, total
    if not sparse:
        return torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, dim, device=device)
    ids = torch.cat([i.reshape(-1) for i, _ in sparse])
    grads = torch.cat([g.reshape(-1, dim) for _, g in sparse])
    ids, order = ids.sort(stable=True)
    place = torch.cat([ids.new_zeros(1), (ids[1:] != ids[:-1]).long()]).cumsum(0)
    rows = torch.full_like(ids, -1).scatter_(0, place, ids)
    return rows, torch.zeros_like(grads).index_add_(0, place, grads[order])
