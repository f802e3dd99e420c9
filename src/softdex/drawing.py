"""Drawing: what pictures share: escaped text, text cut to a width, ticks of axes, SVG elements."""

from __future__ import annotations

import math
import unicodedata
from html import escape
from typing import Any

SIZE = 11  # font size of pictures
CONTROL = dict.fromkeys([*range(32), *range(127, 160), *range(0xD800, 0xE000)], " ")


def one_line(value: Any) -> str:
    """Format a value on one line, without characters that steer a terminal or a browser."""
    if isinstance(value, list):
        return ", ".join(one_line(inside) for inside in value)
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.translate(CONTROL).split())


def esc(value: Any) -> str:
    """Format a value on one line as HTML text, also for an attribute in quotes."""
    return escape(one_line(value), quote=True)


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Return a text; `more` are attributes."""
    return f"<text x='{x:.1f}' y='{y:.1f}'{' ' * bool(more)}{more}>{esc(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, more: str = "class='axis'") -> str:
    """Return a line; `more` are attributes."""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' {more}/>"


def path(points: list[tuple[float, float]], more: str) -> str:
    """Return a line through points; `more` are attributes."""
    return f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in points)}' {more}/>"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, at most about so many."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from `low` to `high`, and 2 and 5 times these where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    within = [d for d in decades if low <= 10.0**d <= high]
    times = (1,) if len(within) > 3 else (1, 2, 5)
    found = [m * 10.0**d for d in decades for m in times]
    return [x for x in found if low * 0.999 <= x <= high * 1.001]


def short(value: float) -> str:
    """Format a tick."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.10g}" if abs(value) >= 10 else f"{value:.4g}"


def lines(words: str, most: int, room: float) -> list[str]:
    """Break a text into at most `most` lines of width `room`; … ends one that was cut."""
    found: list[str] = []
    while (fits := fitting(words, room)) < len(words):
        if len(found) == most - 1:
            words = words[: fitting(words, room - SIZE)].rstrip() + "…"
            break
        space = words.rfind(" ", 1, fits + 1)
        fits = space if space > 0 else fits
        found.append(words[:fits])
        words = words[fits:].lstrip()
    return [*found, words]


def fitting(words: str, room: float) -> int:
    """Count the letters that fit, at least one. Widths are those of a wide font, to be safe."""
    for place, letter in enumerate(words):
        room -= SIZE * _width(letter)
        if room < 0 and place:
            return place
    return len(words)


def width_of(words: str) -> float:
    """Return the width of a text, no less than it is."""
    return SIZE * sum(map(_width, words))


def _width(letter: str) -> float:
    """Return the width of a letter in units of the font size."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in "ijlftrI.,:;'!|()[] ":
        return 0.38
    return 0.93 if letter in "mwMW@%" else 0.66 if letter.isupper() or letter.isdigit() else 0.6
