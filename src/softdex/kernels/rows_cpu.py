"""Inner products with table rows on a CPU, in compiled code: no gathered copy of the rows."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from softdex.kernels.threads import spread
from softdex.messages import say_if_compiling

FAST = {"contract", "reassoc", "nsz"}
WORTH_A_THREAD = 1_000_000  # multiplications below which another thread costs more than it saves


def dots(query: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Return the inner products (B, N) of queries (B, D) with the rows `ids` (B, N), -1 for 0."""
    return _found(query, table, ids, lengths=False)[0]


def dots_and_lengths(query: Tensor, table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inner products, and the lengths of the rows (B, N)."""
    return _found(query, table, ids, lengths=True)


def _found(query: Tensor, table: Tensor, ids: Tensor, *, lengths: bool) -> tuple[Tensor, Tensor]:
    given = [t.detach().contiguous().numpy() for t in (query, table, ids)]
    found = table.new_empty(ids.shape), table.new_empty(ids.shape if lengths else (0, 0))
    threads = max(1, min(torch.get_num_threads(), ids.numel() * table.shape[1] // WORTH_A_THREAD))
    cuts = np.linspace(0, len(ids), threads + 1).astype(np.int64)
    beyond = np.zeros(threads, np.int64)
    written = [t.numpy() for t in found]
    say_if_compiling(_dots, "inner products")

    def work(i: int) -> None:
        beyond[i] = _dots(*given, *written, cuts[i], cuts[i + 1])  # type: ignore[call-arg]

    spread(work, threads)
    if beyond.any():
        raise IndexError(f"{beyond.sum()} ids are outside of a table of {len(table)} rows")
    return found


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _dots(query, table, ids, products, lengths, first, last):  # type: ignore[no-untyped-def]
    """Write the products of some queries; return the number of ids beyond the table."""
    dim, beyond, measured = table.shape[1], 0, len(lengths) > 0
    for b in range(first, last):
        own = query[b]
        for n in range(ids.shape[1]):
            total, square = table.dtype.type(0), table.dtype.type(0)
            if ids[b, n] >= len(table):
                beyond += 1
            elif ids[b, n] >= 0:
                row = table[ids[b, n]]
                for d in range(dim):
                    total += own[d] * row[d]
                if measured:
                    for d in range(dim):
                        square += row[d] * row[d]
            products[b, n] = total
            if measured:
                lengths[b, n] = np.sqrt(square)
    return beyond
