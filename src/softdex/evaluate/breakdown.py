"""Breakdowns of a result: by length of history, by popularity and by category of the target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from softdex.data.ragged import Ragged
from softdex.evaluate.metrics import METRICS
from softdex.tables import Rows

if TYPE_CHECKING:
    from softdex.evaluate.result import Result

BINS = (0, 1, 5, 10, 20, 50, 100, 200)
HEAD, TAIL, UNSEEN = "head", "tail", "never seen"


def by_history(result: Result, k: int) -> Rows:
    """Return metrics per class of history length."""
    place = np.digitize(result.history_lengths, BINS) - 1
    rows = []
    for i, label in enumerate(bin_labels(BINS)):
        mine = place == i
        if mine.any():
            row: dict[str, Any] = {"history": label, "users": int(mine.sum())}
            row |= {
                f"{m}@{k}": float(v[mine].mean())
                for m in METRICS
                if (v := result.per_user.get(f"{m}@{k}")) is not None
            }
            rows.append(row)
    return Rows(f"By history length, k={k}", rows)


def bin_labels(bins: Sequence[int]) -> list[str]:
    """Name bins of whole numbers by their first and last one."""
    ends = [*(each - 1 for each in bins[1:]), None]
    return [
        f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
        for low, high in zip(bins, ends, strict=True)
    ]


def by_popularity(result: Result, k: int) -> Rows:
    """Return recall per popularity class."""
    rows = []
    for label, items in popularity(result.item_counts).items():
        if len(items):
            rows.append({"items": label, "count": len(items), **_recall(result, items, k)})
    return Rows(f"By target popularity, k={k}: fraction of targets found", rows)


def by_category(result: Result, k: int, labels: Iterable[str], items: Ragged) -> Rows:
    """Return recall per category; `items` has the items of each label."""
    rows = [
        {"category": label, "count": len(mine), **_recall(result, mine, k)}
        for label, mine in zip(labels, (items[i] for i in range(len(items))), strict=True)
    ]
    return Rows(f"By category, k={k}: fraction of targets found", rows)


def popularity(item_counts: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the items of each popularity class, the most popular first: head, middle and tail hold
    a third of the training events each."""
    order = np.argsort(-item_counts, kind="stable")
    share = np.cumsum(item_counts[order]) / max(1, item_counts.sum())
    third = np.minimum(2, (np.concatenate([[0.0], share[:-1]]) * 3).astype(int))
    seen = item_counts[order] > 0
    return {
        HEAD: order[third == 0],
        "middle": order[third == 1],
        TAIL: order[(third == 2) & seen],
        UNSEEN: np.flatnonzero(item_counts == 0),
    }


def _recall(result: Result, items: np.ndarray, k: int) -> dict[str, Any]:
    """Return the number of targets among some items, and the fraction that was found."""
    targets, hits = result.item_targets[items].sum(), result.item_hits[k][items].sum()
    return {"targets": int(targets), f"recall@{k}": float(hits / targets) if targets else math.nan}
