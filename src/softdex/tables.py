"""What people read: mappings that print as tables, and lines said on the way."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
    track,
)
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from softdex.errors import SoftdexError

T = TypeVar("T")


def say(line: str, *, quiet: bool = False) -> None:
    """Tell the user something on standard error, unless asked to be quiet."""
    if not quiet and not os.environ.get("SOFTDEX_QUIET"):
        Console(file=sys.stderr, highlight=False, soft_wrap=True).print(escape(line))


class Record(dict[str, Any]):
    """Named facts that print as a two-column table."""

    def __init__(self, title: str, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.title = title

    def __str__(self) -> str:
        rows = [[name, cell(value)] for name, value in self.items()]
        return render(self.title, ["", ""], rows, numbers=False)

    __repr__ = __str__


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> Table:
    """A rich table: first column left, the others right when they hold numbers."""
    table = Table(show_header=any(header), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if numbers and i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    return table


def render(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """The same table as plain text under its title."""
    out = StringIO()
    console = Console(file=out, width=140, color_system=None, force_terminal=False)
    console.print(grid(header, rows, numbers=numbers))
    lines = [title] if title else []
    return "\n".join([*lines, *(line.rstrip() for line in out.getvalue().rstrip().splitlines())])


class Rows(list[dict[str, Any]]):
    """Rows with the same names that print as a table."""

    def __init__(self, title: str, rows: Iterable[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.title = title

    def __str__(self) -> str:
        header = list(self[0]) if self else []
        return render(self.title, header, [[cell(r[name]) for name in header] for r in self])

    __repr__ = __str__


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if type(value) is int else str(value)


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


def parse_bytes(size: int | str) -> int:
    """A number of bytes from a number or words such as "2GB" or "500 MiB"."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*", size.lower())
        if not match:
            raise SoftdexError(f"max_memory: expected a size such as '2GB', got {size!r}.")
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kmgt".index(match[2] or " "))
    if not isinstance(size, int) or isinstance(size, bool):
        raise SoftdexError(f"max_memory: expected bytes or a size such as '2GB', got {size!r}.")
    if size < 2**20:
        raise SoftdexError(f"max_memory: expected at least 1 MiB, got {size} bytes.")
    return size


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
