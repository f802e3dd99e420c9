"""Pairwise: the target should score above each draw."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def bpr(pos: Tensor, neg: Tensor, hit: Tensor) -> Tensor:
    """Bayesian personalised ranking, mean over the draws that are not the target itself.

        loss_b = mean_n -log sigmoid(o_y - o_n)                                           [BPR]

    Args:
        pos: target scores (B,).
        neg: scores of the draws (B, N).
        hit: where a draw is the row's own target (B, N).

    Returns:
        loss (B,); 0 where every draw is a hit.

    Relations: with one draw that is no hit, it is `sampled_softmax` with that draw and no
    correction.
    """
    kept = ~hit
    return (softplus(neg - pos[:, None]) * kept).sum(1) / kept.sum(1).clamp(min=1)
