"""Taylor: the full softmax expanded to second order at equal scores. Squares, so it can be solved.

Throughout N is the number of items, o the scores of all of them, y the target. The expansion is
`rgx`; `rg2` leaves out the products of different scores. Both lack its constant, log N - 1/2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.errors import choose


def rg2(scores: Tensor, target: Tensor) -> Tensor:
    """The ranking-generalizable squared loss.

        loss_b = -o_y + sum_i (o_i + 1)^2 / (2 N)                                         [RG2]

    Args:
        scores: of all items (B, N).
        target: item ids (B,).

    Returns:
        loss (B,); the caller reduces.

    Relations: its minimum over shifts of a row is `rgx`, at mean 0. To second order it exceeds
    `full_softmax` - log N + 1/2 by mean(o)^2 / 2. Summed over a row's targets I_x
    it is `weighted_squared` with weight |I_x| / (2 N) and wanted N r / |I_x| - 1, less a constant.
    The expected loss is least at o = N eta - 1.
    """
    own = scores.gather(1, target[:, None])[:, 0]
    return (scores + 1).square().sum(1) / (2 * scores.shape[1]) - own


def rgx(scores: Tensor, target: Tensor, beta: float = 1.0, *, interaction: str = "exact") -> Tensor:
    """The ranking-generalizable interactive loss: `rg2` less beta times the interaction.

        exact      loss_b = rg2_b - beta (sum_i o_i)^2 / (2 N^2)                          [RGX]
        frobenius  loss_b = rg2_b - beta sum_i o_i^2 / (2 N)                          [RGX-F]

    Args:
        scores: of all items (B, N).
        target: item ids (B,).
        beta: share of the interaction. Above 1, or with frobenius from 1 on, nothing bounds the
            loss from below.
        interaction: `exact`, of the expansion, or `frobenius`, as S2 prints and runs it.

    Returns:
        loss (B,).

    Relations: exact with beta 1 is the second-order expansion of `full_softmax` and, like it,
    blind to shifts of a row; the two differ by at most (max o - min o)^3 / (36 sqrt 3) and the
    constant. Frobenius is `rg2` of (1 - beta) o, rescaled, and no expansion of the softmax.
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
    """`rgx` of all events of dot-product scores, and alpha times the square of their own scores.

        loss = sum_e w_e ( rgx(o_x(e), y(e)) + alpha (o_e - 1)^2 ),   o = query @ items.T   [RG-V]

    A sum, not a mean, and nothing is dropped. |o_x|^2 = q_x' (items' items) q_x and
    sum_i o_xi = q_x' sum_i items_i: never a score but those of the events.
    Costs E D + (U + N) D^2, and can be differentiated any number of times.

    Args:
        query: (U, D).
        items: (N, D).
        row: the query of each event (E,).
        item: the item of each event (E,).
        weight: of each event (E,); 1 by default.
        alpha: weight of the squares that pull the events' own scores to 1.
        beta: share of the interaction; 0 is `rg2`.
        interaction: `exact` or `frobenius`, see `rgx`.

    Returns:
        loss, a scalar.

    Relations: exact with alpha 0, any beta <= 1 and one regulariser for all items has the
    minimisers of beta 0, and their items sum to 0. Frobenius has those of beta 0 divided by
    sqrt(1 - beta), when there alpha / (1 - beta) stands for alpha and the squares pull to 1 - beta.
    """
    n, own = len(items), (query[row] * items[item]).sum(1)
    weight = torch.ones_like(own) if weight is None else weight.to(own.dtype)
    mass = own.new_zeros(len(query)).index_add(0, row, weight)
    total, square = query @ items.sum(0), (query @ (items.T @ items) * query).sum(1)
    mixed = _interaction(total, square, n, interaction)
    everywhere = (square + 2 * total + n - beta * mixed) / (2 * n)
    return mass @ everywhere + weight @ (alpha * (own - 1).square() - own)


def _interaction(total: Tensor, square: Tensor, n: int, kind: str) -> Tensor:
    """(sum o)^2 / N, or |o|^2 in its place, from the sum and the sum of squares of the scores."""
    exact = choose("rgx", "interaction", kind, ("exact", "frobenius")) == "exact"
    return total.square() / n if exact else square
