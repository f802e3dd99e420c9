"""Feeds: what a step trains on, made on the device from index ranges.

A feed cuts the training log into rows (events, users, sequences or windows), makes batches of them,
and asks the encoder for their queries. Shapes: B rows per batch, L items per history, Q queries.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.errors import DataError
from softdex.share import Share, own, present, take
from softdex.solve.closed.neighbours import cosine_neighbours

ALIKE = 10  # items that may stand in for a target
SPREADS = 6  # standard deviations that are allowed for the number of items in a batch
TINY = 1e-12  # lower bound of the total weight of a batch


class Batch(NamedTuple):
    """Users (B,), their targets (B,) or (B, L) padded with -1, and the weight of each target."""

    users: Tensor
    target: Tensor
    weight: Tensor

    def own(self) -> Batch:
        """Return the rows of this rank."""
        return Batch(*map(own, self))


class Asked(NamedTuple):
    """Queries, the target of each, (Q,) or (Q, L), its weight in the loss, a scalar that the
    encoder adds to the loss, if any, and the users (Q,) of losses that read them."""

    query: Any
    target: Tensor
    weight: Tensor
    penalty: Tensor | None = None
    users: Tensor | None = None


class Feed(Protocol):
    """Rows to train on.

    Attributes:
        size: rows per epoch.
    """

    size: int

    def to(self, device: torch.device) -> None:
        """Move the rows to a device."""
        ...

    def ask(self, encoder: Any, at: Tensor, generator: torch.Generator) -> Asked:
        """The queries and targets of rows `at` (B,)."""
        ...

    def extent(self, batch: int, encoder: Any) -> tuple[int, int, int]:
        """Sizes of a batch: queries, targets per query, and bytes that the encoder holds."""
        ...


class Events:
    """A row is an event; its weight in the loss is that of the log.

    In a fraction `smooth` of the events another item stands in for the target: one of the ALIKE
    items with the most similar users, in proportion to the similarity.
    """

    def __init__(self, log: Interactions, smooth: float = 0.0) -> None:
        self.user, self.item = (torch.from_numpy(c.copy()) for c in (log.user, log.item))
        self.weight = None if log.weight is None else torch.from_numpy(log.weight.copy())
        self.size, self.smooth = len(log), smooth
        if smooth:
            lists = cosine_neighbours(log.csr(binary=True), ALIKE, user_power=1.0)
            row = np.repeat(np.arange(log.num_items), np.diff(lists.indptr))
            place = np.arange(lists.nnz) - lists.indptr[row]
            alike = np.repeat(np.arange(log.num_items, dtype=np.int32)[:, None], ALIKE, 1)
            chance = np.zeros(alike.shape, np.float32)
            alike[row, place], chance[row, place] = lists.indices, lists.data
            up_to = chance.cumsum(1) / np.maximum(chance.sum(1, keepdims=True), TINY)
            self.alike, self.up_to = torch.from_numpy(alike), torch.from_numpy(up_to)

    def to(self, device: torch.device) -> None:
        """Move the events to a device."""
        _move(self, device)

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The events of these numbers."""
        user, item = self.user[at], self.item[at]
        if self.smooth:
            which, whether = torch.rand(2, len(at), 1, generator=generator, device=at.device)
            item = item.long()
            place = (self.up_to[item] <= which).sum(1, keepdim=True).clamp(max=ALIKE - 1)
            other = self.alike[item].gather(1, place)
            item = torch.where(whether < self.smooth, other, item.unsqueeze(1)).squeeze(1)
        ones = torch.ones_like(at, dtype=torch.float32)
        weight = ones if self.weight is None else self.weight[at]
        return Batch(user.long(), item.long(), weight / weight.sum().clamp(min=TINY))

    def ask(self, encoder: Any, at: Tensor, generator: torch.Generator) -> Asked:
        """One query per event; an encoder that reads histories leaves the target out."""
        users, target, weight = self.batch(at, generator).own()
        return Asked(encoder(users, leave_out=target), target, weight, users=users)

    def extent(self, batch: int, encoder: Any) -> tuple[int, int, int]:
        """One query and one target per event."""
        return batch, 1, 0


