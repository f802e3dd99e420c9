"""Sampled softmax: the target against draws, corrected for the probability of each draw."""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.errors import ShapeError, choose

MASKED_SCORE = -1e30  # of a masked draw: its exponential is 0, and its gradient is not NaN


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

    `correct="draws"` ignores hits; the other draws stand for all items but the target:

        loss_b = -o_y + log( exp o_y + sum_n exp(o_n - log q_n + log(1 - q_y) - log M) )  [SSM-1]

    with M the number of draws that are not hits. `correct="all"` corrects the target like the
    draws, keeps hits, and does not count draws:

        loss_b = -(o_y - log q_y) + log( exp(o_y - log q_y) + sum_n exp(o_n - log q_n) )  [SSM-2]

    Args:
        pos: target scores o_y (B,); with "all" also (B, P), for P targets that share the draws of
            their row.
        neg: scores of the draws o_n (B, N).
        logq: log q of the draws, (B, N), or (N,) if all rows share them.
        pos_logq: log q of the target, in the shape of `pos`.
        hit: True where a draw is the row's own target (B, N); "all" does not use it.
        correct: `draws` or `all`.

    Returns:
        loss in the shape of `pos`; the caller reduces.

    Relations: "draws" tends to `full_softmax` as N grows, for any q; if q is the softmax, every
    draw off the target gives the full loss. The gradient of "all" tends to that of the full
    softmax. Dropping log(1 - q_y), or counting hits in M, tends to something else.
    """
    choose("sampled_softmax", "correction", correct, ("draws", "all"))
    if correct == "all":
        others = (neg - logq).logsumexp(1).view(-1, *[1] * (pos.ndim - 1))
        return torch.logaddexp(pos - pos_logq, others) - (pos - pos_logq)
    if hit is None or pos.ndim > 1:
        raise ShapeError(
            "sampled_softmax: 'draws' needs hit, and one target per row. Use correct='all'."
        )
    kept = hit.shape[1] - hit.sum(1)
    rest = torch.log1p(-pos_logq.exp()) - kept.clamp(min=1).log()
    others = (neg - logq).masked_fill_(hit, MASKED_SCORE).logsumexp(1) + rest
    return torch.where(kept > 0, torch.logaddexp(pos, others) - pos, 0.0)
