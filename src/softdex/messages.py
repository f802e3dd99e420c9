"""Messages: the `softdex` logger where logging is set up, else standard error.

Messages are records of level INFO, epochs of level DEBUG. `quiet=` of `fit`, `tune` and `compare`
leaves out both; with `verbose=` both are of level INFO.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from softdex import screen
from softdex.compiled import FALLBACK
from softdex.errors import SoftdexError
from softdex.ranks import is_first

METRIC = "ndcg@20"
"""Measured on validation after each epoch: early stopping, `sdx.tune` and the logs go by it."""

LOGGER = logging.getLogger("softdex")
LEAST = ContextVar("LEAST", default=logging.INFO)  # level of the records that are printed

T = TypeVar("T")
P = ParamSpec("P")


def say(line: str, level: int = logging.INFO, *, quiet: bool = False) -> None:
    """Log a line; print it on standard error where logging is not set up.

    Of several processes that train together, the first one speaks.
    """
    if quiet or not is_first() or (is_quiet() and level < max(logging.WARNING, LEAST.get())):
        return
    if is_verbose():
        level = max(level, logging.INFO)
    if LOGGER.hasHandlers():
        if LOGGER.isEnabledFor(level):
            with screen.cleared():
                LOGGER.log(level, line)
    elif level >= max(LEAST.get(), LOGGER.level) and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def is_quiet() -> bool:
    """Whether only warnings are said: `quiet=`, --quiet or SOFTDEX_QUIET."""
    return LEAST.get() > logging.INFO or bool(os.environ.get("SOFTDEX_QUIET")) or not is_first()


def is_verbose() -> bool:
    """Whether epochs are said."""
    return LEAST.get() <= logging.DEBUG


@contextmanager
def volume(*, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Say less or more in this context; with neither, as much as around it."""
    if quiet and verbose:
        raise SoftdexError("expected quiet or verbose, not both.")
    level = logging.WARNING if quiet else logging.DEBUG if verbose else LEAST.get()
    before = LEAST.set(level)
    try:
        yield
    finally:
        LEAST.reset(before)


@contextmanager
def silence() -> Iterator[None]:
    """Say nothing in this context: what is said may name the keys of a request."""
    before = LEAST.set(logging.CRITICAL + 1)
    try:
        yield
    finally:
        LEAST.reset(before)


def at_volume(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function say as much as its arguments `quiet` and `verbose` ask for."""

    @functools.wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> T:
        asked = {name: bool(given.get(name, False)) for name in ("quiet", "verbose")}
        with volume(**asked):
            return function(*args, **given)

    return called


def say_if_compiling(function: Any, what: str) -> None:
    """Announce that a numba function is about to compile, unless it is cached on disk."""
    if function.signatures:
        return
    code, place = function.py_func.__code__, Path(function.stats.cache_path or "")
    source = Path(code.co_filename)
    kept = place.glob(f"{source.stem}.{code.co_name}-{code.co_firstlineno}.*.nbi")
    written = source.stat().st_mtime
    if not any(path.stat().st_mtime >= written for path in kept):
        _say_where_compiled_code_is_kept()
        say(f"compiling {what} for this machine, once (a few seconds; cached on disk)")


@functools.cache
def _say_where_compiled_code_is_kept() -> None:
    if FALLBACK is not None:
        say(
            f"note: neither the installation nor the home folder can be written to, so compiled "
            f"code is kept in {FALLBACK}; NUMBA_CACHE_DIR chooses another folder"
        )
