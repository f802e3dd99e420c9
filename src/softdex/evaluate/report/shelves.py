"""Shelves: what lists hold, by popularity, how much of the catalogue, and how much they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from softdex.data.describe import gini
from softdex.drawing import esc
from softdex.errors import counted
from softdex.evaluate.breakdown import TAIL, UNSEEN, popularity
from softdex.evaluate.metrics import overlap
from softdex.evaluate.report.parts import cell, column, folded, lead, name, numbered, section, table
from softdex.evaluate.report.study import CEILING, Study

PLACES = "held-out targets"


class Shelf(NamedTuple):
    """What the lists of a model hold.

    Attributes:
        coverage: share of the catalogue that is in a list.
        events: training events of an item, mean over the places of all lists.
        gini: of the numbers of lists that items are in, over the whole catalogue.
        shares: of the places, per popularity class.
    """

    coverage: float
    events: float
    gini: float
    shares: dict[str, float]


def shelf(times: np.ndarray, item_counts: np.ndarray) -> Shelf:
    """Return what lists hold, given in how many each item is."""
    total = max(1, int(times.sum()))
    shares = {
        label: float(times[items].sum() / total)
        for label, items in popularity(item_counts).items()
        if label != UNSEEN or len(items)
    }
    events = float(times @ item_counts / total)
    return Shelf(float((times > 0).mean()), events, gini(times), shares)


def shelves(study: Study) -> str:
    """Return the section."""
    k, counts = study.k, study.best.item_counts
    found = {n: shelf(study.results[n].item_lists[k], counts) for n in study.names}
    if study.ceiling is not None and k in study.ceiling.cutoffs:
        found[CEILING] = shelf(study.ceiling.item_lists[k], counts)
    found[PLACES] = shelf(study.best.item_targets, counts)
    mean = float(counts.mean())
    words = (
        f"Over the first {k} places of every list. An item of the catalogue has {mean:,.0f} "
        "training events in the mean; the last row is what users really took. Gini is 0 where "
        "every item is in as many lists, and 1 where one item fills all."
    )
    last = [n for n in (CEILING, PLACES) if n in found]
    title, more = "Popularity and variety of the lists", counted(len(study.rest), "further models")
    shown = _table(found, [*study.few, *last], mean, title)
    if study.rest:
        shown += folded(more, _table(found, study.rest, mean, f"{title}, {more}"))
    return section("lists", "What is in the lists", lead(words), shown, _overlap(study))


# inside ------------------------------------------------------------------------------------------


def _table(found: dict[str, Shelf], names: Sequence[str], mean: float, caption: str) -> str:
    head = [
        column("model"), column("popularity of places", "head · middle · tail", "words"),
        column(TAIL, "share"), column("events", "per place"), column("times", "the catalogue"),
        column("Gini"), column("coverage"),
    ]  # fmt: skip
    rows = [
        [
            name(each), _stack(shelf.shares), cell(f"{shelf.shares[TAIL]:.1%}"),
            cell(f"{shelf.events:,.0f}"), cell(f"{shelf.events / max(mean, 1e-9):.1f}"),
            cell(f"{shelf.gini:.3f}"), cell(f"{shelf.coverage:.1%}"),
        ]
        for each in names
        for shelf in (found[each],)
    ]  # fmt: skip
    return table(head, rows, caption=caption, kind="shelves")


def _stack(shares: dict[str, float]) -> str:
    """Return the shares as one bar of several shades."""
    told = ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
    bars = "".join(
        f"<i class='p{i}' style='width:{100 * share:.1f}%'></i>"
        for i, share in enumerate(shares.values())
    )
    return f"<td class='words'><span class='stack' title='{told}'>{bars}</span></td>"


def _overlap(study: Study) -> str:
    """Return how many items of their first ten two models share."""
    names = study.names
    if len(names) < 2:
        return ""
    places = study.best.lists.shape[1]
    shared = np.array([[_shared(study, a, b) for b in names] for a in names])
    head = [column("model"), *(numbered(i, n) for i, n in enumerate(names, 1))]
    rows = [
        [
            name(a, f" <small>{i + 1}</small>"),
            *(_share(shared[i, j], same=i == j, told=f"{a} and {b}") for j, b in enumerate(names)),
        ]
        for i, a in enumerate(names)
    ]
    users = len(study.best.sampled)
    words = (
        f"Share of their first {places} items that two models have in common, mean over {users:,} "
        f"users{' drawn evenly' if users < len(study.best.users) else ''}. Models that agree "
        "little and are as good are worth blending."
    )
    caption = "Overlap of lists in per cent"
    return f"<h3>Agreement</h3>{lead(words)}" + table(head, rows, caption=caption, kind="matrix")


def _shared(study: Study, one: str, other: str) -> float:
    """Return the mean share of the longer of two lists that both have."""
    lists = study.results[one].lists, study.results[other].lists
    longer = np.maximum(*((each >= 0).sum(1) for each in lists))
    both = overlap(*lists) * (lists[1] >= 0).sum(1)
    return float((both / np.maximum(1, longer)).mean())


def _share(value: float, *, same: bool, told: str) -> str:
    if same:
        return "<td class='same'></td>"
    tint = f"style='--tint:{100 * value:.0f}%'"
    return f"<td class='tinted' {tint} title='{esc(told)}: {value:.1%}'>{100 * value:.0f}</td>"
