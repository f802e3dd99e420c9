"""Vectors from a module of your own, which autograd and any torch optimiser train."""

from __future__ import annotations

from itertools import chain
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from softdex.encode.version import version_of
from softdex.errors import ShapeError


@final
class Learned(nn.Module):
    """Stand for a `Table`: vectors come from a module, gradients go to its parameters.

    Where no gradient is asked for, as in an index, the module is read in evaluation mode.

    Args:
        source: called with ids (...,), it returns their vectors (..., D).
        rows: number of vectors.
    """

    def __init__(self, source: nn.Module, rows: int) -> None:
        super().__init__()
        self.source, self._rows = source, rows
        self.dim = self._dimension()

    def __len__(self) -> int:
        return self._rows

    @property
    def device(self) -> torch.device:
        """Device of the module."""
        return next((t.device for t in self._tensors()), torch.device("cpu"))

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of the vectors: a cache of what they determine is valid while it is equal."""
        return tuple(map(version_of, self._tensors()))

    @property
    def weight(self) -> Tensor:
        """Vectors of all rows as they are now, without a gradient."""
        with torch.no_grad():
            return self.all().clone()

    def forward(self, ids: Tensor | slice) -> Tensor:
        """Return the vectors of these ids, (..., D); -1 gives 0 and no gradient."""
        if isinstance(ids, slice):
            return self._made(torch.arange(self._rows, device=self.device)[ids])
        found = self._made(ids.clamp(min=0))
        return found.masked_fill((ids < 0).unsqueeze(-1), 0.0)

    def all(self) -> Tensor:
        """Return all vectors, for objectives that sum over them."""
        return self(slice(None))

    def bag(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Return weighted sums (B, D) of vectors: ids (B, L), -1 for none, weights (B, L)."""
        return torch.einsum("bl,bld->bd", weight, self(ids))

    def dots(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return inner products (B, N) of queries (B, D) with the vectors of ids (B, N)."""
        return torch.einsum("bd,bnd->bn", query, self(ids))

    @torch.no_grad()
    def _dimension(self) -> int:
        """Return the length of the vectors; refuse a module that does not make vectors of ids."""
        last = self._rows - 1
        where = f"item vectors: {type(self.source).__name__}"
        try:
            found: Any = self._made(torch.tensor([0, last], device=self.device))
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise ShapeError(
                f"{where} failed on the ids 0 and {last} ({error}). Give a module that makes "
                "vectors (..., D) of ids (...,), and the num_items= that it knows."
            ) from None
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
            raise ShapeError(f"{where} made {shape} of 2 ids. Expected (2, D).")
        return int(found.shape[1])

    def _made(self, ids: Tensor) -> Tensor:
        modes = {} if torch.is_grad_enabled() else {m: m.training for m in self.source.modules()}
        for module in modes:
            module.training = False
        try:
            return self.source(ids)
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _tensors(self) -> chain[Tensor]:
        return chain(self.source.parameters(), self.source.buffers())


@final
class Lookup(nn.Module):
    """Look up rows of a parameter (rows, D); one of shape (rows,) has D = 1."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids, (..., D)."""
        return embedding(ids, self.weight.view(len(self.weight), -1))
