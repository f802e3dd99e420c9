"""Parts: HTML that sections of a report share; words given as text are escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from softdex.drawing import esc


def section(name: str, title: str, *body: str) -> str:
    """Return a section with its heading; nothing if its body is empty."""
    inside = "".join(body)
    return f"<section id='{name}'><h2>{esc(title)}</h2>{inside}</section>" if inside else ""


def lead(words: str) -> str:
    """Return a sentence below a heading, given as text."""
    return f"<p class='lead'>{esc(words)}</p>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str,
    kind: str = "",
    wide: int = 0,
) -> str:
    """Return a table of cells in HTML, each with its tag: see `name`, `cell`, `column`; `wide` is
    its number of columns, where its style asks for it."""
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{esc(caption)}'>"
        f"<table class='{kind}' style='--columns:{wide}'><caption>{esc(caption)}</caption>"
        f"<thead><tr>{''.join(head)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def column(words: str, more: str = "", kind: str = "") -> str:
    """Return the heading of a column, with a smaller line below."""
    below = f"<br><small>{esc(more)}</small>" if more else ""
    return f"<th scope='col'{_kind(kind)}>{esc(words)}{below}</th>"


def numbered(number: int, model: str) -> str:
    """Return the heading of a column of a square table: the rank of a model."""
    return f"<th scope='col' title='{esc(model)}'>{number}</th>"


def name(words: str, more: str = "") -> str:
    """Return the heading of a row: a name, cut to its width, and HTML beside it."""
    return f"<th scope='row'><span class='name' title='{esc(words)}'>{bdi(words)}</span>{more}</th>"


def cell(words: str, kind: str = "", title: str = "") -> str:
    """Return a cell with a text, and with another one for those who point at it."""
    told = f" title='{esc(title)}'" if title else ""
    return f"<td{_kind(kind)}{told}>{esc(words)}</td>"


def bdi(words: str) -> str:
    """Return a name whose direction of writing does not touch what stands around it."""
    return f"<bdi>{esc(words) or '(no name)'}</bdi>"


def strong(words: str) -> str:
    """Return a name within a sentence."""
    return f"<b class='name' title='{esc(words)}'>{bdi(words)}</b>"


def shaded(value: float, highest: float, *, best: bool) -> str:
    """Return a cell with a bar below its number; `highest` fills the cell."""
    share, kind = value / highest if highest > 0 else 0.0, "lens" + " best" * best
    bar = f"<i style='--share:{share:.3f}'></i>"
    return f"<td class='{kind}'><span>{value:.3f}</span>{bar}</td>"


def folded(words: str, body: str) -> str:
    """Return something that opens by a click; nothing if it is empty."""
    return f"<details><summary>{esc(words)}</summary>{body}</details>" if body else ""


def figure(svg: str, width: float, height: float, says: str) -> str:
    """Return a picture; `says` describes it to those who cannot see it."""
    return (
        f"<figure><svg viewBox='0 0 {width:.0f} {height:.0f}' role='img' aria-label='{esc(says)}'>"
        f"{svg}</svg></figure>"
    )


def and_(names: Sequence[str], most: int = 4) -> str:
    """Return names in bold as HTML: a, b and c."""
    shown = [strong(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} others")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _kind(kind: str) -> str:
    return f" class='{kind}'" if kind else ""
