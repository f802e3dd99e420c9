"""Encoders that count: the same query for all users, or items that occur with the history's."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from softdex.data.ragged import Ragged
from softdex.encode.terms import Terms
from softdex.errors import SoftdexError
from softdex.shapes import (
    FLOATS,
    INTS,
    LONGS,
    Layout,
    Sizes,
    Tensors,
    check_lists,
    check_made,
    most_of,
    shapes_suffice,
)


@final
class Unpersonalised(nn.Module):
    """Every user gets the same scores: the query is (B, 0)."""

    tensors: ClassVar[Layout] = {}
    reads_items = False
    reads_history = True
    answers_strangers = True
    history_first = False
    query_bytes = 1
    check = staticmethod(shapes_suffice)

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, 0)."""
        return torch.empty(len(users), 0)

    def summands(self, user: int, history: Ragged) -> Terms:
        """Return no term: nothing depends on the user."""
        nothing = np.zeros((0, 0))
        return Terms("the same for all", np.zeros(0, np.int64), nothing, None, nothing.sum(0))

    def similar(self, items: np.ndarray) -> Tensor:
        """Raise: these encoders know no similarity of items."""
        raise SoftdexError("similar: this recipe knows no similarity of items. Try item_cf.")

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder itself: it knows no items."""
        return self


@final
class Neighbours(nn.Module):
    """Sum the neighbour lists of a history's items: the query is a sparse row of item scores.

    The lists are the rows of an items x items matrix, given as CSR buffers.
    """

    tensors: ClassVar[Layout] = {
        "indptr": (LONGS, "P"),
        "indices": (INTS, "N"),
        "values": (FLOATS, "N"),
    }
    reads_items = False
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

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse lists that point outside, and values whose sums could overflow."""
        check_lists("encoder", tensors["indptr"], tensors["indices"], sizes["I"], sizes["I"])
        check_made("the encoder", most_of(tensors["values"]))

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> sp.csr_matrix:
        """Return queries: a sparse matrix (B, I)."""
        assert history is not None
        seen = history.csr(self.matrix.shape[0])
        seen.data[:] = 1.0
        return seen @ self.matrix

    def summands(self, user: int, history: Ragged) -> Terms:
        """Return the neighbour list of each item of the history."""
        ids = np.unique(history.ids)
        lists = self.matrix[ids].astype(np.float64)
        return Terms("neighbours", ids, lists, None, np.zeros(self.matrix.shape[1]))

    def similar(self, items: np.ndarray) -> sp.csr_matrix:
        """Return the neighbour lists of these items, (B, I)."""
        return self.matrix[items]

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the lists over other items; new items have no neighbours."""
        matrix = self.matrix.copy()
        matrix.resize(len(order), len(order))
        matrix = matrix[order][:, order].sorted_indices()
        parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
        return type(self)(*map(torch.from_numpy, parts)).eval()
