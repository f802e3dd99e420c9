"""Divergence: how far a proposal is from a softmax, where both are known for every item."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def divergence(logq: Tensor, logp: Tensor) -> tuple[float, float]:
    """Return KL(q || p), and effective draws per draw: 1 / sum_i p(i)^2 / q(i), for (I,) each."""
    kl = (logq.exp() * (logq - logp)).nan_to_num(0.0).sum()
    ratio = (2 * logp - logq).nan_to_num(-torch.inf, neginf=-torch.inf)
    return max(0.0, float(kl)), min(1.0, math.exp(-float(ratio.logsumexp(0))))
