"""Effort: what an index finds of the exact lists, in how many milliseconds, as it looks at more.

The exact list scores every item. What it misses of the held-out items is the model's loss; what a
search misses beyond that is the index's loss. A model that scores every item is measured with a
multi-index over its vectors, which could serve it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from softdex.data.card import Card
from softdex.data.holdout import Holdout
from softdex.data.ragged import empty
from softdex.evaluate.metrics import overlap, user_metrics
from softdex.index.contract import Filter, Index
from softdex.index.imi.books import codewords_for
from softdex.index.imi.index import Imi, build
from softdex.index.tree.tree import Tree
from softdex.model.asking import Asked, query_of
from softdex.model.measure import searcher
from softdex.serve.problems import Problem
from softdex.serve.study import Study, some

USERS = 256  # whose lists are compared with the exact ones
TIMED = 24  # of them, whose searches are timed one by one
AGAIN = 3  # searches of one list that are timed
RECALL, LISTS = 0.95, 20  # what an index that could serve is tuned to
MOST = 2**12  # width of a beam, at most
NO_CARD = Card("none", {}, {}, "", "")


class Tried(NamedTuple):
    """The index that is measured, and whether it serves the model, or only could."""

    index: Any
    serves: bool


def tried(study: Study) -> Tried:
    """Return the index to measure; refuse a model without one."""
    return study.once("effort", lambda: _tried(study))


def effort(study: Study, k: int) -> dict[str, Any]:
    """Return recall of the exact list, quality and milliseconds per list, as the effort grows."""
    model, (index, serves) = study.model, tried(study)
    k = min(k, len(model.items))
    part = _users(study)
    efforts = [*_efforts(index, k), math.inf]
    lists = [_lists(study, index, part, k, each) for each in efforts]
    times = _times(study, index, part, k, efforts)
    rows = [
        {
            "effort": each,
            "recall": float(overlap(found, lists[-1]).mean()),
            "ms": spent,
            **_quality(part, found, k),
        }
        for each, found, spent in zip(efforts, lists, times, strict=True)
    ]
    return {
        "index": "tree" if isinstance(index, Tree) else "imi",
        "serves": serves,
        "present": present(index, k) if serves else None,
        "items": int(index.alive.sum()),
        "k": k,
        "users": len(part),
        "timed": min(TIMED, len(part)),
        "held_out": len(part.targets.ids) > 0,
        "exact": rows[-1],
        "points": rows[:-1],
    }


def effort_list(study: Study, asked: Asked, k: int, spent: float | None) -> dict[str, Any]:
    """Return a user's list at an effort, with the exact ranks, and what it misses."""
    model, (index, serves) = study.model, tried(study)
    k = min(k, len(model.items))
    spent = (present(index, k) if serves else math.inf) if spent is None else spent
    query, filter = query_of(model, asked.rows, asked.history), Filter(asked.history)
    (found, seconds), (exact, most) = (
        _timed(index, query, k, filter, e) for e in (spent, math.inf)
    )
    listed, best = ([i for i in hits.ids[0].tolist() if i >= 0] for hits in (found, exact))
    place = {item: rank for rank, item in enumerate(best, 1)}
    lost = [item for item in best if item not in set(listed)]
    keys = dict(zip(listed + lost, study.keys(np.array(listed + lost)), strict=True))
    scores = found.scores[0].tolist()
    return {
        "effort": None if math.isinf(spent) else spent,
        "ms": seconds,
        "exact_ms": most,
        "recall": (len(best) - len(lost)) / max(1, len(best)),
        "items": [
            {"item": keys[item], "rank": rank, "score": score, "exact": place.get(item)}
            for rank, (item, score) in enumerate(zip(listed, scores, strict=False), 1)
        ],
        "lost": [{"item": keys[item], "exact": place[item]} for item in lost],
    }


def present(index: Any, k: int) -> float:
    """Return the effort that the index serves with; a multi-index looks at k items at least."""
    return max(index.effort, k) if isinstance(index, Imi) else float(index.effort)


# inside ------------------------------------------------------------------------------------------


