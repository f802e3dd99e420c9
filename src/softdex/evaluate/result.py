"""Result: metrics on a holdout, with standard errors, paired comparisons and breakdowns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from softdex.data.arrow import to_pandas
from softdex.data.card import Card
from softdex.data.expect import expect
from softdex.data.keys import Keys
from softdex.errors import SoftdexError, UnknownName, choose, counted, did_you_mean
from softdex.evaluate.metrics import METRICS
from softdex.tables import Rows, render

BINS = (0, 1, 5, 10, 20, 50, 100, 200)


@final
@dataclass(frozen=True, eq=False)
class Result(Mapping[str, float]):
    """Mean metrics by name ("recall@20"), with what standard errors and comparisons need.

    Attributes:
        per_user: the values behind each mean, one per user in `users`.
        users: rows of the users evaluated.
        card: the protocol card of the split.
        conventions: how empty users, repeated targets and the ideal list were treated.
        cutoffs: the list lengths evaluated, ascending.
        user_keys: the keys of all users.
        notes: warnings about these metrics, which the card has among its notes.
    """

    means: dict[str, float]
    per_user: dict[str, np.ndarray]
    users: np.ndarray
    card: Card
    conventions: dict[str, str]
    cutoffs: tuple[int, ...]
    history_lengths: np.ndarray = field(repr=False)
    item_counts: np.ndarray = field(repr=False)
    item_targets: np.ndarray = field(repr=False)
    item_hits: dict[int, np.ndarray] = field(repr=False)
    user_keys: Keys = field(repr=False)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        try:
            return self.means[name]
        except KeyError:
            raise UnknownName(f"Result: no {name!r}. {did_you_mean(name, self.means)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def middle(self) -> int:
        """The cut-off that summaries quote: 20 if evaluated, else the middle one."""
        return 20 if 20 in self.cutoffs else self.cutoffs[len(self.cutoffs) // 2]

    def standard_error(self, name: str) -> float:
        """Return the standard error of a mean over users; NaN for metrics that are not means.

        Where a user is asked several times (`split.next_item`), users are drawn, not questions.
        """
        values, (place, count) = self.per_user.get(name), self._asked
        if values is None or count < 2:
            return math.nan
        if count == len(values):
            return float(values.std(ddof=1) / math.sqrt(count))
        gaps = np.bincount(place, values - values.mean(dtype=np.float64))
        return float(math.sqrt(count / (count - 1) * (gaps**2).sum()) / len(values))

    @cached_property
    def _asked(self) -> tuple[np.ndarray, int]:
        """The place of each row's user among the users asked, and their number."""
        users, place = np.unique(self.users, return_inverse=True)
        return place, len(users)

    def __str__(self) -> str:
        names = list(dict.fromkeys(name.split("@")[0] for name in self))
        header = ["", *(f"@{k}" for k in self.cutoffs)]
        lines = [[name, *(self.shown(f"{name}@{k}") for k in self.cutoffs)] for name in names]
        rows, count = len(self.users), self._asked[1]
        who = counted(count, "users") + (f" asked {rows:,} times" if count != rows else "")
        title = f"{who}, {self.card.name} split {self.card.sha256[:8]}"
        return "\n".join([render(title, header, lines), *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__

    def shown(self, name: str) -> str:
        """Format a metric as mean ± standard error."""
        error = self.standard_error(name)
        tail = "" if math.isnan(error) else f" ±{error:.4f}"
        return f"{self.means[name]:.4f}{tail}" if name in self.means else ""

    def noted(self, notes: Sequence[str]) -> Result:
        """Return this result with further notes on its card, which are not printed with it."""
        return replace(self, card=self.card.noted(notes))

    def to_arrow(self, *, per_user: bool = False) -> pa.Table:
        """Return an Arrow table: a row per metric and cut-off, or per user and a column per metric.

        Args:
            per_user: the values behind each mean, beside the user's key.
        """
        if per_user:
            columns = {"user": self.user_keys.take(self.users)}
            return pa.table(columns | {name: pa.array(v) for name, v in self.per_user.items()})
        errors = [self.standard_error(name) for name in self]
        table = {
            "metric": [name.partition("@")[0] for name in self],
            "k": pa.array([int(name.partition("@")[2]) for name in self], pa.int32()),
            "value": [float(value) for value in self.values()],
            "standard_error": [None if math.isnan(error) else error for error in errors],
        }
        return pa.table(table)

    def to_pandas(self, *, per_user: bool = False) -> Any:
        """Return `to_arrow` as a pandas data frame.

        Args:
            per_user: as in `to_arrow`.
        """
        return to_pandas("Result.to_pandas", self.to_arrow(per_user=per_user))

    def compare(self, other: Result, *, samples: int = 1000, seed: int = 0) -> Rows:
        """Estimate by paired bootstrap over users how far this result lies above another.

        Both results must come from the same split. Returns one row per metric: the `difference` of
        the means, the bounds `low` and `high` of its 95 % interval, and a two-sided `p`.
        """
        expect(Result, "compare", other)
        if self.card.sha256 != other.card.sha256 or not np.array_equal(self.users, other.users):
            raise SoftdexError(
                "compare: expected results of the same users and split. Evaluate both models on "
                "one holdout."
            )
        names = [n for n in self.per_user if n in other.per_user]
        gaps = np.stack([self.per_user[n] - other.per_user[n] for n in names]).astype(np.float64)
        generator = np.random.default_rng(seed)
        place, n = self._asked
        means = np.empty((samples, len(names)))
        for sample in means:
            times = np.bincount(generator.integers(n, size=n), minlength=n)[place]
            sample[:] = gaps @ times / times.sum()
        low, high = np.quantile(means, (0.025, 0.975), axis=0)
        tail = np.minimum((means <= 0).mean(0), (means >= 0).mean(0))
        p = np.minimum(1.0, 2 * np.maximum(tail, 1 / samples))
        keys = ("metric", "difference", "low", "high", "p")
        columns = zip(names, gaps.mean(1), low, high, p, strict=True)
        rows = [dict(zip(keys, (c[0], *map(float, c[1:])), strict=True)) for c in columns]
        return Rows(f"Paired bootstrap, {samples} samples of {n:,} users", rows)

    def by(self, what: str, k: int | None = None) -> Rows:
        """Break metrics down by `history` length, or recall by item `popularity`.

        `k` is one of the cut-offs evaluated, by default the largest.
        """
        choose("by", "breakdown", what, ("history", "popularity"))
        k = self.cutoffs[-1] if k is None else k
        if k not in self.cutoffs:
            raise SoftdexError(f"by: k={k} was not evaluated. Evaluated: {self.cutoffs}.")
        return self._by_history(k) if what == "history" else self._by_popularity(k)

    def _by_history(self, k: int) -> Rows:
        place = np.digitize(self.history_lengths, BINS) - 1
        rows = []
        for i, low in enumerate(BINS):
            mine = place == i
            if mine.any():
                high = f"-{BINS[i + 1] - 1}" if i + 1 < len(BINS) else "+"
                label = f"{low}{high}" if high != f"-{low}" else str(low)
                row: dict[str, Any] = {"history": label, "users": int(mine.sum())}
                row |= {
                    f"{m}@{k}": float(v[mine].mean())
                    for m in METRICS
                    if (v := self.per_user.get(f"{m}@{k}")) is not None
                }
                rows.append(row)
        return Rows(f"By history length, k={k}", rows)

    def _by_popularity(self, k: int) -> Rows:
        """Recall per popularity class: head, middle and tail hold a third of the events each."""
        order = np.argsort(-self.item_counts, kind="stable")
        share = np.cumsum(self.item_counts[order]) / max(1, self.item_counts.sum())
        third = np.minimum(2, (np.concatenate([[0.0], share[:-1]]) * 3).astype(int))
        rows = []
        groups = [("head", order[third == 0]), ("middle", order[third == 1])]
        groups += [("tail", order[(third == 2) & (self.item_counts[order] > 0)])]
        groups += [("never seen", np.flatnonzero(self.item_counts == 0))]
        for label, items in groups:
            asked, hits = self.item_targets[items].sum(), self.item_hits[k][items].sum()
            if len(items):
                recall = float(hits / asked) if asked else math.nan
                row = {"items": label, "count": len(items), "targets": int(asked)}
                rows.append({**row, f"recall@{k}": recall})
        return Rows(f"By target popularity, k={k}: fraction of targets found", rows)


def against_others(results: Mapping[str, Result], best: str) -> Rows:
    """Compare one result with every other one by paired bootstrap, on NDCG.

    Returns one row per other result; the difference is `real` if its 95 % interval excludes 0.
    """
    metric = f"ndcg@{results[best].middle}"
    rows: list[dict[str, Any]] = []
    for name, result in results.items():
        if name != best:
            gap = next(r for r in results[best].compare(result) if r["metric"] == metric)
            rows.append({"against": name, **gap, "real": gap["low"] > 0 or gap["high"] < 0})
    return Rows(f"{best} against the others, paired bootstrap over users", rows)
