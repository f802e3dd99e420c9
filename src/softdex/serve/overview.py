"""What the page shows of a holdout: metrics, users to look at, what was held out of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from softdex.errors import did_you_mean
from softdex.serve.page_words import Chosen
from softdex.serve.problems import Problem
from softdex.serve.study import METRIC, Study


def metrics(study: Study) -> dict[str, Any]:
    """Return the metrics of a model, with standard errors."""
    result, held = study.result, study.holdout
    return {
        "users": len(result.users),
        "of_users": held.num_asked,
        "targets": len(held.targets.ids),
        "cutoffs": list(result.cutoffs),
        "metrics": {
            name: {"value": value, "error": _number(result.standard_error(name))}
            for name, value in result.items()
        },
        "notes": list(result.notes),
        "split": result.card.json(),
    }


def users(study: Study, asked: Chosen) -> list[dict[str, Any]]:
    """Return users to look at: with a metric, or for the worst and the best, those measured."""
    measured = asked.metric or asked.kind in ("hard", "easy")
    rows, events, metric, values = _measured(study, asked) if measured else _known(study)
    draw = np.random.default_rng(asked.seed).random(len(rows))
    by = {"random": (draw,), "cold": (draw, events)}
    by |= {"hard": (draw, -events, values), "easy": (draw, -events, -values)}
    chosen = np.lexsort(by[asked.kind])[: asked.limit]
    keys = study.model.users.take(rows[chosen]).to_pylist()
    found = [{"user": k, "events": int(events[i])} for k, i in zip(keys, chosen, strict=True)]
    if measured:
        for row, i in zip(found, chosen, strict=True):
            row |= {"metric": metric, "value": float(values[i])}
    return found


def user(study: Study, row: int) -> dict[str, Any]:
    """Return what was held out of a user, and the request that is measured."""
    found, key = study.tested(row), study.model.users.take(np.array([row])).to_pylist()[0]
    if found is None:
        return {"user": key, "targets": [], "ask": {}}
    return {"user": key, "targets": study.keys(found.targets), "ask": found.ask}


def user_metrics(study: Study, row: int) -> dict[str, Any]:
    """Return the metrics of a user's list, none of a user who was not measured."""
    result, key = study.result, study.model.users.take(np.array([row])).to_pylist()[0]
    at = np.flatnonzero(result.users == row)
    shown = {n: float(v[at[-1]]) for n, v in result.per_user.items()} if len(at) else {}
    return {"user": key, "metrics": shown, "cutoff": result.middle}


# inside ------------------------------------------------------------------------------------------


def _number(value: float) -> float | None:
    return value if value == value else None


def _known(study: Study) -> tuple[np.ndarray, np.ndarray, str, np.ndarray]:
    """Return the rows of users with events, else of all, and their numbers of events."""
    events = study.model.seen.lengths
    rows = np.flatnonzero(events > 0) if events.any() else np.arange(len(events))
    return rows, events[rows], "", np.zeros(len(rows))


def _measured(study: Study, asked: Chosen) -> tuple[np.ndarray, np.ndarray, str, np.ndarray]:
    """Return the rows of users that were measured, the lengths of their histories, and a metric."""
    result = study.result
    metric = asked.metric or f"{METRIC}@{result.middle}"
    if metric not in result.per_user:
        raise Problem(422, f"users: no {metric!r}. {did_you_mean(metric, result.per_user)}")
    return result.users, result.history_lengths, metric, result.per_user[metric]
