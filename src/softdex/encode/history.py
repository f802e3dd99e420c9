"""Histories: a user is the mean of what they had, alone or mixed with a vector of their own."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from softdex.encode.table import Table
from softdex.ragged import Ragged


def padded(history: Ragged, length: int) -> Tensor:
    """The last `length` items of each row, (B, L) int64, -1 behind the end."""
    recent = history.last(length)
    out = np.full((len(recent), length), -1, np.int64)
    place = np.arange(len(recent.ids)) - recent.indptr[:-1][recent.row_of]
    out[recent.row_of, place] = recent.ids
    return torch.from_numpy(out)


@final
class Mixed(nn.Module):
    """query = share * own vector + (1 - share) * mean of the vectors of the history's items.

    The items' vectors are the scorer's. In training the target is left out of the mean. A user
    never seen in training is the mean alone. `share` 0 gives everybody the mean alone.

    Args:
        vectors: own vectors of the users (U, D).
        share: weight of the own vector, 0 to 1.
        length: how many of the latest items are looked at.
        items: the scorer's item table.
        past: histories in training (U, L), padded with -1; not saved.
    """

    reads_history = True
    share: Tensor
    length: Tensor
    past: Tensor | None

    def __init__(
        self,
        vectors: Tensor,
        share: Tensor,
        length: Tensor,
        items: Table,
        past: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.vectors = Table(vectors)
        self.register_buffer("share", share)
        self.register_buffer("length", length)
        self.register_buffer("past", past, persistent=False)
        self.items = items
        self.most = int(length)
        self.query_bytes = 4 * self.vectors.dim * (1 + self.most)

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Queries (B, D)."""
        device = self.vectors.weight.device
        rows = torch.as_tensor(users, device=device)
        if history is None:
            assert self.past is not None
            ids = self.past[rows]
        else:
            ids = padded(history, self.most).to(device)
        if leave_out is not None:
            ids = torch.where(ids == leave_out[:, None], -1, ids)
        real = (ids >= 0).unsqueeze(2)
        mean = (self.items(ids) * real).sum(1) / real.sum(1).clamp(min=1)
        own = self.vectors(rows) * (rows >= 0).unsqueeze(1)
        share = self.share * (rows >= 0).unsqueeze(1)
        return share * own + (1 - share) * mean
