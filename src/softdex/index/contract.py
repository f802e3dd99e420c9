"""The contract of indexes. Shapes: B queries, N ids or draws per query, K hits per query, I items.

An index is a frozen structure over item ids, bound to a scorer that the model owns and trains; the
index has no trainable parameter. Its laws are tests: tests/laws.py. Methods that a new index need
not write are in index/methods.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, final

import numpy as np
import torch
from torch import Tensor

from softdex.data.ragged import Ragged
from softdex.errors import DataError, first_few
from softdex.shapes import Layout, Sizes, Tensors

MAX_MEMORY = 512 * 2**20  # bytes of scores that a search may hold at a time, by default


class Hits(NamedTuple):
    """Items by falling score: ids (B, K), -1 past the end, and scores (B, K), -inf there."""

    ids: Tensor
    scores: Tensor


class Draws(NamedTuple):
    """Items drawn with replacement, and their log-probabilities: (B, N), or (N,) if shared."""

    ids: Tensor
    logq: Tensor


@final
@dataclass(frozen=True)
class Filter:
    """What a search may return: items that are not excluded, and are allowed.

    Attributes:
        exclude: item ids per query; None excludes nothing.
        allow: mask over items, (I,) for all queries or (B, I) per query; None allows everything.
    """

    exclude: Ragged | None = None
    allow: Tensor | None = None

    def of(self, start: int, stop: int) -> Filter:
        """Return the filter of the queries from `start` to `stop`."""
        if self.exclude is not None:
            count = len(self.exclude)
        elif self.allow is not None and self.allow.ndim == 2:
            count = len(self.allow)
        else:
            return self
        return self.take(np.arange(start, min(stop, count)))

    def take(self, rows: np.ndarray) -> Filter:
        """Return the filter of the queries in these rows."""
        exclude = None if self.exclude is None else self.exclude.take(rows)
        allow = self.allow
        if allow is not None and allow.ndim == 2:
            allow = allow[torch.from_numpy(rows).to(allow.device)]
        return Filter(exclude, allow)

    @property
    def allows_per_query(self) -> bool:
        """Return whether `allow` has one row per query."""
        return self.allow is not None and self.allow.ndim == 2


class Index(Protocol):
    """Searches the items with the best scores, and samples items with known probability.

    `query` is opaque: only the scorer looks inside. Deleted items are neither found nor drawn; ids
    never move. The constructor takes the scorer, and `state` by name.

    Attributes:
        tensors: the tensors of `state`, which a file keeps. A scalar `effort` may be infinite.
        searches: whether a search costs less than scoring every item.
        num_items: number of items I, deleted ones included.
        scorer: scores items for queries.
        alive: which items are in the index (I,).
    """

    tensors: ClassVar[Layout]
    searches: bool
    num_items: int
    scorer: Any
    alive: Tensor

    @property
    def check(self) -> Callable[[Tensors, Sizes, Any], None]:
        """Return the static check; it raises ValueError for tensors that no such index has."""
        ...

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Return the model's scores (B, N) of ids (N,) for all queries, or (B, N)."""
        ...

    def search(
        self,
        query: Any,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        """Return the top k items by score.

        Args:
            query: B queries.
            k: items per query.
            filter: what may come back.
            effort: how much to look at, in units of the index; None: as tuned, inf: exact.
            max_memory: bytes of scores held at a time.
        """
        ...

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw n items per query from the proposal, or n for the whole batch if `shared`."""
        ...

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return log-probabilities (B, N) of ids under the proposal, -inf for deleted items."""
        ...

    def vectors(self) -> Tensor | None:
        """Return the vectors of all items (I, D), None where there are none."""
        ...

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Return the index fitted to the scorer's present vectors."""
        ...

    def tune(self, query: Any, recall: float = 0.95, k: int = 100) -> Self:
        """Return the index with the least effort that finds this recall of the exact top k."""
        ...

    def insert(self, ids: Tensor) -> Self:
        """Return the index with these items, which were deleted or never inserted."""
        ...

    def delete(self, ids: Tensor) -> Self:
        """Return the index without these items."""
        ...

    def over(self, scorer: Any, order: np.ndarray) -> Self:
        """Return the index over another scorer's items; new items are not inserted yet.

        Args:
            scorer: of the other items.
            order: the former id of each item; those from I on are new.
        """
        ...

    def to(self, device: torch.device | str) -> Self:
        """Return the index with its structure on a device; the owner moves the scorer."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the structure by the names of the constructor's arguments."""
        ...


def copy_into(index: Index, other: Index) -> None:
    """Copy another index of the same shape in place, so that captured CUDA graphs stay valid."""
    for name, value in vars(other).items():
        if isinstance(value, Tensor):
            getattr(index, name).copy_(value)
        else:
            setattr(index, name, value)


def edited(alive: Tensor, ids: Tensor, living: bool) -> Tensor:
    """Return a copy of a mask over items with these ids set to `living`; check the ids."""
    ids = torch.as_tensor(ids, device=alive.device)
    outside = ids[(ids < 0) | (ids >= len(alive))]
    if len(outside):
        raise DataError(
            f"index: expected ids from 0 to {len(alive) - 1}, got {first_few(outside.tolist())}."
        )
    alive = alive.clone()
    alive[ids] = living
    if not alive.any():
        raise DataError("index: no item would be left. Keep at least one.")
    return alive


def reordered(values: Tensor, order: np.ndarray, new: float = 0) -> Tensor:
    """Return values per item (I,) in the order that `Index.over` takes, `new` for new items."""
    rows = torch.cat([values, values.new_full((len(order) - len(values),), new)])
    return rows[torch.from_numpy(order).to(values.device)]
