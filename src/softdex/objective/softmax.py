"""Full softmax: cross-entropy of the target against every item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_CELLS = 16_000_000  # scores held at a time when the items are taken in blocks
CACHED_CELLS = 500_000


def full_softmax(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over all items.

        loss_b = -o_b,y + log sum_i exp o_b,i                                          [SM]

    Args:
        scores: of all items (B, I).
        target: item ids (B,).

    Returns:
        loss (B,); the caller reduces.

    Relations: `sampled_softmax` tends to it as the draws grow. Adding a constant to a row of
    scores changes nothing.
    """
    return scores.logsumexp(1) - scores.gather(1, target[:, None])[:, 0]


def log_mass(query: Tensor, items: Tensor, bias: Tensor | None = None) -> Tensor:
    """The normaliser of a softmax over inner products, without ever holding all scores.

        log sum_i exp(q_b . x_i + b_i)

    Scores are computed in blocks of items, twice: for the sum, and again for its gradient.

    Args:
        query: (B, D).
        items: (I, D).
        bias: (I,) or None.

    Returns:
        (B,).

    Relations: less the target's own score it is `full_softmax`, value and gradient.
    """
    with torch.autocast(query.device.type, enabled=False):  # 10^6 terms need more than bf16
        mass: Tensor = _LogSumExp.apply(  # type: ignore[no-untyped-call]
            query.to(items.dtype), items, bias
        )
        return mass


class _LogSumExp(torch.autograd.Function):
    """log sum_i exp(q . x_i + b_i) over blocks of items."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, bias: Tensor | None) -> Tensor:
        slices = _slices(items, len(query))
        parts = query.new_empty(len(slices), len(query))  # small results between large ones would
        for part, s in zip(parts, slices, strict=True):  # keep the heap from being used again
            part.copy_(_scores(query, items, bias, s).logsumexp(1))
        mass = parts.logsumexp(0)
        ctx.save_for_backward(query, items, bias, mass)
        return mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        query, items, bias, mass = ctx.saved_tensors
        to_query, to_items = torch.zeros_like(query), torch.empty_like(items)
        to_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        for s in _slices(items, len(query)):
            share = (
                _scores(query, items, bias, s).sub_(mass[:, None]).exp_().mul_(grads[0][:, None])
            )
            to_query.addmm_(share, items[s])
            torch.mm(share.T, query, out=to_items[s])
            if to_bias is not None:
                to_bias[s] = share.sum(0)
        return to_query, to_items, to_bias


def _scores(query: Tensor, items: Tensor, bias: Tensor | None, s: slice) -> Tensor:
    scores = query @ items[s].T
    return scores if bias is None else scores.add_(bias[s])


def _slices(items: Tensor, batch: int) -> list[slice]:
    """Blocks of items; on a CPU small enough to stay in its caches."""
    cells = BLOCK_CELLS if items.is_cuda else CACHED_CELLS
    width = max(1, cells // max(1, batch))
    return [slice(start, start + width) for start in range(0, len(items), width)]
