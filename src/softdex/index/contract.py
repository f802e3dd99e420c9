"""What every index promises. Shapes: B queries, N ids a query, K hits a query, I items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

from torch import Tensor

from softdex.ragged import Ragged

MAX_MEMORY = 512 * 2**20  # bytes of scores a search may hold at a time, unless told otherwise


class Hits(NamedTuple):
    """Best items first: ids (B, K), -1 where there are no more, and their scores, -inf there."""

    ids: Tensor
    scores: Tensor


@final
@dataclass(frozen=True)
class Filter:
    """What may come back: nothing of `exclude` (a list per query), only what `allow` flags.

    `allow` is one mask over items (I,), the same for all queries.
    """

    exclude: Ragged | None = None
    allow: Tensor | None = None


class Index(Protocol):
    """A structure over item ids, bound to a scorer. `query` is opaque: only the scorer looks."""

    num_items: int

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
