"""Page: what the pictures of trees share: style, measures, and text cut to a width."""

from __future__ import annotations

from html import escape

from softdex.style import style

WIDTH, LEFT = 1200, 192  # width of a search's picture, and of the margin with words
AREA = WIDTH - LEFT - 4  # width that nodes may take
SLIM, DOT = 19.0, 11.0  # width of a box with upright text, and of a dot
MANY = 11  # up to this many boxes per level have horizontal text
PAGE = """
:root { --way: var(--other); --lost: var(--bad); }
.page { max-width: 78rem; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 1.75rem; margin: .75rem 0 1.25rem; }
dt { color: var(--soft); font-size: .8125rem; } dd { margin: 0; }
ol { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem; padding: 0; margin: .3rem 0; }
li { border: 1px solid var(--line); border-radius: 99px; padding: .05rem .6rem; max-width: 16rem;
     background: var(--raised); }
li.more { border: 0; color: var(--soft); padding-left: 0; background: none; }
li, td span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
li { font-size: .8125rem; }
td span { display: inline-block; max-width: 24rem; vertical-align: bottom; }
td i { color: var(--soft); font-style: normal; } td b { color: var(--lost); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; color: var(--soft);
          font-size: .8125rem; margin: .6rem 0 1rem; }
.legend svg { width: auto; height: 16px; vertical-align: -3px; margin-right: .4rem; }
svg.tree { min-width: 1000px; display: block; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); font-size: 10px; }
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


def page(title: str, body: str, more: str) -> str:
    """Return a page as HTML; `more` is further style."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{style()}{PAGE}{more}</style></head>"
        f"<body><main class='page'><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def box_width(boxes: int) -> float:
    """Return the width of a box with its gap, if a level has this many."""
    return SLIM if boxes > MANY else min(150.0, 0.8 * AREA / max(1, boxes))
