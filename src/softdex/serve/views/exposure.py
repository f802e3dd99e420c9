"""Exposure: how the lists of a model spread over its catalogue, beside the events of its training.

A place is one item of one list. Shapes: I living items, U lists, K items per list.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softdex.data.describe import gini
from softdex.evaluate.breakdown import popularity
from softdex.serve.study import Study
from softdex.serve.views.groups import by_column

CURVE = 100  # steps of a Lorenz curve
TOP = 20  # items that are listed most, and values of a column


def exposure(study: Study, k: int, column: str) -> dict[str, Any]:
    """Return coverage, Gini coefficients, and shares of places and of events.

    Args:
        study: of the model.
        k: length of the lists, one of those that are measured.
        column: item column to break the places down by; "" takes the category, if there is one.
    """
    model, listed = study.model, study.listed
    alive = np.flatnonzero(model.index.alive.cpu().numpy())
    lists = listed.lists[:, :k]
    every = np.bincount(lists[lists >= 0], minlength=len(model.items))
    places, events = every[alive], model.item_counts[alive]
    shown = np.sort(places)[::-1]
    half = int(np.searchsorted(np.cumsum(shown), places.sum() / 2)) + 1 if places.sum() else 0
    found = {
        "k": k,
        "cutoffs": study.cutoffs,
        "held_out": len(listed.targets.ids) > 0,
        "lists": len(lists),
        "places": int(places.sum()),
        "items": len(alive),
        "listed": int((places > 0).sum()),
        "half": half,
        "gini": {"places": gini(places), "events": gini(events)},
        "popularity": _popularity(model.item_counts, lists, listed.history.ids),
        "classes": _classes(places, events),
        "tenths": _tenths(places, events),
        "curve": {"places": lorenz(places), "events": lorenz(events)},
        "top": _top(study, every, len(lists)),
    }
    if column or study.facts["category"]:
        found |= _values(study, column, lists)
    return found


def lorenz(values: np.ndarray) -> list[float]:
    """Return the share that the smallest 0, 1, ... 100 per cent of the values have of their sum."""
    sums = np.concatenate([[0.0], np.cumsum(np.sort(values), dtype=np.float64)])
    at = np.arange(CURVE + 1) * len(values) // CURVE
    return _shares(sums[at], sums[-1])


# inside ------------------------------------------------------------------------------------------


def _shares(values: np.ndarray, total: float) -> list[float]:
    return [round(float(each) / max(1.0, float(total)), 6) for each in values]


def _popularity(counts: np.ndarray, lists: np.ndarray, history: np.ndarray) -> dict[str, float]:
    """Return the mean popularity of the lists and of the histories that they were made from: the
    share of the items that have at most as many events."""
    rank = np.searchsorted(np.sort(counts), counts, side="right") / len(counts)
    rows = {"lists": lists[lists >= 0], "histories": history}
    return {name: float(rank[ids].mean()) if len(ids) else 0.0 for name, ids in rows.items()}


def _classes(places: np.ndarray, events: np.ndarray) -> list[dict[str, Any]]:
    """Return what head, middle and tail have of the places; each has a third of the events."""
    return [
        {"name": name, **_part(items, places, events)}
        for name, items in popularity(events).items()
        if len(items)
    ]


def _tenths(places: np.ndarray, events: np.ndarray) -> list[dict[str, Any]]:
    """Return what each tenth of the items has of the places, from the most popular tenth on."""
    order = np.argsort(-events, kind="stable")
    parts = np.array_split(order, min(10, len(order)))
    return [
        {
            "low": int(events[items].min()),
            "high": int(events[items].max()),
            **_part(items, places, events),
        }
        for items in parts
    ]


def _part(items: np.ndarray, places: np.ndarray, events: np.ndarray) -> dict[str, Any]:
    return {
        "items": len(items),
        "places": float(places[items].sum() / max(1, places.sum())),
        "events": float(events[items].sum() / max(1, events.sum())),
    }


def _top(study: Study, every: np.ndarray, lists: int) -> list[dict[str, Any]]:
    """Return the items that are in the most lists."""
    counts = study.model.item_counts
    items = np.argsort(-every, kind="stable")[:TOP]
    items = items[every[items] > 0]
    keys, share = study.keys(items), every[items] / max(1, lists)
    rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")[items] + 1
    columns = zip(keys, share.tolist(), counts[items].tolist(), rank.tolist(), strict=True)
    return [dict(zip(("item", "share", "events", "rank"), row, strict=True)) for row in columns]


def _values(study: Study, column: str, lists: np.ndarray) -> dict[str, Any]:
    """Return what the most frequent values of a column have of the places, and of the histories."""
    name, values, codes = by_column(study, column)

    def share(items: np.ndarray) -> np.ndarray:
        counts = np.bincount(codes.take(items).ids, minlength=len(values))
        return counts / max(1, len(items))

    places, history = share(lists[lists >= 0]), share(study.listed.history.ids)
    order = np.argsort(-history, kind="stable")[:TOP]
    rows = [
        {"value": values[i], "places": float(places[i]), "histories": float(history[i])}
        for i in order.tolist()
    ]
    return {"column": name, "values": rows}
