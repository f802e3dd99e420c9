"""Blocks: each rank solves contiguous rows of a table, and all ranks get the rows of all."""

from __future__ import annotations

from typing import final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from softdex import group
from softdex.encode.table import Table

ROW_COST = 8  # of solving for a row, in events
IN_TRANSIT = 2**20  # numbers that all ranks together send at a time


@final
class Blocks:
    """A table, of which each rank solves a block of rows.

    Args:
        table: all rows.
        indptr: of the rows' events, by which the blocks cost the same.
    """

    def __init__(self, table: Table, indptr: np.ndarray) -> None:
        self.table, self.edges = table, edges_by_cost(indptr)
        self.rows = own_of(self.edges)

    @property
    def own(self) -> Tensor:
        """The rows of this rank (R, D)."""
        return self.table.weight[self.rows]

    def keep(self, own: Tensor) -> None:
        """Replace the rows of this rank; those of others are then old."""
        if len(own) == len(self.table):
            self.table.weight = own
        else:
            self.table.weight[self.rows] = own

    def share(self, own: Tensor) -> None:
        """Replace the rows of all ranks, each by what it gives of its own."""
        self.keep(own)
        fill(self.table.weight, self.edges)


def edges_by_cost(indptr: np.ndarray) -> list[int]:
    """Where the blocks of the ranks begin, and where the last one ends; blocks cost about the same.

    Args:
        indptr: of the rows' events.
    """
    rows, ranks = len(indptr) - 1, group.size()
    cost = indptr[1:] + ROW_COST * np.arange(1, rows + 1)
    wanted = np.arange(1, ranks) * ((cost[-1] if rows else 0) / ranks)
    return [0, *np.searchsorted(cost, wanted).tolist(), rows]


def own_of(edges: list[int]) -> slice:
    """The rows of this rank."""
    rank = group.rank()
    return slice(edges[rank], edges[rank + 1])


def rows_of(matrix: sp.csr_matrix, rows: slice) -> sp.csr_matrix:
    """Contiguous rows of a matrix, without a copy of their entries."""
    if rows == slice(0, matrix.shape[0]):
        return matrix
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    there = slice(indptr[0], indptr[-1])
    arrays = (matrix.data[there], matrix.indices[there], indptr - indptr[0])
    return sp.csr_matrix(arrays, shape=(len(indptr) - 1, matrix.shape[1]), copy=False)


def joined(own: Tensor, edges: list[int]) -> Tensor:
    """The rows of all ranks, in order."""
    if group.size() == 1:
        return own
    whole = own.new_empty(edges[-1], *own.shape[1:])
    whole[own_of(edges)] = own
    fill(whole, edges)
    return whole


def fill(whole: Tensor, edges: list[int]) -> None:
    """Copy each rank's block of rows to all ranks, in place, a few rows of each at a time."""
    if group.size() == 1:
        return
    own, sizes = whole[own_of(edges)], np.diff(edges).tolist()
    step = max(1, IN_TRANSIT // group.size() // max(1, whole[:1].numel()))
    for first in range(0, max(sizes), step):
        part = own[first : first + step]
        sent = own.new_zeros(min(step, max(sizes) - first), *own.shape[1:])
        sent[: len(part)] = part
        for start, size, came in zip(edges, sizes, group.stacked(sent), strict=False):
            count = min(len(came), size - first)
            if count > 0:
                whole[start + first : start + first + count] = came[:count]


def summed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor summed over the ranks, in one exchange; all have one type."""
    if group.size() == 1:
        return tensors
    flat = group.all_reduce_sum(torch.cat([t.reshape(-1) for t in tensors]))
    parts = torch.split(flat, [t.numel() for t in tensors])
    return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))


def agreed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors of the first rank: others may round, or turn, in another way."""
    if group.size() == 1:
        return tensors
    return tuple(group.broadcast(t.contiguous()) for t in tensors)
