"""Features: vectors from the columns of a table, where a row may have no vector of its own."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from softdex.encode.features.columns import Columns, Encoded
from softdex.encode.table import Table, version_of


@final
class Tower(nn.Module):
    """Stands in the place of a `Table`: a row's vector is made of its features and its own vector.

        vector = own + sum over columns of (mean of its values' vectors) + numbers . numeric

    In training the own vector of a row is left out in a share of the steps (`dropout`), so that
    features alone say something: they are all a new row has.

    Args:
        own: (rows, D), or None: features alone.
        tokens: a vector of each value (V, D).
        numeric: a vector of each numeric column (M, D).
        features: of every row.
        columns: how tables are read.
        dropout: share of the steps in which a row has no vector of its own.
    """

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
        """Length of a vector."""
        return self.tokens.dim

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.tokens.device

    @property
    def version(self) -> tuple[Any, ...]:
        """Changes whenever the vectors may."""
        own = None if self.own is None else self.own.version
        return own, self.tokens.version, version_of(self.numeric)

    def shuffle(self, generator: torch.Generator) -> None:
        """Choose anew which rows have no vector of their own."""
        self.salt.random_(0, 2**31, generator=generator)

    def forward(self, ids: Tensor | slice) -> Tensor:
        """Vectors of these rows, (..., D); -1 stands for no row: any vector, and no update."""
        rows = torch.arange(len(self), device=self.device)[ids] if isinstance(ids, slice) else ids
        flat = rows.reshape(-1)
        found = self._from_features(flat)
        if self.own is not None:
            kept = self._kept(flat)
            found = found + self.own(kept) * (kept >= 0).unsqueeze(1)
        return found.view(*rows.shape, self.dim)

    def all(self) -> Tensor:
        """The vector of every row, for objectives that are a sum over all of them."""
        every = torch.arange(len(self), device=self.device)
        found = self._from_features(every)
        if self.own is None:
            return found
        return found + self.own.all() * (self._kept(every) >= 0).unsqueeze(1)

    def bag(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Weighted sums of vectors, (B, D): ids (B, L), -1 for none, and their weights (B, L)."""
        values, shares = self._values(ids)
        found = self.tokens.bag(values.flatten(1), (shares * weight.unsqueeze(2)).flatten(1))
        real = weight * (ids >= 0)
        found = found + torch.einsum("bl,blm->bm", real, self.numbers[ids]) @ self.numeric
        return found if self.own is None else found + self.own.bag(self._kept(ids), weight)

    def dots(self, query: Tensor, ids: Tensor) -> Tensor:
        """Inner products (B, N) of queries (B, D) with their own rows, ids (B, N)."""
        values, shares = self._values(ids)
        parts = self.tokens.dots(query, values.flatten(1)).view(values.shape)
        found = (parts * shares).sum(2)
        found = found + torch.einsum("bm,bnm->bn", query @ self.numeric.T, self.numbers[ids])
        if self.own is None:
            return found
        kept = self._kept(ids)
        return found + self.own.dots(query, kept) * (kept >= 0)

    def of(self, table: pa.Table) -> Tensor:
        """Vectors of new rows, by their features alone, (N, D)."""
        features = (torch.from_numpy(a).to(self.device) for a in self.columns.encode(table))
        ids, weights, numbers = features
        with torch.no_grad():
            return self.tokens.bag(ids, weights) + numbers @ self.numeric

    def _from_features(self, flat: Tensor) -> Tensor:
        values, shares = self._values(flat)
        return self.tokens.bag(values, shares) + self.numbers[flat] @ self.numeric

    def _values(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their weights of each id, (..., F); none where there is no row."""
        values = torch.where((ids >= 0).unsqueeze(-1), self.ids[ids], -1)
        return values, self.weights[ids]

    def _kept(self, ids: Tensor) -> Tensor:
        """The ids, -1 where the own vector is left out in this step."""
        if not self.training or not self.dropout:
            return ids
        mixed = (ids * 2654435761 + self.salt * 40503) & 0xFFFFFFFF
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
        return torch.where(mixed < self.dropout * 2**32, -1, ids)


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
    """A tower of random vectors over a table; rows that never occur have no vector of their own,
    and values of theirs alone say nothing: no training reaches either."""
    features = columns.encode(table)

    def random(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=generator) * scale

    vectors = random(len(table)) * torch.from_numpy(counts > 0).unsqueeze(1) if own else None
    tokens = random(columns.tokens)
    met = np.unique(features.ids[counts > 0])
    unmet = np.setdiff1d(np.arange(columns.tokens), met)
    tokens[torch.from_numpy(unmet)] = 0.0
    return Tower(vectors, tokens, random(columns.numeric), features, columns, dropout)
