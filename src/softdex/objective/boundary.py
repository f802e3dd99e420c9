"""Boundary: the target above a number of the user's own, draws below it."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from softdex.errors import choose

LINKS = ("logistic", "hinge")


def uib(
    pos: Tensor,
    neg: Tensor,
    hit: Tensor,
    boundary: Tensor,
    *,
    link: str = "logistic",
    margin: float = 1.0,
) -> Tensor:
    """User interest boundary: a pointwise loss whose zero is learned per user.

        loss_b = phi(b_x - o_y) + mean_n phi(o_n - b_x)                                    [UIB]

    with phi(z) = log(1 + exp z), or the hinge phi(z) = max(0, z + margin).

    Args:
        pos: target scores o_y (B,).
        neg: scores of the draws o_n (B, N).
        hit: True where a draw is the row's own target (B, N); such draws are ignored.
        boundary: b of the row's user (B,), with a gradient. No ranking depends on it.
        link: phi, `logistic` or `hinge`.
        margin: of the hinge.

    Returns:
        loss (B,); the caller reduces.

    Relations: with boundary 0 and the logistic link it is `bce`. Adding a constant to the scores
    and the boundary of a row changes nothing.
    """
    logistic = choose("uib", "link", link, LINKS) == "logistic"

    def phi(z: Tensor) -> Tensor:
        return softplus(z) if logistic else (z + margin).clamp(min=0)

    kept = ~hit
    below = (phi(neg - boundary[:, None]) * kept).sum(1) / kept.sum(1).clamp(min=1)
    return phi(boundary - pos) + below
