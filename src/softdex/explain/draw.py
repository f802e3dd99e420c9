"""Explain: the beam search of a tree for one user, as one HTML page that a person can read.

A level is drawn in the order of the tree, so edges never cross.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from softdex.evaluate.report import STYLE
from softdex.explain.look import (
    AREA,
    DOT,
    EXACT,
    LEFT,
    MANY,
    PATHS,
    SLIM,
    WIDTH,
    Item,
    Look,
    Node,
    Row,
    box_width,
    counted,
    look,
    numbered,
)
from softdex.model.retriever import Retriever

FLAT, TALL, GAP = 64, 156, 54  # heights of boxes whose text lies or stands, and of the edges
SIZE = 11  # of text
LIGHT = "f1f6fb dce9f6 c2d9ef 9dc3e6 6fa8dc 4a8fd0 2f75bd 1f5fa6 154a87"
DARK = "1b2536 1d3150 1f3f6b 235087 2a66a8 3b82c4 5b9fdb 86bdec c3e1fb"
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


def explain(
    model: Retriever,
    user: Any = None,
    *,
    history: Sequence[Any] | None = None,
    k: int = 10,
    columns: str | Sequence[str] | None = None,
) -> str:
    """The beam search of a tree model for one user, drawn: an HTML page that needs nothing else.

    It is the search that `recommend` makes: what the user has had does not come back.

    Args:
        model: of the recipes dtr, tdm, jtm, otm or plt.
        user: a user key.
        history: item keys, the oldest first, in the place of a user.
        k: length of the list.
        columns: item columns. One whose values differ names items, one whose values repeat names
            nodes, others are shown in the list. What is not given is looked for.
    """
    return draw(look(model, user, history=history, k=k, columns=columns))


def draw(look: Look) -> str:
    """The page."""
    title = f"A beam search for {look.who}"
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in look.facts.items()
    )
    older = f"<li class='more'>… {look.older:,} older</li>" if look.older else ""
    past = "".join(f"<li title='{escape(t)}' dir='auto'>{escape(t)}</li>" for t in look.history)
    return page(
        title,
        f"<dl>{facts}</dl><h2>History, the latest last</h2><ol>{older}{past}</ol>"
        f"<h2>The way down the tree</h2>{_legend(look)}"
        f"<div class='scroll'>{_picture(look.rows)}</div>{_lists(look)}",
        _shades(),
    )


def page(title: str, body: str, style: str) -> str:
    """A whole page, in the style of all."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}{PAGE}{style}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _shades() -> str:
    """A colour for each step of score, and one for the text on it."""

    def rules(colours: str, low: str, high: str, turn: int) -> str:
        return "".join(
            f".s{i}{{--fill:#{colour};--on:{low if i < turn else high}}}"
            for i, colour in enumerate(colours.split())
        )

    dark = rules(DARK, "#e5e7eb", "#0b1220", 6)
    return f"{rules(LIGHT, '#1f2937', '#fff', 5)}@media(prefers-color-scheme:dark){{{dark}}}"


def _legend(look: Look) -> str:
    name = "its most popular item"
    if look.named:
        name = f"the value of {look.named} that sets its items apart"
    words = (
        "Each row is a level of the tree, from groups of items at the top to single items at the "
        "bottom: the search scores the children of the nodes it kept above, keeps "
        f"{look.facts['beam']} and goes down. A box is on the way to the final list (#1 is its "
        f"first item) and is named by {name}; point at anything to see its score, its rank and "
        "what is under it."
    )
    if len(look.items) > PATHS:
        words += f" The ways to the first {PATHS} items are drawn."
    ramp = (f"<rect class='step s{i}' x='{11 * i}' width='11' height='12'/>" for i in range(9))
    entries = {
        "low to high score within a level": (99, "".join(ramp)),
        "leads to the list": (
            26,
            "<rect class='box s6' x='1' y='1' width='24' height='10' rx='3'/>",
        ),
        "kept, leads elsewhere": (12, "<circle class='kept s5' cx='6' cy='6' r='4.4'/>"),
        "scored and cut": (12, "<circle class='cut' cx='6' cy='6' r='3.4'/>"),
    }
    if look.lost:
        way = "<path class='lost' d='M0 6H20'/><circle class='lost' cx='25' cy='6' r='4.4'/>"
        entries["to an item that an exact search has in the list, until it was cut"] = (31, way)
    keys = "".join(
        f"<span><svg viewBox='0 0 {width} 12' aria-hidden='true'>{shape}</svg>{entry}</span>"
        for entry, (width, shape) in entries.items()
    )
    return f"<p class='lead'>{escape(words)}</p><div class='legend'>{keys}</div>"


