"""In-batch negatives across processes: every rank sees the rows of all."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from softdex.errors import ShapeError


class Gathered(NamedTuple):
    """Tensors of all ranks, joined in rank order; this rank's row b is their row start + b."""

    tensors: tuple[Tensor, ...]
    start: int


def gathered(*tensors: Tensor, equal: bool = False) -> Gathered:
    """Join the rows of every rank's tensors, so that they are negatives of one another.

    The gradient of a row is the sum over ranks of what their losses say about it, that is, the
    gradient of the sum of all ranks' losses. A loss averaged over a rank's own rows then needs
    1 / world to be the average over all rows; DDP, which averages gradients, brings that factor.

    Every rank calls this, and backward, as often and in the same order as the others, else they
    wait for each other. Without a process group, or alone in it, the tensors come back as they are.

    Args:
        tensors: of one length on a rank; types, other dimensions and which of them learn are the
            same on all ranks.
        equal: promises that all ranks hold the same number of rows, which saves asking them: a
            small exchange, and a wait of the host for the device. A broken promise ends the run.

    Returns:
        the joined tensors, and the row at which this rank's own start.
    """
    lengths = {tuple(t.shape[:1]) for t in tensors}
    if len(lengths) != 1 or () in lengths:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors) or "none"
        raise ShapeError(
            f"gathered: expected tensors of the same number of rows, got {shapes}. "
            "Gather what has other rows in a call of its own."
        )
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Gathered(tensors, 0)
    rows = len(tensors[0])
    sizes = [rows] * dist.get_world_size() if equal else _sizes(rows, tensors[0].device)
    start = sum(sizes[: dist.get_rank()])
    joined: tuple[Tensor, ...] = _Join.apply(sizes, start, *tensors)  # type: ignore[no-untyped-call]
    return Gathered(joined, start)


class _Join(torch.autograd.Function):
    """One node for all tensors: its collectives run in the same order on every rank."""

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
    """The number of rows of every rank: one small exchange, and one wait for the device."""
    return [int(n) for n in _stacked(torch.tensor(rows, device=device)).tolist()]


def _join(tensor: Tensor, sizes: list[int]) -> Tensor:
    """Rows of all ranks, padded to the longest on their way, since a collective wants one shape."""
    most = max(sizes)
    if min(sizes) == most:
        return _stacked(tensor).flatten(0, 1)
    pad = tensor.new_zeros(most - len(tensor), *tensor.shape[1:])
    parts = _stacked(torch.cat([tensor, pad]))
    return torch.cat([part[:rows] for part, rows in zip(parts, sizes, strict=True)])


def _stacked(tensor: Tensor) -> Tensor:
    """The tensors of all ranks, which are of one shape, along a new first dimension."""
    out = tensor.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather(list(out), tensor.contiguous())
    return out


def _sum(grad: Tensor) -> Tensor:
    """The sum over ranks, in memory of its own."""
    total = grad.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
