"""Threads for compiled code that releases the interpreter's lock."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def spread(work: Callable[[int], None], threads: int) -> None:
    """Call work(0), work(1), ... once per thread; the last call runs in this thread."""
    others = [_pool(threads - 1).submit(work, i) for i in range(threads - 1)]
    work(threads - 1)
    for done in others:
        done.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


if sys.platform != "win32":  # a fork does not copy threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
