"""The contract of encoders. Shapes: B users, D dimension, L items per history, I items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from softdex.data.ragged import Ragged
from softdex.shapes import Layout, Sizes, Tensors


class Encoder(Protocol):
    """Makes queries of users and their histories: an `nn.Module` whose class describes itself.

    The constructor takes the tensors of the layout by name, and `items`, the scorer's item table,
    if the class `reads_items`. The laws of an encoder are tests: tests/encoders.py.

    Attributes:
        tensors: the tensors a file keeps, entries of the state dict.
        reads_items: whether histories are read with the scorer's item vectors.
        reads_history: whether a user without a row (-1) is served by their history.
        answers_strangers: whether a user without any event gets a query. Such an encoder only
            counts, and has `similar(items)`: queries whose best items are like these.
        history_first: whether a given history replaces what is stored of a known user. Such an
            encoder solves for vectors: it has `with_users(matrix, order)` and `new_items(matrix)`.
        query_bytes: memory per query while it is made, an upper bound of the query's size.
    """

    tensors: ClassVar[Layout]
    reads_items: bool
    reads_history: bool
    answers_strangers: bool
    history_first: bool
    query_bytes: int

    @property
    def check(self) -> Callable[[Tensors, Sizes], None]:
        """Return the static check; it raises ValueError for tensors that no such encoder has."""
        ...

    def __call__(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Any:
        """Return the queries of B users; only the scorer looks inside them.

        Args:
            users: rows of the training log, -1 for users that are not in it.
            history: items of each user, oldest first. None in training, where the encoder knows
                the histories.
            leave_out: the targets (B,), which must not be read in training.
        """
        ...

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over other items.

        Args:
            items: their table in the scorer, None where the scorer has none.
            order: the former id of each item; those from the former number of items on are new.
        """
        ...


@runtime_checkable
class Vectors(Protocol):
    """Stands for a table of vectors (rows, D): `Table`, `Learned`, and towers of features.

    Attributes:
        dim: dimension of the vectors.
    """

    dim: int

    @property
    def device(self) -> torch.device:
        """Device of the vectors."""
        ...

    @property
    def version(self) -> Any:
        """Version of the vectors: a cache of what they determine is valid while it is equal."""
        ...

    def __len__(self) -> int:
        """Return the number of vectors."""
        ...

    def __call__(self, ids: Tensor | slice) -> Tensor:
        """Return the vectors of these ids, (..., D); -1 gives an arbitrary one and no update."""
        ...

    def all(self) -> Tensor:
        """Return all vectors, for objectives that sum over them."""
        ...

    def bag(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Return weighted sums (B, D) of vectors: ids (B, L), -1 for none, weights (B, L)."""
        ...

    def dots(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return inner products (B, N) of queries (B, D) with the vectors of ids (B, N)."""
        ...
