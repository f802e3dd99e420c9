"""Full softmax: cross-entropy of the target against every item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_CELLS = 4_000_000  # scores held at a time when the items are taken in blocks


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


def blocked_softmax(
    query: Tensor, items: Tensor, target: Tensor, bias: Tensor | None = None
) -> Tensor:
    """`full_softmax(query @ items.T + bias, target)` without ever holding all scores.

    Scores are computed in blocks of items, twice: for the normaliser, and again for the gradient.

    Args:
        query: (B, D).
        items: (I, D).
        target: item ids (B,).
        bias: (I,) or None.

    Returns:
        loss (B,).

    Relations: equals `full_softmax`, value and gradient.
    """
    bias = torch.zeros(1, dtype=items.dtype, device=items.device) if bias is None else bias
    mass: Tensor = _LogSumExp.apply(query, items, bias)  # type: ignore[no-untyped-call]
    own = (query * items[target]).sum(1) + bias.expand(len(items))[target]
    return mass - own


class _LogSumExp(torch.autograd.Function):
    """log sum_i exp(q . x_i + b_i) over blocks of items."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, bias: Tensor) -> Tensor:
        spread = bias.expand(len(items))
        parts = [
            (query @ items[s].T + spread[s]).logsumexp(1) for s in _slices(len(items), len(query))
        ]
        mass = torch.stack(parts, 1).logsumexp(1)
        ctx.save_for_backward(query, items, bias, mass)
        return mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        query, items, bias, mass = ctx.saved_tensors
        spread = bias.expand(len(items))
        to_query, to_items = torch.zeros_like(query), torch.empty_like(items)
        to_bias = torch.empty_like(spread) if ctx.needs_input_grad[2] else None
        for s in _slices(len(items), len(query)):
            share = (query @ items[s].T + spread[s] - mass[:, None]).exp_() * grads[0][:, None]
            to_query += share @ items[s]
            to_items[s] = share.T @ query
            if to_bias is not None:
                to_bias[s] = share.sum(0)
        return to_query, to_items, to_bias


def _slices(items: int, batch: int) -> list[slice]:
    width = max(1, BLOCK_CELLS // max(1, batch))
    return [slice(start, min(start + width, items)) for start in range(0, items, width)]
