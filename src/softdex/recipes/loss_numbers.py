"""The numbers that some losses take beside scores: margins, and how to weigh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from torch import nn

from softdex.data.interactions import Interactions
from softdex.objective.pairwise import warp
from softdex.objective.table import LossOnDraws
from softdex.options import only, unit, up_to
from softdex.solve.gradient.per_user import AdaptiveMargins, UserBoundaries

WITH_USERS = ("uib", "sml")  # objectives with numbers of the users


@dataclass(frozen=True)
class LossNumbers:
    """What losses take beside scores.

    Attributes:
        margin: by which `warp` wants the target to lead.
        rank_weight: weight of an estimated rank r in `warp`: `harmonic` (1 + 1/2 + ... + 1/r) or
            `log` (log r).
        link: how `uib` counts what is on the wrong side of a user's boundary: `logistic` or
            `hinge`.
        most_margin: upper bound of the margins that `sml` learns.
        symmetry: weight in `sml` of distances between the target and draws.
        reward: weight in `sml` of wide margins: a user's margin grows until that fraction of draws
            violates it.
    """

    margin: Annotated[float, up_to(1e3), only(objective="warp")] = 1.0
    rank_weight: Annotated[Literal["harmonic", "log"], only(objective="warp")] = "harmonic"
    link: Annotated[Literal["logistic", "hinge"], only(objective="uib")] = "logistic"
    most_margin: Annotated[float, unit, only(objective="sml")] = 1.0
    symmetry: Annotated[float, up_to(1e3), only(objective="sml")] = 0.1
    reward: Annotated[float, up_to(1e3), only(objective="sml")] = 0.1

    def bound(self, objective: str) -> str | LossOnDraws:
        """The objective with its numbers."""
        if objective == "warp":
            return partial(warp, margin=self.margin, rank_weight=self.rank_weight)
        return objective

    def module(
        self, objective: str, train: Interactions, draws: int, *, shared: bool
    ) -> nn.Module | None:
        """The loss with tables of its own, None where it has none."""
        if objective == "uib":
            return UserBoundaries(train.num_users, draws, shared=shared, link=self.link)
        if objective == "sml":
            return AdaptiveMargins(
                train.num_users, train.num_items, draws, shared=shared, most=self.most_margin,
                symmetry=self.symmetry, reward=self.reward,
            )  # fmt: skip
        return None
