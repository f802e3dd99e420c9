"""Tables: rows of vectors that are looked up, and updated row by row."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from softdex.ragged import Ragged


@final
class Table(nn.Module):
    """Vectors (rows, D). A lookup in training remembers its rows, so that only they are updated.

    The table is a buffer, not a parameter: autograd sees the looked-up rows alone, never a
    gradient of the table's size. An optimiser of `solve.rowwise` collects them with `touched`.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._lookups: list[tuple[Tensor | None, Tensor]] = []

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.weight.shape[1])

    def forward(self, ids: Tensor | slice) -> Tensor:
        """Rows of these ids, (..., D); -1 stands for no row: any vector, and no update."""
        rows = self.weight[ids]
        if not (self.training and torch.is_grad_enabled()) or isinstance(ids, slice):
            return rows
        rows = rows.requires_grad_()
        self._lookups.append((ids, rows))
        return rows

    def all(self) -> Tensor:
        """Every row, for objectives that are a sum over all of them."""
        if not (self.training and torch.is_grad_enabled()):
            return self.weight
        rows = self.weight.detach().requires_grad_()
        self._lookups.append((None, rows))
        return rows

    def touched(self) -> list[tuple[Tensor | None, Tensor]]:
        """(ids, gradients) of the lookups since the last call; ids None means all rows."""
        seen, self._lookups = self._lookups, []
        return [(ids, rows.grad) for ids, rows in seen if rows.grad is not None]


@final
class Users(nn.Module):
    """A user is a row of a table: whoever was not in training has none."""

    reads_history = False

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = Table(vectors)
        self.query_bytes = 4 * self.vectors.dim

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Queries (B, D)."""
        return self.vectors(torch.as_tensor(users, device=self.vectors.weight.device))
