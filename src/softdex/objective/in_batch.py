"""In-batch: the target against the items of the batch, weighted or resampled.

An item occurs in batches as often as in the log, so without correction popular items are negatives
of everybody. Shapes: B rows, N candidates (the batch's items, a cache, uniform draws), scores
(B, N).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softdex.errors import choose
from softdex.objective.sampled import MASKED_SCORE

CORRECTIONS = ("none", "uniform", "proposal")


def exclusion_mask(
    target: Tensor,
    candidates: Tensor,
    *,
    own: str = "drop",
    hits: str = "drop",
    offset: int | Tensor = 0,
) -> Tensor | None:
    """Which candidates are no negatives of each row: (B, N), or None if all are.

    Args:
        target: item ids of the rows (B,).
        candidates: item ids (N,).
        own: the row's own place, candidate b + offset of row b: `drop` or `keep` it as a negative.
        hits: other places that hold the row's target: `drop` or `keep` them.
        offset: the place of the first row, or of each row (B,).
    """
    choose("in_batch", "own", own, ("drop", "keep"))
    choose("in_batch", "hits", hits, ("drop", "keep"))
    if own == hits == "keep":
        return None
    place = torch.arange(len(candidates), device=target.device)
    if isinstance(offset, int):
        offset = place[offset : offset + len(target)]
    mine = place == offset[:, None]
    if hits == "keep":
        return mine
    same = target[:, None] == candidates
    return same if own == "drop" else same & ~mine


def batch_softmax(
    pos: Tensor,
    neg: Tensor,
    excluded: Tensor | None = None,
    logp: Tensor | None = None,
    pos_logp: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the target against the candidates, each corrected by its log-probability.

        loss_b = -(o_y - log p_y) + log( exp(o_y - log p_y) + sum_j exp(o_j - log p_j) )   [SSL]

    over the candidates j that are not excluded. With p = 1 it is the objective `ssl`, with p the
    popularity `ssl_pop`, with an estimate of it `g_tower`, with a mixture `mns`.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the candidates o_j (B, N).
        excluded: True where a candidate is no negative (B, N); None for nowhere.
        logp: log p of the candidates (N,), up to a constant and without gradient; None for p = 1.
        pos_logp: log p of the target (B,).

    Returns:
        loss (B,), 0 where every candidate is excluded; the caller reduces.

    Relations: with nothing excluded it is `sampled_softmax` with `correct="all"`; if the candidates
    are draws from p, its gradient then tends to that of the full softmax.
    """
    pos = pos if pos_logp is None else pos - pos_logp.detach()
    return torch.logaddexp(pos, weighted_logsumexp(neg, None, excluded, logp)) - pos


def mixture_log_prob(logp: Tensor, batch: int | Tensor, uniform: int, items: int) -> Tensor:
    """log-probability of items in a batch drawn by popularity and joined by uniform draws.

        log( r p + (1 - r) / I ),   r = B / (B + U)                                        [MNS]

    Args:
        logp: log p, the popularity of the items (N,).
        batch: B, the number of items drawn by popularity.
        uniform: U, the number of uniform draws.
        items: I, the number of all items.
    """
    share = torch.as_tensor(batch, device=logp.device) / (batch + uniform)
    return torch.logaddexp(logp + share.log(), ((1 - share) / items).log())


# resampling --------------------------------------------------------------------------------------


def resampling_log_weights(scores: Tensor, logp: Tensor, excluded: Tensor | None = None) -> Tensor:
    """log w, the probabilities to resample the candidates of each row by; without gradient.

        w_bj = exp(o_bj - log p_j) / sum_k exp(o_bk - log p_k)                              [BIR]

    Args:
        scores: o (B, N).
        logp: log p of the candidates (N,).
        excluded: True where a candidate is no negative (B, N); None for nowhere.

    Returns:
        log w (B, N).

    Relations: candidates drawn by p and resampled by w tend to draws from the softmax over all
    items as N grows.
    """
    weight = scores.detach() - logp
    if excluded is not None:
        weight = weight.masked_fill_(excluded, MASKED_SCORE)
    return weight.log_softmax(1)


