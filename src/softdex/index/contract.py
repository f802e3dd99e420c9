"""What every index promises. Shapes: B queries, N ids or draws a query, K hits a query, I items.

An index is a frozen structure over item ids, bound to a scorer that the model owns and trains; the
index owns no trainable parameter. Its laws are tests: tests/laws.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, final

import torch
from torch import Tensor

from softdex.data.ragged import Ragged
from softdex.errors import DataError, first_few

MAX_MEMORY = 512 * 2**20  # bytes of scores a search may hold at a time, unless told otherwise


class Hits(NamedTuple):
    """Best items first: ids (B, K), -1 where there are no more, and their scores, -inf there."""

    ids: Tensor
    scores: Tensor


class Draws(NamedTuple):
    """Items drawn with replacement and the log-probability of each: (B, N), or (N,) if shared."""

    ids: Tensor
    logq: Tensor


@final
@dataclass(frozen=True)
class Filter:
    """What may come back: nothing of `exclude` (a list per query), only what `allow` flags.

    `allow` is one mask over items (I,), the same for all queries.
    """

    exclude: Ragged | None = None
    allow: Tensor | None = None


class Index(Protocol):
    """Ask it for the best items and it searches; for random items, and it samples.

    `query` is opaque: only the scorer looks inside. Items that were deleted are neither found nor
    drawn; ids never move. `searches` says whether a search costs less than scoring every item.
    """

    num_items: int
    scorer: Any
    searches: bool

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """The model's score of these items, (B, N); ids are (N,) for all queries or (B, N)."""
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
        """The best k items by score; `effort=inf` is exact, None is what the index is tuned to."""
        ...

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw n items a query by the proposal, or n for the whole batch where it is shared."""
        ...

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Log-probability of these items under the proposal, (B, N); -inf for deleted ones."""
        ...

    def vectors(self) -> Tensor | None:
        """Vectors of all items (I, D), None where the scorer has none."""
        ...

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """The index for the scorer's present vectors."""
        ...

    def insert(self, ids: Tensor) -> Self:
        """The index with these deleted (or never inserted) items in it."""
        ...

    def delete(self, ids: Tensor) -> Self:
        """The index without these items."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The index with its structure on another device; the scorer is moved by its owner."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The structure: the constructor takes it back by name."""
        ...


def item_vectors(scorer: Any) -> Tensor | None:
    """Vectors of all items (I, D) of a scorer that is an inner product, else None."""
    items = getattr(scorer, "items", None)
    return None if items is None else items(slice(None))


def overwrite(index: Index, other: Index) -> None:
    """Let an index be another one of the same shape, in the memory that it has."""
    for name, value in vars(other).items():
        if isinstance(value, Tensor):
            getattr(index, name).copy_(value)
        else:
            setattr(index, name, value)


def edited(alive: Tensor, ids: Tensor, living: bool) -> Tensor:
    """A copy of a mask over items with these ids set; every index edits its items with this."""
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
