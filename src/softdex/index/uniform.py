"""Uniform: every living item is as likely; the same draws serve a whole batch."""

from __future__ import annotations

import math
from typing import Any, Self, final

import torch
from torch import Tensor

from softdex.index.contract import Draws, edited
from softdex.index.flat import Exact
from softdex.score.product import Scorer


@final
class Uniform(Exact):
    """q(i | u) = 1 / living items. Search is flat: a static proposal knows no neighbourhood."""

    def __init__(self, scorer: Scorer, alive: Tensor | None = None) -> None:
        self.scorer, self.num_items = scorer, scorer.num_items
        self.alive = torch.ones(self.num_items, dtype=torch.bool) if alive is None else alive
        self._living = self.alive.nonzero()[:, 0]

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Ids (B, N), or (N,) if shared, and their constant log-probability."""
        shape = (n,) if shared else (self.scorer.num_queries(query), n)
        device = self._living.device
        at = torch.randint(len(self._living), shape, generator=generator, device=device)
        logq = torch.full(shape, -math.log(len(self._living)), device=device)
        return Draws(self._living[at], logq)

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """The same for all living items."""
        logq = torch.where(self.alive[ids], -math.log(len(self._living)), -torch.inf)
        return logq.expand(self.scorer.num_queries(query), -1)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Nothing to follow."""
        return self

    def insert(self, ids: Tensor) -> Self:
        """With these items."""
        return type(self)(self.scorer, edited(self.alive, ids, True))

    def delete(self, ids: Tensor) -> Self:
        """Without these items."""
        return type(self)(self.scorer, edited(self.alive, ids, False))

    def to(self, device: torch.device | str) -> Self:
        """On another device."""
        return type(self)(self.scorer, self.alive.to(device))

    def state(self) -> dict[str, Tensor]:
        """Which items live."""
        return {"alive": self.alive}
