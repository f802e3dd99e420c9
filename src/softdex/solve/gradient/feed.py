"""Feeds: batches made on the device from index ranges: events, histories, sequences, windows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.errors import DataError
from softdex.solve.closed.neighbours import cosine_neighbours

ALIKE = 10  # items that may stand for one
SPREADS = 6  # standard deviations of a batch's size that are allowed for
TINY = 1e-12  # the least that the weights of a batch are taken to be together


class Batch(NamedTuple):
    """Users (B,), what they should find, (B,) or (B, L) with -1 behind the end, and what each of
    these counts in the loss."""

    users: Tensor
    target: Tensor
    weight: Tensor


class Events:
    """Batches of events; an event counts by its weight.

    In a share `smooth` of them the target is one of the ALIKE items that are had most by the same
    users, likelier the more alike it is.
    """

    def __init__(self, log: Interactions, smooth: float, device: torch.device) -> None:
        columns = (log.user, log.item) if log.weight is None else (log.user, log.item, log.weight)
        self.columns = [torch.from_numpy(column.copy()).to(device) for column in columns]
        self.size, self.smooth = len(log), smooth
        if smooth:
            lists = cosine_neighbours(log.csr(binary=True), ALIKE, user_power=1.0)
            row = np.repeat(np.arange(log.num_items), np.diff(lists.indptr))
            place = np.arange(lists.nnz) - lists.indptr[row]
            alike = np.repeat(np.arange(log.num_items, dtype=np.int32)[:, None], ALIKE, 1)
            chance = np.zeros(alike.shape, np.float32)
            alike[row, place], chance[row, place] = lists.indices, lists.data
            up_to = chance.cumsum(1) / np.maximum(chance.sum(1, keepdims=True), TINY)
            self.alike, self.up_to = (torch.from_numpy(t).to(device) for t in (alike, up_to))

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The events of these numbers."""
        user, item, *given = (column[at] for column in self.columns)
        if self.smooth:
            which, whether = torch.rand(2, len(at), 1, generator=generator, device=at.device)
            item = item.long()
            place = (self.up_to[item] <= which).sum(1, keepdim=True).clamp(max=ALIKE - 1)
            other = self.alike[item].gather(1, place)
            item = torch.where(whether < self.smooth, other, item.unsqueeze(1)).squeeze(1)
        weight = given[0] if given else torch.ones_like(at, dtype=torch.float32)
        return Batch(user.long(), item.long(), weight / weight.sum().clamp(min=TINY))


class Histories:
    """Batches of users, each with up to so many of their items, the loss a mean over all items.

    Of a longer history a part is taken that begins at a random place of its shuffled items, and
    counts for the whole.
    """

    def __init__(self, log: Interactions, most: int, seed: int, device: torch.device) -> None:
        matrix = log.confidences[0]
        length = np.diff(matrix.indptr)
        row = np.repeat(np.arange(len(length)), length)
        mixed = np.lexsort((np.random.default_rng(seed).random(len(row)), row))
        users = np.flatnonzero(length)
        columns = (users, matrix.indptr[users], length[users], matrix.indices[mixed])
        taken = (torch.from_numpy(c.astype(np.int64)).to(device) for c in columns)
        self.users, self.start, self.length, self.ids = taken
        self.counts = torch.from_numpy(matrix.data[mixed].astype(np.float32)).to(device)
        self.most, self.size = min(most, int(length.max())), len(users)
        self.mean = float(matrix.sum()) / len(users)

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The users of these numbers. On a GPU always as wide, so that nothing waits for it."""
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


class Sequences:
    """Batches of users with their items in the order of time, as wide as the encoder reads and one
    more; of a longer history there are several, so that each item is once what should be found.
    """

    def __init__(self, log: Interactions, most: int, device: torch.device) -> None:
        history = log.histories
        rows = np.flatnonzero(history.lengths > 1)
        if not len(rows):
            raise DataError(
                "fit: no user has two events, so nothing follows on anything. Choose a recipe that "
                "does not read sequences."
            )
        parts = -(-(history.lengths[rows] - 1) // most)
        part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        user = np.repeat(rows, parts)
        end = history.indptr[1:][user] - part * most
        start = np.maximum(history.indptr[:-1][user], end - most - 1)
        weight = np.ones(len(log), np.float32) if log.weight is None else in_time(log, log.weight)
        columns = user, start, end - start, history.ids
        self.users, self.start, self.length, self.ids = (
            torch.from_numpy(np.asarray(c, np.int64)).to(device) for c in columns
        )
        self.weight = torch.from_numpy(np.asarray(weight, np.float32)).to(device)
        self.most, self.size = min(most, int((end - start).max()) - 1), len(user)
        self.mean, self.spread = float((end - start - 1).mean()), float((end - start - 1).std())

    def real(self, size: int) -> int:
        """Positions of so many windows that hold an item to be found, hardly ever more."""
        return math.ceil(
            min(size * self.most, size * self.mean + SPREADS * size**0.5 * self.spread)
        )

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The windows of these numbers. On a GPU always as wide, so that nothing waits for it."""
        length = self.length[at].unsqueeze(1)
        width = self.most + 1 if at.is_cuda else int(length.max())
        place = torch.arange(width, device=at.device)
        real = place < length
        place = (self.start[at].unsqueeze(1) + place).clamp(max=len(self.ids) - 1)
        return Batch(
            self.users[at], torch.where(real, self.ids[place], -1), self.weight[place] * real
        )