class Histories:
    """A row is a user with up to `most` of their items; the loss is a mean over all items.

    A longer history is cut: a part that begins at a random place of the shuffled items counts for
    the whole.
    """

    def __init__(self, log: Interactions, most: int, seed: int = 0) -> None:
        matrix = log.confidences[0]
        length = np.diff(matrix.indptr)
        row = np.repeat(np.arange(len(length)), length)
        mixed = np.lexsort((np.random.default_rng(seed).random(len(row)), row))
        users = np.flatnonzero(length)
        columns = (users, matrix.indptr[users], length[users], matrix.indices[mixed])
        taken = (torch.from_numpy(c.astype(np.int64)) for c in columns)
        self.users, self.start, self.length, self.ids = taken
        self.counts = torch.from_numpy(matrix.data[mixed].astype(np.float32))
        self.most, self.size = min(most, int(length.max())), len(users)
        self.mean = float(matrix.sum()) / len(users)

    def to(self, device: torch.device) -> None:
        """Move the histories to a device."""
        _move(self, device)

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The users of these numbers. The width is constant on a GPU: nothing waits for it."""
        length = self.length[at].unsqueeze(1)
        width = self.most if at.is_cuda else min(self.most, int(length.max()))
        place = torch.arange(width, device=at.device)
        begin = torch.rand(len(at), 1, generator=generator, device=at.device) * length
        place = torch.where(length > width, begin.long() + place, place)
        place = self.start[at].unsqueeze(1) + place % length
        real = torch.arange(width, device=at.device) < length
        target = torch.where(real, self.ids[place], -1)
        scale = length / length.clamp(max=width) / (len(at) * self.mean)
        return Batch(self.users[at], target, self.counts[place] * real * scale)

    def ask(self, encoder: Any, at: Tensor, generator: torch.Generator) -> Asked:
        """One query per user: the encoder learns to reconstruct the history it reads."""
        _, target, weight = self.batch(at, generator).own()
        query, penalty = encoder.learn(target, generator)
        part = len(target) / len(at)
        return Asked(query, target, weight, penalty.float().mean() / self.mean * part)

    def extent(self, batch: int, encoder: Any) -> tuple[int, int, int]:
        """One query per user, with a history of targets."""
        return batch, self.most, 0


class Sequences:
    """A row is a user with their items in the order of time; each item is predicted from those
    before it.

    A sequence is as wide as the encoder reads and one more. A longer history is cut into several,
    so that each item is a target once. `rows` > 0 trains on that many random positions per step.
    """

    def __init__(self, log: Interactions, most: int, rows: int = 0) -> None:
        history = log.histories
        users = np.flatnonzero(history.lengths > 1)
        if not len(users):
            raise DataError(
                "fit: no user has two events, so there is no next item to predict. Choose a recipe "
                "that does not read sequences."
            )
        parts = -(-(history.lengths[users] - 1) // most)
        part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        user = np.repeat(users, parts)
        end = history.indptr[1:][user] - part * most
        start = np.maximum(history.indptr[:-1][user], end - most - 1)
        weight = np.ones(len(log), np.float32) if log.weight is None else in_time(log, log.weight)
        columns = user, start, end - start, history.ids
        self.users, self.start, self.length, self.ids = (
            torch.from_numpy(np.asarray(c, np.int64)) for c in columns
        )
        self.weight = torch.from_numpy(np.asarray(weight, np.float32))
        self.most, self.size, self.rows = min(most, int((end - start).max()) - 1), len(user), rows
        self.mean, self.spread = float((end - start - 1).mean()), float((end - start - 1).std())

    def to(self, device: torch.device) -> None:
        """Move the sequences to a device."""
        _move(self, device)

    def real(self, size: int) -> int:
        """A bound, hardly ever exceeded, of the positions with a target in `size` sequences."""
        return math.ceil(
            min(size * self.most, size * self.mean + SPREADS * size**0.5 * self.spread)
        )

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The sequences of these numbers. The width is constant on a GPU: nothing waits for it."""
        length = self.length[at].unsqueeze(1)
        width = self.most + 1 if at.is_cuda else int(length.max())
        place = torch.arange(width, device=at.device)
        real = place < length
        place = (self.start[at].unsqueeze(1) + place).clamp(max=len(self.ids) - 1)
        return Batch(
            self.users[at], torch.where(real, self.ids[place], -1), self.weight[place] * real
        )

    def ask(self, encoder: Any, at: Tensor, generator: torch.Generator) -> Asked:
        """One query behind each item but the last; the item that follows is its target."""
        _, sequence, weight = self.batch(at, generator)
        return self.positions(encoder, sequence, weight, generator)

    def positions(
        self, encoder: Any, sequence: Tensor, weight: Tensor, generator: torch.Generator
    ) -> Asked:
        """The queries of sequences (B, L + 1), at random positions with a target if not at all."""
        read = torch.where(sequence[:, 1:] >= 0, sequence[:, :-1], -1)  # has an item behind it
        query = encoder.learn(own(read), generator)
        target, weight = sequence[:, 1:].reshape(-1), weight[:, 1:].reshape(-1)
        query, width = query.flatten(0, 1), read.shape[1]
        rows, at = self.rows or self.real(len(sequence)), None
        if rows < len(target):
            chance = torch.rand(len(target), generator=generator, device=target.device)
            at = torch.where(target >= 0, chance, chance - 1).topk(rows).indices
            target, weight = target[at], weight[at]
        weight = weight / weight.sum().clamp(min=TINY)
        place = self._take(at, len(target), width)
        query = query if place is None else query[place]
        return Asked(query, own(target), own(weight))

    def _take(self, at: Tensor | None, rows: int, width: int) -> Tensor | None:
        """Let the positions `at` be the rows of the batch from here on, and return those of this
        rank among its own positions; None: all."""
        share = present()
        if share is None:
            return at
        assert isinstance(share.rows, slice)
        here = slice(share.rows.start * width, share.rows.stop * width)
        if at is None:
            take(Share(here, rows))
            return None
        mine = ((at >= here.start) & (at < here.stop)).nonzero()[:, 0]
        take(Share(mine, rows))
        return at[mine] - here.start

    def extent(self, batch: int, encoder: Any) -> tuple[int, int, int]:
        """One query per position, beside what the encoder's layers make of every position."""
        return self.rows or batch * self.most, 1, 8 * batch * int(encoder.query_bytes)


