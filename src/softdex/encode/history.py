"""Histories: a user is what they had: its mean, alone or mixed with a vector of their own, or a bag
of items from which a variational encoder makes a query."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from softdex.data.ragged import Ragged
from softdex.encode.table import Table, table_of


def padded(history: Ragged, length: int) -> Tensor:
    """The last `length` items of each row, (B, L) int64, -1 behind the end."""
    recent = history.last(length)
    out = np.full((len(recent), length), -1, np.int64)
    place = np.arange(len(recent.ids)) - recent.indptr[:-1][recent.row_of]
    out[recent.row_of, place] = recent.ids
    return torch.from_numpy(out)


def latest(history: Ragged, most: int) -> Tensor:
    """The latest items of each history (B, L), no wider than needed."""
    return padded(history, max(1, min(most, int(history.lengths.max(initial=0)))))


@final
class Recent(nn.Module):
    """The query is the history itself: its latest items (B, L), -1 before their beginning.

    Args:
        length: how many of them.
    """

    reads_history = True
    answers_strangers = False
    history_first = False
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
        """Queries (B, L) of item ids."""
        assert history is not None
        ids = latest(history, self.most).to(self.length.device)
        width = ids.shape[1]
        place = torch.arange(width, device=ids.device) - width + (ids >= 0).sum(1, keepdim=True)
        return torch.where(place >= 0, ids.gather(1, place.clamp(min=0)), -1)


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
    answers_strangers = False
    history_first = False
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
        """Queries (B, D)."""
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


@final
class Vae(nn.Module):
    """Query of a history H by a variational encoder: its cost is that of the history.

        h = tanh(sum over H of bag_i / sqrt|H| + bias);  (mean, log variance) = h mix + mix_bias
        query = z out + out_bias,  z = mean + deviation * noise in training, z = mean afterwards

    Args:
        bag: a vector of each item as an input (I, H).
        bias: (H,).
        mix, mix_bias: to means and log variances of Z latent numbers, (H, 2 Z) and (2 Z,).
        out, out_bias: to the query, (Z, D) and (D,).
        dropout: in training each item of the history is left out with this probability.
        beta: weight of the Kullback-Leibler term.
        anneal: steps in which this weight rises from 0.
    """

    reads_history = True
    answers_strangers = False
    history_first = False
    steps: Tensor

    def __init__(
        self,
        bag: Tensor,
        bias: Tensor,
        mix: Tensor,
        mix_bias: Tensor,
        out: Tensor,
        out_bias: Tensor,
        *,
        dropout: float = 0.5,
        beta: float = 0.2,
        anneal: int = 0,
    ) -> None:
        super().__init__()
        self.bag = Table(bag)
        self.bias, self.mix, self.mix_bias = map(nn.Parameter, (bias, mix, mix_bias))
        self.out, self.out_bias = nn.Parameter(out), nn.Parameter(out_bias)
        self.dropout, self.beta, self.anneal = dropout, beta, anneal
        self.register_buffer("steps", torch.zeros(()))
        self.query_bytes = 4 * (self.bag.dim + out.shape[1])

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Queries (B, D) of the means; an item counts once."""
        assert history is not None
        met = history.csr(len(self.bag))
        device = self.bias.device
        ids = torch.from_numpy(met.indices.astype(np.int64)).to(device)
        starts = torch.from_numpy(met.indptr[:-1].astype(np.int64)).to(device)
        sums = embedding_bag(ids, self.bag.weight, starts, mode="sum")
        length = torch.from_numpy(np.diff(met.indptr)).to(device).clamp(min=1)
        mean, _ = self._latent(sums / length.sqrt().unsqueeze(1))
        return mean @ self.out + self.out_bias

    def learn(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Queries (B, D) of padded histories (B, L), and the weighted KL of each (B,)."""
        real, device = ids >= 0, ids.device
        kept = torch.rand(ids.shape, generator=generator, device=device) >= self.dropout
        scale = real.sum(1, keepdim=True).clamp(min=1).rsqrt() / (1 - self.dropout)
        mean, log_variance = self._latent(self.bag.bag(ids, (real & kept) * scale))
        noise = torch.randn(mean.shape, generator=generator, device=device)
        z = mean + (log_variance / 2).exp() * noise
        self.steps += 1
        beta = self.beta * (self.steps / max(1, self.anneal)).clamp(max=1)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return z @ self.out + self.out_bias, beta * kl

    def _latent(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = (torch.tanh(sums + self.bias) @ self.mix + self.mix_bias).chunk(2, 1)
        return mean, log_variance
