"""Encoders that only count: nothing is known of the user, or the items seen with theirs."""

from __future__ import annotations

from typing import final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from softdex.data.ragged import Ragged
from softdex.errors import SoftdexError


@final
class Anyone(nn.Module):
    """Every user is the same: the query is (B, 0)."""

    query_bytes = 1
    reads_history = True
    answers_strangers = True
    history_first = False

    def forward(self, users: np.ndarray, history: Ragged) -> Tensor:
        """Queries (B, 0)."""
        return torch.empty(len(history), 0)

    def similar(self, items: np.ndarray) -> Tensor:
        """There is no likeness between items here."""
        raise SoftdexError("similar: this recipe knows no likeness between items. Try item_cf.")


@final
class Neighbours(nn.Module):
    """A history becomes the sum of its items' neighbour lists: a sparse row of item scores.

    The lists are the rows of an items x items matrix, given as CSR buffers.
    """

    reads_history = True
    answers_strangers = True
    history_first = False
    indptr: Tensor
    indices: Tensor
    values: Tensor

    def __init__(self, indptr: Tensor, indices: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("indptr", indptr)
        self.register_buffer("indices", indices)
        self.register_buffer("values", values)
        size = len(indptr) - 1
        self.query_bytes = 8 * size
        arrays = (values.numpy(), indices.numpy(), indptr.numpy())
        self.matrix = sp.csr_matrix(arrays, shape=(size, size), copy=False)

    def forward(self, users: np.ndarray, history: Ragged) -> sp.csr_matrix:
        """Queries: a sparse matrix (B, I)."""
        seen = history.csr(self.matrix.shape[0])
        seen.data[:] = 1.0
        return seen @ self.matrix

    def similar(self, items: np.ndarray) -> sp.csr_matrix:
        """The neighbour lists of these items."""
        return self.matrix[items]
