"""Notebook: tables as HTML, small and escaped, in the colours that the notebook has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

ROWS, COLUMNS, LETTERS = 50, 20, 200  # that are shown, at most
NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?( ±\d+\.\d+)?%?( s)?")
STYLE = (
    ".softdex{max-width:100%;overflow-x:auto}"
    ".softdex table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0}"
    ".softdex th,.softdex td{padding:.15em .8em .15em 0;text-align:left;vertical-align:top;"
    "max-width:30em;overflow-wrap:anywhere;white-space:normal}"
    ".softdex th{border-bottom:1px solid #8888}"
    ".softdex .n{text-align:right}"
    ".softdex p{margin:.3em 0;opacity:.75}"
)


def page(*parts: str) -> str:
    """Return parts of HTML as one output of a cell."""
    return f'<div class="softdex"><style>{STYLE}</style>{"".join(parts)}</div>'


def title(text: str) -> str:
    """Return a heading."""
    return f"<strong>{_text(text)}</strong>"


def notes(lines: Iterable[str]) -> str:
    """Return sentences, one per line."""
    words = "<br>".join(_text(line) for line in lines)
    return f"<p>{words}</p>" if words else ""


def facts(known: Mapping[str, Any]) -> str:
    """Return names and values, a row each."""
    return table((), [[f"{name}", value] for name, value in known.items()])


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], count: int | None = None) -> str:
    """Return the first rows and columns of a table.

    Args:
        header: names of the columns; none if they have none.
        rows: values.
        count: number of rows, if `rows` are the first of them only.
    """
    wide, count = max(map(len, [header, *rows[:1]])), len(rows) if count is None else count
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows[:ROWS])
    numbers = [_is_number(value) for value in rows[0]] if rows else [False] * wide
    head = "".join(
        f'<th class="n">{_text(name)}</th>' if number else f"<th>{_text(name)}</th>"
        for name, number in zip(header[:COLUMNS], numbers, strict=False)
    )
    left = []
    if count > min(len(rows), ROWS):
        left.append(f"{count:,} rows, {min(len(rows), ROWS)} shown")
    if wide > COLUMNS:
        left.append(f"{wide} columns, {COLUMNS} shown")
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>{notes(left)}"


# inside ------------------------------------------------------------------------------------------


def _cells(row: Sequence[Any]) -> str:
    return "".join(
        f'<td class="n">{_text(value)}</td>' if _is_number(value) else f"<td>{_text(value)}</td>"
        for value in row[:COLUMNS]
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    words = "" if value is None else str(value)
    if isinstance(value, float):
        words = f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.3g}"
    return escape(words if len(words) <= LETTERS else f"{words[: LETTERS - 1]}…")
