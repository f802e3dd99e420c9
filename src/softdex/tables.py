"""Printed tables: dicts and lists that print as aligned text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Record(dict[str, Any]):
    """A dict that prints as a two-column table."""

    def __init__(self, title: str, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.title = title

    def __str__(self) -> str:
        rows = [[name, cell(value)] for name, value in self.items()]
        return render(self.title, ["", ""], rows, numbers=False)

    __repr__ = __str__


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> Table:
    """Return a rich table; `numbers` right-aligns every column but the first."""
    table = Table(show_header=any(header), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if numbers and i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    return table


def render(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> str:
    """Return the table as plain text under its title."""
    out = StringIO()
    console = Console(file=out, width=140, color_system=None, force_terminal=False)
    console.print(grid(header, rows, numbers=numbers))
    lines = [title] if title else []
    return "\n".join([*lines, *(line.rstrip() for line in out.getvalue().rstrip().splitlines())])


class Rows(list[dict[str, Any]]):
    """A list of dicts with the same keys that prints as a table."""

    def __init__(self, title: str, rows: Iterable[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.title = title

    def __str__(self) -> str:
        header = list(self[0]) if self else []
        return render(self.title, header, [[cell(r[name]) for name in header] for r in self])

    __repr__ = __str__


def cell(value: Any) -> str:
    """Format a value for a table cell."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if type(value) is int else str(value)
