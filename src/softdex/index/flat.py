"""Flat: every item is scored; exact, blocked over items so that memory stays bounded."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from softdex.errors import ShapeError
from softdex.index.contract import MAX_MEMORY, Filter, Hits
from softdex.ragged import Ragged
from softdex.score import Scorer

CELL = 12  # bytes a (query, item) cell costs while a block is ranked: score, copy, flags
BLOCK = 96 * 2**20  # larger blocks are no faster (they leave the caches)


@final
class Flat:
    """Exact search by scoring all items in blocks.

    Equal scores are ranked by item row, so the answer does not depend on block or batch size.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.num_items = scorer.num_items

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
        if k < 1:
            raise ShapeError(f"Flat.search: expected k >= 1, got {k}.")
        size = self.scorer.num_queries(query)
        width = min(self.num_items, max(k, min(max_memory, BLOCK) // (CELL * max(size, 1))))
        exclude = None if filter is None or filter.exclude is None else _by_item(filter.exclude)
        best: Hits | None = None
        for start in range(0, self.num_items, width):
            stop = min(start + width, self.num_items)
            scores = self.scorer(query, slice(start, stop))
            if filter is not None:
                scores = _forbid(scores, start, stop, filter.allow, exclude)
            hits = top_k(scores, min(k, stop - start))
            hits = Hits(hits.ids + start, hits.scores)
            best = hits if best is None else _merge(best, hits, k)
        if best is None:
            raise ShapeError("Flat.search: the index holds no items.")
        return _padded(best, k)


def _by_item(exclude: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """Excluded (item, query) pairs sorted by item, so that a block finds its own by bisection."""
    order = np.argsort(exclude.ids, kind="stable")
    return exclude.ids[order], exclude.row_of[order]


def _forbid(
    scores: Tensor,
    start: int,
    stop: int,
    allow: Tensor | None,
    exclude: tuple[np.ndarray, np.ndarray] | None,
) -> Tensor:
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
