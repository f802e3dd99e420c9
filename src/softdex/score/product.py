"""Scorers: query x item -> score. A scorer is rebuilt from its buffers by their names."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softdex.encode.table import Table, table_of, version_of


class Scorer(Protocol):
    """Scores items for queries; ids are a slice or (N,) for all queries, or (B, N)."""

    num_items: int

    def num_queries(self, query: Any) -> int:
        """How many queries there are in a batch."""
        ...

    def __call__(self, query: Any, ids: Tensor | slice) -> Tensor:
        """Scores (B, N), in memory of their own."""
        ...


class Product(Scorer, Protocol):
    """A scorer that is an inner product: score(u, i) = project(u) . vectors(i) + offsets(i)."""

    items: Any  # a Table, or a Tower in its place

    @property
    def version(self) -> tuple[Any, ...]:
        """Changes whenever vectors or offsets do."""
        ...

    def project(self, query: Tensor) -> Tensor:
        """What the items' vectors are multiplied with, (B, D)."""
        ...

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Vectors of these items, (..., D)."""
        ...

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """What an item scores for everybody, (...,), if anything."""
        ...

    def directions(self, rows: Tensor) -> Tensor:
        """Vectors of rows that are not in the table, (N, D)."""
        ...

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Vectors and offsets of all items, for objectives that are a sum over them."""
        ...


@final
class Dot(nn.Module):
    """Inner product of a query (B, D) with item vectors (I, D), plus a bias (I,) if given."""

    def __init__(self, items: Tensor | nn.Module, bias: Tensor | None = None) -> None:
        super().__init__()
        self.items = table_of(items)
        self.bias = None if bias is None else Table(bias.reshape(-1, 1))
        self.num_items = len(self.items)

    def num_queries(self, query: Tensor) -> int:
        """Rows of the query."""
        return len(query)

    @property
    def version(self) -> tuple[Any, ...]:
        """Of both tables."""
        return self.items.version, None if self.bias is None else self.bias.version

    def project(self, query: Tensor) -> Tensor:
        """The query itself."""
        return query

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Rows of the table."""
        return self.items(ids)

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """The bias."""
        return None if self.bias is None else self.bias(ids).squeeze(-1)

    def directions(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Both tables."""
        return self.items.all(), None if self.bias is None else self.bias.all()[:, 0]

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        return _scores(self, query, ids)


@final
class Cosine(nn.Module):
    """Cosine of a query (B, D) and item vectors (I, D), over a temperature, plus a prior (I,).

    A cosine knows no popularity; the prior, where there is one, says how likely an item is before
    anything is known of the user. It is given, not learned.
    """

    temperature: Tensor
    prior: Tensor | None

    def __init__(
        self, items: Tensor | nn.Module, temperature: Tensor, prior: Tensor | None = None
    ) -> None:
        super().__init__()
        self.items = table_of(items)
        self.register_buffer("temperature", temperature)
        self.register_buffer("prior", prior)
        self.num_items = len(self.items)

    def num_queries(self, query: Tensor) -> int:
        """Rows of the query."""
        return len(query)

    @property
    def version(self) -> tuple[Any, ...]:
        """Of directions and prior."""
        return self.items.version, None if self.prior is None else version_of(self.prior)

    def project(self, query: Tensor) -> Tensor:
        """Of length 1 over the temperature."""
        return normalize(query, dim=-1) / self.temperature

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Of length 1."""
        return self.directions(self.items(ids))

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """The prior."""
        return None if self.prior is None else self.prior[ids]

    def directions(self, rows: Tensor) -> Tensor:
        """The rows, of length 1."""
        return normalize(rows, dim=-1)

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """All directions, and the prior."""
        return self.directions(self.items.all()), self.prior

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Scores (B, N)."""
        return _scores(self, query, ids)


def _scores(scorer: Product, query: Tensor, ids: Tensor | slice) -> Tensor:
    query, offsets = scorer.project(query), scorer.offsets(ids)
    if isinstance(scorer, Dot) and isinstance(ids, Tensor) and ids.ndim == 2:
        scores = scorer.items.dots(query, ids)
    elif (vectors := scorer.vectors(ids)).ndim == 2:
        scores = query @ vectors.T
    else:
        scores = torch.einsum("bd,bnd->bn", query, vectors)
    return scores if offsets is None else scores + offsets


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
