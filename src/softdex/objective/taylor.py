"""Taylor: the full softmax expanded to second order at equal scores, which has closed forms.

Throughout N is the number of items, o the scores of all of them, y the target. The expansion is
`rgx`; `rg2` drops the products of different scores. Both drop its constant, log N - 1/2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.errors import choose


def rg2(scores: Tensor, target: Tensor) -> Tensor:
    """The ranking-generalizable squared loss, RG2.

        loss_b = -o_y + sum_i (o_i + 1)^2 / (2 N)                                         [RG2]

    Args:
        scores: scores o of all items (B, N).
        target: item ids y (B,).

    Returns:
        loss (B,); the caller reduces.

    Relations: its minimum over shifts of a row is `rgx`, at mean 0. To second order it exceeds
    `full_softmax` - log N + 1/2 by mean(o)^2 / 2. Summed over a row's targets I_x it is, up to a
    constant, `weighted_squared` with weight |I_x| / (2 N) and targets N r / |I_x| - 1. The
    minimiser of the expected loss is o = N eta - 1.
    """
    own = scores.gather(1, target[:, None])[:, 0]
    return (scores + 1).square().sum(1) / (2 * scores.shape[1]) - own


def rgx(scores: Tensor, target: Tensor, beta: float = 1.0, *, interaction: str = "exact") -> Tensor:
    """The ranking-generalizable interactive loss, RGx: `rg2` minus beta times the interaction.

        exact      loss_b = rg2_b - beta (sum_i o_i)^2 / (2 N^2)                          [RGX]
        frobenius  loss_b = rg2_b - beta sum_i o_i^2 / (2 N)                          [RGX-F]

    Args:
        scores: scores o of all items (B, N).
        target: item ids y (B,).
        beta: share of the interaction. The loss is unbounded below for beta above 1, with
            frobenius for 1 too.
        interaction: `exact` is that of the expansion, `frobenius` the one that the RG2 paper
            prints and runs.

    Returns:
        loss (B,); the caller reduces.

    Relations: exact with beta 1 is the second-order expansion of `full_softmax` and, like it,
    invariant to shifts of a row; up to the constant the two differ by at most
    (max o - min o)^3 / (36 sqrt 3). Frobenius is `rg2` of (1 - beta) o, rescaled, and not an
    expansion of the softmax.
    """
    n = scores.shape[1]
    mixed = _interaction(scores.sum(1), scores.square().sum(1), n, interaction)
    return rg2(scores, target) - beta / (2 * n) * mixed


def rg_of_vectors(
    query: Tensor,
    items: Tensor,
    row: Tensor,
    item: Tensor,
    *,
    weight: Tensor | None = None,
    alpha: float = 0.0,
    beta: float = 0.0,
    interaction: str = "exact",
) -> Tensor:
    """The sum over events of `rgx` of inner products, plus alpha times a square per event.

        loss = sum_e w_e ( rgx(o_x(e), y(e)) + alpha (o_e - 1)^2 ),   o = query @ items.T   [RG-V]

    Only the scores of events are computed, since |o_x|^2 = q_x' (items' items) q_x and
    sum_i o_xi = q_x' sum_i items_i. The cost is E D + (U + N) D^2. Differentiable any number of
    times.

    Args:
        query: queries q of all users (U, D).
        items: item vectors (N, D).
        row: the user x of each event (E,).
        item: the item y of each event (E,).
        weight: w of each event (E,); 1 by default.
        alpha: weight of the squares that pull the events' own scores to 1.
        beta: share of the interaction; 0 is `rg2`.
        interaction: `exact` or `frobenius`, see `rgx`.

    Returns:
        loss, a scalar.

    Relations: exact with alpha 0, any beta <= 1 and one regulariser for all items has the
    minimisers of beta 0, and their items sum to 0. Frobenius has the minimisers of beta 0 with
    alpha / (1 - beta) for alpha and squares that pull to 1 - beta, divided by sqrt(1 - beta).
    """
    n, own = len(items), (query[row] * items[item]).sum(1)
    weight = torch.ones_like(own) if weight is None else weight.to(own.dtype)
    mass = own.new_zeros(len(query)).index_add(0, row, weight)
    total, square = query @ items.sum(0), (query @ (items.T @ items) * query).sum(1)
    mixed = _interaction(total, square, n, interaction)
    everywhere = (square + 2 * total + n - beta * mixed) / (2 * n)
    return mass @ everywhere + weight @ (alpha * (own - 1).square() - own)


def _interaction(total: Tensor, square: Tensor, n: int, kind: str) -> Tensor:
    """(sum o)^2 / N if exact, else |o|^2, from the sum and the sum of squares of the scores."""
    exact = choose("rgx", "interaction", kind, ("exact", "frobenius")) == "exact"
    return total.square() / n if exact else square
