"""Flat: every item is scored; exact, blocked over items so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor

from softdex.data.ragged import Ragged
from softdex.errors import ShapeError
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, edited, item_vectors
from softdex.score.product import Scorer

CELL = 12  # bytes a (query, item) cell costs while a block is ranked: score, copy, flags
BLOCK = 96 * 2**20  # larger blocks are no faster (they leave the caches)


@final
class Flat:
    """Exact search, and the exact softmax as proposal, by scoring all items in blocks.

    q(i | u) = exp score(u, i) / sum over living items. Equal scores are ranked by item row, so an
    answer does not depend on block or batch size.
    """

    searches = False

    def __init__(self, scorer: Scorer, alive: Tensor | None = None) -> None:
        self.scorer = scorer
        self.num_items = scorer.num_items
        self.alive = alive

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Scores (B, N) of ids (N,) or (B, N)."""
        return self.scorer(query, ids)

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
        """The exact top k by score, ties by item row; -1 pads where fewer are allowed."""
        return ranked(self.blocks(query, max_memory, least=k), k, filter)

    @torch.inference_mode()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draws (B, N) from the softmax over living items; shared draws it does not have.

        Each draw picks a block by its mass and a place inside it; a second pass finds the item.
        """
        if shared:
            raise ShapeError("Flat.sample: its law depends on the query; draws cannot be shared.")
        mass = torch.stack([s.double().logsumexp(1) for _, s in self.blocks(query)], 1)
        cdf = mass.softmax(1).cumsum(1)
        point = torch.rand(
            len(mass), n, generator=generator, dtype=torch.float64, device=cdf.device
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

    @torch.inference_mode()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Log-softmax over living items, (B, N)."""
        mass = torch.stack([s.double().logsumexp(1) for _, s in self.blocks(query)], 1)
        scores = self.scorer(query, ids)
        if self.alive is not None:
            scores = scores.masked_fill(~self.alive.to(ids.device)[ids], -torch.inf)
        return (scores - mass.logsumexp(1, keepdim=True)).to(scores.dtype)

    def vectors(self) -> Tensor | None:
        """Vectors of all items (I, D), None where the scorer has none."""
        return item_vectors(self.scorer)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """The softmax follows the scorer by itself."""
        return self

    def insert(self, ids: Tensor) -> Self:
        """With these items."""
        return type(self)(self.scorer, edited(self._living(), ids, True))

    def delete(self, ids: Tensor) -> Self:
        """Without these items."""
        return type(self)(self.scorer, edited(self._living(), ids, False))

    def to(self, device: torch.device | str) -> Self:
        """On another device."""
        return type(self)(self.scorer, None if self.alive is None else self.alive.to(device))

    def state(self) -> dict[str, Tensor]:
        """Which items live."""
        return {"alive": self._living()}

    def _living(self) -> Tensor:
        everything = torch.ones(self.num_items, dtype=torch.bool)
        return everything if self.alive is None else self.alive

    def blocks(
        self, query: Any, max_memory: int = MAX_MEMORY, least: int = 1
    ) -> Iterator[tuple[int, Tensor]]:
        """Scores of all items, block by block, -inf for those that do not live."""
        size = max(1, self.scorer.num_queries(query))
        width = min(self.num_items, max(least, min(max_memory, BLOCK) // (CELL * size)))
        for start in range(0, self.num_items, width):
            stop = min(start + width, self.num_items)
            scores = self.scorer(query, slice(start, stop))
            if self.alive is not None:
                dead = ~self.alive[start:stop].to(scores.device)
                scores = scores.masked_fill(dead, -torch.inf)
            yield start, scores


class Exact:
    """Score and search of an index whose structure only draws: every item is scored."""

    searches = False
    scorer: Any
    alive: Tensor

    def vectors(self) -> Tensor | None:
        """Vectors of all items (I, D), None where the scorer has none."""
        return item_vectors(self.scorer)

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Scores (B, N)."""
        return self.scorer(query, ids)

    def search(
        self,
        query: Any,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        """Exact: see `Flat.search`."""
        flat = Flat(self.scorer, self.alive)
        return flat.search(query, k, filter=filter, effort=effort, max_memory=max_memory)


def ranked(blocks: Iterable[tuple[int, Tensor]], k: int, filter: Filter | None) -> Hits:
    """The top k over blocks of scores (B, n), each with the row of its first item."""
    if k < 1:
        raise ShapeError(f"search: expected k >= 1, got {k}.")
    exclude = None if filter is None or filter.exclude is None else _by_item(filter.exclude)
    allow = None if filter is None else filter.allow
    best: Hits | None = None
    for start, scores in blocks:
        if allow is not None or exclude is not None:
            scores = _forbid(scores, start, allow, exclude)
        hits = top_k(scores, min(k, scores.shape[1]))
        hits = Hits(hits.ids + start, hits.scores)
        best = hits if best is None else _merge(best, hits, k)
    if best is None:
        raise ShapeError("search: the index holds no items.")
    return _padded(best, k)


def _by_item(exclude: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """Excluded (item, query) pairs sorted by item, so that a block finds its own by bisection."""
    order = np.argsort(exclude.ids, kind="stable")
    return exclude.ids[order], exclude.row_of[order]


def _forbid(
    scores: Tensor,
    start: int,
    allow: Tensor | None,
    exclude: tuple[np.ndarray, np.ndarray] | None,
) -> Tensor:
    stop = start + scores.shape[1]
    if allow is not None:
        scores.masked_fill_(~allow[start:stop].to(scores.device), -torch.inf)
    if exclude is not None:
        low, high = np.searchsorted(exclude[0], (start, stop))
        columns = torch.from_numpy(exclude[0][low:high].astype(np.int64) - start)
        rows = torch.from_numpy(exclude[1][low:high])
        scores[rows.to(scores.device), columns.to(scores.device)] = -torch.inf
    return scores


def top_k(scores: Tensor, k: int) -> Hits:
    """Top k of each row, equal scores by column; the columns are the ids.

    `torch.topk` picks any of the equal scores at the cut. Rows where that matters (the k-th and
    the next best are equal) are picked again: all above the cut, then the first at the cut.
    """
    width = scores.shape[1]
    values, columns = torch.topk(scores, min(k + 1, width), dim=1)
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
    """Both lists are in order, the ids of `best` are smaller: a stable sort keeps ties right."""
    ids, scores = torch.cat([best.ids, new.ids], 1), torch.cat([best.scores, new.scores], 1)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return Hits(ids.gather(1, order)[:, :k], scores[:, :k])


def _padded(hits: Hits, k: int) -> Hits:
    """K columns; what is forbidden (score -inf) becomes id -1."""
    ids = torch.where(hits.scores > -torch.inf, hits.ids, -1)
    short = k - ids.shape[1]
    if short <= 0:
        return Hits(ids, hits.scores)
    pad = torch.nn.functional.pad
    return Hits(pad(ids, (0, short), value=-1), pad(hits.scores, (0, short), value=-torch.inf))
