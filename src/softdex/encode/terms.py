"""Queries that are sums over the items of the history. Shapes: N items, D dimension."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from softdex.data.ragged import Ragged


class Terms(NamedTuple):
    """A query as a sum: the items' terms, the user's own one and the rest, in float64.

    Attributes:
        method: how the terms were found, in a word or two.
        ids: distinct items of the history (N,).
        items: term of each item (N, D), dense or sparse.
        own: the term of the user's own vector (D,), None where it has no part in the query.
        rest: the term that neither items nor the user's own vector account for (D,).
    """

    method: str
    ids: np.ndarray
    items: Any
    own: np.ndarray | None
    rest: np.ndarray


@runtime_checkable
class SumsTerms(Protocol):
    """An encoder whose query is a sum over the items of the history."""

    def summands(self, user: int, history: Ragged) -> Terms:
        """Return the terms of one user's query.

        Args:
            user: row of the training log, -1 for a user that is not in it.
            history: items of the user as a single row, oldest first.
        """
        ...


def as_double(vectors: Tensor) -> np.ndarray:
    """Return vectors as a float64 array."""
    found: np.ndarray = vectors.detach().double().cpu().numpy()
    return found
