"""Probe: how close the proposal of a sampled run is to the softmax, on a few users."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softdex.index.contract import Index
from softdex.index.flat import Flat


@torch.inference_mode()
def proposal_report(
    index: Index, query: Any, target: Tensor, n: int, generator: torch.Generator
) -> dict[str, float]:
    """Three figures of a proposal q on probe users.

    Args:
        index: the proposal, bound to the scorer whose softmax p it approximates.
        query: of the probe users (B, ...).
        target: one item per user (B,).
        n: draws per user.

    Returns:
        `kl`: mean KL(q || p); 0 when the proposal is the softmax.
        `ess`: effective sample size of n draws weighted by p / q, as a fraction of n.
        `hits`: fraction of the draws that are the target.
    """
    everything = torch.arange(index.num_items, device=target.device)
    logq = index.log_prob(query, everything).double()
    logp = Flat(index.scorer, index.alive).log_prob(query, everything).double()
    kl = (logq.exp() * (logq - logp)).nan_to_num(0.0).sum(1)
    draws = index.sample(query, n, generator=generator)
    logw = logp.gather(1, draws.ids) - draws.logq.double()
    ess = (2 * logw.logsumexp(1) - (2 * logw).logsumexp(1) - math.log(n)).exp()
    hits = (draws.ids == target[:, None]).double().mean()
    figures = {"kl": kl.mean(), "ess": ess.mean(), "hits": hits}
    return {name: round(float(value), 6) for name, value in figures.items()}
