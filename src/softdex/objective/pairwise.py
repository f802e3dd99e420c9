"""Pairwise: the target should score higher than each draw."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from softdex.errors import choose

GAMMA = 0.57721566490153286  # Euler's constant
ROUNDING = 1e-5  # by which log q in float32 may miss a whole rank
RANK_WEIGHTS = ("harmonic", "log")


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


def pris(pos: Tensor, neg: Tensor, hit: Tensor, logq: Tensor) -> Tensor:
    """`bpr` with draws weighted by how much likelier the softmax would draw them.

        loss_b = sum_n w_n * -log sigmoid(o_y - o_n),  w = softmax_n(o_n - log q_n)       [PRIS]

    The weights are self-normalised importance weights, held constant: as N grows, the loss tends to
    its mean over items drawn by the softmax of the model's own scores.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N); its weight is 0.
        logq: log q of the draws, (B, N), or (N,) if all rows share them.

    Returns:
        loss (B,), 0 where every draw is a hit; the caller reduces.

    Relations: with a uniform proposal it is `self_adversarial` of temperature 1. With the softmax
    as the proposal it is `bpr`.
    """
    logits = (neg.detach() - logq).masked_fill(hit, -torch.inf)
    weight = logits.softmax(1).nan_to_num(0.0)  # no draw left: no weight
    return (weight * softplus(neg - pos[:, None])).sum(1)


def warp(
    pos: Tensor,
    neg: Tensor,
    hit: Tensor,
    logq: Tensor,
    pos_logq: Tensor,
    *,
    margin: float = 1.0,
    rank_weight: str = "harmonic",
) -> Tensor:
    """Weighted approximate-rank pairwise: a hinge against the first draw too close to the target.

    It is weighed by the rank that the number of trials up to that draw suggests.

        loss_b = L(r_b) (margin - o_y + o_v),   r_b = floor( (1 - q_y) / (q_v T) )        [WARP]

    Draws are tried in their order; v is the first violator, with o_v > o_y - margin, and T is the
    number of trials up to it. A hit is no trial. With uniform draws r = floor((I - 1) / T).

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N), in the order in which they are tried.
        hit: True where a draw is the row's own target (B, N); such draws are ignored.
        logq: log q of the draws, (B, N), or (N,) if all rows share them.
        pos_logq: log q of the target (B,).
        margin: by which the target should lead.
        rank_weight: L(r), `harmonic`: 1 + 1/2 + ... + 1/r; `log`: log r.

    Returns:
        loss (B,), 0 where no draw violates; the caller reduces. L has no gradient.

    Relations: with one draw and weight 1 it is the hinge loss. r is at least 1.
    """
    choose("warp", "rank_weight", rank_weight, RANK_WEIGHTS)
    tried = (~hit).cumsum(1)
    violates = ~hit & (neg > pos[:, None] - margin)
    first = violates & (violates.cumsum(1) == 1)
    least = torch.log1p(-pos_logq.exp())[:, None] - logq - tried.clamp(min=1).log()
    rank = (least.exp() * (1 + ROUNDING)).floor().clamp(min=1).detach()
    weight = rank.log() if rank_weight == "log" else torch.digamma(rank + 1) + GAMMA
    return (torch.where(first, weight, 0.0) * (margin - pos[:, None] + neg)).sum(1)