class Reading(NamedTuple):
    """What is read of histories, and which of their items are to be found.

    Attributes:
        length: how many of the latest items are read.
        least: an item is to be found if so many stand before it.
        last: only the last item of each history is.
        most: at most so many of them, drawn at random; 0: all.
    """

    length: int
    least: int = 1
    last: bool = False
    most: int = 0


class Windows:
    """Batches of items to be found, each with the items before it at the right of a row, -1 before
    the history's beginning. `labels` (N, J), if there are some, say what each level of a tree
    counts."""

    def __init__(
        self, log: Interactions, reading: Reading, seed: int, device: torch.device
    ) -> None:
        history = log.histories
        at = np.arange(len(history.ids))
        begin = history.indptr[:-1][history.row_of]
        asked = at - begin >= reading.least
        if reading.last:
            asked &= at == history.indptr[1:][history.row_of] - 1
        found = np.flatnonzero(asked)
        if not len(found):
            raise DataError(
                f"fit: no user has more than {reading.least} events, so nothing follows on "
                "anything. Lower min_history, or choose a recipe that does not read sequences."
            )
        if 0 < reading.most < len(found):
            drawn = np.random.default_rng(seed).choice(len(found), reading.most, replace=False)
            found = found[np.sort(drawn)]
        weight = np.ones(len(log), np.float32) if log.weight is None else in_time(log, log.weight)
        columns = found, begin[found], history.ids
        self.at, self.begin, self.ids = (
            torch.from_numpy(np.asarray(c, np.int64)).to(device) for c in columns
        )
        self.weight = torch.from_numpy(np.asarray(weight[found], np.float32)).to(device)
        self.length, self.size = reading.length, len(found)
        self.labels: Tensor | None = None

    def batch(self, at: Tensor, generator: torch.Generator) -> Batch:
        """The items of these numbers; users are histories (B, L), weights (B, 1) or (B, J)."""
        weight = self.weight[at].unsqueeze(1)
        weight = weight / weight.sum().clamp(min=TINY)
        if self.labels is not None:
            weight = weight * self.labels[at]
        return Batch(*self.instances(at), weight)

    def instances(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The histories (B, L) and items (B,) of these numbers."""
        end = self.at[at].unsqueeze(1)
        place = end - self.length + torch.arange(self.length, device=at.device)
        history = torch.where(place >= self.begin[at, None], self.ids[place.clamp(min=0)], -1)
        return history, self.ids[end[:, 0]]


def in_time(log: Interactions, column: np.ndarray) -> np.ndarray:
    """A column of the log in the order of its histories."""
    time = np.zeros(len(log)) if log.time is None else log.time
    return column[np.lexsort((time, log.user))]
