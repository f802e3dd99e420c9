"""Full softmax: cross-entropy of the target against every item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SCORES_AT_A_TIME = 16_000_000  # held on a GPU
SCORES_IN_CACHE = 500_000  # held on a CPU


def full_softmax(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over all items.

        loss_b = -o_b,y + log sum_i exp o_b,i                                          [SM]

    Args:
        scores: scores o of all items (B, I).
        target: item ids y (B,).

    Returns:
        loss (B,); the caller reduces.

    Relations: `sampled_softmax` tends to it as the number of draws grows. Adding a constant to a
    row of scores changes nothing.
    """
    return scores.logsumexp(1) - scores.gather(1, target[:, None])[:, 0]


def log_mass(query: Tensor, items: Tensor, bias: Tensor | None = None) -> Tensor:
    """The log-normaliser of a softmax over inner products, without holding all scores.

        log sum_i exp(q_b . x_i + b_i)

    Scores are computed in blocks of items, once for the sum and once more for its gradient.

    Args:
        query: queries q (B, D).
        items: item vectors x (I, D).
        bias: item biases b (I,), or None for 0.

    Returns:
        log-normaliser (B,).

    Relations: minus the target's score it is `full_softmax`, in value and gradient.
    """
    with torch.autocast(query.device.type, enabled=False):  # bf16 cannot sum 10^6 terms
        mass: Tensor = _LogSumExp.apply(  # type: ignore[no-untyped-call]
            query.to(items.dtype), items, bias
        )
        return mass


class _LogSumExp(torch.autograd.Function):
    """log sum_i exp(q . x_i + b_i) over blocks of items."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, bias: Tensor | None) -> Tensor:
        slices = _slices(items, len(query))
        parts = query.new_empty(len(slices), len(query))  # allocated first: small results between
        for part, s in zip(parts, slices, strict=True):  # large ones would fragment the heap
            part.copy_(block_scores(query, items, bias, s).logsumexp(1))
        mass = parts.logsumexp(0)
        ctx.save_for_backward(query, items, bias, mass)
        return mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        query, items, bias, mass = ctx.saved_tensors
        return gradients(
            (query, items, bias),
            lambda scores: scores.sub_(mass[:, None]).exp_().mul_(grads[0][:, None]),
            ctx.needs_input_grad[2],
        )


def gradients(
    given: tuple[Tensor, Tensor, Tensor | None],
    share: Callable[[Tensor], Tensor],
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of query, items and bias, from that of the scores, in blocks of items.

    Args:
        given: query (B, D), items (I, D), and bias (I,) or None.
        share: the gradient of a block of scores (B, n), which it may overwrite.
        of_bias: whether the bias has a gradient.
    """
    query, items, bias = given
    to_query, to_items = torch.zeros_like(query), torch.empty_like(items)
    to_bias = torch.empty_like(bias) if of_bias and bias is not None else None
    for s in _slices(items, len(query)):
        each = share(block_scores(query, items, bias, s))
        to_query.addmm_(each, items[s])
        torch.mm(each.T, query, out=to_items[s])
        if to_bias is not None:
            to_bias[s] = each.sum(0)
    return to_query, to_items, to_bias


def block_scores(query: Tensor, items: Tensor, bias: Tensor | None, s: slice) -> Tensor:
    """The scores (B, n) of a block of items, in memory of their own."""
    scores = query @ items[s].T
    return scores if bias is None else scores.add_(bias[s])


def _slices(items: Tensor, batch: int) -> list[slice]:
    """Blocks of items; on a CPU small enough for its scores to stay in the cache."""
    cells = SCORES_AT_A_TIME if items.is_cuda else SCORES_IN_CACHE
    width = max(1, cells // max(1, batch))
    return [slice(start, start + width) for start in range(0, len(items), width)]
