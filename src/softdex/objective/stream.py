"""Stream: what in-batch objectives remember between batches."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

PRIME = 2**31 - 1  # for hashing


@final
class Frequencies(nn.Module):
    """Estimate how often items occur in a stream, from the number of batches between occurrences.

        interval <- (1 - rate) interval + rate (now - last occurrence) / occurrences now
        log p = -log max interval                                                      [G-Tower]

    in a few hashed arrays, of which the largest interval has the fewest collisions. It needs
    neither counts nor the number of items, and follows a stream that changes.

    Args:
        slots: entries per array.
        first: the interval to start from.
        rate: how fast the estimate follows.
        hashes: number of arrays.
    """

    factors: Tensor
    last: Tensor
    interval: Tensor
    now: Tensor
    times: Tensor

    def __init__(self, slots: int, first: float, rate: float = 0.01, hashes: int = 5) -> None:
        super().__init__()
        self.slots, self.rate = slots, rate
        generator = torch.Generator().manual_seed(slots)
        factors = torch.randint(1, PRIME, (2, hashes, 1), generator=generator)
        self.register_buffer("factors", factors, persistent=False)
        shape = hashes, slots + 1  # the last slot is for padding
        self.register_buffer("last", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("interval", torch.full(shape, float(first)))
        self.register_buffer("now", torch.zeros((), dtype=torch.int64))
        self.register_buffer("times", torch.zeros(shape, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        """Record a batch of items, and return log p of each (N,), up to a constant.

        Args:
            ids: item ids (N,), -1 for padding; an item may occur several times.
        """
        self.now += 1
        factor, shift = self.factors
        slot = (ids % PRIME * factor + shift) % PRIME % self.slots
        slot = torch.where(ids < 0, self.slots, slot)
        row = torch.arange(len(slot), device=ids.device)[:, None].expand_as(slot)
        self.times.index_put_((row, slot), torch.ones_like(slot), accumulate=True)
        gap = (self.now - self.last[row, slot]) / self.times[row, slot]
        self.times.index_put_((row, slot), torch.zeros_like(slot))
        interval = self.interval[row, slot] * (1 - self.rate) + self.rate * gap
        self.interval[row, slot] = interval  # repeated slots get the same number
        self.last[row, slot] = self.now
        return -interval.amax(0).log()


@final
class Cache(nn.Module):
    """Informative items of earlier batches, as ids; scores use their present vectors.

    Occurrences are counted in whole numbers: a batch adds about B^2 to them, and float32 stops
    counting at 2^24. They decay per step, applied when an item is next looked up.

    Args:
        ids: the first items in the cache (B,).
        items: the number of all items.
        decay: share of an occurrence that remains after a step.
    """

    ids: Tensor
    counts: Tensor
    last: Tensor
    now: Tensor
    times: Tensor

    def __init__(self, ids: Tensor, items: int, decay: float = 1.0) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("ids", ids)
        self.register_buffer("counts", torch.ones(items, dtype=torch.int64))
        self.register_buffer("last", torch.zeros(items, dtype=torch.int64))
        self.register_buffer("now", torch.zeros((), dtype=torch.int64))
        self.register_buffer("times", torch.zeros(items, dtype=torch.int64), persistent=False)

    def occurrences(self, ids: Tensor) -> Tensor:
        """How often each item was drawn, decayed to the present (N,), int64."""
        counts = self.counts[ids]
        if self.decay == 1:
            return counts
        age = (self.now - self.last[ids]).double()
        return (counts * self.decay**age).long()

    @torch.no_grad()
    def replace(self, ids: Tensor, counts: Tensor, generator: torch.Generator | None) -> None:
        """Add the draws of a step to the occurrences, and refill the cache from the drawn items.

        A distinct item that was drawn is chosen with probability proportional to its occurrences.

        Args:
            ids: the candidates (M,); ids may repeat.
            counts: how often each was drawn (M,).
            generator: the source of randomness.
        """
        self.now += 1
        self.counts[ids] = self.occurrences(ids)
        self.last[ids] = self.now
        self.counts.index_add_(0, ids, counts)
        seen = (counts > 0).long()
        self.times.index_add_(0, ids, seen)
        weight = self.counts[ids].double() * seen / self.times[ids].clamp(min=1)
        self.times.index_fill_(0, ids, 0)
        steps = weight.cumsum(0)
        point = torch.rand(
            len(self.ids), generator=generator, device=ids.device, dtype=torch.float64
        )
        place = torch.searchsorted(steps, point * steps[-1], right=True)
        self.ids.copy_(ids[place.clamp(max=len(ids) - 1)])
