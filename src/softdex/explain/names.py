"""Names of items and tree nodes, from columns of the item table or from keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from softdex.data.labels import Labels
from softdex.index.tree.tree import Tree
from softdex.model.retriever import Retriever


@final
class Names:
    """Titles of items and categories of nodes, from columns of the item table, else keys.

    Attributes:
        title, category: the columns that name items and nodes, or None.
        shown: further columns to show of an item.
    """

    def __init__(
        self, model: Retriever, history: np.ndarray, columns: str | Sequence[str] | None
    ) -> None:
        told, self.counts = Labels(model.items, model.item_table, columns), model.item_counts
        self.in_history = np.bincount(history, minlength=len(model.items)) > 0
        self.title, self.category = told.title, told.category
        self.shown, self.item = told.shown, told.item
        self.labels, self.codes = told.categories()
        self.overall = np.bincount(self.codes.ids, minlength=len(self.labels)) / len(model.items)

    def node(self, tree: Tree, level: int, number: int) -> tuple[str, str, str]:
        """Return the name of a node, its share of the items below, and a tooltip."""
        items = items_under(tree, level, number)
        best = items[np.argsort(-self.counts[items], kind="stable")[:3]].tolist()
        if level == tree.depth:
            _, title, fields = self.item(best[0])
            events = counted(int(self.counts[best[0]]), "event")
            return title, "", "\n".join([*(f"{n}: {v}" for n, v in fields.items()), events])
        titles = [self.item(i)[1] for i in best]
        past = int(self.in_history[items].sum())
        note = f"{counted(len(items), 'item')} below" + (f", {past:,} in the history" * bool(past))
        note = f"{note}\nmost popular: {' · '.join(titles)}"
        shares = self._shares(items)
        if not shares:
            return titles[0], counted(len(items), "item"), note
        words = (
            f"{label} {percent(here)} ({percent(all_)} of all)" for label, here, all_ in shares
        )
        detail = f"{percent(shares[0][1])} of {len(items):,}"
        return shares[0][0], detail, f"{note}\n{', '.join(words)}"

    def _shares(self, ids: np.ndarray) -> list[tuple[str, float, float]]:
        """Return the three most distinctive categories with their shares of these and of all items.

        They maximise share * log(share / share of all), so a category must be common here and
        rarer elsewhere; the most common one of all would name every node.
        """
        if self.category is None:
            return []
        share = np.bincount(self.codes.take(ids).ids, minlength=len(self.labels)) / len(ids)
        there = np.flatnonzero(share)
        apart = share[there] * np.log(share[there] / self.overall[there])
        best = there[np.argsort(-apart, kind="stable")[:3]]
        return [(self.labels[i], float(share[i]), float(self.overall[i])) for i in best]


def counted(n: int, what: str) -> str:
    """Format a count with its noun."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def percent(share: float) -> str:
    """Format a share in per cent."""
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else "< 1 %"


def numbered(ranks: Sequence[int], most: int) -> str:
    """Format the first ranks of a list."""
    return " ".join(f"#{rank}" for rank in ranks[:most]) + (" …" if len(ranks) > most else "")


def items_under(tree: Tree, level: int, number: int) -> np.ndarray:
    """Return the items below a node, in tree order."""
    width = tree.width(level)
    ids = tree.item_of[number * width : (number + 1) * width].long()
    return ids[(ids >= 0) & tree.alive[ids]].cpu().numpy()
