"""Squared: regress scores on wanted values, and regularise vectors by their norm."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_squared(scores: Tensor, wanted: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Weighted squared error over all items.

        loss_b = sum_i w_bi (o_bi - r_bi)^2                                               [WSL]

    Args:
        scores: scores o of all items (B, N).
        wanted: their targets r (B, N).
        weight: w, broadcast to (B, N).

    Returns:
        loss (B,); the caller reduces.

    Relations: if r is 0 or 1 and w depends on r alone, the minimiser of the expected loss orders
    items by the probability of r = 1.
    """
    return (weight * (scores - wanted).square()).sum(1)


def squared_of_vectors(
    query: Tensor,
    items: Tensor,
    row: Tensor,
    item: Tensor,
    *,
    weight: Tensor | None = None,
    background: float,
) -> Tensor:
    """The loss of iALS: scores of events regressed on 1, and all scores on 0.

        loss = sum_e c_e (o_e - 1)^2 + background * sum_xi o_xi^2,   o = query @ items.T    [IALS]

    The second sum is the sum of (query' query) * (items' items), so the cost is E D + (U + N) D^2.
    Differentiable any number of times.

    Args:
        query: queries of all users (U, D).
        items: item vectors (N, D).
        row: the user of each event (E,).
        item: the item of each event (E,).
        weight: c, the confidence of each event (E,); 1 by default.
        background: weight of every (user, item) pair.

    Returns:
        loss, a scalar.

    Relations: up to a constant it is the sum over rows of `weighted_squared` with weight
    c + background and target c / (c + background) at events, background and 0 elsewhere.
    """
    own = (query[row] * items[item]).sum(1)
    weight = torch.ones_like(own) if weight is None else weight.to(own.dtype)
    everywhere = ((query.T @ query) * (items.T @ items)).sum()
    return weight @ (own - 1).square() + background * everywhere


def frequency_reg(vectors: Tensor, total: Tensor, lam: float, nu: float) -> Tensor:
    """L2 regulariser with a weight per row that grows with how often the row occurs.

        loss = lam * sum_r total_r^nu |v_r|^2                                             [FREQ]

    Args:
        vectors: vectors v (R, D).
        total: summed weight of the terms in which each row occurs (R,).
        lam: strength.
        nu: exponent; 0 weights all rows alike, including those that never occur.

    Returns:
        loss, a scalar.
    """
    return lam * (total.to(vectors.dtype) ** nu @ vectors.square().sum(1))
