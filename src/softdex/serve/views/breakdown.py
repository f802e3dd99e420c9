"""Breakdown: a metric per group of users or of held-out items, with intervals, and its users.

Every group is a ratio of sums, sum(gain) / sum(count): of a metric over the users asked, or of the
held-out items found over all of them. Its standard error takes users as drawn:

    se^2 = n / (n - 1) sum_u (gain_u - ratio count_u)^2 / (sum_u count_u)^2

which for one row per user is that of a mean.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softdex.errors import did_you_mean
from softdex.evaluate.breakdown import BINS, bin_labels
from softdex.serve.problems import Problem
from softdex.serve.study import METRIC, Study
from softdex.serve.view_words import Breakdown, GroupUsers
from softdex.serve.views.groups import by_column, by_events

WIDE = 1.96  # standard errors of a 95 % interval


class Cells(NamedTuple):
    """What is summed: rows of users (N,), group (N,), gain (N,) and weight (N,).

    Attributes:
        names: of the groups.
        items: of the catalogue in each group; none for groups of users.
    """

    names: list[str]
    users: np.ndarray
    group: np.ndarray
    gain: np.ndarray
    weight: np.ndarray
    items: np.ndarray | None = None


def breakdown(study: Study, asked: Breakdown) -> dict[str, Any]:
    """Return a metric per group and on the whole, with 95 % intervals."""
    metric, cells = _cells(study, asked)
    order = np.arange(len(cells.names))
    if asked.by == "category":
        order = np.argsort(-np.bincount(cells.group, minlength=len(cells.names)), kind="stable")
    groups = []
    for number in order[: asked.most].tolist():
        mine = cells.group == number
        if mine.any():
            row = {"name": cells.names[number], **_ratio(cells, mine)}
            if cells.items is not None:
                row["items"] = int(cells.items[number])
            groups.append(row)
    whole = _cells(study, asked, one=True)[1]
    return {
        "by": asked.by,
        "metric": metric,
        "metrics": list(study.result.per_user),
        "cutoffs": list(study.result.cutoffs),
        "column": _column(study, asked) if asked.by == "category" else None,
        "whole": _ratio(whole, np.ones(len(whole.users), bool)),
        "groups": groups,
    }


def group_users(study: Study, asked: GroupUsers) -> dict[str, Any]:
    """Return the users of a group, the worst or the best first."""
    metric, cells = _cells(study, asked)
    if asked.group not in cells.names:
        hint = did_you_mean(asked.group, cells.names)
        raise Problem(422, f"users: no group {asked.group!r}. {hint}", field="group")
    mine = cells.group == cells.names.index(asked.group)
    users, gain, count = _per_user(cells, mine)
    value = gain / count
    sign = 1 if asked.order == "worst" else -1
    order = np.lexsort((users, -count, sign * value))[: asked.limit]
    events = study.model.seen.take(users[order]).lengths.tolist()
    keys = study.model.users.take(users[order]).to_pylist()
    columns = zip(
        keys, events, value[order].tolist(), count[order].astype(int).tolist(), strict=True
    )
    names = ("user", "events", "value", "count")
    rows = [dict(zip(names, row, strict=True)) for row in columns]
    return {"group": asked.group, "metric": metric, "users": len(users), "rows": rows}


# inside ------------------------------------------------------------------------------------------


def _cells(study: Study, asked: Breakdown | GroupUsers, one: bool = False) -> tuple[str, Cells]:
    """Return the metric and what is summed; `one` puts everything into one group."""
    result = study.result
    if asked.by == "history":
        metric = asked.metric or f"{METRIC}@{result.middle}"
        values = result.per_user.get(metric)
        if values is None:
            hint = did_you_mean(metric, result.per_user)
            raise Problem(422, f"breakdown: no {metric!r}. {hint}", field="metric")
        group = np.digitize(result.history_lengths, BINS) - 1
        cells = Cells(bin_labels(BINS), result.users, group, values, np.ones(len(values)))
    else:
        metric, cells = _of_targets(study, asked)
        if one:
            metric, cells = _of_targets(study, asked, every=True)
    return metric, cells


def _of_targets(
    study: Study, asked: Breakdown | GroupUsers, every: bool = False
) -> tuple[str, Cells]:
    """Return which held-out items are in the lists, by the groups of these items."""
    listed, items = study.listed, len(study.model.items)
    k = _cutoff(study, asked.metric)
    targets = listed.targets.distinct(items)
    row, item = targets.row_of, targets.ids.astype(np.int64)
    head = listed.lists[:, :k].astype(np.int64)
    cells = (np.arange(len(head))[:, None] * items + head)[head >= 0]
    found = np.isin(row * items + item, cells)
    if every:
        names, size, of = ["all"], np.array([items]), np.zeros(len(item), np.int64)
        at = np.arange(len(item))
    else:
        if asked.by == "popularity":
            names, codes = by_events(study.model.item_counts)
        else:
            _, names, codes = by_column(study, asked.column)
        size = np.bincount(codes.ids, minlength=len(names))
        mine = codes.take(item)
        at, of = mine.row_of, mine.ids
    gain, count = found[at].astype(np.float64), np.ones(len(at))
    return f"recall@{k}", Cells(names, listed.users[row[at]], of, gain, count, size)


def _cutoff(study: Study, metric: str) -> int:
    """Return the cut-off of a metric's name; held-out items have recall only."""
    result = study.result
    known = [f"recall@{k}" for k in result.cutoffs]
    metric = metric or f"recall@{result.middle}"
    if metric not in known:
        hint = did_you_mean(metric, known)
        text = f"breakdown: groups of items have recall only, not {metric!r}. {hint}"
        raise Problem(422, text, field="metric")
    return int(metric.partition("@")[2])


def _column(study: Study, asked: Breakdown) -> str:
    return asked.column or study.facts["category"]


def _per_user(cells: Cells, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the users of a group, and gain and count of each."""
    users, place = np.unique(cells.users[mine], return_inverse=True)
    gain = np.bincount(place, cells.gain[mine].astype(np.float64), len(users))
    return users, gain, np.bincount(place, cells.weight[mine], len(users))


def _ratio(cells: Cells, mine: np.ndarray) -> dict[str, Any]:
    """Return the ratio of a group with its 95 % interval, None for fewer than two users."""
    users, gain, count = _per_user(cells, mine)
    n, total = len(users), float(count.sum())
    value = float(gain.sum()) / total if total else 0.0
    row: dict[str, Any] = {"users": n, "count": int(total), "value": value, "low": None}
    row["high"] = None
    if n > 1:
        gaps = gain - value * count
        error = math.sqrt(n / (n - 1) * float((gaps**2).sum())) / total
        row |= {"low": max(0.0, value - WIDE * error), "high": min(1.0, value + WIDE * error)}
    return row
