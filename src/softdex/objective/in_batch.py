"""In-batch: the target against the items that a batch already holds, weighted or drawn again.

Items enter a batch as often as they occur, so popular ones stand against everybody. Shapes: B rows,
N candidates (the batch's items, a cache, uniform draws), scores (B, N).
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from softdex.errors import choose
from softdex.objective.sampled import FLOOR

PRIME = 2**31 - 1
CORRECTIONS = ("none", "uniform", "proposal")


def left_out(
    target: Tensor, candidates: Tensor, *, own: str = "drop", hits: str = "drop", offset: int = 0
) -> Tensor | None:
    """Which candidates (N,) do not stand against a row's target (B,): (B, N), None for all do.

    Args:
        target: item ids (B,).
        candidates: item ids (N,).
        own: what becomes of the row's own place, candidate b + offset of row b: `drop` or `keep`.
        hits: and of other places that hold the same item.
        offset: where the rows' own places begin.
    """
    choose("in_batch", "own", own, ("drop", "keep"))
    choose("in_batch", "hits", hits, ("drop", "keep"))
    if own == hits == "keep":
        return None
    place = torch.arange(len(candidates), device=target.device)
    mine = place == place[offset : offset + len(target), None]
    if hits == "keep":
        return mine
    same = target[:, None] == candidates
    return same if own == "drop" else same & ~mine


def batch_softmax(
    pos: Tensor,
    neg: Tensor,
    out: Tensor | None = None,
    logp: Tensor | None = None,
    pos_logp: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the target against the candidates, each corrected by its log-probability.

        loss_b = -(o_y - log p_y) + log( exp(o_y - log p_y) + sum_j exp(o_j - log p_j) )   [SSL]

    over the candidates j that are not left out. Without correction (p = 1) it is `ssl`; with p the
    popularity `ssl_pop`, with an estimate of it `g_tower`, with a mixture's law `mns`.

    Args:
        pos: target scores o_y (B,).
        neg: scores of the candidates (B, N).
        out: which candidates are left out (B, N).
        logp: log p of the candidates (N,), given, not learned; only differences matter.
            None: they are alike.
        pos_logp: log p of the target (B,).

    Returns:
        loss (B,); 0 where every candidate is left out.

    Relations: with nothing left out it is `sampled_softmax` with `correct="all"`; if the candidates
    are draws from p, its gradient then tends to the full softmax's.
    """
    pos = pos if pos_logp is None else pos - pos_logp.detach()
    return torch.logaddexp(pos, log_sum(neg, None, out, logp)) - pos


def mixed(logp: Tensor, batch: int | Tensor, uniform: int, items: int) -> Tensor:
    """log of the law of a batch of items by popularity, joined by so many uniform ones.

    log( r p + (1 - r) / I ), r = B / (B + U)                                              [MNS]
    """
    share = torch.as_tensor(batch, device=logp.device) / (batch + uniform)
    return torch.logaddexp(logp + share.log(), ((1 - share) / items).log())


# draw again --------------------------------------------------------------------------------------


def resampling(scores: Tensor, logp: Tensor, out: Tensor | None = None) -> Tensor:
    """log w (B, N): by what law the candidates of each row are drawn again, without gradient.

    w_bj = exp(o_bj - log p_j) / sum_k exp(o_bk - log p_k)                                  [BIR]

    Candidates that came by p, drawn again by w, act like draws from the softmax over all items.
    """
    weight = scores.detach() - logp
    return (weight if out is None else weight.masked_fill_(out, FLOOR)).log_softmax(1)


def resampled(
    pos: Tensor,
    neg: Tensor,
    counts: Tensor,
    log_weight: Tensor | None = None,
    *,
    correction: str = "none",
) -> Tensor:
    """Cross-entropy of the target against candidates that were drawn again.

    `none`, as published; `uniform`: the draws are softmax samples, so the gradient of their mean
    score is that of the normaliser; `proposal`: each draw is weighted by what made it likely.

        none:      loss_b = -o_y + log( exp o_y + sum_j c_j exp o_j )                       [BIR-1]
        uniform:   loss_b = -o_y + sum_j c_j o_j / M                                        [BIR-2]
        proposal:  loss_b = -o_y + log( exp o_y + sum_j c_j exp(o_j) / (M w_j) )            [BIR-3]

    Args:
        pos: target scores o_y (B,).
        neg: scores of the candidates (B, N).
        counts: how often each was drawn, M in all, (B, N).
        log_weight: log w (B, N), as they were drawn; only `proposal` asks for it.
        correction: `none`, `uniform` or `proposal`.

    Returns:
        loss (B,). That of `uniform` has the right gradient, its value says little.

    Relations: as B and M grow, the gradient of `none` tends to that of a softmax of 2 o, that of
    `uniform` to the full softmax's, and that of `proposal` to plain `ssl`: it undoes the drawing.
    """
    choose("resampled", "correction", correction, CORRECTIONS)
    if correction == "uniform":
        total = counts.sum(1)
        return (counts * neg).sum(1) / total.clamp(min=1) - pos * (total > 0)
    weight = counts
    if correction == "proposal":
        assert log_weight is not None
        rarity = torch.where(counts > 0, -log_weight, 0.0).exp()
        weight = counts * rarity / counts.sum(1, keepdim=True).clamp(min=1)
    return torch.logaddexp(pos, log_sum(neg, weight)) - pos


