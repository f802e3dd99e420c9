"""In-batch negatives across processes: every rank gets the rows of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Gathered(tensors, 0)
    rows = len(tensors[0])
    sizes = [rows] * dist.get_world_size() if equal else _sizes(rows, tensors[0].device)
    start = sum(sizes[: dist.get_rank()])
    joined: tuple[Tensor, ...] = _Join.apply(sizes, start, *tensors)  # type: ignore[no-untyped-call]
    return Gathered(joined, start)


class _Join(torch.autograd.Function):
    """One autograd node for all tensors, so that collectives run in one order on every rank."""

    @staticmethod
    def forward(ctx: Any, sizes: list[int], start: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.own = slice(start, start + len(tensors[0]))
        joined = tuple(_join(t, sizes) for t in tensors)
        learns = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*(t for t, yes in zip(joined, learns, strict=True) if not yes))
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        learns = ctx.needs_input_grad[2:]
        own = (_sum(g)[ctx.own] if yes else None for g, yes in zip(grads, learns, strict=True))
        return None, None, *own


def _sizes(rows: int, device: torch.device) -> list[int]:
    """The number of rows per rank; costs a small exchange and a wait for the device."""
    return [int(n) for n in _stacked(torch.tensor(rows, device=device)).tolist()]


def _join(tensor: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all ranks, padded to the longest in transit: collectives need one shape."""
    most = max(sizes)
    if min(sizes) == most:
        return _stacked(tensor).flatten(0, 1)
    pad = tensor.new_zeros(most - len(tensor), *tensor.shape[1:])
    parts = _stacked(torch.cat([tensor, pad]))
    return torch.cat([part[:rows] for part, rows in zip(parts, sizes, strict=True)])


def _stacked(tensor: Tensor) -> Tensor:
    """The tensors of all ranks, of one shape, stacked along a new first dimension."""
    out = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather(list(out), tensor.contiguous())
    return out


def _sum(grad: Tensor) -> Tensor:
    """The sum over ranks, as a new tensor."""
    total = grad.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
