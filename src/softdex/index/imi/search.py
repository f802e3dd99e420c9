"""Search a multi-index on a GPU: rank all cells of every query, then score all items in blocks.

A CPU searches by `kernels.scan`, which opens the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softdex.index.contract import Filter, Hits
from softdex.index.flat import Flat, ranked
from softdex.index.imi.books import ITEMS

if TYPE_CHECKING:
    from softdex.index.imi.index import Imi

CELL_BYTES = 28  # memory of a (query, cell) pair while cells are ranked
ALLOW_BYTES = 6  # memory of a (query, item) pair of a mask per query


def in_blocks(
    index: Imi, query: Tensor, k: int, enough: float, filter: Filter | None, max_memory: int
) -> Hits:
    """Return the top k items of the opened cells.

    Args:
        index: to be searched.
        query: (B, D), as the scorer takes it.
        k: items per query.
        enough: allowed items that the opened cells hold at least.
        filter: what may come back.
        max_memory: bytes of scores held at a time.
    """
    each = CELL_BYTES * len(index.logmass)
    if filter is not None and filter.allows_per_query:
        each += ALLOW_BYTES * index.num_items
    rows = max(1, max_memory // each)
    found = []
    for start in range(0, max(1, len(query)), rows):
        part = query[start : start + rows]
        mine = None if filter is None else filter.of(start, start + rows)
        found.append(ranked(_blocks(index, part, k, enough, mine, max_memory), k, mine))
    return Hits(*(torch.cat(column) for column in zip(*found, strict=True)))


def _blocks(
    index: Imi, query: Tensor, k: int, enough: float, filter: Filter | None, max_memory: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the scores of all items, -inf outside the opened cells."""
    cells = opened(index, index.scorer.project(query).float(), enough, filter)
    for start, scores in Flat(index.scorer, index.alive).blocks(query, max_memory, least=k):
        cell = index.cell[start : start + scores.shape[1]].long()
        yield start, scores.masked_fill_(~cells[:, cell], -torch.inf)


def opened(index: Imi, query: Tensor, enough: float, filter: Filter | None) -> Tensor:
    """Return which cells are opened for projected queries (B, D), (B, C * C)."""
    reach, bias = _lift(index)
    cells = index.cell_scores(query) + query.norm(dim=1, keepdim=True) * reach + bias
    free, items = index.alive, index.num_items
    if filter is not None and filter.allow is not None:
        free = free & filter.allow.to(free.device)
    free = free.expand(1, -1) if free.ndim == 1 else free
    count = cells.new_zeros(len(free), cells.shape[1])
    count = count.index_add_(1, index.cell.long(), free.float()).expand_as(cells)
    if filter is not None and filter.exclude is not None:
        pairs = torch.from_numpy(np.unique(filter.exclude.cells(items)))
        rows, ids = (p.to(free.device) for p in (pairs // items, pairs % items))
        taken = torch.zeros_like(cells)
        mine = free.expand(len(cells), -1)[rows, ids].float()
        taken.index_put_((rows, index.cell[ids].long()), mine, accumulate=True)
        count = count - taken
    order = cells.masked_fill(count == 0, -torch.inf).sort(dim=1, descending=True, stable=True)
    count = count.gather(1, order.indices)
    before = count.cumsum(1) - count
    return torch.zeros_like(cells, dtype=torch.bool).scatter(1, order.indices, before < enough)


def _lift(index: Imi) -> tuple[Tensor, Tensor]:
    """Return reach and bias of the cells (C * C,), as `kernels.scan` defines them."""
    from softdex.kernels.scan import REACH  # loads numba

    cell, size = index.cell.long(), index.words.shape[1]
    far, offset = (torch.zeros(index.num_items, device=cell.device) for _ in range(2))
    for start in range(0, index.num_items, ITEMS):
        part = slice(start, start + ITEMS)
        x = index.scorer.vectors(part)
        words = index.words[0][cell[part] // size] + index.words[1][cell[part] % size]
        far[part] = (x - words).square().mean(1)
        given = index.scorer.offsets(part)
        offset[part] = 0.0 if given is None else given
    count = index.starts.diff().clamp(min=1)

    def mean(of: Tensor) -> Tensor:
        return torch.zeros_like(index.logmass).index_add_(0, cell, of * index.alive) / count

    return REACH * mean(far).sqrt(), mean(offset)