def _tried(study: Study) -> Tried:
    model: Any = study.model
    index, scorer = model.index, model.index.scorer
    if isinstance(index, Imi) or (isinstance(index, Tree) and index.depth > 1):
        return Tried(index, True)
    if not scorer.is_product or len(model.items) < 2:
        text = f"effort: {model.recipe} has no index but the exact one, and no vectors to make one."
        raise Problem(404, text)
    made = build(
        scorer, codewords=codewords_for(len(model.items)), residual=scorer.items.dim < 2,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    dead = (~index.alive).nonzero()[:, 0]
    made = made.delete(dead) if len(dead) else made
    users = some(np.flatnonzero(model.seen.lengths > 0), USERS)
    query = query_of(model, users, model.seen.take(users))
    return Tried(made.tune(query, RECALL, LISTS, quiet=True) if len(users) else made, False)


def _users(study: Study) -> Holdout:
    """Return users to search for: of the holdout, else some with events and nothing held out."""
    if study.has_holdout:
        held = study.holdout
        return held.take(some(np.flatnonzero(held.targets.lengths > 0), USERS))
    model = study.model
    rows = some(np.flatnonzero(model.seen.lengths > 0), USERS)
    past = model.seen.take(rows)
    return Holdout(model.users, model.items, rows, past, empty(len(rows)), past, NO_CARD)


def _efforts(index: Index, k: int) -> list[float]:
    """Return efforts to try, doubling, with the present one among them."""
    most = min(MOST, index.num_items) if isinstance(index, Tree) else index.num_items
    least = 1 if isinstance(index, Tree) else k
    found = {least * 2**i for i in range(64) if least * 2**i < most}
    own = present(index, k)
    return sorted({*map(float, found), *([own] if own < most else [])})


def _lists(study: Study, index: Index, part: Holdout, k: int, spent: float) -> np.ndarray:
    """Return the lists of users as they are measured, at an effort."""
    model = study.model
    search = searcher(
        model.encoder, index, model.seen, by_features=model.user_tower is not None,
        by_history=study.rules.get("known_users") != "trained", effort=spent,
    )  # fmt: skip
    return search(replace(part, candidates=None), k, False)


def _times(
    study: Study, index: Index, part: Holdout, k: int, efforts: Sequence[float]
) -> list[float]:
    """Return the median milliseconds of a search for one user, per effort.

    Efforts take turns, so that what else the machine does disturbs all of them alike.
    """
    times = np.zeros((min(TIMED, len(part)), len(efforts)))
    for row in range(len(times)):
        one = part.take(np.array([row]))
        query, filter = query_of(study.model, one.users, one.history), Filter(one.masked)
        index.search(query, k, filter=filter, effort=efforts[0])  # brings the query into the caches
        for at, spent in enumerate(efforts):
            began = time.perf_counter()
            index.search(query, k, filter=filter, effort=spent)
            times[row, at] = 1e3 * (time.perf_counter() - began)
    return [float(each) for each in np.median(times, axis=0)]


def _timed(index: Index, query: Any, k: int, filter: Filter, spent: float) -> tuple[Any, float]:
    """Search for one user; return the hits and the least milliseconds of a few searches."""
    times = []
    for _ in range(AGAIN):
        began = time.perf_counter()
        hits = index.search(query, k, filter=filter, effort=spent)
        times.append(1e3 * (time.perf_counter() - began))
    return hits, min(times)


def _quality(part: Holdout, lists: np.ndarray, k: int) -> dict[str, float]:
    """Return recall and ndcg of lists on what was held out, nothing where that is not known."""
    if not len(part.targets.ids):
        return {}
    items = len(part.item_keys)
    targets = part.targets.distinct(items)
    cells = np.arange(len(lists))[:, None] * items + lists.astype(np.int64)
    hits = np.isin(cells, targets.cells(items)) & (lists >= 0)
    found = user_metrics(hits, targets.lengths, [k], part.conventions.get("ideal", "truncated"))
    return {f"{name}_held": float(found[f"{name}@{k}"].mean()) for name in ("recall", "ndcg")}
