"""Squared: scores held to wanted values, and vectors held to be short."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_squared(scores: Tensor, wanted: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Weighted squared error over all items.

        loss_b = sum_i w_bi (o_bi - r_bi)^2                                               [WSL]

    Args:
        scores: of all items (B, N).
        wanted: what they should be (B, N).
        weight: anything that broadcasts to (B, N).

    Returns:
        loss (B,); the caller reduces.

    Relations: where 0 or 1 is wanted, and the weight depends on nothing else, the expected loss
    is least at scores that order the items by the probability of 1.
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
    """Events' scores held to 1 and all scores, theirs too, to 0: the loss of iALS.

        loss = sum_e c_e (o_e - 1)^2 + background * sum_xi o_xi^2,   o = query @ items.T    [IALS]

    The second sum is that of (query' query) * (items' items): costs E D + (U + N) D^2, and can be
    differentiated any number of times.

    Args:
        query: (U, D).
        items: (N, D).
        row: the query of each event (E,).
        item: the item of each event (E,).
        weight: c of each event (E,); 1 by default.
        background: weight of every cell's square.

    Returns:
        loss, a scalar.

    Relations: `weighted_squared` of all rows with weight c + background and wanted
    c / (c + background) at the events, background and 0 elsewhere, up to a constant.
    """
    own = (query[row] * items[item]).sum(1)
    weight = torch.ones_like(own) if weight is None else weight.to(own.dtype)
    everywhere = ((query.T @ query) * (items.T @ items)).sum()
    return weight @ (own - 1).square() + background * everywhere


def frequency_reg(vectors: Tensor, total: Tensor, lam: float, nu: float) -> Tensor:
    """Squared norms, heavier for rows that occur more.

        loss = lam * sum_r total_r^nu |v_r|^2                                             [FREQ]

    Args:
        vectors: (R, D).
        total: sum of the weights in which each row occurs (R,).
        lam: how strong.
        nu: 0 counts all rows alike, those that never occur too; 1 counts them by `total`.

    Returns:
        loss, a scalar.
    """
    return lam * (total.to(vectors.dtype) ** nu @ vectors.square().sum(1))
