"""Scorers: query x item -> score. A scorer is rebuilt from its buffers by their names."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softdex.encode.table import Table


class Scorer(Protocol):
    """Scores items for queries; ids are a slice or (N,) for all queries, or (B, N)."""

    num_items: int

    def num_queries(self, query: Any) -> int:
        """How many queries there are in a batch."""
        ...

    def __call__(self, query: Any, ids: Tensor | slice) -> Tensor:
        """Scores (B, N), in memory of their own."""
        ...


@final
class Dot(nn.Module):
    """Inner product of a query (B, D) with item vectors (I, D), plus a bias (I,) if given."""

    def __init__(self, items: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.items = Table(items)
        self.bias = None if bias is None else Table(bias.reshape(-1, 1))
        self.num_items = len(items)

    def num_queries(self, query: Tensor) -> int:
        """Rows of the query."""
        return len(query)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        scores = _product(query, self.items(ids))
        return scores if self.bias is None else scores + self.bias(ids).squeeze(-1)


@final
class Cosine(nn.Module):
    """Cosine of a query (B, D) and item vectors (I, D), over a temperature, plus a prior (I,).

    A cosine knows no popularity; the prior, where there is one, says how likely an item is before
    anything is known of the user. It is given, not learned.
    """

    temperature: Tensor
    prior: Tensor | None

    def __init__(self, items: Tensor, temperature: Tensor, prior: Tensor | None = None) -> None:
        super().__init__()
        self.items = Table(items)
        self.register_buffer("temperature", temperature)
        self.register_buffer("prior", prior)
        self.num_items = len(items)

    def num_queries(self, query: Tensor) -> int:
        """Rows of the query."""
        return len(query)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        query = normalize(query, dim=-1) / self.temperature
        scores = _product(query, normalize(self.items(ids), dim=-1))
        return scores if self.prior is None else scores + self.prior[ids]


def _product(query: Tensor, vectors: Tensor) -> Tensor:
    if vectors.ndim == 2:
        return query @ vectors.T
    return torch.einsum("bd,bnd->bn", query, vectors)


@final
class Constant(nn.Module):
    """The same score for everybody; the query is (B, 0)."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.num_items = len(weight)

    def num_queries(self, query: Tensor) -> int:
        """Rows of the query."""
        return len(query)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        return self.weight[ids].expand(len(query), -1).clone()


@final
class Sparse(nn.Module):
    """The query is itself a sparse row of scores (B, I); what it does not name falls back.

    `fallback` (I,) is below 0, so an item the query names always comes first.
    """

    fallback: Tensor

    def __init__(self, fallback: Tensor) -> None:
        super().__init__()
        self.register_buffer("fallback", fallback)
        self.num_items = len(fallback)

    def num_queries(self, query: sp.csr_matrix) -> int:
        """Rows of the query."""
        return int(query.shape[0])

    def forward(self, query: sp.csr_matrix, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        if isinstance(ids, Tensor) and ids.ndim == 2:
            rows = np.repeat(np.arange(len(ids)), ids.shape[1])
            named = np.asarray(query[rows, ids.numpy().ravel()]).reshape(tuple(ids.shape))
        else:
            named = query[:, ids if isinstance(ids, slice) else ids.numpy()].toarray()
        scores = torch.from_numpy(np.asarray(named, dtype=np.float32))
        return torch.where(scores > 0, scores, self.fallback[ids])