def _picture(rows: Sequence[Row]) -> str:
    """Levels from the top down, all edges under all nodes."""
    edges: dict[bool, list[str]] = {False: [], True: []}
    nodes, top, above = [], 4.0, dict[int, tuple[float, float]]()
    for row, xs in zip(rows, _places(rows), strict=True):
        boxes = _boxes(row)
        height = FLAT if boxes <= MANY else TALL
        nodes.append(_margin(row, top, row is rows[-1]))
        here = {}
        for node, x in zip(row.nodes, xs.tolist(), strict=True):
            y, half = top + height / 2, height / 2 if node.kind == "path" else 4.4
            if node.parent in above:
                edge = _edge(node, *above[node.parent], x, y - half)
                edges[node.kind == "path"].append(edge)
            here[node.number] = (x, y + half)
            nodes.append(_node(node, x, y, box_width(boxes) - 4, height))
        above, top = here, top + height + GAP
    shapes = "".join([*edges[False], *edges[True], *nodes])
    return (
        f"<svg class='tree' viewBox='0 0 {WIDTH} {top - GAP + 4:.0f}' role='img' "
        f"aria-label='the levels of the search'>{shapes}</svg>"
    )


def _boxes(row: Row) -> int:
    return sum(node.kind == "path" for node in row.nodes)


def _places(rows: Sequence[Row]) -> list[np.ndarray]:
    """The middle of each node: above its children, first of all above those on the way."""
    places: list[np.ndarray] = []
    below: dict[int, list[float]] = {}
    for row in reversed(rows):
        box = box_width(_boxes(row))
        space = np.array([box if node.kind == "path" else DOT for node in row.nodes])
        wanted = np.array([np.mean(below.get(node.number, [np.nan])) for node in row.nodes])
        known = np.flatnonzero(~np.isnan(wanted))
        if len(known):
            wanted = np.interp(np.arange(len(wanted)), known, wanted[known])
        else:
            wanted = LEFT + AREA * (np.cumsum(space) - space / 2) / space.sum()
        places.append(_apart(wanted, space))
        below = {}
        for node, x in zip(row.nodes, places[-1].tolist(), strict=True):
            below.setdefault(node.parent, []).extend([x] * (9 if node.kind == "path" else 1))
    return places[::-1]


def _apart(wanted: np.ndarray, space: np.ndarray) -> np.ndarray:
    """The places nearest to those wanted (least squares) in this order, each with its space."""
    space = space * min(1.0, AREA / space.sum())
    packed = np.cumsum(space) - space / 2
    runs: list[tuple[float, int]] = []  # nodes that touch: sum of their shifts, and how many
    for shift in (wanted - packed).tolist():
        total, count = shift, 1
        while runs and runs[-1][0] / runs[-1][1] >= total / count:
            before = runs.pop()
            total, count = total + before[0], count + before[1]
        runs.append((total, count))
    shifts = np.concatenate([np.full(count, total / count) for total, count in runs])
    return packed + np.clip(shifts, LEFT, LEFT + AREA - space.sum())


def _margin(row: Row, top: float, last: bool) -> str:
    """Beside a level: how many nodes were scored and kept, and the ranks of the ways among them."""
    beam, kinds = row.beam, [node.kind for node in row.nodes]
    kept = beam.kept - sum(kind in ("path", "trail", "kept") for kind in kinds)
    cut = len(beam.nodes) - beam.kept - sum(kind in ("lost", "cut") for kind in kinds)
    more = [f"{n:,} more {what}" for n, what in ((kept, "kept"), (cut, "cut")) if n > 0]
    name = "Items" if last else f"Level {beam.level}"
    lines = [
        f"{beam.scored:,} of {beam.size:,} scored",
        f"{beam.kept:,} {'listed' if last else 'kept'}",
    ]
    if more:
        lines = [", ".join(lines), f"… and {', '.join(more)}"]
    words = "".join(
        f"<text class='soft' y='{top + 27 + 13 * i:.0f}'>{line}</text>"
        for i, line in enumerate(lines)
    )
    width, y = LEFT - 22, top + 48
    scale = width / len(beam.nodes)
    marks = "".join(
        f"<line class='{node.kind}' x1='{x:.1f}' x2='{x:.1f}' y1='{y - 2:.0f}' y2='{y + 10:.0f}'/>"
        for node, x in ((node, (node.rank - 0.5) * scale) for node in row.nodes)
        if node.kind in ("path", "lost")
    )
    note = "All candidates by rank, the best on the left. The dark part was kept; marks are ways."
    return (
        f"<text class='level bold' y='{top + 12:.0f}'>{name}</text>{words}<g><title>{note}</title>"
        f"<rect class='all' y='{y:.0f}' width='{width}' height='8'/><rect class='head' "
        f"y='{y:.0f}' width='{beam.kept * scale:.1f}' height='8'/>{marks}</g>"
    )


def _edge(node: Node, x1: float, y1: float, x2: float, y2: float) -> str:
    y = (y1 + y2) / 2
    curve = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y:.1f} {x2:.1f} {y:.1f} {x2:.1f} {y2:.1f}"
    width = min(9.0, 1.2 + 0.8 * len(node.leads))
    return f"<path class='{node.kind}' d='{curve}' stroke-width='{width:.1f}'/>"


