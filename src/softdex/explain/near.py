"""Near: the subtree around an item, as one HTML page.

Nodes are drawn to the left of their children, items at the right, one per line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from softdex.data.keys import find
from softdex.drawing import lines
from softdex.errors import SoftdexError
from softdex.explain.look import tree_of
from softdex.explain.names import Names, counted, items_under
from softdex.explain.page import page
from softdex.index.tree.trace import above
from softdex.index.tree.tree import Tree
from softdex.model.retriever import Retriever

LEAVES = 32  # leaves drawn at most, unless the siblings alone are more
LINE, STEP, WIDTH = 21, 142, 1200  # height of a line, width of a level and of the picture
LEFT, RIGHT = 48, 250  # widths of the margin before the first node, and of the items' columns
OURS = ("levels_up", "item", "title")
LOOK = """
circle.other { fill: var(--line); stroke: var(--soft); } circle.way { fill: var(--way); }
path.way { stroke: var(--way); stroke-width: 2.5; }
svg text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
"""


class Branch(NamedTuple):
    """A node to draw, with its names; `way`: it is the item or an ancestor of it."""

    level: int
    number: int
    way: bool
    name: str
    detail: str
    note: str


class Near(NamedTuple):
    """The subtree around an item.

    Attributes:
        who: the item's title.
        named: the item column that names nodes, or None.
        branches: nodes from the top down, each level in tree order.
        fields: further columns of each leaf, as text.
        table: the items, nearest first, with the number of levels up to the common ancestor.
        depth, arity: of the whole tree.
    """

    who: str
    named: str | None
    branches: list[Branch]
    fields: list[str]
    table: pa.Table
    depth: int
    arity: int


def near(model: Retriever, item: Any, columns: str | Sequence[str] | None = None) -> Near:
    """Return the largest subtree around an item with at most 32 leaves, at least its siblings.

    `columns` are as in `explain`.
    """
    tree = tree_of(model)
    if tree.depth == 1:
        raise SoftdexError("explain: the tree has one level, so no subtree surrounds an item.")
    rows = find(model.items, [item], "explain", "items")
    names = Names(model, np.empty(0, np.int64), columns)
    asked = int(rows[0])
    if not bool(tree.alive[asked]) or int(tree.slot_of[asked]) < 0:
        raise SoftdexError(f"explain: item {item!r} was removed. Bring it back with restore_items.")
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
    """Count the levels up to the lowest common ancestor of two items."""
    levels = range(tree.depth, 0, -1)
    return next(tree.depth - j for j in levels if above(tree, item, j) == above(tree, other, j))


def draw_near(near: Near) -> str:
    """Return the page of a subtree as HTML."""
    levels = f"{counted(near.depth, 'level')}, {near.arity} children per node"
    name = f"its most distinctive value of {near.named}"
    words = (
        f"A subtree of a tree of {levels}: a search reaches items through the nodes to their left. "
        f"A node is named by {name if near.named else 'its most popular item'}; hover over it for "
        "the items below. The path to the item is coloured."
    )
    return page(
        f"Around {near.who}",
        f"<p class='lead'>{escape(words)}</p><div class='scroll'>{_picture(near)}</div>",
        LOOK,
    )


def _picture(near: Near) -> str:
    """Draw edges, then nodes, then words; a node is centred on its children."""
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
    """Draw the title beside an item, or a node's name above it and its share below it."""
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
