"""Pairwise: the target should score above each draw."""

from __future__ import annotations

import torch
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


def dns(pos: Tensor, neg: Tensor, hit: Tensor | None) -> Tensor:
    """Dynamic negative sampling: `bpr` against the draw that scores highest.

        loss_b = -log sigmoid(o_y - max_n o_n)                                            [DNS]

    Draws are uniform; the choice among them is the proposal, so no log q enters.

    Args:
        pos: target scores (B,).
        neg: scores of the draws (B, N).
        hit: where a draw is the row's own target (B, N), if that can be.

    Returns:
        loss (B,); 0 where every draw is a hit.

    Relations: with one draw it is `bpr`, with more it is at least that.
    """
    others = neg if hit is None else neg.masked_fill(hit, -torch.inf)
    return softplus(others.amax(1) - pos)


def self_adversarial(
    pos: Tensor, neg: Tensor, hit: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """`bpr` with draws weighted by their own softmax, which is held constant.

        loss_b = sum_n w_n * -log sigmoid(o_y - o_n),  w = softmax_n(o_n / temperature)   [SELF]

    Draws are uniform; the weights stand for a proposal, so no log q enters.

    Args:
        pos: target scores (B,).
        neg: scores of the draws (B, N).
        hit: where a draw is the row's own target (B, N), if that can be; it weighs nothing.
        temperature: above 0; how little the scores matter to the weights.

    Returns:
        loss (B,); 0 where every draw is a hit.

    Relations: tends to `bpr` as the temperature grows, and to `dns` as it falls to 0.
    """
    logits = neg.detach() / temperature
    if hit is not None:
        logits = logits.masked_fill(hit, -torch.inf)
    weight = logits.softmax(1).nan_to_num(0.0)  # no draw left: no weight
    return (weight * softplus(neg - pos[:, None])).sum(1)
