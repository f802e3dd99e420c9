"""What every encoder promises. Shapes: B users, D numbers per vector, L items per history."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from softdex.data.ragged import Ragged


class Encoder(Protocol):
    """Makes queries of users and their histories.

    Attributes:
        reads_history: whether users without a row are served by their history.
        answers_strangers: whether there is a query for a user without any event.
        history_first: whether a given history replaces what is stored of a known user.
        query_bytes: memory per query while it is made.
    """

    reads_history: bool
    answers_strangers: bool
    history_first: bool
    query_bytes: int

    def __call__(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Any:
        """Queries of B users: rows of the training log, -1 for others.

        In training `history` is None, the encoder knows it, and `leave_out` (B,) are the targets,
        which must not be read.
        """
        ...


@runtime_checkable
class KnowsLikeness(Protocol):
    """An encoder that knows which items are alike."""

    def similar(self, items: np.ndarray) -> Any:
        """Queries whose best items are most like these (N,)."""
        ...


@runtime_checkable
class FoldsIn(Protocol):
    """An encoder that solves for users and items that were not in training."""

    def new_users(self, matrix: sp.csr_matrix) -> Tensor:
        """Vectors of users by their events, users x items."""
        ...

    def new_items(self, matrix: sp.csr_matrix) -> Tensor:
        """Vectors of items by their events, items x users."""
        ...
