"""Result: metrics on a holdout, with standard errors, paired comparisons and breakdowns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa

from softdex import notebook
from softdex.data.arrow import to_pandas
from softdex.data.card import Card
from softdex.data.expect import expect
from softdex.data.keys import Keys
from softdex.errors import SoftdexError, UnknownName, choose, counted, did_you_mean
from softdex.evaluate.breakdown import by_history, by_popularity
from softdex.tables import Rows, render


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
        item_lists: in how many lists each item is, per cut-off.
        sampled: rows of at most 1,000 users, drawn evenly, the same for every result of a holdout.
        lists: the first 10 items of their lists (S, K), -1 past the end of a list.
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
    item_lists: dict[int, np.ndarray] = field(repr=False)
    sampled: np.ndarray = field(repr=False)
    lists: np.ndarray = field(repr=False)
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
        return middle(self.cutoffs)

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

    @property
    def num_users(self) -> int:
        """Number of users evaluated."""
        return self._asked[1]

    @cached_property
    def _asked(self) -> tuple[np.ndarray, int]:
        """The place of each row's user among the users asked, and their number."""
        users, place = np.unique(self.users, return_inverse=True)
        return place, len(users)

    def __str__(self) -> str:
        shown = render(self._title, *self._rows)
        return "\n".join([shown, *(f"note: {note}" for note in self.notes)])

    @property
    def _title(self) -> str:
        """Who was asked, of which split."""
        rows, count = len(self.users), self._asked[1]
        who = counted(count, "users") + (f" asked {rows:,} times" if count != rows else "")
        return f"{who}, {self.card.name} split {self.card.sha256[:8]}"

    @property
    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """The names of the columns, and a row per metric."""
        names = list(dict.fromkeys(name.split("@")[0] for name in self))
        header = ["", *(f"@{k}" for k in self.cutoffs)]
        return header, [[n, *(self.shown(f"{n}@{k}") for k in self.cutoffs)] for n in names]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook.page(
            notebook.title(self._title),
            notebook.table(*self._rows),
            notebook.notes(f"note: {note}" for note in self.notes),
        )

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
        if not self.is_paired_with(other):
            raise SoftdexError(
                "compare: expected results of the same users and split. Evaluate both models on "
                "one holdout."
            )
        names = [n for n in self.per_user if n in other.per_user]
        gaps = np.stack([self.per_user[n] - other.per_user[n] for n in names]).astype(np.float64)
        means = self.resampled(gaps, samples, seed)
        low, high = np.quantile(means, (0.025, 0.975), axis=0)
        tail = np.minimum((means <= 0).mean(0), (means >= 0).mean(0))
        p = np.minimum(1.0, 2 * np.maximum(tail, 1 / samples))
        keys = ("metric", "difference", "low", "high", "p")
        columns = zip(names, gaps.mean(1), low, high, p, strict=True)
        rows = [dict(zip(keys, (c[0], *map(float, c[1:])), strict=True)) for c in columns]
        return Rows(f"Paired bootstrap, {samples} samples of {self.num_users:,} users", rows)

    def is_paired_with(self, other: Result) -> bool:
        """Return whether another result is of the same split and users."""
        same = self.card.sha256 == other.card.sha256
        return same and np.array_equal(self.users, other.users)

    def resampled(self, values: np.ndarray, samples: int, seed: int) -> np.ndarray:
        """Return the means of values per row, (M, B), over users drawn anew: (samples, M)."""
        generator = np.random.default_rng(seed)
        place, n = self._asked
        means = np.empty((samples, len(values)))
        for sample in means:
            times = np.bincount(generator.integers(n, size=n), minlength=n)[place]
            sample[:] = values @ times / times.sum()
        return means

    def by(self, what: str, k: int | None = None) -> Rows:
        """Break metrics down by `history` length, or recall by item `popularity`.

        `k` is one of the cut-offs evaluated, by default the largest.
        """
        choose("by", "breakdown", what, ("history", "popularity"))
        k = self.cutoffs[-1] if k is None else k
        if k not in self.cutoffs:
            raise SoftdexError(f"by: k={k} was not evaluated. Evaluated: {self.cutoffs}.")
        return by_history(self, k) if what == "history" else by_popularity(self, k)


def middle(cutoffs: Sequence[int]) -> int:
    """Return the cut-off that summaries quote, of ascending ones: 20, else the middle one."""
    return 20 if 20 in cutoffs else cutoffs[len(cutoffs) // 2]
