"""Draw: the beam search of a tree for one user, as one HTML page.

The nodes of a level are drawn in tree order, so edges never cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from softdex.drawing import fitting, lines
from softdex.explain.look import EXACT, PATHS, Item, Look, Node, Row, look
from softdex.explain.names import counted, numbered
from softdex.explain.page import AREA, DOT, LEFT, MANY, SLIM, WIDTH, box_width, page
from softdex.model.retriever import Retriever

FLAT, TALL, GAP = 64, 156, 54  # heights of boxes with horizontal or upright text, and of edges
LIGHT = "f1f6fb dce9f6 c2d9ef 9dc3e6 6fa8dc 4a8fd0 2f75bd 1f5fa6 154a87"
DARK = "1b2536 1d3150 1f3f6b 235087 2a66a8 3b82c4 5b9fdb 86bdec c3e1fb"


def explain(
    model: Retriever,
    user: Any = None,
    *,
    history: Sequence[Any] | None = None,
    k: int = 10,
    allow: Any = None,
    deny: Any = None,
    where: Any = None,
    columns: str | Sequence[str] | None = None,
) -> str:
    """Return the beam search of a tree model for one user as a self-contained HTML page.

    The search is that of `recommend`: items in the history are excluded.

    Args:
        model: a model of the recipes dtr, tdm, jtm, otm or plt.
        user: a user key.
        history: item keys, oldest first, instead of a user.
        k: length of the list.
        allow, deny: item keys, as in `recommend`.
        where: condition on item columns, as in `recommend`.
        columns: item columns. One with distinct values names items, one with repeated values
            names nodes, others are shown in the list. Names not given are looked for.
    """
    rules = {"allow": allow, "deny": deny, "where": where}
    return draw(look(model, user, history=history, k=k, columns=columns, **rules))


def draw(look: Look) -> str:
    """Return the page of a search as HTML."""
    title = f"A beam search for {look.who}"
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in look.facts.items()
    )
    older = f"<li class='more'>… {look.older:,} older</li>" if look.older else ""
    past = "".join(f"<li title='{escape(t)}' dir='auto'>{escape(t)}</li>" for t in look.history)
    return page(
        title,
        f"<dl>{facts}</dl><h2>History, latest last</h2><ol>{older}{past}</ol>"
        f"<h2>The way down the tree</h2>{_legend(look)}"
        f"<div class='scroll'>{_picture(look.rows)}</div>{_lists(look)}",
        _shades(),
    )


def _shades() -> str:
    """Return CSS colours per step of score, and of the text on them."""
    steps = enumerate(zip(LIGHT.split(), DARK.split(), strict=True))
    return "".join(
        f".s{i}{{--fill:light-dark(#{light},#{dark});"
        f"--on:light-dark({'#1f2937' if i < 5 else '#fff'},{'#e5e7eb' if i < 6 else '#0b1220'})}}"
        for i, (light, dark) in steps
    )


def _legend(look: Look) -> str:
    name = "its most popular item"
    if look.named:
        name = f"its most distinctive value of {look.named}"
    words = (
        "Each row is a level of the tree, from groups of items at the top to single items at the "
        "bottom. The search scores the children of the nodes kept on the level above, keeps "
        f"{look.facts['beam']}, and descends. A box leads to the final list (#1 is its first "
        f"item) and is named by {name}; hover over anything for its score, its rank and the items "
        "below."
    )
    if len(look.items) > PATHS:
        words += f" The paths to the first {PATHS} items are drawn."
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
        entries["path to an item of the exact list, up to where it was cut"] = (31, way)
    keys = "".join(
        f"<span><svg viewBox='0 0 {width} 12' aria-hidden='true'>{shape}</svg>{entry}</span>"
        for entry, (width, shape) in entries.items()
    )
    return f"<p class='lead'>{escape(words)}</p><div class='legend'>{keys}</div>"


def _picture(rows: Sequence[Row]) -> str:
    """Draw levels from the top down, all edges below all nodes."""
    edges: dict[bool, list[str]] = {False: [], True: []}
    nodes, top, above = [], 4.0, dict[int, tuple[float, float]]()
    for row, xs in zip(rows, places(rows), strict=True):
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


def places(rows: Sequence[Row]) -> list[np.ndarray]:
    """Place each node above its children, with the most weight on paths to the list."""
    found: list[np.ndarray] = []
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
        found.append(_apart(wanted, space))
        below = {}
        for node, x in zip(row.nodes, found[-1].tolist(), strict=True):
            below.setdefault(node.parent, []).extend([x] * (9 if node.kind == "path" else 1))
    return found[::-1]


def _apart(wanted: np.ndarray, space: np.ndarray) -> np.ndarray:
    """Return the places nearest to those wanted (least squares) that keep order and space."""
    space = space * min(1.0, AREA / space.sum())
    packed = np.cumsum(space) - space / 2
    runs: list[tuple[float, int]] = []  # runs of touching nodes: sum of shifts, number of nodes
    for shift in (wanted - packed).tolist():
        total, count = shift, 1
        while runs and runs[-1][0] / runs[-1][1] >= total / count:
            before = runs.pop()
            total, count = total + before[0], count + before[1]
        runs.append((total, count))
    shifts = np.concatenate([np.full(count, total / count) for total, count in runs])
    return packed + np.clip(shifts, LEFT, LEFT + AREA - space.sum())


def _margin(row: Row, top: float, last: bool) -> str:
    """Draw what stands beside a level: nodes scored and kept, and the ranks of paths among them."""
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
    note = "All candidates by rank, best on the left. The dark part was kept; marks are paths."
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
    """Draw a node as a box with text, or a dot, with its tooltip."""
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
        leads = next((s for s in some if fitting(s, 0.9 * room) == len(s)), numbered(node.leads, 1))
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


def _lists(look: Look) -> str:
    """Return tables of the list and of the items that the beam lost."""
    ranks: dict[str, list[str]] = {"rank": [str(item.rank) for item in look.items]}
    columns = ranks | _columns(look.items)
    words = f"Not known: with more than {EXACT:,} items no exact search is made."
    if look.lost is not None:
        columns["exact rank"] = [
            f"{item.exact:,}" if item.exact == item.rank else f"<b>{item.exact:,}</b>"
            for item in look.items
        ]
        words = "Nothing: a search that scores every item finds the same list."
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
    """Return columns of HTML cells that describe items."""

    def cell(text: str) -> str:
        return f"<span title='{escape(text)}' dir='auto'>{escape(text)}</span>"

    keys = [f" <i>{escape(i.key)}</i>" if i.title != i.key else "" for i in items]
    return {
        "item": [cell(item.title) + key for item, key in zip(items, keys, strict=True)],
        **{name: [cell(item.fields[name]) for item in items] for name in items[0].fields},
        "score": [f"{item.score:.4f}" for item in items],
    }


def _table(columns: Mapping[str, Sequence[str]]) -> str:
    """Return an HTML table of HTML cells; cells of words begin with a span."""
    sides = [" class='words'" * cells[0].startswith("<span") for cells in columns.values()]
    head = "".join(f"<th{s}>{escape(n)}</th>" for s, n in zip(sides, columns, strict=True))
    rows = (
        "".join(f"<td{s}>{cell}</td>" for s, cell in zip(sides, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll'>{table}</div>"
