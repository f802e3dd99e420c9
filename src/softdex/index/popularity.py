"""Popularity: items are drawn by a power of their smoothed counts."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from torch import Tensor

from softdex.errors import ShapeError
from softdex.index.contract import Draws, edited
from softdex.index.flat import Exact
from softdex.score.product import Scorer


@final
class Popularity(Exact):
    """q(i | u) = (count_i + smooth)^power / sum over living items.

    Counts are smoothed so that every item can be drawn, and summed in float64: in float32 the
    cumulative sum of 10^7 items skips the rare ones. `power=0` is the uniform law.
    """

    def __init__(
        self,
        scorer: Scorer,
        counts: Tensor,
        alive: Tensor | None = None,
        *,
        power: float | Tensor = 1.0,
        smooth: float | Tensor = 1.0,
    ) -> None:
        if len(counts) != scorer.num_items or (counts < 0).any() or smooth <= 0:
            raise ShapeError(
                f"Popularity: expected {scorer.num_items} counts of at least 0 and smooth > 0, got "
                f"{len(counts)} counts and smooth={smooth}."
            )
        self.scorer, self.num_items = scorer, scorer.num_items
        self.counts, self.power, self.smooth = counts, float(power), float(smooth)
        self.alive = torch.ones(len(counts), dtype=torch.bool) if alive is None else alive
        self.alive = self.alive.to(counts.device)
        weight = torch.where(self.alive, (counts.double() + self.smooth) ** self.power, 0.0)
        self._cdf = weight.cumsum(0)
        self._logq = (weight.log() - self._cdf[-1].log()).float()
        self._last = self.alive.nonzero()[-1, 0]

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Ids (B, N), or (N,) if shared, by bisecting the cumulative weights."""
        shape = (n,) if shared else (self.scorer.num_queries(query), n)
        device = self._cdf.device
        point = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        ids = torch.searchsorted(self._cdf, point * self._cdf[-1], right=True)
        ids = torch.minimum(ids, self._last)
        return Draws(ids, self._logq[ids])

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """The same for every query."""
        return self._logq[ids].expand(self.scorer.num_queries(query), -1)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Counts do not follow the scorer."""
        return self

    def insert(self, ids: Tensor) -> Self:
        """With these items."""
        return self._with(edited(self.alive, ids, True), self.counts)

    def delete(self, ids: Tensor) -> Self:
        """Without these items."""
        return self._with(edited(self.alive, ids, False), self.counts)

    def to(self, device: torch.device | str) -> Self:
        """On another device."""
        return self._with(self.alive.to(device), self.counts.to(device))

    def state(self) -> dict[str, Tensor]:
        """Counts, which items live, power and smoothing."""
        law = {"power": self.power, "smooth": self.smooth}
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in law.items()}
        return {"counts": self.counts, "alive": self.alive, **exact}

    def _with(self, alive: Tensor, counts: Tensor) -> Self:
        return type(self)(self.scorer, counts, alive, power=self.power, smooth=self.smooth)
