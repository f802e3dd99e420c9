"""One setting for every thread pool: torch, numba, and Arrow."""

from __future__ import annotations

import numba
import pyarrow as pa
import torch

from softdex.errors import SoftdexError


def set_threads(n: int) -> None:
    """Use n threads from here on, in everything softdex computes with.

    Where several processes share a machine, give each its own share: pools that wait for each
    other's cores can be many times slower than one thread.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SoftdexError(f"threads: expected a whole number of at least 1, got {n!r}.")
    torch.set_num_threads(n)
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(min(n, most))
    pa.set_cpu_count(n)
    pa.set_io_thread_count(n)
