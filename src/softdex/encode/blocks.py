"""Blocks: a table whose rows are spread over the ranks, each of which holds and updates its own.

A lookup asks the owners for its distinct rows and goes on with these as a small table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from softdex import group


def spread(table: Tensor) -> tuple[Tensor, list[int]]:
    """Return this rank's block of rows, and where the blocks of all ranks begin and end."""
    return table[group.own_rows(len(table))].clone(), group.edges(len(table))


def gathered_blocks(block: Tensor, edges: Sequence[int]) -> Tensor:
    """Return the rows of all ranks, on every rank."""
    whole = block.new_empty(edges[-1], *block.shape[1:])
    for rank, (start, stop) in enumerate(itertools.pairwise(edges)):
        if rank == group.rank():
            whole[start:stop] = block
        group.broadcast(whole[start:stop], rank)
    return whole


def sent_to_first(block: Tensor) -> Tensor:
    """Return the rows of all ranks on the first one, in its main memory, and none on the others."""
    counts = [len(block)] + [0] * (group.size() - 1)
    return group.exchange_rows(block.cpu(), counts)[0]


def distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct ids (U,) in order, and the place of each id among them; -1 stays -1."""
    real = ids >= 0
    found = torch.unique(ids[real])
    return found, torch.where(real, torch.searchsorted(found, ids), -1)


def fetched(block: Tensor, edges: Sequence[int], ids: Tensor) -> Tensor:
    """Return the rows of sorted ids (U,) from their owners, and one more, which no id has."""
    counts = counts_of(ids, edges)
    asked, came = group.exchange_rows(ids, counts)
    rows = block[asked - edges[group.rank()]]
    rows, _ = group.exchange_rows(rows, came, counts)
    return torch.cat([rows, block.new_zeros(1, block.shape[1])])


def counts_of(ids: Tensor, edges: Sequence[int]) -> list[int]:
    """Return how many of sorted ids each rank owns."""
    cuts = torch.searchsorted(ids, torch.tensor(edges, device=ids.device))
    return [int(n) for n in cuts.diff().tolist()]
