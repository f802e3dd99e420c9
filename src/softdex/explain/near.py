"""Explain: the part of a tree that an item lies in, as one HTML page that a person can read.

Nodes stand to the left of what is under them, items at the right, one a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from softdex.data.keys import find
from softdex.errors import SoftdexError
from softdex.explain.draw import lines, page
from softdex.explain.look import Names, above, counted, items_under, tree_of
from softdex.index.tree.tree import Tree
from softdex.model.retriever import Retriever

LEAVES = 32  # that are drawn, at most, unless siblings alone are more
LINE, STEP, WIDTH = 21, 142, 1200  # heights of lines, and widths of levels and of the picture
LEFT, RIGHT = 48, 250  # widths of what stands before the first node, and of what is told of items
OURS = ("levels_up", "item", "title")
LOOK = """
circle.other { fill: var(--line); stroke: var(--soft); } circle.way { fill: var(--way); }
path.way { stroke: var(--way); stroke-width: 2.5; }
svg text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
"""


class Branch(NamedTuple):
    """A node that is drawn, with its names; `way`: the item lies under it."""

    level: int
    number: int
    way: bool
    name: str
    detail: str
    note: str


class Near(NamedTuple):
    """What lies around an item: nodes from the top down, each level in the order of the tree, and
    what is told of its leaves. `table` has the items, those nearest first, with the number of
    levels up to the first node that both lie under.
    """

    who: str
    named: str | None
    branches: list[Branch]
    fields: list[str]
    table: pa.Table
    depth: int
    arity: int


def near(model: Retriever, item: Any, columns: str | Sequence[str] | None = None) -> Near:
    """The largest part of a tree around an item that has no more than 32 leaves, its siblings at
    least; `columns` as in `explain`."""
    tree = tree_of(model)
    if tree.depth == 1:
        raise SoftdexError("explain: this tree has one level, so nothing lies beside an item.")
    rows = find(model.items, [item], "explain", "items")
    names = Names(model, np.empty(0, np.int64), columns)
    asked = int(rows[0])
    if not bool(tree.alive[asked]) or int(tree.slot_of[asked]) < 0:
        raise SoftdexError(f"explain: item {item!r} was removed. restore_items brings it back.")
    inner = range(1, tree.depth)
    top = next((j for j in inner if tree.width(j) <= LEAVES), tree.depth - 1)
    branches = []
    for level in range(top, tree.depth + 1):
        each = tree.width(top) // tree.width(level)
        first = above(tree, asked, top) * each
        branches += [
            Branch(level, n, n == above(tree, asked, level), *names.node(tree, level, n))
            for n in range(first, first + each)
            if len(items_under(tree, level, n))
        ]
    found = items_under(tree, top, above(tree, asked, top)).tolist()
    told = [names.item(i) for i in found]
    apart = [_apart(tree, asked, other) for other in found]
    order = sorted(range(len(found)), key=lambda i: apart[i])
    table = {
        "levels_up": [apart[i] for i in order],
        "item": model.items.take(np.array([found[i] for i in order])),
        "title": [told[i][1] for i in order],
        **{n: [told[i][2][n] for i in order] for n in names.shown if n not in OURS},
    }
    fields = [", ".join(each.values()) for *_, each in told]
    made = pa.table(table).drop_columns(["title"] * (names.title is None))
    who = names.item(asked)[1]
    return Near(who, names.category, branches, fields, made, tree.depth, tree.arity)


def _apart(tree: Tree, item: int, other: int) -> int:
    """How many levels up two items under one node have one in common."""
    levels = range(tree.depth, 0, -1)
    return next(tree.depth - j for j in levels if above(tree, item, j) == above(tree, other, j))


def draw_near(near: Near) -> str:
    """The page."""
    levels = f"{counted(near.depth, 'level')}, {near.arity} children a node"
    name = f"the value of {near.named} that sets its items apart"
    words = (
        f"A part of a tree of {levels}: a search reaches items through the nodes before them. "
        f"A node is named by {name if near.named else 'its most popular item'}; point at it to see "
        "what else is under it. The way to the item is coloured."
    )
    return page(
        f"Around {near.who}",
        f"<p class='lead'>{escape(words)}</p><div class='scroll'>{_picture(near)}</div>",
        LOOK,
    )


def _picture(near: Near) -> str:
    """Edges, then nodes, then words; a node stands in the middle of what is under it."""
    top = near.branches[0].level
    leaves = [b for b in near.branches if b.level == near.depth]
    height = {(near.depth, b.number): LINE * (i + 0.7) for i, b in enumerate(leaves)}
    for branch in reversed([b for b in near.branches if b.level < near.depth]):
        below = [
            height[branch.level + 1, child]
            for child in range(branch.number * near.arity, (branch.number + 1) * near.arity)
            if (branch.level + 1, child) in height
        ]
        height[branch.level, branch.number] = sum(below) / len(below)
    edges, nodes = [], []
    for branch in near.branches:
        x, y = LEFT + STEP * (branch.level - top), height[branch.level, branch.number]
        kind = "way" if branch.way else "other"
        if branch.level > top:
            parent = height[branch.level - 1, branch.number // near.arity]
            middle = x - STEP / 2
            edges.append(
                f"<path class='{kind}' d='M{x - STEP} {parent:.1f}C{middle} {parent:.1f} "
                f"{middle} {y:.1f} {x} {y:.1f}'/>"
            )
        nodes.append(
            f"<g><title>{escape(branch.note)}</title><circle class='{kind}' cx='{x}' cy='{y:.1f}' "
            f"r='4'/>{_words(branch, near, x, y)}</g>"
        )
    fields = "".join(
        f"<text class='soft' x='{WIDTH - RIGHT}' y='{height[near.depth, leaf.number] + 4:.1f}'>"
        f"{escape(lines(text, 1, RIGHT + 20)[0])}</text>"
        for leaf, text in zip(leaves, near.fields, strict=True)
    )
    return (
        f"<svg class='tree' viewBox='0 0 {WIDTH} {LINE * len(leaves) + 8}' role='img' "
        f"aria-label='the tree around the item'>{''.join(edges)}{''.join(nodes)}{fields}</svg>"
    )


def _words(branch: Branch, near: Near, x: float, y: float) -> str:
    """The title of an item beside it; the name of a node above it, what of it that is below."""
    if branch.level == near.depth:
        bold = " class='bold'" * branch.way
        name = escape(lines(branch.name, 1, WIDTH - RIGHT - 20 - x)[0])
        return f"<text{bold} x='{x + 8}' y='{y + 4:.1f}'>{name}</text>"
    room = 2 * LEFT - 6
    return "".join(
        f"<text{kind} x='{x}' y='{y + shift:.1f}' text-anchor='middle'>"
        f"{escape(lines(words, 1, room)[0])}</text>"
        for kind, words, shift in (("", branch.name, -7), (" class='soft'", branch.detail, 15))
    )
