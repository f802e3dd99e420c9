"""Popularity: draw items by a power of their smoothed counts."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor

from softdex.errors import ShapeError
from softdex.index import methods
from softdex.index.contract import Draws
from softdex.index.flat import exact_search
from softdex.index.imi.books import popularity_weight
from softdex.score.contract import Scorer
from softdex.shapes import DOUBLES, FLAGS, LONGS, MOST, Layout, Sizes, Tensors
from softdex.share import draw

MOST_POWER = 10  # of a count


@final
class Popularity:
    """q(i | u) = (count_i + smooth)^power / sum over living items, or log(1 + count_i) / that sum.

    Counts are smoothed so that every item can be drawn, and summed in float64: in float32 the
    cumulative sum of 10^7 items skips the rare ones. `power=0` gives the uniform law. With `log` an
    item without events counts as half an event.

    Args:
        scorer: of the items.
        counts: events per item (I,).
        alive: which items are in the index (I,); None: all.
        power: exponent.
        smooth: added to every count, above 0.
        log: weigh items by log(1 + count), without power and smooth (FastVAE).
    """

    tensors: ClassVar[Layout] = {
        "counts": (LONGS, "I"),
        "alive": (FLAGS, "I"),
        "power": (DOUBLES, ""),
        "smooth": (DOUBLES, ""),
        "log": (FLAGS, "?"),
    }
    searches = False
    score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors
    refit, insert, delete = methods.refit, methods.insert, methods.delete
    over, to = methods.over, methods.to

    def __init__(
        self,
        scorer: Scorer,
        counts: Tensor,
        alive: Tensor | None = None,
        *,
        power: float | Tensor = 1.0,
        smooth: float | Tensor = 1.0,
        log: bool | Tensor = False,
    ) -> None:
        if len(counts) != scorer.num_items or (counts < 0).any() or smooth <= 0:
            raise ShapeError(
                f"Popularity: expected {scorer.num_items} counts of at least 0 and smooth > 0, got "
                f"{len(counts)} counts and smooth={smooth}."
            )
        self.scorer, self.num_items = scorer, scorer.num_items
        self.counts, self.power, self.smooth = counts, float(power), float(smooth)
        self.log = bool(log)
        self.alive = torch.ones(len(counts), dtype=torch.bool) if alive is None else alive
        self.alive = self.alive.to(counts.device)
        known = (counts.double() + self.smooth) ** self.power
        weight = torch.where(self.alive, popularity_weight(counts) if self.log else known, 0.0)
        self._cdf = weight.cumsum(0)
        self._logq = (weight.log() - self._cdf[-1].log()).float()
        self._last = self.alive.nonzero()[-1, 0]

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
        """Refuse a law that gives an item no finite probability, and one without a living item."""
        methods.check(tensors, sizes, scorer)
        power, smooth = float(tensors["power"]), float(tensors["smooth"])
        if not (0 <= power <= MOST_POWER and 1 / MOST <= smooth <= MOST):
            raise ValueError(f"no law of popularity has power={power} and smooth={smooth}")

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items, or (N,) if shared, by bisecting the cumulative weights."""

        def drawn(*shape: int) -> Tensor:
            device = self._cdf.device
            return torch.rand(shape, generator=generator, dtype=torch.float64, device=device)

        rows = self.scorer.num_queries(query)
        point = drawn(n) if shared else draw(rows, lambda rows: drawn(rows, n))
        ids = torch.searchsorted(self._cdf, point * self._cdf[-1], right=True)
        ids = torch.minimum(ids, self._last)
        return Draws(ids, self._logq[ids])

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the same log-probabilities for every query, (B, N)."""
        return self._logq[ids].expand(self.scorer.num_queries(query), -1)

    def state(self) -> dict[str, Tensor]:
        """Return counts, which items live, power and smoothing; and `log` where it is so."""
        law = {"power": self.power, "smooth": self.smooth}
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in law.items()}
        logs = {"log": torch.tensor(True)} if self.log else {}
        return {"counts": self.counts, "alive": self.alive, **exact, **logs}