def log_sum(
    scores: Tensor,
    weight: Tensor | None = None,
    out: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """log sum_j w_j exp(o_j - a_j), (B,): scores and weights (B, N), shift (N,), some left out.

    Holds one copy of the scores at a time, forward and backward; -inf where nothing is left.
    """
    total: Tensor = _LogSum.apply(scores, weight, out, shift)  # type: ignore[no-untyped-call]
    return total


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, weight: Tensor | None, out: Tensor | None, shift: Tensor | None
    ) -> Tensor:
        wide = torch.promote_types(scores.dtype, torch.float32)
        terms = scores.to(wide, copy=True) if shift is None else scores - shift
        for gone in (out, None if weight is None else weight == 0):
            if gone is not None:
                terms.masked_fill_(gone, FLOOR)
        level = terms.amax(1)
        total = _terms(terms.sub_(level.unsqueeze(1)), weight, out).sum(1).log() + level
        ctx.save_for_backward(scores, weight, out, shift, total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        scores, weight, out, shift, total = ctx.saved_tensors
        terms = scores - total.unsqueeze(1)
        share = _terms(terms if shift is None else terms.sub_(shift), weight, out)
        return share.mul_(grads[0].unsqueeze(1)).to(scores.dtype), None, None, None


def _terms(scores: Tensor, weight: Tensor | None, out: Tensor | None) -> Tensor:
    """w exp(o) in the memory of the scores; those that do not count may be as large as they are."""
    terms = scores.clamp_(-80.0, 80.0).exp_()  # exp is slow on smaller ones, and larger overflow
    if weight is not None:
        terms.mul_(weight)
    return terms if out is None else terms.masked_fill_(out, 0.0)


# what is remembered between batches --------------------------------------------------------------


@final
class Frequencies(nn.Module):
    """How often items come, estimated from the stream itself: batches between two visits.

    interval <- (1 - rate) interval + rate (now - last visit) / visits now
    log p = -log max interval                                                          [G-Tower]

    over a few hashed arrays, whose largest interval is that of the fewest collisions. Needs no
    counts and no number of items, and follows a stream that changes.

    Args:
        slots: of each array.
        first: what an interval is before anything was seen.
        rate: how fast it follows.
        hashes: how many arrays.
    """

    factors: Tensor
    last: Tensor
    interval: Tensor
    now: Tensor
    times: Tensor

    def __init__(self, slots: int, first: float, rate: float = 0.01, hashes: int = 5) -> None:
        super().__init__()
        self.slots, self.rate = slots, rate
        generator = torch.Generator().manual_seed(slots)
        factors = torch.randint(1, PRIME, (2, hashes, 1), generator=generator)
        self.register_buffer("factors", factors, persistent=False)
        shape = hashes, slots + 1  # the last is nobody's
        self.register_buffer("last", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("interval", torch.full(shape, float(first)))
        self.register_buffer("now", torch.zeros((), dtype=torch.int64))
        self.register_buffer("times", torch.zeros(shape, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        """Note that a batch holds these items (N,), -1 for none; log p of each, up to a constant.

        An item that comes several times in a batch comes so many times as often.
        """
        self.now += 1
        factor, shift = self.factors
        slot = (ids % PRIME * factor + shift) % PRIME % self.slots
        slot = torch.where(ids < 0, self.slots, slot)
        row = torch.arange(len(slot), device=ids.device)[:, None].expand_as(slot)
        self.times.index_put_((row, slot), torch.ones_like(slot), accumulate=True)
        gap = (self.now - self.last[row, slot]) / self.times[row, slot]
        self.times.index_put_((row, slot), torch.zeros_like(slot))
        interval = self.interval[row, slot] * (1 - self.rate) + self.rate * gap
        self.interval[row, slot] = interval  # repeated slots are given the same number
        self.last[row, slot] = self.now
        return -interval.amax(0).log()


@final
class Cache(nn.Module):
    """Informative items of the batches so far, by their ids; their vectors are always the present.

    Counts are whole numbers: a batch adds about B^2 to them, and float32 stops counting at 2^24.
    They fade by `decay` a step, when they are next looked at.
    """

    ids: Tensor
    counts: Tensor
    last: Tensor
    now: Tensor
    times: Tensor

    def __init__(self, ids: Tensor, items: int, decay: float = 1.0) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("ids", ids)
        self.register_buffer("counts", torch.ones(items, dtype=torch.int64))
        self.register_buffer("last", torch.zeros(items, dtype=torch.int64))
        self.register_buffer("now", torch.zeros((), dtype=torch.int64))
        self.register_buffer("times", torch.zeros(items, dtype=torch.int64), persistent=False)

    def occurrences(self, ids: Tensor) -> Tensor:
        """How often these items were drawn, faded to the present, (N,) int64."""
        counts = self.counts[ids]
        if self.decay == 1:
            return counts
        age = (self.now - self.last[ids]).double()
        return (counts * self.decay**age).long()

    @torch.no_grad()
    def replace(self, ids: Tensor, counts: Tensor, generator: torch.Generator | None) -> None:
        """Count what was drawn of these candidates (M,), and refill the cache from what was.

        Each distinct item that was drawn is taken with a probability in proportion to how often
        it ever was; ids may repeat.
        """
        self.now += 1
        self.counts[ids] = self.occurrences(ids)
        self.last[ids] = self.now
        self.counts.index_add_(0, ids, counts)
        seen = (counts > 0).long()
        self.times.index_add_(0, ids, seen)
        weight = self.counts[ids].double() * seen / self.times[ids].clamp(min=1)
        self.times.index_fill_(0, ids, 0)
        steps = weight.cumsum(0)
        point = torch.rand(
            len(self.ids), generator=generator, device=ids.device, dtype=torch.float64
        )
        place = torch.searchsorted(steps, point * steps[-1], right=True)
        self.ids.copy_(ids[place.clamp(max=len(ids) - 1)])
