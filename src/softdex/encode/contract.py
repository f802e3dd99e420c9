"""What every encoder promises. Shapes: B users, D numbers per vector, L items per history."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
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
