"""Flat: score every item, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softdex.data.ragged import Ragged
from softdex.errors import ShapeError
from softdex.index import methods
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, Index, reordered
from softdex.score.contract import Scorer
from softdex.shapes import FLAGS, Layout, Sizes, Tensors
from softdex.share import draw

CELL = 12  # bytes per (query, item) cell while a block is ranked: score, copy, flags
BLOCK = 96 * 2**20  # larger blocks leave the caches and are no faster


@final
class Flat:
    """Exact search, and the exact softmax as proposal, by scoring all items in blocks.

        q(i | u) = exp score(u, i) / sum over living items

    Equal scores are ranked by item id, so a result does not depend on block or batch size.
    """

    tensors: ClassVar[Layout] = {"alive": (FLAGS, "I?")}
    searches = False
    score, tune, vectors = methods.score, methods.tune, methods.vectors
    refit, insert, delete = methods.refit, methods.insert, methods.delete

    def __init__(self, scorer: Scorer, alive: Tensor | None = None) -> None:
        self.scorer, self.num_items = scorer, scorer.num_items
        self.alive = torch.ones(self.num_items, dtype=torch.bool) if alive is None else alive

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
        """Refuse an index without a living item."""
        if "alive" in tensors:
            methods.check(tensors, sizes, scorer)

    @torch.inference_mode()
    def search(
        self,
        query: Any,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        """Return the exact top k by score, ties by item id."""
        return ranked(self.blocks(query, max_memory, least=k), k, filter)

    @torch.no_grad()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items from the softmax over living items.

        A draw picks a block by its mass and a place inside it; a second pass finds the item.
        """
        if shared:
            raise ShapeError(
                "Flat.sample: the proposal depends on the query; draws cannot be shared."
            )
        mass = torch.stack([s.double().logsumexp(1) for _, s in self.blocks(query)], 1)
        cdf = mass.softmax(1).cumsum(1)
        device, double = cdf.device, torch.float64
        point = draw(
            len(mass),
            lambda rows: torch.rand(rows, n, generator=generator, dtype=double, device=device),
        )
        point = point * cdf[:, -1:]
        block = torch.searchsorted(cdf, point, right=True).clamp_(max=cdf.shape[1] - 1)
        before = torch.where(block > 0, cdf.gather(1, (block - 1).clamp(min=0)), 0.0)
        share = (point - before) / (cdf.gather(1, block) - before)
        ids = torch.zeros_like(block)
        logq = torch.zeros_like(point)
        for number, (start, scores) in enumerate(self.blocks(query)):
            inside = scores.double().softmax(1).cumsum(1)
            at = torch.searchsorted(inside, share * inside[:, -1:], right=True)
            at = torch.minimum(at, (inside < inside[:, -1:]).sum(1, keepdim=True))
            mine = block == number
            ids = torch.where(mine, at + start, ids)
            logq = torch.where(mine, scores.gather(1, at.clamp(max=scores.shape[1] - 1)), logq)
        return Draws(ids, (logq - mass.logsumexp(1, keepdim=True)).float())

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the log-softmax over living items, (B, N)."""
        mass = torch.stack([s.double().logsumexp(1) for _, s in self.blocks(query)], 1)
        scores = self.scorer(query, ids)
        scores = scores.masked_fill(~self.alive.to(ids.device)[ids], -torch.inf)
        return (scores - mass.logsumexp(1, keepdim=True)).to(scores.dtype)

    def over(self, scorer: Scorer, order: np.ndarray) -> Self:
        """Return the index over other items."""
        return type(self)(scorer, reordered(self.alive, order))

    def to(self, device: torch.device | str) -> Self:
        """Return the index with its mask on a device."""
        return type(self)(self.scorer, self.alive.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return which items live, or nothing where all of them do."""
        return {} if bool(self.alive.all()) else {"alive": self.alive}

    def blocks(
        self, query: Any, max_memory: int = MAX_MEMORY, least: int = 1
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the first id and the scores (B, n) of each block of items, -inf for deleted ones.

        Args:
            query: B queries.
            max_memory: bytes of scores held at a time.
            least: items per block, at least.
        """
        size = max(1, self.scorer.num_queries(query))
        width = min(self.num_items, max(least, min(max_memory, BLOCK) // (CELL * size)))
        every = bool(self.alive.all())
        for start in range(0, self.num_items, width):
            stop = min(start + width, self.num_items)
            scores = self.scorer(query, slice(start, stop))
            if not every:
                dead = ~self.alive[start:stop].to(scores.device)
                scores = scores.masked_fill(dead, -torch.inf)
            yield start, scores


def exact_search(
    index: Index,
    query: Any,
    k: int,
    *,
    filter: Filter | None = None,
    effort: float | None = None,
    max_memory: int = MAX_MEMORY,
) -> Hits:
    """Return the exact top k of an index that only samples: a method to borrow."""
    return Flat(index.scorer, index.alive).search(query, k, filter=filter, max_memory=max_memory)


def ranked(blocks: Iterable[tuple[int, Tensor]], k: int, filter: Filter | None) -> Hits:
    """Return the top k over blocks of scores (B, n), each given with the id of its first item."""
    if k < 1:
        raise ShapeError(f"search: expected k >= 1, got {k}.")
    best: Hits | None = None
    for start, scores in permitted(blocks, filter):
        hits = top_k(scores, min(k, scores.shape[1]))
        hits = Hits(hits.ids + start, hits.scores)
        best = hits if best is None else _merge(best, hits, k)
    if best is None:
        raise ShapeError("search: the index holds no items.")
    return _padded(best, k)


def permitted(
    blocks: Iterable[tuple[int, Tensor]], filter: Filter | None
) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of scores (B, n) with -inf, in place, for items that must not come back."""
    exclude = None if filter is None or filter.exclude is None else _by_item(filter.exclude)
    allow = None if filter is None else filter.allow
    for start, scores in blocks:
        if allow is not None or exclude is not None:
            scores = _forbid(scores, start, allow, exclude)
        yield start, scores


def _by_item(exclude: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """Sort excluded (item, query) pairs by item, so that a block finds its own by bisection."""
    order = np.argsort(exclude.ids, kind="stable")
    return exclude.ids[order], exclude.row_of[order]


def _forbid(
    scores: Tensor,
    start: int,
    allow: Tensor | None,
    exclude: tuple[np.ndarray, np.ndarray] | None,
) -> Tensor:
    """Set the scores of items that must not come back to -inf."""
    stop = start + scores.shape[1]
    if allow is not None:
        scores.masked_fill_(~allow[..., start:stop].to(scores.device), -torch.inf)
    if exclude is not None:
        low, high = np.searchsorted(exclude[0], (start, stop))
        columns = torch.from_numpy(exclude[0][low:high].astype(np.int64) - start)
        rows = torch.from_numpy(exclude[1][low:high])
        scores[rows.to(scores.device), columns.to(scores.device)] = -torch.inf
    return scores


def top_k(scores: Tensor, k: int) -> Hits:
    """Return the top k of each row, equal scores by column; ids are columns.

    `torch.topk` orders equal scores as it likes, and picks any of them at the cut. Rows where that
    matters (the k-th and the next score are equal) are picked again: all above the cut, then the
    first at the cut.
    """
    width = scores.shape[1]
    values, columns = torch.topk(scores, min(k + 1, width), dim=1)
    if not bool((values[:, 1:] == values[:, :-1]).any()):
        return Hits(columns[:, :k], values[:, :k])
    if width > k:
        unclear = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
        values, columns = values[:, :k], columns[:, :k]
        rows = unclear.nonzero()[:, 0]
        if len(rows):
            cut = values[rows, -1:]
            tied = scores[rows] == cut
            above = scores[rows] > cut
            first = tied & (tied.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True))
            columns[rows] = (above | first).nonzero()[:, 1].view(len(rows), k)
            values[rows] = scores[rows].gather(1, columns[rows])
    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return Hits(columns.gather(1, order), values)


def _merge(best: Hits, new: Hits, k: int) -> Hits:
    """Merge two ranked lists; ids of `best` are smaller, so a stable sort keeps ties in order."""
    ids, scores = torch.cat([best.ids, new.ids], 1), torch.cat([best.scores, new.scores], 1)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return Hits(ids.gather(1, order)[:, :k], scores[:, :k])


def _padded(hits: Hits, k: int) -> Hits:
    """Return k columns, with id -1 where the score is -inf."""
    ids = torch.where(hits.scores > -torch.inf, hits.ids, -1)
    short = k - ids.shape[1]
    if short <= 0:
        return Hits(ids, hits.scores)
    return Hits(pad(ids, (0, short), value=-1), pad(hits.scores, (0, short), value=-torch.inf))
