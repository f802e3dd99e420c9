"""Evaluation: metrics while ranking, block by block; nothing users x items is ever held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from softdex.data.holdout import Card, Holdout
from softdex.data.ragged import Ragged
from softdex.errors import SoftdexError, UnknownName, choose, did_you_mean
from softdex.messages import progress
from softdex.tables import Rows, render

METRICS = ("precision", "recall", "f", "ndcg", "mrr", "map", "hit")
CONVENTIONS = {
    "empty": ("skip", "zero"),
    "repeats": ("once", "count"),
    "ideal": ("truncated", "full"),
}
BINS = (0, 1, 5, 10, 20, 50, 100, 200)

Search = Callable[[Holdout, int, bool], np.ndarray]
"""(part of a holdout, k, exact) -> item rows (B, k), -1 where the list ends."""


@final
@dataclass(frozen=True, eq=False)
class Result(Mapping[str, float]):
    """Means by name ("recall@20"), with what is needed to trust and compare them.

    Attributes:
        per_user: the values behind each mean, one per user in `users`.
        card: the split they were measured on.
        conventions: how empty users, repeated targets and the ideal list were treated.
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
        """The cut-off that summaries speak of: 20, or the middle one."""
        return 20 if 20 in self.cutoffs else self.cutoffs[len(self.cutoffs) // 2]

    def standard_error(self, name: str) -> float:
        """Standard error of a mean over users; NaN for figures that are not means."""
        values = self.per_user.get(name)
        if values is None or len(values) < 2:
            return math.nan
        return float(values.std(ddof=1) / math.sqrt(len(values)))

    def __str__(self) -> str:
        names = list(dict.fromkeys(name.split("@")[0] for name in self))
        header = ["", *(f"@{k}" for k in self.cutoffs)]
        rows = [[name, *(self.shown(f"{name}@{k}") for k in self.cutoffs)] for name in names]
        title = f"{len(self.users):,} users, {self.card.name} split {self.card.sha256[:8]}"
        return render(title, header, rows)

    __repr__ = __str__

    def shown(self, name: str) -> str:
        """A figure as tables show it: mean ± standard error."""
        error = self.standard_error(name)
        tail = "" if math.isnan(error) else f" ±{error:.4f}"
        return f"{self.means[name]:.4f}{tail}" if name in self.means else ""

    def compare(self, other: Result, *, samples: int = 1000, seed: int = 0) -> Rows:
        """Paired bootstrap over users: how far this result is above another one.

        Both must come from the same split. `low` and `high` bound the middle 95 % of the
        resampled differences; `p` is two-sided.
        """
        if self.card.sha256 != other.card.sha256 or not np.array_equal(self.users, other.users):
            raise SoftdexError("compare: the two results are not of the same users and split.")
        names = [n for n in self.per_user if n in other.per_user]
        gaps = np.stack([self.per_user[n] - other.per_user[n] for n in names]).astype(np.float64)
        generator = np.random.default_rng(seed)
        n = gaps.shape[1]
        means = np.stack(
            [
                gaps @ np.bincount(generator.integers(n, size=n), minlength=n) / n
                for _ in range(samples)
            ]
        )
        low, high = np.quantile(means, (0.025, 0.975), axis=0)
        tail = np.minimum((means <= 0).mean(0), (means >= 0).mean(0))
        p = np.minimum(1.0, 2 * np.maximum(tail, 1 / samples))
        keys = ("metric", "difference", "low", "high", "p")
        columns = zip(names, gaps.mean(1), low, high, p, strict=True)
        rows = [dict(zip(keys, (c[0], *map(float, c[1:])), strict=True)) for c in columns]
        return Rows(f"Paired bootstrap, {samples} samples of {n:,} users", rows)

    def by(self, what: str, k: int | None = None) -> Rows:
        """Break the metrics down by `history` length, or recall by item `popularity`."""
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
        return Rows(f"By length of history, k={k}", rows)

    def _by_popularity(self, k: int) -> Rows:
        """Head, middle and tail each take a third of the training events."""
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
                share_hit = float(hits / asked) if asked else math.nan
                rows.append(
                    {
                        "items": label,
                        "count": len(items),
                        "targets": int(asked),
                        f"recall@{k}": share_hit,
                    }
                )
        return Rows(f"By popularity of the target, k={k}: share of targets found", rows)


def evaluate(
    search: Search,
    holdout: Holdout,
    *,
    item_counts: np.ndarray,
    k: int | Sequence[int] = (10, 20, 50),
    index: str = "served",
    empty: str | None = None,
    repeats: str | None = None,
    ideal: str | None = None,
    batch: int = 1024,
) -> Result:
    """Rank for every user of a holdout and average.

    Args:
        k: one or several cut-offs.
        index: `served` ranks as in serving; `exact` ranks all items by the model's score; `both`
            adds the exact figures as "exact recall@20" and "overlap@20", the share of the exact
            list that is served, so that the model's and the index's losses are two figures.
        empty: users without a target are left out (`skip`) or count as 0 (`zero`).
        repeats: a target that occurs twice counts `once`, or twice in what recall is divided by
            (`count`).
        ideal: NDCG and MAP are divided by what k places can reach (`truncated`), or by what all
            targets could reach in a list without end (`full`).
        The last three default to what the holdout's protocol says, else to the first named.
    """
    cutoffs = tuple(sorted({int(c) for c in ([k] if isinstance(k, int) else k)}))
    if not cutoffs or cutoffs[0] < 1:
        raise SoftdexError(f"evaluate: expected cut-offs of at least 1, got {k}.")
    choose("evaluate", "index", index, ("served", "exact", "both"))
    rules = _conventions(holdout, {"empty": empty, "repeats": repeats, "ideal": ideal})
    rows = (
        np.flatnonzero(holdout.targets.lengths)
        if rules["empty"] == "skip"
        else np.arange(len(holdout))
    )
    if not len(rows):
        raise SoftdexError("evaluate: no user of the holdout has a target.")
    tally = _Tally(len(holdout.item_keys), cutoffs, rules)
    blocks = np.split(rows, range(batch, len(rows), batch))
    for block in progress(blocks, "evaluating", len(blocks)):
        part = holdout.take(block)
        lists = search(part, cutoffs[-1], index == "exact")
        exact = search(part, cutoffs[-1], True) if index == "both" else None
        tally.add(part, lists, exact)
    users, lengths = holdout.users[rows], holdout.history.lengths[rows]
    means, per_user = tally.finish()
    return Result(
        means, per_user, users, holdout.card, rules, cutoffs, lengths,
        item_counts, tally.item_targets, tally.item_hits,
    )  # fmt: skip


def _conventions(holdout: Holdout, given: dict[str, str | None]) -> dict[str, str]:
    rules = {}
    for name, known in CONVENTIONS.items():
        value = given[name] or holdout.conventions.get(name, known[0])
        rules[name] = choose("evaluate", f"value of {name}", value, known)
    return rules


class _Tally:
    """Sums over blocks of users."""

    def __init__(self, num_items: int, cutoffs: tuple[int, ...], rules: dict[str, str]) -> None:
        self.num_items, self.cutoffs, self.rules = num_items, cutoffs, rules
        self.values: dict[str, list[np.ndarray]] = {}
        self.shown = {k: np.zeros(num_items, bool) for k in cutoffs}
        self.item_targets = np.zeros(num_items, np.int64)
        self.item_hits = {k: np.zeros(num_items, np.int64) for k in cutoffs}

    def add(self, part: Holdout, lists: np.ndarray, exact: np.ndarray | None) -> None:
        distinct = _distinct(part.targets, self.num_items)
        sizes = part.targets.lengths if self.rules["repeats"] == "count" else distinct.lengths
        hits = _is_target(lists, distinct, self.num_items)
        self._append("", user_metrics(hits, sizes, self.cutoffs, self.rules["ideal"]))
        np.add.at(self.item_targets, distinct.ids, 1)
        for k in self.cutoffs:
            head = lists[:, :k]
            self.shown[k][head[head >= 0]] = True
            np.add.at(self.item_hits[k], head[hits[:, :k]], 1)
        if exact is not None:
            true = _is_target(exact, distinct, self.num_items)
            self._append("exact ", user_metrics(true, sizes, self.cutoffs, self.rules["ideal"]))
            self._append(
                "", {f"overlap@{k}": overlap(lists[:, :k], exact[:, :k]) for k in self.cutoffs}
            )

    def _append(self, prefix: str, values: dict[str, np.ndarray]) -> None:
        for name, column in values.items():
            self.values.setdefault(prefix + name, []).append(column.astype(np.float32))

    def finish(self) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        per_user = {name: np.concatenate(parts) for name, parts in self.values.items()}
        means = {name: float(v.mean(dtype=np.float64)) for name, v in per_user.items()}
        means |= {f"coverage@{k}": float(self.shown[k].mean()) for k in self.cutoffs}
        return means, per_user


def _distinct(targets: Ragged, num_items: int) -> Ragged:
    cells = np.unique(targets.cells(num_items))
    counts = np.bincount(cells // num_items, minlength=len(targets))
    return Ragged(np.concatenate([[0], np.cumsum(counts)]), cells % num_items)


def _is_target(lists: np.ndarray, targets: Ragged, num_items: int) -> np.ndarray:
    cells = np.arange(len(lists))[:, None] * np.int64(num_items) + lists
    return np.isin(cells, targets.cells(num_items)) & (lists >= 0)


def user_metrics(
    hits: np.ndarray, sizes: np.ndarray, cutoffs: Sequence[int], ideal: str = "truncated"
) -> dict[str, np.ndarray]:
    """Metrics of each user at each cut-off.

    Args:
        hits: whether each place of the list holds a target, (B, K).
        sizes: number of targets of each user, (B,); 0 gives 0.
        cutoffs: places counted, each at most K.
        ideal: `truncated` divides NDCG and MAP by what k places can reach.
    """
    places = np.arange(1, hits.shape[1] + 1)
    discount = 1 / np.log2(places + 1)
    found = np.cumsum(hits, 1)
    gain = np.cumsum(hits * discount, 1)
    precisions = np.cumsum(hits * found / places, 1)
    first = np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0)
    longest = max(int(sizes.max(initial=1)), hits.shape[1])
    ideals = np.concatenate([[1.0], np.cumsum(1 / np.log2(np.arange(2, longest + 2)))])
    some = np.maximum(sizes, 1)
    out: dict[str, np.ndarray] = {}
    for k in cutoffs:
        n = found[:, k - 1]
        reach = np.minimum(some, k) if ideal == "truncated" else some
        precision, recall = n / k, n / some
        out[f"precision@{k}"] = precision
        out[f"recall@{k}"] = recall
        out[f"f@{k}"] = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        out[f"ndcg@{k}"] = gain[:, k - 1] / ideals[reach]
        out[f"mrr@{k}"] = np.where(first * k >= 1 - 1e-12, first, 0.0)
        out[f"map@{k}"] = precisions[:, k - 1] / reach
        out[f"hit@{k}"] = (n > 0).astype(np.float64)
    return out


def overlap(lists: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Share of each exact list that the other list holds."""
    rows = np.arange(len(lists))[:, None] * (np.int64(max(lists.max(), exact.max())) + 1)
    both = np.isin(rows + exact, (rows + lists)[lists >= 0]) & (exact >= 0)
    return both.sum(1) / np.maximum(1, (exact >= 0).sum(1))