def _node(node: Node, x: float, y: float, width: float, height: float) -> str:
    """A box with its words or a dot, and what is shown when one points at it."""
    group = f"<g class='s{min(8, int(9 * node.shade))}'><title>{escape(node.note)}</title>"
    if node.kind != "path":
        size = 3.4 if node.kind == "cut" else 4.4
        return f"{group}<circle class='{node.kind}' cx='{x:.1f}' cy='{y:.1f}' r='{size}'/></g>"
    if width < SLIM:
        words = f"{numbered(node.leads, 2)} {node.name} {node.detail}"
        inside = (
            f"<text class='on' transform='translate({width / 2 + 4:.1f} {height - 6}) "
            f"rotate(-90)'>{escape(lines(words, 1, height - 10)[0])}</text>"
        )
    else:
        room = width - 6
        some = (numbered(node.leads, most) for most in (4, 3, 2))
        leads = next(
            (s for s in some if _fitting(s, 0.9 * room) == len(s)), numbered(node.leads, 1)
        )
        rows = lines(node.name, 2 if node.detail else 3, room)
        detail = lines(node.detail, 1, 1.1 * room)[0]
        rows = [*rows, detail, leads] if detail else [leads, *rows]
        inside = "".join(
            f"<text class='on{' bold' * (line is leads)}' x='{width / 2:.1f}' text-anchor='middle' "
            f"y='{height / 2 + 4 + 14 * (i - (len(rows) - 1) / 2):.1f}'>{escape(line)}</text>"
            for i, line in enumerate(rows)
        )
    frame = (
        f"x='{x - width / 2:.1f}' y='{y - height / 2:.1f}' width='{width:.1f}' height='{height}'"
    )
    return f"{group}<rect class='box' rx='4' {frame}/><svg {frame}>{inside}</svg></g>"


def lines(text: str, most: int, room: float) -> list[str]:
    """A text in at most so many lines; the last ends in … where that is not enough."""
    found: list[str] = []
    while (fits := _fitting(text, room)) < len(text):
        if len(found) == most - 1:
            text = text[: _fitting(text, room - SIZE)].rstrip() + "…"
            break
        space = text.rfind(" ", 1, fits + 1)
        fits = space if space > 0 else fits
        found.append(text[:fits])
        text = text[fits:].lstrip()
    return [*found, text]


def _fitting(text: str, room: float) -> int:
    """How many letters fit, one at least. Fonts differ: a letter is as wide as in a wide one."""
    for place, letter in enumerate(text):
        room -= SIZE * _width(letter)
        if room < 0 and place:
            return place
    return len(text)


def _width(letter: str) -> float:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in "ijlftrI.,:;'!|()[] ":
        return 0.38
    return 0.93 if letter in "mwMW@%" else 0.66 if letter.isupper() or letter.isdigit() else 0.6


def _lists(look: Look) -> str:
    """What came back, and what an exact search finds beside it."""
    ranks: dict[str, list[str]] = {"rank": [str(item.rank) for item in look.items]}
    columns = ranks | _columns(look.items)
    words = f"Not known: there are more than {EXACT:,} items, too many to score them all."
    if look.lost is not None:
        columns["exact rank"] = [
            f"{item.exact:,}" if item.exact == item.rank else f"<b>{item.exact:,}</b>"
            for item in look.items
        ]
        words = "Nothing: a search that scores every item finds the same."
    lost = ""
    if look.lost:
        words = (
            f"A search that scores every item has {counted(len(look.lost), 'other')} among its "
            f"best {len(look.items):,}. The beam cut a node above each of them."
        )
        ends = [item.end for item in look.lost if item.end is not None]
        lost = _table(
            {
                "exact rank": [f"{item.exact:,}" for item in look.lost],
                **_columns(look.lost),
                "cut on level": [str(end.level) for end in ends],
                "as rank": [f"{end.rank:,}" for end in ends],
                "when it kept": [f"{end.kept:,}" for end in ends],
            }
        )
    return (
        f"<h2>The list</h2>{_table(columns)}"
        f"<h2>What the beam lost</h2><p class='lead'>{words}</p>{lost}"
    )


def _columns(items: Sequence[Item]) -> dict[str, list[str]]:
    """Cells of items, as HTML."""

    def cell(text: str) -> str:
        return f"<span title='{escape(text)}' dir='auto'>{escape(text)}</span>"

    keys = [f" <i>{escape(i.key)}</i>" if i.title != i.key else "" for i in items]
    return {
        "item": [cell(item.title) + key for item, key in zip(items, keys, strict=True)],
        **{name: [cell(item.fields[name]) for item in items] for name in items[0].fields},
        "score": [f"{item.score:.4f}" for item in items],
    }


def _table(columns: Mapping[str, Sequence[str]]) -> str:
    """A table of cells that are HTML; those of words begin with a span."""
    sides = [" class='words'" * cells[0].startswith("<span") for cells in columns.values()]
    rows = [[f"<th{s}>{escape(name)}</th>" for s, name in zip(sides, columns, strict=True)]]
    rows += [
        [f"<td{s}>{cell}</td>" for s, cell in zip(sides, row, strict=True)]
        for row in zip(*columns.values(), strict=True)
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class='scroll'><table>{body}</table></div>"
