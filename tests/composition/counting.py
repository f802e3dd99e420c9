"""Popular and item_cf by loops over events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import softdex as sdx
from composition.logs import Plain, best, same_lists, world
from composition.suite import Case


def check_popular(case: Case) -> None:
    """Items by summed weights, an old event counting less; the same for everybody."""
    for weights in (True, False):
        plain = world(weights=weights)
        model = sdx.fit("popular", plain.log, **case.options)
        half = case.options.get("half_life")
        last = max(time for _, _, time, _ in plain.rows)
        total = [0.0] * len(plain.items)
        for _, item, time, weight in plain.rows:
            total[item] += weight * (1.0 if half is None else 0.5 ** ((last - time) / half))
        _same_for(model, plain, lambda past, total=total: total)


def check_item_cf(case: Case) -> None:
    """Sums of weighted cosines over the history, cut to the nearest; popularity below."""
    plain = world(weights=case.options.get("shrink", 0) > 0)
    model = sdx.fit("item_cf", plain.log, **case.options)
    near = _neighbours(plain, **({
        "neighbours": 200, "user_power": 0.5, "asymmetry": 0.6, "shrink": 0.0,
    } | case.options))  # fmt: skip
    most = max(plain.counts)

    def scores(past: list[int]) -> list[float]:
        summed = [sum(near[i][j] for i in set(past)) for j in range(len(plain.items))]
        return [s or n / most - 2 for s, n in zip(summed, plain.counts, strict=True)]

    _same_for(model, plain, scores)
    alike = model.similar([plain.items[0]], k=3)
    wanted = best([s or -math.inf for s in near[0]], 3, {0})
    assert alike["similar"].to_pylist() == [plain.items[i] for i, _ in wanted]


def _neighbours(
    plain: Plain, neighbours: int, user_power: float, asymmetry: float, shrink: float
) -> np.ndarray:
    c = plain.confidence()
    users, items = c.shape
    near = np.zeros((items, items))
    for i in range(items):
        for j in range(items):
            top = sum(float(c[u] @ c[u]) ** -user_power * c[u, i] * c[u, j] for u in range(users))
            size = float(c[:, i] @ c[:, i]) ** asymmetry * float(c[:, j] @ c[:, j]) ** (
                1 - asymmetry
            )
            near[i, j] = 0.0 if i == j else top / (size + shrink)
        for j in np.argsort(-near[i], kind="stable")[neighbours:]:
            near[i, j] = 0.0
    return near


def _same_for(model: Any, plain: Plain, scores: Any) -> None:
    past = {u: [item for item, _ in plain.history(u)] for u in range(len(plain.users))}
    wanted = {plain.users[u]: best(scores(past[u]), 5, set(past[u])) for u in past}
    same_lists(model.recommend(plain.users, k=5), plain.items, wanted)
    given = [[0, 4, 4], [7]]
    asked = [[plain.items[i] for i in each] for each in given]
    wanted = {n: best(scores(each), 6, set(each)) for n, each in enumerate(given)}
    same_lists(model.recommend(history=asked, k=6), plain.items, wanted)


CASES: list[Case] = [
    Case("popular", {}, check_popular),
    Case("popular", {"half_life": 15.0}, check_popular),
    Case("item_cf", {}, check_item_cf),
    Case("item_cf", {"user_power": 0.0, "asymmetry": 0.3, "shrink": 0.7}, check_item_cf),
    Case("item_cf", {"neighbours": 3, "user_power": 1.0}, check_item_cf),
]
