"""Page: what the pictures of trees share: style, measures, and text cut to a width."""

from __future__ import annotations

import unicodedata
from html import escape

from softdex.evaluate.report import STYLE

WIDTH, LEFT = 1200, 192  # width of a search's picture, and of the margin with words
AREA = WIDTH - LEFT - 4  # width that nodes may take
SLIM, DOT = 19.0, 11.0  # width of a box with upright text, and of a dot
MANY = 11  # up to this many boxes per level have horizontal text
SIZE = 11  # font size
PAGE = """
:root { --way: #d97706; --lost: #dc2626; }
@media (prefers-color-scheme: dark) { :root { --way: #f59e0b; --lost: #f87171; } }
body { max-width: 1200px; } h1 { margin-bottom: .3rem; } h2 { margin-bottom: .4rem; }
dl { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; margin: .5rem 0 1rem; font-size: .92rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; }
ol { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; margin: .3rem 0; }
li { border: 1px solid var(--line); border-radius: 4px; padding: .1rem .5rem; max-width: 13rem; }
li.more { border: 0; color: var(--soft); padding-left: 0; }
li, td span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-size: .85rem; }
td span { display: inline-block; max-width: 24rem; vertical-align: bottom; font-size: inherit; }
td i { color: var(--soft); font-style: normal; } td b { color: var(--lost); }
table { font-size: .9rem; } table .words { text-align: left; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; color: var(--soft);
          font-size: .85rem; margin: .6rem 0 1rem; }
.legend svg { width: auto; height: 16px; vertical-align: -3px; margin-right: .4rem; }
svg.tree { min-width: 1000px; display: block; }
svg text { font: 11px system-ui, sans-serif; } svg .soft { fill: var(--soft); font-size: 10px; }
svg .bold { font-weight: 600; } svg .level { font-size: 13px; }
path { fill: none; stroke: var(--line); } path.path { stroke: var(--way); }
path.trail, path.lost { stroke: var(--lost); stroke-dasharray: 4 3; }
path.cut { stroke-dasharray: 2 3; }
rect.box { fill: var(--fill); stroke: var(--way); stroke-width: 1.6; }
rect.step, circle { fill: var(--fill); } svg text.on { fill: var(--on); }
circle.kept { stroke: var(--soft); stroke-width: .6; opacity: .8; }
circle.cut { fill: var(--paper); stroke: var(--soft); stroke-width: .8; opacity: .55; }
circle.trail { stroke: var(--lost); stroke-width: 1.6; }
circle.lost { fill: var(--paper); stroke: var(--lost); stroke-width: 2; }
g:hover > rect.box, g:hover > circle { stroke: var(--ink); stroke-width: 2.2; opacity: 1; }
rect.all { fill: var(--line); opacity: .6; } rect.head { fill: var(--soft); opacity: .45; }
line.path, line.lost { stroke: var(--way); stroke-width: 2; } line.lost { stroke: var(--lost); }
"""


def page(title: str, body: str, style: str) -> str:
    """Return a page as HTML."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}{PAGE}{style}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def box_width(boxes: int) -> float:
    """Return the width of a box with its gap, if a level has this many."""
    return SLIM if boxes > MANY else min(150.0, 0.8 * AREA / max(1, boxes))


def lines(text: str, most: int, room: float) -> list[str]:
    """Break a text into at most `most` lines of width `room`; … ends one that was cut."""
    found: list[str] = []
    while (fits := fitting(text, room)) < len(text):
        if len(found) == most - 1:
            text = text[: fitting(text, room - SIZE)].rstrip() + "…"
            break
        space = text.rfind(" ", 1, fits + 1)
        fits = space if space > 0 else fits
        found.append(text[:fits])
        text = text[fits:].lstrip()
    return [*found, text]


def fitting(text: str, room: float) -> int:
    """Count the letters that fit, at least one. Widths are those of a wide font, to be safe."""
    for place, letter in enumerate(text):
        room -= SIZE * _width(letter)
        if room < 0 and place:
            return place
    return len(text)


def _width(letter: str) -> float:
    """Return the width of a letter in units of the font size."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in "ijlftrI.,:;'!|()[] ":
        return 0.38
    return 0.93 if letter in "mwMW@%" else 0.66 if letter.isupper() or letter.isdigit() else 0.6
