"""An encoder, a scorer and an index of a user's own, as short as the contracts allow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.ragged import Ragged
from softdex.encode.history import latest
from softdex.index import methods
from softdex.index.contract import Draws
from softdex.index.flat import exact_search
from softdex.model.kinds import KINDS, register
from softdex.score.contract import extended
from softdex.shapes import shapes_suffice


@contextmanager
def registered(*classes: type) -> Iterator[None]:
    """These, besides those of the package, and nothing that another test left behind."""
    before = {role: dict(known) for role, known in KINDS.items()}
    for role, known in KINDS.items():
        known.clear()
        known |= {n: c for n, c in before[role].items() if c.__module__.startswith("softdex.")}
    for cls in classes:
        register(cls)
    yield
    for role, known in KINDS.items():
        known.clear()
        known |= before[role]


class LastItem(nn.Module):
    """The query is the vector of the history's last item, times a factor."""

    tensors = {"factor": (torch.float32, "")}  # noqa: RUF012
    reads_items = reads_history = True
    answers_strangers = history_first = False
    check = staticmethod(shapes_suffice)

    def __init__(self, factor: Tensor, items: Any) -> None:
        super().__init__()
        self.register_buffer("factor", factor)
        self.items, self.query_bytes = items, 4 * items.dim

    def forward(
        self, users: Any, history: Ragged | None = None, leave_out: Tensor | None = None
    ) -> Tensor:
        assert history is not None
        ids = latest(history, 1)[:, 0]
        return self.items(ids) * (ids >= 0).unsqueeze(1) * self.factor

    def over(self, items: Any, order: np.ndarray) -> Self:
        return type(self)(self.factor, items)


class Distance(nn.Module):
    """score(u, i) = -|query - point_i|^2."""

    tensors = {"points": (torch.float32, "ID")}  # noqa: RUF012
    is_product = False
    pair_bytes = 0
    check = staticmethod(shapes_suffice)

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self.register_buffer("points", points)
        self.num_items = len(points)

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        points = self.points[ids]
        return -(query.unsqueeze(1) - points).square().sum(2)

    def over(self, order: np.ndarray, vectors: Any = None, offsets: Any = None) -> Self:
        return type(self)(extended(self.points, vectors, order))


class FrontHeavy:
    """q(i) is 9 : 1 for the two halves of the living items."""

    tensors = {"alive": (torch.bool, "I")}  # noqa: RUF012
    searches = False
    score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors
    refit, insert, delete = methods.refit, methods.insert, methods.delete
    check, over, to = staticmethod(methods.check), methods.over, methods.to

    def __init__(self, scorer: Any, alive: Tensor | None = None) -> None:
        self.scorer, self.num_items = scorer, scorer.num_items
        self.alive = torch.ones(self.num_items, dtype=torch.bool) if alive is None else alive
        weight = torch.where(torch.arange(self.num_items) < self.num_items // 2, 9.0, 1.0)
        weight = torch.where(self.alive, weight, 0.0).double()
        self._q = weight / weight.sum()

    def sample(self, query: Any, n: int, *, generator: Any = None, shared: bool = False) -> Draws:
        size = n if shared else n * self.scorer.num_queries(query)
        ids = torch.multinomial(self._q, size, replacement=True, generator=generator)
        ids = ids if shared else ids.view(-1, n)
        return Draws(ids, self._q.log()[ids].float())

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        return self._q.log()[ids].float().expand(self.scorer.num_queries(query), -1)

    def state(self) -> dict[str, Tensor]:
        return {"alive": self.alive}
