"""Uniform: draw every living item with the same probability."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from softdex.index import methods
from softdex.index.contract import Draws
from softdex.index.flat import exact_search
from softdex.score.contract import Scorer
from softdex.shapes import FLAGS, Layout
from softdex.share import draw


@final
class Uniform:
    """q(i | u) = 1 / number of living items; one set of draws can serve a batch."""

    tensors: ClassVar[Layout] = {"alive": (FLAGS, "I")}
    searches = False
    score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors
    refit, insert, delete = methods.refit, methods.insert, methods.delete
    check, over, to = staticmethod(methods.check), methods.over, methods.to

    def __init__(self, scorer: Scorer, alive: Tensor | None = None) -> None:
        self.scorer, self.num_items = scorer, scorer.num_items
        self.alive = torch.ones(self.num_items, dtype=torch.bool) if alive is None else alive
        self._living = self.alive.nonzero()[:, 0]

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items, or (N,) if shared."""
        size, device = len(self._living), self._living.device

        def drawn(*shape: int) -> Tensor:
            return torch.randint(size, shape, generator=generator, device=device)

        rows = self.scorer.num_queries(query)
        at = drawn(n) if shared else draw(rows, lambda rows: drawn(rows, n))
        logq = torch.full(at.shape, -math.log(len(self._living)), device=device)
        return Draws(self._living[at], logq)

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the same log-probability for all living items, (B, N)."""
        logq = torch.where(self.alive[ids], -math.log(len(self._living)), -torch.inf)
        return logq.expand(self.scorer.num_queries(query), -1)

    def state(self) -> dict[str, Tensor]:
        """Return which items live."""
        return {"alive": self.alive}
