"""Binary: classify each item as the target or not."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def bce(pos: Tensor, neg: Tensor, hit: Tensor) -> Tensor:
    """Binary cross-entropy of the target, plus its mean over the draws that are not the target.

        loss_b = -log sigmoid(o_y) - mean_n log(1 - sigmoid(o_n))                         [BCE]

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N); such draws are ignored.

    Returns:
        loss (B,); the caller reduces.

    Relations: with uniform draws, as many as items, the minimiser is o_i = log(I eta_i), except for
    ignored hits.
    """
    kept = ~hit
    return softplus(-pos) + (softplus(neg) * kept).sum(1) / kept.sum(1).clamp(min=1)
