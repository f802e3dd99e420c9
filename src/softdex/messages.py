"""Messages on standard error: lines, progress bars, epoch records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn, track
from rich.progress import Progress as Bar

METRIC = "ndcg@20"
"""Measured on validation after each epoch: early stopping, `sdx.tune` and the logs go by it."""

T = TypeVar("T")


def say(line: str, *, quiet: bool = False) -> None:
    """Print a line on standard error, unless `quiet` or SOFTDEX_QUIET is set."""
    if not quiet and not os.environ.get("SOFTDEX_QUIET"):
        Console(file=sys.stderr, highlight=False, soft_wrap=True).print(escape(line))


def progress(steps: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Iterate with a progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("SOFTDEX_QUIET"):
        yield from steps
        return
    console = Console(file=sys.stderr)
    yield from track(steps, description=what, total=total, console=console, transient=True)


def say_if_compiling(function: Any, what: str) -> None:
    """Announce that a numba function is about to compile, unless it is cached on disk."""
    if function.signatures:
        return
    code, place = function.py_func.__code__, Path(function.stats.cache_path or "")
    source = Path(code.co_filename)
    kept = place.glob(f"{source.stem}.{code.co_name}-{code.co_firstlineno}.*.nbi")
    written = source.stat().st_mtime
    if not any(path.stat().st_mtime >= written for path in kept):
        say(f"compiling {what} for this machine, once (a few seconds; cached on disk)")


def _sentence(record: dict[str, Any]) -> str:
    """Format an epoch record."""
    words = {
        "epoch": "epoch {}",
        "loss": "loss {:.4f}",
        "metric": f"{METRIC} {{:.4f}}",
        "kl": "KL of the proposal {:.2f}",
        "ess": "effective draws {:.0%}",
        "hits": "hits {:.2%}",
        "seconds": "{:.1f} s in all",
    }
    return ", ".join(words[n].format(v) for n, v in record.items() if n in words)


@contextmanager
def ticker(
    total: int, what: str, done: int = 0, *, quiet: bool = False
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Report epoch records: a progress bar on a terminal, else one line each."""
    if quiet:
        yield lambda record: None
        return
    if not sys.stderr.isatty() or os.environ.get("SOFTDEX_QUIET"):
        yield lambda record: say(f"{what}: {_sentence(record)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(what, total=total, completed=done)

        def tick(record: dict[str, Any]) -> None:
            shown = " ".join(f"{k} {v}" for k, v in record.items() if k in ("loss", "metric"))
            bar.update(task, advance=1, description=f"{what}: {shown}")

        yield tick
