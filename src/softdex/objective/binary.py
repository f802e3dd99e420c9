"""Binary: is this item the target, yes or no."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def bce(pos: Tensor, neg: Tensor, hit: Tensor) -> Tensor:
    """Binary cross-entropy of the target and, averaged, of the draws that are not it.

        loss_b = -log sigmoid(o_y) - mean_n log(1 - sigmoid(o_n))                         [BCE]

    Args:
        pos: target scores (B,).
        neg: scores of the draws (B, N).
        hit: where a draw is the row's own target (B, N).

    Returns:
        loss (B,).

    Relations: with as many draws as items and q uniform, its minimiser is o_i = log(I eta_i)
    up to what hits leave out.
    """
    kept = ~hit
    return softplus(-pos) + (softplus(neg) * kept).sum(1) / kept.sum(1).clamp(min=1)
