"""Scorers that count: the same scores for every query, or scores that the query itself holds."""

from __future__ import annotations

from typing import ClassVar, Self, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from softdex.score.contract import extended
from softdex.score.slope import Slope
from softdex.shapes import FLOATS, Layout, shapes_suffice


@final
class Constant(nn.Module):
    """The same scores for every query (B, 0): a weight per item (I,)."""

    tensors: ClassVar[Layout] = {"weight": (FLOATS, "I")}
    is_product = False
    pair_bytes = 0
    check = staticmethod(shapes_suffice)
    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.num_items = len(weight)

    def num_queries(self, query: Tensor) -> int:
        """Return the number of rows of the query."""
        return len(query)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N)."""
        return self.weight[ids].expand(len(query), -1).clone()

    def slope(self, query: np.ndarray, item: int) -> Slope:
        """Return the weight of the item, which no query changes."""
        return Slope(np.zeros(0), float(self.weight[item]))

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items; offsets are the weights of new ones."""
        return type(self)(extended(self.weight, offsets, order)).eval()


@final
class Sparse(nn.Module):
    """Read scores from the query, a sparse matrix (B, I); other items get a fallback (I,).

    The fallback is below 0, so items that the query names rank first.
    """

    tensors: ClassVar[Layout] = {"fallback": (FLOATS, "I")}
    is_product = False
    pair_bytes = 0
    check = staticmethod(shapes_suffice)
    fallback: Tensor

    def __init__(self, fallback: Tensor) -> None:
        super().__init__()
        self.register_buffer("fallback", fallback)
        self.num_items = len(fallback)

    def num_queries(self, query: sp.csr_matrix) -> int:
        """Return the number of rows of the query."""
        return int(query.shape[0])

    def forward(self, query: sp.csr_matrix, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N)."""
        if isinstance(ids, Tensor) and ids.ndim == 2:
            rows, cells = np.repeat(np.arange(len(ids)), ids.shape[1]), ids.numpy().ravel()
            found = query[rows, cells] if len(cells) else np.zeros(0)  # scipy has one of nothing
            named = np.asarray(found).reshape(tuple(ids.shape))
        else:
            named = query[:, ids if isinstance(ids, slice) else ids.numpy()].toarray()
        scores = torch.from_numpy(np.asarray(named, dtype=np.float32))
        return torch.where(scores > 0, scores, self.fallback[ids])

    def slope(self, query: np.ndarray, item: int) -> Slope:
        """Return the item's entry of the query, or the fallback where it has none."""
        weights = np.zeros(self.num_items)
        named = query[item] > 0
        weights[item] = named
        return Slope(weights, 0.0 if named else float(self.fallback[item]))

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items; offsets are the fallback of new ones."""
        return type(self)(extended(self.fallback, offsets, order)).eval()
