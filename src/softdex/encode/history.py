"""Encoders of histories without order: their items as they are, or the mean of item vectors."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.ragged import Ragged
from softdex.encode.table import Table, table_of
from softdex.encode.terms import Terms, as_double
from softdex.shapes import FLOATS, LONGS, Layout, Sizes, Tensors, arguments, kept, moderate


def padded(history: Ragged, length: int) -> Tensor:
    """Return the last `length` items of each row, (B, L) int64, padded with -1 at the end."""
    recent = history.last(length)
    out = np.full((len(recent), length), -1, np.int64)
    place = np.arange(len(recent.ids)) - recent.indptr[:-1][recent.row_of]
    out[recent.row_of, place] = recent.ids
    return torch.from_numpy(out)


def latest(history: Ragged, most: int) -> Tensor:
    """Return the latest items of each history (B, L), at most `most` and no wider than needed."""
    return padded(history, max(1, min(most, int(history.lengths.max(initial=0)))))


def reads_something(tensors: Tensors, sizes: Sizes) -> None:
    """Refuse an encoder that reads no item of a history, and numbers that could overflow."""
    moderate(tensors, sizes)
    if int(tensors["length"]) < 1:
        raise ValueError("the encoder's length is below 1")


@final
class Recent(nn.Module):
    """Hand on the latest items: the query is the history (B, L), -1 before its beginning.

    Args:
        length: number of items, at most.
    """

    tensors: ClassVar[Layout] = {"length": (LONGS, "")}
    reads_items = False
    reads_history = True
    answers_strangers = False
    history_first = False
    check = staticmethod(reads_something)
    length: Tensor

    def __init__(self, length: Tensor) -> None:
        super().__init__()
        self.register_buffer("length", length)
        self.most = int(length)
        self.query_bytes = 8 * self.most

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, L) of item ids."""
        assert history is not None
        ids = latest(history, self.most).to(self.length.device)
        width = ids.shape[1]
        place = torch.arange(width, device=ids.device) - width + (ids >= 0).sum(1, keepdim=True)
        return torch.where(place >= 0, ids.gather(1, place.clamp(min=0)), -1)

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder itself: it knows no items."""
        return self


@final
class Mixed(nn.Module):
    """Mix a user's own vector with the mean of the history's item vectors.

        query = share * own vector + (1 - share) * mean over the history's items

    The item vectors are the scorer's. In training the target is excluded from the mean. A user
    that was not in training gets the mean alone; with `share` 0 everybody does.

    Args:
        vectors: own vectors of the users (U, D).
        share: weight of the own vector, from 0 to 1.
        length: number of latest items that are read.
        items: the scorer's item table.
        past: histories in training (U, L), padded with -1; not saved.
    """

    tensors: ClassVar[Layout] = {
        "vectors.weight": (FLOATS, "UD"),
        "share": (FLOATS, ""),
        "length": (LONGS, ""),
    }
    reads_items = True
    reads_history = True
    answers_strangers = False
    history_first = False
    check = staticmethod(reads_something)
    share: Tensor
    length: Tensor
    past: Tensor | None

    def __init__(
        self,
        vectors: Tensor | nn.Module,
        share: Tensor,
        length: Tensor,
        items: Table,
        past: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.vectors = table_of(vectors)
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
        """Return queries (B, D)."""
        device = self.vectors.device
        rows = torch.as_tensor(users, device=device)
        if history is None:
            assert self.past is not None
            ids = self.past[rows]
        else:
            ids = latest(history, self.most).to(device)
        if leave_out is not None:
            ids = torch.where(ids == leave_out[:, None], -1, ids)
        real = ids >= 0
        mean = self.items.bag(ids, real / real.sum(1, keepdim=True).clamp(min=1))
        own = self.vectors(rows) * (rows >= 0).unsqueeze(1)
        share = self.share * (rows >= 0).unsqueeze(1)
        return share * own + (1 - share) * mean

    def summands(self, user: int, history: Ragged) -> Terms:
        """Return the terms of one user's query; an item's grows with the times it is read."""
        ids, times = np.unique(history.last(self.most).ids, return_counts=True)
        device, share = self.vectors.device, float(self.share) if user >= 0 else 0.0
        weight = (1 - share) * times / max(1, times.sum())
        vectors = self.items(torch.from_numpy(ids.astype(np.int64)).to(device))
        own = as_double(self.vectors(torch.tensor([user], device=device)))[0] * share
        rest = np.zeros(self.vectors.dim)
        items = as_double(vectors) * weight[:, None]
        return Terms("mean", ids, items, own if share else None, rest)

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over another item table."""
        return type(self)(**arguments(kept(self)), items=items).eval()
