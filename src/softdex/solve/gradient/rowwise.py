"""Optimisers for huge tables: a step reads and writes the rows that the batch looked up."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, final

import numba
import numpy as np
import torch
from torch import Tensor

from softdex.encode import blocks
from softdex.encode.table import Table, Touched
from softdex.kernels.dispatch import fused_for
from softdex.messages import say_if_compiling

WORTH_A_THREAD = 200_000  # additions below which another thread costs more than it saves


@final
class RowAdam:
    """Adam on the rows that a step looked up; other rows keep vector, moments and age.

    Each row has its own age t: its bias correction is that of a dense Adam that has seen only the
    steps in which the row had a gradient. Gradients of repeated rows are summed first. With
    `per_row=True` the second moment is one number per row, the mean of the squared gradient.
    `decay` shrinks an updated row by lr * decay (decoupled). A tensor given as `lr` is read in
    every step.
    """

    def __init__(
        self,
        table: Table,
        lr: float | Tensor,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay: float = 0.0,
        per_row: bool = False,
    ) -> None:
        self.table, self.betas, self.eps = table, betas, eps
        self.lr = torch.as_tensor(lr, dtype=torch.float32, device=table.weight.device)
        self.decay, self.per_row = decay, per_row
        weight = table.weight
        self.age = torch.zeros_like(weight[:, :1])
        self.first = torch.zeros_like(weight)
        self.second = torch.zeros_like(weight[:, :1] if per_row else weight)

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients since the last step, and clear them."""
        touched = self.table.touched()
        if any(t.ids is None for t in touched):
            self._update_all(dense(touched, self.table.weight))
        elif touched:
            lookups = sorted_by_row(touched, len(self.table.weight))
            law = *self.betas, self.eps, self.decay
            if self.table.weight.device.type == "cpu":
                _on_cpu(lookups, self._tables(), (float(self.lr), *law))
            elif (fused := fused_for(self.table.weight)) is not None:
                fused.adam(*lookups, self._tables(), self.lr, *law)
            else:
                self._update(*summed(lookups, self.table.weight))
            torch.autograd.graph.increment_version(self.table.weight)  # compiled code does not

    def _update(self, rows: Tensor, grads: Tensor) -> None:
        """Update rows that are unique, but for unused places (-1), which repeat a used one.

        They write what that one writes, so the order of the writes does not matter.
        """
        spare, used = rows < 0, rows.argmax().view(1)
        at = torch.where(spare, rows[used], rows).clamp(min=0)
        grads = torch.where(spare.unsqueeze(1), grads[used], grads)
        empty = rows[used] < 0
        old = [table[at] for table in self._tables()]
        age, first, second, weight = old
        age = age + 1
        first, second, move = self._moments(weight, age, first, second, grads)
        new = age, first, second, weight + move
        for table, was, now in zip(self._tables(), old, new, strict=True):
            table.index_copy_(0, at, torch.where(empty, was, now))

    def _update_all(self, grads: Tensor) -> None:
        self.age += 1
        first, second, move = self._moments(
            self.table.weight, self.age, self.first, self.second, grads
        )
        self.first.copy_(first)
        self.second.copy_(second)
        self.table.weight += move

    def _tables(self) -> tuple[Tensor, ...]:
        return self.age, self.first, self.second, self.table.weight

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

    def spread(self) -> None:
        """Keep the ages and moments of this rank's block of rows."""
        for name, tensor in self.state().items():
            setattr(self, name, blocks.spread(tensor)[0])

    def state(self) -> dict[str, Tensor]:
        """Ages and moments."""
        return {"age": self.age, "first": self.first, "second": self.second}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a saved state."""
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)


class Lookups(NamedTuple):
    """Lookups sorted by row: ids (M,), the table's length for padding; per lookup a row of `grads`
    (R, D), the weight of that gradient (M,), None: 1, and that of the row itself (M,), None: 0."""

    ids: Tensor
    source: Tensor
    weight: Tensor | None
    pull: Tensor | None
    grads: Tensor


def sorted_by_row(touched: list[Touched], size: int) -> Lookups:
    """Join all lookups of a table of this size, sorted by row."""
    ids = torch.cat([t.ids for t in touched])  # type: ignore[misc]
    sources, start = [], 0
    for t in touched:
        own = torch.arange(len(t.grad), device=ids.device) if t.source is None else t.source
        sources.append(own + start)
        start += len(t.grad)
    ids, order = torch.where(ids < 0, size, ids).int().sort(stable=True)
    weight, pull = _joined(touched, "weight", 1.0), _joined(touched, "pull", 0.0)
    return Lookups(
        ids,
        torch.cat(sources)[order],
        None if weight is None else weight[order],
        None if pull is None else pull[order],
        torch.cat([t.grad for t in touched]),
    )


def _joined(touched: list[Touched], name: str, missing: float) -> Tensor | None:
    """Join a number per lookup; None where no lookup has one."""
    each = [getattr(t, name) for t in touched]
    if all(numbers is None for numbers in each):
        return None
    other = torch.full_like(touched[0].grad[:1, 0], missing)
    return torch.cat(
        [
            other.expand(len(t.ids)) if numbers is None else numbers  # type: ignore[arg-type]
            for t, numbers in zip(touched, each, strict=True)
        ]
    )


def summed(lookups: Lookups, table: Tensor) -> tuple[Tensor, Tensor]:
    """Sum gradients by row of a table.

    Returns:
        rows (P,) and gradients (P, D), P the smaller of the number of lookups and of rows: each
        row once, then -1 with a zero gradient. Shapes depend on the batch's shape alone, so
        nothing waits for the device.
    """
    ids, source, weight, pull, grads = lookups
    size = len(table)
    places, real = min(len(ids), size), ids < size
    place = torch.nn.functional.pad((ids[1:] != ids[:-1]).cumsum(0), (1, 0)).clamp(max=places - 1)
    rows = torch.full((places,), -1, device=ids.device)
    rows.scatter_reduce_(0, place, torch.where(real, ids, -1).long(), "amax")
    each = real if weight is None else real * weight
    values = grads[source] * each.unsqueeze(1)
    if pull is not None:
        values += (real * pull).unsqueeze(1) * table[ids.clamp(max=size - 1)]
    return rows, torch.zeros_like(values[:places]).index_add_(0, place, values)


def _on_cpu(
    lookups: Lookups, tables: tuple[Tensor, ...], law: tuple[float, float, float, float, float]
) -> None:
    """Sum and update in compiled code, each row by one thread."""
    ids, source, weight, pull, grads = lookups
    threads = max(1, min(torch.get_num_threads(), len(ids) * grads.shape[1] // WORTH_A_THREAD))
    cuts = torch.linspace(0, len(ids), threads + 1).long()[1:-1]
    ends = [0, *torch.searchsorted(ids, ids[cuts]).tolist(), len(ids)]
    none = grads[:0, 0]
    each = (none if numbers is None else numbers for numbers in (weight, pull))
    arrays = [t.numpy() for t in (ids, source, *each, grads.contiguous(), *tables)]
    say_if_compiling(_adam, "the optimiser")
    if threads == 1:
        _adam(*arrays, *law, 0, len(ids))  # type: ignore[call-arg]
        return
    with ThreadPoolExecutor(threads) as pool:
        spans = itertools.pairwise(ends)
        for done in [pool.submit(_adam, *arrays, *law, *span) for span in spans]:  # type: ignore[call-arg]
            done.result()


@numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def _adam(  # type: ignore[no-untyped-def]
    ids, source, weight, pull, grads, age, first, second, table, lr, b1, b2, eps, decay, here, end
):
    dim, per_row = table.shape[1], second.shape[1] < table.shape[1]
    total = np.empty(dim, table.dtype)
    while here < end and ids[here] < len(table):
        row = ids[here]
        total[:] = 0
        pulls = table.dtype.type(0)
        while here < end and ids[here] == row:
            each = weight[here] if len(weight) else table.dtype.type(1)
            gradient = grads[source[here]]
            for d in range(dim):
                total[d] += each * gradient[d]
            if len(pull):
                pulls += pull[here]
            here += 1
        if pulls != 0:
            for d in range(dim):
                total[d] += pulls * table[row, d]
        age[row, 0] += 1
        t = age[row, 0]
        short, long = -np.expm1(t * np.log(b1)), -np.expm1(t * np.log(b2))
        square = 0.0
        if per_row:
            for d in range(dim):
                square += total[d] * total[d] / dim
            second[row, 0] = second[row, 0] * b2 + square * (1 - b2)
        for d in range(dim):
            first[row, d] = first[row, d] * b1 + total[d] * (1 - b1)
            if not per_row:
                second[row, d] = second[row, d] * b2 + total[d] * total[d] * (1 - b2)
            spread = np.sqrt(second[row, 0 if per_row else d] / long) + eps
            table[row, d] -= lr * (first[row, d] / short / spread + decay * table[row, d])


def dense(touched: list[Touched], table: Tensor) -> Tensor:
    """The gradient of the whole table, for steps in which a lookup was of all rows."""
    whole = [t.grad for t in touched if t.ids is None]
    total = torch.stack(whole).sum(0) if len(whole) > 1 else whole[0].clone()
    for t in touched:
        if t.ids is not None:
            grads = t.grad if t.source is None else t.grad[t.source]
            real = (t.ids >= 0).to(grads.dtype)
            each = real if t.weight is None else real * t.weight
            nowhere = torch.arange(len(real), device=real.device) % len(total)  # adds 0 there
            at = torch.where(t.ids < 0, nowhere, t.ids)
            values = grads * each.unsqueeze(1)
            if t.pull is not None:
                values += (real * t.pull).unsqueeze(1) * table[at]
            total.index_add_(0, at, values)
    return total