class Windows:
    """A row is a target with the `length` items before it, which are the query as they are.

    Histories stand at the right of a row, padded with -1. `labels` (N, J), if set, weigh the levels
    of a tree per row.

    Args:
        log: the training events.
        length: items of history per target.
        least: an item is a target if at least this many stand before it.
        last: only the last item of each history is a target.
        most: at most this many targets, drawn at random; 0: all.
        seed: of that draw.
    """

    def __init__(
        self,
        log: Interactions,
        length: int,
        *,
        least: int = 1,
        last: bool = False,
        most: int = 0,
        seed: int = 0,
    ) -> None:
        history = log.histories
        at = np.arange(len(history.ids))
        begin = history.indptr[:-1][history.row_of]
        asked = at - begin >= least
        if last:
            asked &= at == history.indptr[1:][history.row_of] - 1
        found = np.flatnonzero(asked)
        if not len(found):
            raise DataError(
                f"fit: no user has more than {least} events, so there is no item to predict. Lower "
                "min_history, or choose a recipe that does not read sequences."
            )
        if 0 < most < len(found):
            drawn = np.random.default_rng(seed).choice(len(found), most, replace=False)
            found = found[np.sort(drawn)]
        weight = np.ones(len(log), np.float32) if log.weight is None else in_time(log, log.weight)
        columns = found, begin[found], history.ids
        self.at, self.begin, self.ids = (torch.from_numpy(np.asarray(c, np.int64)) for c in columns)
        self.weight = torch.from_numpy(np.asarray(weight[found], np.float32))
        self.length, self.size = length, len(found)
        self.labels: Tensor | None = None

    def to(self, device: torch.device) -> None:
        """Move the windows to a device."""
        _move(self, device)

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The targets of these numbers; users are histories (B, L), weights (B, 1) or (B, J)."""
        weight = self.weight[at].unsqueeze(1)
        weight = weight / weight.sum().clamp(min=TINY)
        if self.labels is not None:
            weight = weight * self.labels[at]
        return Batch(*self.instances(at), weight)

    def instances(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The histories (B, L) and targets (B,) of these numbers."""
        end = self.at[at].unsqueeze(1)
        place = end - self.length + torch.arange(self.length, device=at.device)
        history = torch.where(place >= self.begin[at, None], self.ids[place.clamp(min=0)], -1)
        return history, self.ids[end[:, 0]]

    def ask(self, encoder: Any, at: Tensor, generator: torch.Generator) -> Asked:
        """The history itself is the query."""
        return Asked(*self.batch(at, generator).own())

    def extent(self, batch: int, encoder: Any) -> tuple[int, int, int]:
        """One query and one target per row."""
        return batch, 1, 0


def in_time(log: Interactions, column: np.ndarray) -> np.ndarray:
    """A column of the log in the order of its histories."""
    time = np.zeros(len(log)) if log.time is None else log.time
    return column[np.lexsort((time, log.user))]


def _move(feed: Any, device: torch.device) -> None:
    for name, value in vars(feed).items():
        if isinstance(value, Tensor):
            setattr(feed, name, value.to(device))