def resampled_softmax(
    pos: Tensor,
    neg: Tensor,
    counts: Tensor,
    log_weight: Tensor | None = None,
    *,
    correction: str = "none",
) -> Tensor:
    """Cross-entropy of the target against resampled candidates.

        none:      loss_b = -o_y + log( exp o_y + sum_j c_j exp o_j )                       [BIR-1]
        uniform:   loss_b = -o_y + sum_j c_j o_j / M                                        [BIR-2]
        proposal:  loss_b = -o_y + log( exp o_y + sum_j c_j exp(o_j) / (M w_j) )            [BIR-3]

    Args:
        pos: target scores o_y (B,).
        neg: scores of the candidates o_j (B, N).
        counts: c, how often each candidate was drawn, M times in all (B, N).
        log_weight: log w (B, N), what they were drawn by; only `proposal` uses it.
        correction: `none`, as published; `uniform`, which takes the draws for softmax samples, so
            that the gradient of their mean score is that of the log-normaliser; `proposal`, which
            divides each draw by its probability.

    Returns:
        loss (B,); the caller reduces. That of `uniform` has a meaningful gradient but value.

    Relations: as B and M grow, the gradient of `none` tends to that of a softmax of 2 o, that of
    `uniform` to that of the full softmax, and that of `proposal` to that of plain `ssl`: it undoes
    the resampling.
    """
    choose("resampled_softmax", "correction", correction, CORRECTIONS)
    if correction == "uniform":
        total = counts.sum(1)
        return (counts * neg).sum(1) / total.clamp(min=1) - pos * (total > 0)
    weight = counts
    if correction == "proposal":
        assert log_weight is not None
        rarity = torch.where(counts > 0, -log_weight, 0.0).exp()
        weight = counts * rarity / counts.sum(1, keepdim=True).clamp(min=1)
    return torch.logaddexp(pos, weighted_logsumexp(neg, weight)) - pos


def weighted_logsumexp(
    scores: Tensor,
    weight: Tensor | None = None,
    excluded: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """log sum_j w_j exp(o_j - a_j) over the candidates that are not excluded.

    Holds one copy of the scores at a time, forward and backward.

    Args:
        scores: o (B, N).
        weight: w (B, N), without gradient; None for 1.
        excluded: True where a candidate is left out (B, N); None for nowhere.
        shift: a (N,), without gradient; None for 0.

    Returns:
        (B,), -inf where no candidate is left.
    """
    total: Tensor = _LogSumExp.apply(  # type: ignore[no-untyped-call]
        scores, weight, excluded, shift
    )
    return total


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        weight: Tensor | None,
        excluded: Tensor | None,
        shift: Tensor | None,
    ) -> Tensor:
        wide = torch.promote_types(scores.dtype, torch.float32)
        terms = scores.to(wide, copy=True) if shift is None else scores - shift
        for gone in (excluded, None if weight is None else weight == 0):
            if gone is not None:
                terms.masked_fill_(gone, MASKED_SCORE)
        level = terms.amax(1)
        total = _terms(terms.sub_(level.unsqueeze(1)), weight, excluded).sum(1).log() + level
        ctx.save_for_backward(scores, weight, excluded, shift, total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        scores, weight, excluded, shift, total = ctx.saved_tensors
        terms = scores - total.unsqueeze(1)
        share = _terms(terms if shift is None else terms.sub_(shift), weight, excluded)
        return share.mul_(grads[0].unsqueeze(1)).to(scores.dtype), None, None, None


def _terms(scores: Tensor, weight: Tensor | None, excluded: Tensor | None) -> Tensor:
    """w exp(o) in place; the scores of excluded candidates may be arbitrarily large."""
    terms = scores.clamp_(-80.0, 80.0).exp_()  # exp is slow below, and overflows above
    if weight is not None:
        terms.mul_(weight)
    return terms if excluded is None else terms.masked_fill_(excluded, 0.0)
