"""Lists drawn without replacement from a softmax: the best k of scores with Gumbel noise.

    g_i = score_i / temperature - log E_i,  E_i independent and exponential

The items of the k largest g, in this order, are drawn one after another, each from the softmax over
the items not drawn before (Plackett-Luce). With kappa the (k+1)-th largest g,

    propensity_i = P(g_i > kappa) = 1 - exp(-exp(score_i / temperature - kappa))

is the probability that i is in the list, given the noise of the other items. For any f, the sum of
f(i) / propensity_i over the list has the expectation of the sum of f over all items.

Shapes: B queries, N items of a block, K places per list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

NOWHERE = -torch.inf
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the constants of SplitMix64, as signed numbers
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
CELL = 60  # bytes of a (query, item) cell while lists are drawn


class Drawn(NamedTuple):
    """Lists (B, K): items in the order drawn, -1 past the end, with their scores, log-probabilities
    given the items drawn before, and propensities."""

    ids: Tensor
    scores: Tensor
    log_prob: Tensor
    propensity: Tensor


def draw(
    blocks: Iterable[tuple[Tensor, Tensor]], k: int, temperature: float, streams: Tensor
) -> Drawn:
    """Draw k items per query.

    A list is the beginning of the longer list that is drawn with the same streams, and depends
    neither on the blocks nor on the other queries.

    Args:
        blocks: ids (N,) or (B, N) and scores (B, N), -inf for items that cannot be drawn.
        k: items per query.
        temperature: divides the scores.
        streams: stream of random numbers of each query (B,); see `streams_of`.
    """
    ids, scores, g, others = _fold(blocks, k + 1, temperature, streams)
    kappa, g = g[:, k:], g[:, :k]
    logit = scores.double() / temperature
    others = torch.cat([others, logit[:, k:].flip(1)], 1)
    logit, real = logit[:, :k], g > NOWHERE
    left = torch.cat([others, logit.flip(1)], 1).logcumsumexp(1).flip(1)[:, :k]
    return Drawn(
        torch.where(real, ids[:, :k], -1),
        scores[:, :k],
        torch.where(real, logit - left, NOWHERE),
        torch.where(real, -torch.expm1(-torch.exp(logit - kappa)), 0.0),
    )


def streams_of(seed: int | Tensor, places: Tensor) -> Tensor:
    """Return one stream per place (B,) of a request, from one seed or one per place."""
    start = _mixed(torch.zeros_like(places) + seed)
    return _mixed(start + places * GOLDEN)


def exponential(streams: Tensor, ids: Tensor) -> Tensor:
    """Return exponential noise (B, N) of items (N,) or (B, N): float64, hashes of stream and id."""
    bits = (_mixed(streams[:, None] + (ids + 1) * GOLDEN) >> 11) & (2**53 - 1)
    return bits.double().add_(0.5).mul_(2.0**-53).log_().neg_()


# inside ------------------------------------------------------------------------------------------


def _fold(
    blocks: Iterable[tuple[Tensor, Tensor]], most: int, temperature: float, streams: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, scores and g of the largest g (B, most), padded with -inf, and the log-sum-exp of
    the logits of all other items (B, 1)."""
    ids = streams.new_full((len(streams), most), -1)
    scores = torch.full(ids.shape, NOWHERE)
    g = scores.double()
    others = g[:, :1]
    for mine, new in blocks:
        state = streams, ids, scores, g, others
        streams, ids, scores, g, others = (part.to(new.device) for part in state)
        logit = new.double() / temperature
        noisy = logit - exponential(streams, mine).log_()
        top = noisy.topk(min(most, noisy.shape[1]))
        rest = logit.scatter(1, top.indices, NOWHERE).logsumexp(1, keepdim=True)
        found = mine.expand_as(new).gather(1, top.indices), new.gather(1, top.indices).float()
        ids, scores = torch.cat([ids, found[0]], 1), torch.cat([scores, found[1]], 1)
        g, order = torch.cat([g, top.values], 1).sort(dim=1, descending=True, stable=True)
        ids, scores = ids.gather(1, order), scores.gather(1, order)
        lost = scores[:, most:].double() / temperature
        others = torch.cat([others, rest, lost], 1).logsumexp(1, keepdim=True)
        ids, scores, g = ids[:, :most], scores[:, :most], g[:, :most]
    return ids, scores, g, others


def _mixed(x: Tensor) -> Tensor:
    """Mix the bits of whole numbers (SplitMix64), in place; products wrap around."""
    x ^= (x >> 30) & (2**34 - 1)
    x *= FIRST
    x ^= (x >> 27) & (2**37 - 1)
    x *= SECOND
    x ^= (x >> 31) & (2**33 - 1)
    return x
