"""Pairwise: the target should score higher than each draw."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def bpr(pos: Tensor, neg: Tensor, hit: Tensor) -> Tensor:
    """Bayesian personalised ranking: the mean over the draws that are not the target.

        loss_b = mean_n -log sigmoid(o_y - o_n)                                           [BPR]

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N); such draws are ignored.

    Returns:
        loss (B,), 0 where every draw is a hit; the caller reduces.

    Relations: with one draw that is not a hit it is `sampled_softmax` of that draw without
    correction.
    """
    kept = ~hit
    return (softplus(neg - pos[:, None]) * kept).sum(1) / kept.sum(1).clamp(min=1)


def dns(pos: Tensor, neg: Tensor, hit: Tensor | None) -> Tensor:
    """Dynamic negative sampling: `bpr` against the draw with the highest score.

        loss_b = -log sigmoid(o_y - max_n o_n)                                            [DNS]

    Draws are uniform; choosing among them is the proposal, so there is no log q.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N), or None if none can be.

    Returns:
        loss (B,), 0 where every draw is a hit; the caller reduces.

    Relations: with one draw it equals `bpr`; with more it is at least `bpr`.
    """
    others = neg if hit is None else neg.masked_fill(hit, -torch.inf)
    return softplus(others.amax(1) - pos)


def self_adversarial(
    pos: Tensor, neg: Tensor, hit: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """`bpr` with draws weighted by the softmax of their scores, held constant.

        loss_b = sum_n w_n * -log sigmoid(o_y - o_n),  w = softmax_n(o_n / temperature)   [SELF]

    Draws are uniform; the weights replace a proposal, so there is no log q.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N), or None if none can be; its weight
            is 0.
        temperature: above 0; the higher, the more even the weights.

    Returns:
        loss (B,), 0 where every draw is a hit; the caller reduces.

    Relations: tends to `bpr` as the temperature grows, and to `dns` as it goes to 0.
    """
    logits = neg.detach() / temperature
    if hit is not None:
        logits = logits.masked_fill(hit, -torch.inf)
    weight = logits.softmax(1).nan_to_num(0.0)  # no draw left: no weight
    return (weight * softplus(neg - pos[:, None])).sum(1)
