"""Pairs: which results can be told apart, every pair at once, by paired bootstrap over users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, final

import numpy as np

from softdex.errors import SoftdexError, choose
from softdex.evaluate.result import Result
from softdex.tables import Rows

SAMPLES, LEVEL = 1000, 0.95


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Every pair of results on one metric; arrays are (n, n), the row against the column.

    Attributes:
        names: of the results, the best first.
        metric: what they are compared on.
        users: number of users drawn from.
        samples: number of bootstrap samples.
        difference: mean of the row less mean of the column.
        margin: half of the width of the interval, `difference` ± `margin`. With a probability of
            95 % all intervals of the table hold at once.
        p: probability of a largest difference of all pairs beyond this one, if none were real.
    """

    names: tuple[str, ...]
    metric: str
    users: int
    samples: int
    difference: np.ndarray
    margin: np.ndarray
    p: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """Whether two results can be told apart: 0 is outside of their interval."""
        return np.abs(self.difference) > self.margin

    @property
    def number(self) -> int:
        """Number of pairs."""
        return len(self.names) * (len(self.names) - 1) // 2

    def against(self, name: str) -> Rows:
        """One row per other result: how far it lies below this one, with the interval."""
        here = self.names.index(name)
        rows: list[dict[str, Any]] = []
        for there, other in enumerate(self.names):
            if there != here:
                gap, margin = float(self.difference[here, there]), float(self.margin[here, there])
                row = {"against": other, "metric": self.metric, "difference": gap}
                row |= {"low": gap - margin, "high": gap + margin, "p": float(self.p[here, there])}
                rows.append(row | {"real": bool(self.apart[here, there])})
        return Rows(f"{name} against the others, paired bootstrap over users", rows)


def pairs(
    results: Mapping[str, Result], metric: str, *, samples: int = SAMPLES, seed: int = 0
) -> Pairs:
    """Compare every pair of results by paired bootstrap over users.

    One draw of users serves all results, so the differences vary together as they do in truth. An
    interval is as many standard errors wide as the largest standardised difference of all pairs
    stays within in 95 % of the samples: the more pairs, the wider.
    """
    names = sorted(results, key=lambda name: -results[name][metric])
    first = results[names[0]]
    for name in names:
        choose("pairs", "metric of users", metric, list(results[name].per_user))
        if not first.is_paired_with(results[name]):
            raise SoftdexError(
                f"pairs: expected results of the same users and split; {name!r} is not like "
                f"{names[0]!r}. Evaluate all on one holdout."
            )
    values = np.stack([results[name].per_user[metric] for name in names]).astype(np.float64)
    means = first.resampled(values, samples, seed)
    n = len(names)
    difference = values.mean(1)[:, None] - values.mean(1)
    margin, p = np.full((n, n), np.inf), np.ones((n, n))
    if n > 1 and first.num_users > 1:
        low, high = np.array(list(combinations(range(n), 2))).T
        gaps = means[:, low] - means[:, high]
        spread = gaps.std(0, ddof=1)
        largest = _standardised(gaps - gaps.mean(0), spread).max(1)
        reach = np.quantile(largest, LEVEL)
        found = _standardised(difference[low, high], spread)
        beyond = (largest[:, None] >= found).mean(0)
        for at in ((low, high), (high, low)):
            margin[at], p[at] = reach * spread, np.maximum(beyond, 1 / samples)
    return Pairs(tuple(names), metric, first.num_users, samples, difference, margin, p)


def _standardised(gaps: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return differences in standard errors; one that never varies is 0 or beyond any other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.abs(gaps) / spread, nan=0.0, posinf=np.finfo(np.float64).max)
