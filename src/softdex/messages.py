"""What is said on the way, on standard error: lines, progress bars, records of epochs."""

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

T = TypeVar("T")


def say(line: str, *, quiet: bool = False) -> None:
    """Tell the user something on standard error, unless asked to be quiet."""
    if not quiet and not os.environ.get("SOFTDEX_QUIET"):
        Console(file=sys.stderr, highlight=False, soft_wrap=True).print(escape(line))


def progress(steps: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Go through steps with a bar on standard error, if a person is looking."""
    if not sys.stderr.isatty() or os.environ.get("SOFTDEX_QUIET"):
        yield from steps
        return
    console = Console(file=sys.stderr)
    yield from track(steps, description=what, total=total, console=console, transient=True)


def say_if_compiling(function: Any, what: str) -> None:
    """Compiling takes seconds, once: tell the user what they wait for."""
    if function.signatures:
        return
    code, place = function.py_func.__code__, Path(function.stats.cache_path or "")
    source = Path(code.co_filename)
    kept = place.glob(f"{source.stem}.{code.co_name}-{code.co_firstlineno}.*.nbi")
    written = source.stat().st_mtime
    if not any(path.stat().st_mtime >= written for path in kept):
        say(f"compiling {what} for this machine, once (some seconds; it is kept on disk)")


def _sentence(record: dict[str, Any]) -> str:
    """The record of an epoch in words."""
    words = {
        "epoch": "epoch {}",
        "loss": "loss {:.4f}",
        "metric": "ndcg@20 {:.4f}",
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
    """Report the records of a long run: a bar for a person, plain lines otherwise."""
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
