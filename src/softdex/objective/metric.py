"""Metric: distances of users, targets and draws, with margins that are learned."""

from __future__ import annotations

import torch
from torch import Tensor


def sml(
    near: Tensor,
    far: Tensor,
    across: Tensor,
    hit: Tensor,
    user_margin: Tensor,
    item_margin: Tensor,
    *,
    symmetry: float = 0.1,
    reward: float = 0.1,
) -> Tensor:
    """Symmetric metric learning with adaptive margins.

        loss_b = mean_n [d(x, y) - d(x, n) + m_x]_+                                        [SML]
                 + symmetry * mean_n [d(x, y) - d(y, n) + m_y]_+ - reward * (m_x + m_y)

    A draw should be farther than the target from the user, and from the target itself.

    Args:
        near: distance of user and target d(x, y) (B,).
        far: distances of user and draws d(x, n) (B, N).
        across: distances of target and draws d(y, n) (B, N).
        hit: True where a draw is the row's own target (B, N); such draws are ignored.
        user_margin: m of the row's user (B,).
        item_margin: m of the target (B,).
        symmetry: weight of the part around the target.
        reward: of wide margins; without it they would shrink to nothing.

    Returns:
        loss (B,), which the reward can make negative; the caller reduces.

    Relations: without symmetry and reward, and with one margin, it is the hinge loss of scores -d.
    A margin grows until a fraction `reward` of its draws violate it (an item's: `reward / symmetry`
    of them).
    """
    kept = ~hit
    count = kept.sum(1).clamp(min=1)

    def violated(others: Tensor, margin: Tensor) -> Tensor:
        excess = (near + margin)[:, None] - others
        return (excess.clamp(min=0) * kept).sum(1) / count

    around = violated(far, user_margin) + symmetry * violated(across, item_margin)
    return around - reward * (user_margin + item_margin)


def squared_distances(query: Tensor, points: Tensor) -> Tensor:
    """Return |q - x|^2 (B, N) of queries (B, D) and points (N, D), or (B, N, D).

    Args:
        query: queries q.
        points: points x.
    """
    products = torch.einsum("bd,nd->bn" if points.ndim == 2 else "bd,bnd->bn", query, points)
    return query.square().sum(1)[:, None] - 2 * products + points.square().sum(-1)
