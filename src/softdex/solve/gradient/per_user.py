"""Losses with numbers of the user's own, which are trained beside the vectors and never served."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from softdex.encode.table import Table
from softdex.index.contract import Index
from softdex.objective.boundary import uib
from softdex.objective.metric import sml, squared_distances
from softdex.score.product import in_unit_ball


@final
class UserBoundaries(nn.Module):
    """`uib` with a boundary per user, updated row by row; it starts at 0.

    Args:
        users: number of users.
        negatives: draws per query, or per batch if `shared`.
        shared: whether one set of draws serves the whole batch.
        link: see `uib`.
    """

    reads_users = True

    def __init__(self, users: int, negatives: int, *, shared: bool, link: str = "logistic") -> None:
        super().__init__()
        self.boundary = Table(torch.zeros(users, 1))
        self.negatives, self.shared, self.link = negatives, shared, link

    def forward(
        self,
        index: Index,
        query: Tensor,
        target: Tensor,
        generator: torch.Generator,
        *,
        users: Tensor,
    ) -> Tensor:
        """Loss (B,) of targets (B,) of these users (B,)."""
        draws = index.sample(query, self.negatives, generator=generator, shared=self.shared)
        own = target.unsqueeze(1)
        pos, neg = index.score(query, own)[:, 0], index.score(query, draws.ids)
        boundary = self.boundary(users)[:, 0]
        return uib(pos, neg, draws.ids == own, boundary, link=self.link)


@final
class AdaptiveMargins(nn.Module):
    """`sml` over a Euclidean scorer, with a margin per user and per item, updated row by row.

    A margin is `most` times the sigmoid of a trained number, so that it stays between 0 and `most`;
    it starts in the middle.

    Args:
        users: number of users.
        items: number of items.
        negatives: draws per query, or per batch if `shared`.
        shared: whether one set of draws serves the whole batch.
        most: upper bound of a margin.
        symmetry, reward: see `sml`.
    """

    reads_users = True

    def __init__(
        self,
        users: int,
        items: int,
        negatives: int,
        *,
        shared: bool,
        most: float,
        symmetry: float,
        reward: float,
    ) -> None:
        super().__init__()
        self.of_users, self.of_items = (Table(torch.zeros(rows, 1)) for rows in (users, items))
        self.negatives, self.shared, self.most = negatives, shared, most
        self.symmetry, self.reward = symmetry, reward

    def forward(
        self,
        index: Index,
        query: Tensor,
        target: Tensor,
        generator: torch.Generator,
        *,
        users: Tensor,
    ) -> Tensor:
        """Loss (B,) of targets (B,) of these users (B,)."""
        draws = index.sample(query, self.negatives, generator=generator, shared=self.shared)
        mine, own = in_unit_ball(query), index.scorer.vectors(target)
        others = index.scorer.vectors(draws.ids)
        near = (mine - own).square().sum(1)
        far, across = squared_distances(mine, others), squared_distances(own, others)
        margins = self.of_users(users)[:, 0], self.of_items(target)[:, 0]
        user, item = (self.most * margin.sigmoid() for margin in margins)
        hit = draws.ids == target.unsqueeze(1)
        return sml(near, far, across, hit, user, item, symmetry=self.symmetry, reward=self.reward)
