"""In-batch negatives across processes: every rank gets the rows of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from softdex import group
from softdex.errors import ShapeError


class Gathered(NamedTuple):
    """Tensors of all ranks, joined in rank order.

    Attributes:
        tensors: the joined tensors.
        start: this rank's row b is row start + b of them.
    """

    tensors: tuple[Tensor, ...]
    start: int


def gathered(*tensors: Tensor, equal: bool = False) -> Gathered:
    """Join the rows of every rank's tensors, so that they can be negatives of one another.

    The gradient of a row is that of the sum of all ranks' losses. A loss averaged over a rank's own
    rows therefore needs a factor 1 / world to be the average over all rows; DDP, which averages
    gradients, supplies it.

    All ranks must call this, and backward, equally often and in the same order; otherwise they wait
    for each other forever. Without a process group, or in one of a single process, the tensors are
    returned as they are.

    Args:
        tensors: of equal length on a rank. Types, other dimensions and which of them require a
            gradient must be the same on all ranks.
        equal: all ranks have the same number of rows. This saves a small exchange in which the
            host waits for the device. If it is not true, the run fails.

    Returns:
        the joined tensors, and the row where this rank's own begin.
    """
    lengths = {tuple(t.shape[:1]) for t in tensors}
    if len(lengths) != 1 or () in lengths:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "none"
        raise ShapeError(
            f"gathered: expected tensors of the same number of rows, got {shapes}. "
            "Gather tensors with other rows in a call of their own."
        )
    if group.size() == 1:
        return Gathered(tensors, 0)
    rows = len(tensors[0])
    sizes = [rows] * group.size() if equal else group.sizes_of(rows)
    start = sum(sizes[: group.rank()])
    joined: tuple[Tensor, ...] = _Join.apply(sizes, start, *tensors)  # type: ignore[no-untyped-call]
    return Gathered(joined, start)


def summed(tensor: Tensor) -> Tensor:
    """Return the sum over all ranks; its gradient is that of the sum of all ranks' losses."""
    found: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return group.all_reduce_sum(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return group.all_reduce_sum(grads[0].clone(memory_format=torch.contiguous_format))


class _Join(torch.autograd.Function):
    """One autograd node for all tensors, so that collectives run in one order on every rank."""

    @staticmethod
    def forward(ctx: Any, sizes: list[int], start: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.own = slice(start, start + len(tensors[0]))
        joined = tuple(group.gather_rows(t, sizes) for t in tensors)
        learns = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*(t for t, yes in zip(joined, learns, strict=True) if not yes))
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        learns = ctx.needs_input_grad[2:]
        sums = (
            group.all_reduce_sum(g.clone(memory_format=torch.contiguous_format)) if yes else None
            for g, yes in zip(grads, learns, strict=True)
        )
        own = (None if total is None else total[ctx.own] for total in sums)
        return None, None, *own
