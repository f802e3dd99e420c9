"""Two models on one holdout: the paired difference, and the users whose lists differ most."""

from __future__ import annotations

from typing import Any

import numpy as np

from softdex.errors import did_you_mean
from softdex.serve.page_words import Pair
from softdex.serve.problems import Problem
from softdex.serve.study import METRIC, Study


def differences(one: Study, other: Study, asked: Pair) -> dict[str, Any]:
    """Return how far a model lies above another, with 95 % intervals, and for which users."""
    a, b = one.result, other.result
    rows = one.against(other)  # refuses results of other users
    metric = asked.metric or f"{METRIC}@{a.middle}"
    if metric not in a.per_user:
        raise Problem(422, f"differences: no {metric!r}. {did_you_mean(metric, a.per_user)}")
    gaps = a.per_user[metric] - b.per_user[metric]
    order = np.lexsort((-a.history_lengths, -np.abs(gaps)))
    better, worse = order[gaps[order] > 0], order[gaps[order] < 0]

    def shown(chosen: np.ndarray) -> list[dict[str, Any]]:
        chosen = chosen[: asked.limit]
        keys = one.model.users.take(a.users[chosen]).to_pylist()
        return [
            {
                "user": key,
                "events": int(a.history_lengths[i]),
                "one": float(a.per_user[metric][i]),
                "other": float(b.per_user[metric][i]),
            }
            for key, i in zip(keys, chosen, strict=True)
        ]

    return {
        "metric": metric,
        "users": len(gaps),
        "metrics": [{**row, "one": a[row["metric"]], "other": b[row["metric"]]} for row in rows],
        "wins": len(better),
        "losses": len(worse),
        "better": shown(better),
        "worse": shown(worse),
    }
