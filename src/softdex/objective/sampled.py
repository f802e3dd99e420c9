"""Sampled softmax: the target against draws, corrected for how they were drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.errors import ShapeError, choose

FLOOR = -1e30  # what a masked draw scores: its exponential is 0, and its gradient no NaN


def sampled_softmax(
    pos: Tensor,
    neg: Tensor,
    logq: Tensor,
    pos_logq: Tensor,
    hit: Tensor | None,
    *,
    correct: str = "draws",
) -> Tensor:
    """Cross-entropy of the target against N draws from a proposal q over all items.

    `correct="draws"`: hits are left out, the other draws stand for all items but the target:

        loss_b = -o_y + log( exp o_y + sum_n exp(o_n - log q_n + log(1 - q_y) - log M) )  [SSM-1]

    with M the number of draws that are no hit. `correct="all"`: the target is corrected like the
    draws, hits are kept, and no count appears:

        loss_b = -(o_y - log q_y) + log( exp(o_y - log q_y) + sum_n exp(o_n - log q_n) )  [SSM-2]

    There several targets (B, P) may share the draws of their row.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws (B, N).
        logq: log q of the draws, (B, N) or (N,) where they are shared.
        pos_logq: log q of the target (B,).
        hit: where a draw is the row's own target (B, N); not looked at by "all".
        correct: `draws` or `all`.

    Returns:
        loss, of the shape of `pos`; the caller reduces.

    Relations: "draws" tends to `full_softmax` as N grows, for any q; with q the softmax it equals
    the full loss off the target for every draw. "all" tends to the full softmax's gradient. Leaving
    the log(1 - q_y) out, or counting hits in M, tends to something else.
    """
    choose("sampled_softmax", "correction", correct, ("draws", "all"))
    if correct == "all":
        others = (neg - logq).logsumexp(1).view(-1, *[1] * (pos.ndim - 1))
        return torch.logaddexp(pos - pos_logq, others) - (pos - pos_logq)
    if hit is None or pos.ndim > 1:
        raise ShapeError(
            "sampled_softmax: 'draws' needs to know the hits, and one target a row. Use 'all'."
        )
    kept = hit.shape[1] - hit.sum(1)
    rest = torch.log1p(-pos_logq.exp()) - kept.clamp(min=1).log()
    others = (neg - logq).masked_fill_(hit, FLOOR).logsumexp(1) + rest
    return torch.where(kept > 0, torch.logaddexp(pos, others) - pos, 0.0)
