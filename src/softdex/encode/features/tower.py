"""Towers: vectors made of the columns of a table, with or without a vector per row."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from softdex.encode.features.columns import Columns, Encoded
from softdex.encode.table import Table
from softdex.encode.version import version_of
from softdex.shapes import FLOATS, Layout


@final
class Tower(nn.Module):
    """Stand for a `Table`: the vector of a row is made of its features and a vector of its own.

        vector = own + sum over columns of (mean of its values' vectors) + numbers . numeric

    In training a row loses its own vector in a fraction `dropout` of the steps, so that features
    alone are informative: a new row has nothing else.

    Args:
        own: vectors (rows, D); None: features alone.
        tokens: vector of each value (V, D).
        numeric: vector of each numeric column (X, D).
        features: of every row.
        columns: how tables are read.
        dropout: fraction of the steps in which a row has no vector of its own.
    """

    tensors: ClassVar[Layout] = {"tokens": (FLOATS, "VD"), "numeric": (FLOATS, "XD")}
    ids: Tensor
    weights: Tensor
    numbers: Tensor
    salt: Tensor

    def __init__(
        self,
        own: Tensor | None,
        tokens: Tensor,
        numeric: Tensor,
        features: Encoded,
        columns: Columns,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.own = None if own is None else Table(own)
        self.tokens, self.numeric = Table(tokens), nn.Parameter(numeric)
        self.columns, self.dropout = columns, dropout
        for name, array in zip(("ids", "weights", "numbers"), features, strict=True):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)
        self.register_buffer("salt", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.tokens.dim

    @property
    def device(self) -> torch.device:
        """Device of the vectors."""
        return self.tokens.device

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of the vectors: a cache of what they determine is valid while it is equal."""
        own = None if self.own is None else self.own.version
        return own, self.tokens.version, version_of(self.numeric)

    def shuffle(self, generator: torch.Generator) -> None:
        """Draw anew which rows have no vector of their own."""
        self.salt.random_(0, 2**31, generator=generator)

    def forward(self, ids: Tensor | slice) -> Tensor:
        """Return the vectors of these rows, (..., D); -1 gives an arbitrary one and no update."""
        rows = torch.arange(len(self), device=self.device)[ids] if isinstance(ids, slice) else ids
        flat = rows.reshape(-1)
        found = self._from_features(flat)
        if self.own is not None:
            kept = self._kept(flat)
            found = found + self.own(kept) * (kept >= 0).unsqueeze(1)
        return found.view(*rows.shape, self.dim)

    def all(self) -> Tensor:
        """Return the vectors of all rows, for objectives that sum over them."""
        every = torch.arange(len(self), device=self.device)
        found = self._from_features(every)
        if self.own is None:
            return found
        return found + self.own.all() * (self._kept(every) >= 0).unsqueeze(1)

    def bag(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Return weighted sums (B, D) of vectors: ids (B, L), -1 for none, weights (B, L)."""
        values, shares = self._values(ids)
        found = self.tokens.bag(values.flatten(1), (shares * weight.unsqueeze(2)).flatten(1))
        real = weight * (ids >= 0)
        found = found + torch.einsum("bl,blm->bm", real, self.numbers[ids]) @ self.numeric
        return found if self.own is None else found + self.own.bag(self._kept(ids), weight)

    def dots(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return inner products (B, N) of queries (B, D) with the rows `ids` (B, N)."""
        values, shares = self._values(ids)
        parts = self.tokens.dots(query, values.flatten(1)).view(values.shape)
        found = (parts * shares).sum(2)
        found = found + torch.einsum("bm,bnm->bn", query @ self.numeric.T, self.numbers[ids])
        if self.own is None:
            return found
        kept = self._kept(ids)
        return found + self.own.dots(query, kept) * (kept >= 0)

    def of(self, table: pa.Table) -> Tensor:
        """Return vectors of new rows by their features alone, (N, D)."""
        features = (torch.from_numpy(a).to(self.device) for a in self.columns.encode(table))
        ids, weights, numbers = features
        with torch.no_grad():
            return self.tokens.bag(ids, weights) + numbers @ self.numeric

    def _from_features(self, flat: Tensor) -> Tensor:
        values, shares = self._values(flat)
        return self.tokens.bag(values, shares) + self.numbers[flat] @ self.numeric

    def _values(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of each id and their weights, (..., F); none where there is no row."""
        values = torch.where((ids >= 0).unsqueeze(-1), self.ids[ids], -1)
        return values, self.weights[ids]

    def _kept(self, ids: Tensor) -> Tensor:
        """Return the ids, -1 where the own vector is dropped in this step."""
        if not self.training or not self.dropout:
            return ids
        mixed = (ids * 2654435761 + self.salt * 40503) & 0xFFFFFFFF
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
        return torch.where(mixed < self.dropout * 2**32, -1, ids)


def towers_in(module: nn.Module) -> list[Tower]:
    """All towers in a module."""
    return [m for m in module.modules() if isinstance(m, Tower)]


def tower_in(part: nn.Module, name: str) -> Tower | None:
    """Return the tower that a part has under this name, None if it has an ordinary table."""
    found = getattr(part, name, None)
    return found if isinstance(found, Tower) else None


def tower(
    table: pa.Table,
    columns: Columns,
    dim: int,
    *,
    scale: float,
    generator: torch.Generator,
    counts: np.ndarray,
    own: bool = True,
    dropout: float = 0.0,
) -> Tower:
    """Return a tower of random vectors over a table.

    Vectors that training never updates are 0: those of rows without events, and of values that
    occur in such rows only.

    Args:
        table: features of the rows.
        columns: how it is read.
        dim: dimension D.
        scale: standard deviation of the vectors.
        generator: of the vectors.
        counts: events per row.
        own: whether rows have a vector of their own.
        dropout: fraction of the steps in which they have not.
    """
    features = columns.encode(table)

    def random(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=generator) * scale

    vectors = random(len(table)) * torch.from_numpy(counts > 0).unsqueeze(1) if own else None
    tokens = random(columns.tokens)
    met = np.unique(features.ids[counts > 0])
    unmet = np.setdiff1d(np.arange(columns.tokens), met)
    tokens[torch.from_numpy(unmet)] = 0.0
    return Tower(vectors, tokens, random(columns.numeric), features, columns, dropout)
