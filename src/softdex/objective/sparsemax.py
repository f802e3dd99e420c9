"""Sparsemax: a softmax whose probabilities are mostly 0, by projection onto the simplex."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softdex.objective.softmax import SCORES_AT_A_TIME, SCORES_IN_CACHE, block_scores, gradients

EVERYTHING = slice(None)


def threshold(scores: Tensor) -> Tensor:
    """Return t with sum_i max(0, o_i - t) = 1 for each row (B,), without a gradient and a sort.

    Newton steps from the left: convex and piecewise linear, the sum falls by f, its excess over 1,
    and by s, the number of items above t, such that f_new / f + s_new / s <= 1. The product f s
    therefore falls to a quarter per step at least, and log_4(I^2 / eps) steps always suffice. A CPU
    stops when nothing moves any more; a GPU takes all of them and waits for nothing.

    Args:
        scores: scores o (B, I); -inf for items that are left out.
    """
    n, eps = scores.shape[1], torch.finfo(scores.dtype).eps
    with torch.no_grad():
        top = scores.amax(1, keepdim=True)
        below = scores - top  # near the threshold, rounding is then least
        found = ((below.sum(1, keepdim=True) - 1) / n).clamp(min=-1)
        for _ in range(math.ceil(math.log(n * n / eps, 4)) + 1):
            excess = (below - found).clamp_(min=0).sum(1, keepdim=True) - 1
            step = excess / (below > found).sum(1, keepdim=True).clamp(min=1)
            found = found + step
            if not scores.is_cuda and float(step.abs().max()) <= eps:
                break
        return (found + top)[:, 0]


def simplex_projection(scores: Tensor) -> Tensor:
    """Return the point of the simplex nearest to each row of scores (B, I), without a gradient.

        sparsemax(o) = argmin_p |p - o|^2 = max(0, o - t(o)),  p >= 0, sum_i p_i = 1

    Args:
        scores: scores o (B, I); -inf for items that are left out.
    """
    return (scores.detach() - threshold(scores)[:, None]).clamp_(min=0)


def sparsemax(scores: Tensor, target: Tensor) -> Tensor:
    """The sparsemax loss over all items.

        loss_b = -o_y + 1/2 sum_{i in S} (o_i^2 - t^2) + 1/2,  S = {i: o_i > t}     [SPARSEMAX]

    with t such that the items above it exceed it by 1 together.

    Args:
        scores: scores o of all items (B, I); -inf for items that are left out.
        target: item ids y (B,).

    Returns:
        loss (B,), at least 0; the caller reduces.

    Relations: its gradient is `simplex_projection` less the one of the target. It is 0 where the
    target's score exceeds all others by 1. Adding a constant to a row of scores changes nothing. It
    is `full_softmax` with the entropy of the softmax replaced by half of 1 - |p|^2.
    """
    return _mass(scores) - scores.gather(1, target[:, None])[:, 0]


def sparsemax_of_draws(pos: Tensor, neg: Tensor, hit: Tensor) -> Tensor:
    """The sparsemax loss with the target and its draws as all items.

        loss_b = `sparsemax` of (o_y, o_1, ..., o_N)                             [SPARSEMAX-N]

    Each draw is an item of its own, and there is no correction: a probability of 0 has no log q.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N); such draws are ignored.

    Returns:
        loss (B,), 0 where every draw is a hit; the caller reduces.

    Relations: with every other item drawn once it is `sparsemax`.
    """
    scores = torch.cat([pos[:, None], neg.masked_fill(hit, -torch.inf)], 1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return _mass(scores) - pos


def sparsemax_mass(query: Tensor, items: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `log_mass` is for the softmax, for sparsemax over inner products in bounded memory.

        1/2 sum_{i in S} (o_i^2 - t^2) + 1/2,   o_i = q_b . x_i + b_i

    Thresholds are found over blocks of queries; scores are made again for the gradient.

    Args:
        query: queries q (B, D).
        items: item vectors x (I, D).
        bias: item biases b (I,), or None for 0.

    Returns:
        (B,); less the target's score it is `sparsemax`, in value and gradient.
    """
    with torch.autocast(query.device.type, enabled=False):
        mass: Tensor = _Mass.apply(  # type: ignore[no-untyped-call]
            query.to(items.dtype), items, bias
        )
        return mass


def _mass(scores: Tensor) -> Tensor:
    """max over p of p . o - |p|^2 / 2, plus 1/2: its gradient is the p where it is reached."""
    p = simplex_projection(scores)
    return (p * scores.masked_fill(p == 0, 0.0)).sum(1) - p.square().sum(1) / 2 + 0.5


class _Mass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, bias: Tensor | None) -> Tensor:
        cells = SCORES_AT_A_TIME if items.is_cuda else SCORES_IN_CACHE
        rows = max(1, cells // len(items))
        level, mass = query.new_empty(2, len(query))
        for start in range(0, len(query), rows):
            part = slice(start, start + rows)
            scores = block_scores(query[part], items, bias, EVERYTHING)
            level[part] = threshold(scores)
            p = scores.sub_(level[part, None]).clamp_(min=0)
            mass[part] = level[part] + p.square().sum(1) / 2 + 0.5
        ctx.save_for_backward(query, items, bias, level)
        return mass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        query, items, bias, level = ctx.saved_tensors
        return gradients(
            (query, items, bias),
            lambda scores: scores.sub_(level[:, None]).clamp_(min=0).mul_(grads[0][:, None]),
            ctx.needs_input_grad[2],
        )
