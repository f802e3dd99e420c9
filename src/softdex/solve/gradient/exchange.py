"""Exchange: the gradients of all ranks, summed on each, so that all update alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softdex import group
from softdex.encode.table import Table, Touched


def sum_gradients(
    tables: Sequence[Table], parameters: Sequence[nn.Parameter], loss: Tensor
) -> Tensor:
    """Let every rank have the gradients of all, and return the sum of the losses.

    Lookups are joined in rank order, which is their order in one process; dense gradients travel as
    one vector.
    """
    learned = [p for p in parameters if p.grad is not None]
    whole: list[Tensor] = [p.grad for p in learned if p.grad is not None]
    touched = [table.touched() for table in tables]
    whole += [t.grad for each in touched for t in each if t.ids is None]
    summed = _summed([*whole, loss.detach()])
    for parameter, total in zip(learned, summed, strict=False):
        parameter.grad = total
    total_of = dict(zip(map(id, whole), summed, strict=False))
    joined = iter(_joined([t for each in touched for t in each if t.ids is not None]))
    for table, each in zip(tables, touched, strict=True):
        table.put(
            [Touched(None, total_of[id(t.grad)]) if t.ids is None else next(joined) for t in each]
        )
    return summed[-1]


def _summed(tensors: list[Tensor]) -> list[Tensor]:
    """Sums over the ranks, made in one exchange."""
    flat = torch.cat([t.reshape(-1).float() for t in tensors])
    parts = group.all_reduce_sum(flat).split([t.numel() for t in tensors])
    return [part.view(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]


def _joined(touched: list[Touched]) -> list[Touched]:
    """The lookups of all ranks, made in one exchange."""
    if not touched:
        return []
    fields = [_sent(t) for t in touched]
    ranks = group.gather_all([tensor for sent in fields for tensor in sent if tensor is not None])
    each = [iter(tensors) for tensors in ranks]
    found = []
    for mine, sent in zip(touched, fields, strict=True):
        ids, grad, weight, pull = (
            None if tensor is None else torch.cat([next(tensors) for tensors in each])
            for tensor in sent
        )
        assert ids is not None
        assert grad is not None
        source = None
        if mine.source is not None:
            rows = torch.arange(len(grad), device=grad.device)
            source = rows.repeat_interleave(len(ids) // max(1, len(grad)))
        found.append(Touched(ids.long(), grad, source, weight, pull))
    return found


def _sent(t: Touched) -> tuple[Tensor | None, ...]:
    """What the other ranks need of lookups; which row of the gradient each takes, they know."""
    assert t.ids is not None
    return t.ids.int(), t.grad, t.weight, t.pull
