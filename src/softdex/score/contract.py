"""The contract of scorers. Shapes: B queries, N ids per query, D dimension, I items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from softdex.shapes import Layout, Sizes, Tensors


class Scorer(Protocol):
    """Scores items for queries: an `nn.Module` whose class describes itself.

    The constructor takes the tensors of the layout by name. The laws of a scorer are tests:
    tests/scorers.py.

    Attributes:
        tensors: the tensors a file keeps, entries of the state dict.
        is_product: whether it is a `Product`: an inner product of vectors.
        num_items: number of items I.
        pair_bytes: memory per (query, item) pair while it is scored, beyond the score.
    """

    tensors: ClassVar[Layout]
    is_product: bool
    num_items: int
    pair_bytes: int

    @property
    def check(self) -> Callable[[Tensors, Sizes], None]:
        """Return the static check; it raises ValueError for tensors that no such scorer has."""
        ...

    def num_queries(self, query: Any) -> int:
        """Return the number of queries in a batch, B."""
        ...

    def __call__(self, query: Any, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N) in memory of their own.

        Args:
            query: B queries.
            ids: items, a slice or (N,) for all queries, or (B, N).
        """
        ...

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items; M of them are new.

        Args:
            order: the former id of each item; those from I on are new, I + j the j-th of them.
            vectors: rows of the new items in the item table (M, D), for scorers with vectors.
            offsets: of the new items (M,), for scorers that have offsets.
        """
        ...


class Product(Scorer, Protocol):
    """An inner product with item vectors: score = project(query) . vectors(i) + offsets(i).

    Attributes:
        items: the item table (I, D), or a tower of features in its place.
    """

    items: Any

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of vectors and offsets: a cache of them is valid while it is equal."""
        ...

    def project(self, query: Tensor) -> Tensor:
        """Return what item vectors are multiplied with, (B, D)."""
        ...

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Return the vectors of these items, (..., D)."""
        ...

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """Return the part of these items' scores that no query changes, (...,), if there is one."""
        ...

    def directions(self, rows: Tensor) -> Tensor:
        """Return the vectors (N, D) of items with these rows of the item table."""
        ...

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Return vectors and offsets of all items, for objectives that sum over them."""
        ...


def extended(old: Tensor, new: Tensor | None, order: np.ndarray) -> Tensor:
    """Return the rows of `old`, then `new`, in the order that `Scorer.over` takes."""
    rows = old if new is None else torch.cat([old, new.to(old)])
    return rows[order]
