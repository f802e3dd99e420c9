"""Rank for every user of a holdout and average; no users x items array is ever held."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softdex.data.holdout import Holdout
from softdex.data.ragged import Ragged
from softdex.errors import SoftdexError, choose
from softdex.evaluate.metrics import CONVENTIONS, METRICS, overlap, user_metrics
from softdex.evaluate.result import Result, middle
from softdex.machine import parse_bytes
from softdex.options import check, kinds
from softdex.progress import progress

WORDS = {**CONVENTIONS, "index": ("served", "exact", "both")}
OF_MODELS = {"leak": ("refuse", "allow"), "known_users": ("history", "trained")}
REPORTED = (*METRICS, "coverage")

SAMPLE, KEPT = 1000, 10  # users whose lists a result keeps, and the first places of each
MOST_K = 1000  # cut-offs up to here are fine in smaller catalogues, too

Search = Callable[[Holdout, int, bool], np.ndarray]
"""(rows of a holdout, k, exact) -> item rows (B, k), -1 past the end of a list."""


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
    metrics: str | Sequence[str] | None = None,
    notes: Sequence[str] = (),
    batch: int = 1024,
    keep: list[np.ndarray] | None = None,
) -> Result:
    """Rank all items for every user of a holdout and return mean metrics.

    A holdout of cold items is also ranked among these alone: "cold recall@20".

    Args:
        search: returns the list of each user.
        item_counts: training events per item, for breakdowns by popularity.
        k: one or several cut-offs.
        index: `served` ranks with the index as it serves, `exact` by the model's score of every
            item. `both` ranks twice and adds "exact recall@20" and "overlap@20", the fraction of
            the exact list that is served: it tells the model's loss from the index's.
        empty: `skip` users without targets, or count them as `zero`.
        repeats: `once` counts distinct targets in recall's denominator, `count` every occurrence.
        ideal: `truncated` normalises NDCG and MAP by min(k, number of targets), `full` by the
            number of targets.
        metrics: one name, or several: precision, recall, f, ndcg, mrr, map, hit, coverage. None
            reports all.
        notes: warnings that the result carries.
        batch: users ranked at a time.
        keep: gets the lists (b, K) of each block of users.
    `empty`, `repeats` and `ideal` default to the holdout's protocol, else to the first value named.
    """
    given = {"empty": empty, "repeats": repeats, "ideal": ideal}
    chosen = [k] if isinstance(k, int) else list(k)
    check_rules({"k": chosen, "index": index, "metrics": metrics, **given}, len(holdout.item_keys))
    cutoffs = tuple(sorted({int(c) for c in chosen}))
    rules = {
        name: given[name] or holdout.conventions.get(name, known[0])
        for name, known in CONVENTIONS.items()
    }
    asked = holdout.targets.lengths > 0 if rules["empty"] == "skip" else np.ones(len(holdout))
    rows = np.flatnonzero(asked)
    if not len(rows):
        raise SoftdexError("evaluate: expected targets, got none for any user of the holdout.")
    tally = _Tally(len(holdout.item_keys), cutoffs, rules, _sample(len(rows)))
    blocks = np.split(rows, range(batch, len(rows), batch))
    with progress(blocks, "evaluating") as shown:
        for block in shown:
            part = replace(holdout.take(block), candidates=None)
            lists = search(part, cutoffs[-1], index == "exact")
            exact = search(part, cutoffs[-1], True) if index == "both" else None
            if keep is not None:
                keep.append(lists.astype(np.int32))
            tally.add(part, lists, exact)
            if holdout.candidates is not None:
                alone = replace(part, candidates=holdout.candidates)
                tally.add_also("cold ", part, search(alone, cutoffs[-1], index == "exact"))
    users, lengths = holdout.users[rows], holdout.history.lengths[rows]
    wanted = REPORTED if metrics is None else as_names(metrics)
    means, per_user = tally.finish()
    kept = {name for name in means if _metric(name) in (*wanted, "overlap")}
    means = {name: value for name, value in means.items() if name in kept}
    per_user = {name: values for name, values in per_user.items() if name in kept}
    return Result(
        means, per_user, users, holdout.card.noted(notes), rules, cutoffs, lengths,
        item_counts, tally.item_targets, tally.item_hits, holdout.user_keys, tally.item_lists,
        tally.sampled, np.concatenate(tally.lists), tuple(notes),
    )  # fmt: skip


def is_target(lists: np.ndarray, targets: Ragged, num_items: int) -> np.ndarray:
    """Return which places of lists (B, K) hold a target of their row."""
    cells = np.arange(len(lists))[:, None] * np.int64(num_items) + lists
    return np.isin(cells, targets.cells(num_items)) & (lists >= 0)


def as_names(metrics: str | Sequence[str]) -> list[str]:
    """Return names of metrics as a list; one name may stand alone."""
    return [metrics] if isinstance(metrics, str) else list(metrics)


def _sample(count: int) -> np.ndarray:
    """Return the rows whose lists are kept: all, or some drawn evenly."""
    if count <= SAMPLE:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, SAMPLE, replace=False))


def _metric(name: str) -> str:
    """Return the metric in a name such as "exact recall@20"."""
    return name.removeprefix("exact ").removeprefix("cold ").partition("@")[0]


def check_rules(given: Mapping[str, Any], num_items: int | None = None) -> None:
    """Refuse arguments of `Retriever.evaluate` that make no sense, before any work."""
    known = {
        name: kind for name, kind in kinds(evaluate).items() if name in ("k", "metrics", *WORDS)
    }
    known |= dict.fromkeys(OF_MODELS, str) | {"max_memory": int | str}
    check("evaluate", known, given)
    for name, words in (WORDS | OF_MODELS).items():
        if given.get(name) is not None:
            choose("evaluate", f"value of {name}", given[name], words)
    metrics = given.get("metrics")
    if metrics is not None and not len(metrics):
        raise SoftdexError("evaluate: expected metrics by name, or None for all, got none.")
    for name in as_names(metrics or ()):
        choose("evaluate", "metric", name, REPORTED)
    cutoffs = given.get("k", 1)
    cutoffs = list(cutoffs) if isinstance(cutoffs, Sequence) else [cutoffs]
    if not cutoffs or min(cutoffs) < 1:
        raise SoftdexError(f"evaluate: expected cut-offs k of at least 1, got {cutoffs}.")
    most = None if num_items is None else max(MOST_K, num_items)
    if most is not None and max(cutoffs) > most:
        raise SoftdexError(f"evaluate: expected k of at most {most:,}, got {max(cutoffs):,}.")
    if "max_memory" in given:
        parse_bytes(given["max_memory"])


def check_metric(where: str, metric: str | None, k: int | Sequence[int]) -> str:
    """Return the metric of users that results are ranked by; None: NDCG at the middle cut-off."""
    cutoffs = sorted({k} if isinstance(k, int) else set(k))
    if metric is None:
        return f"ndcg@{middle(cutoffs)}"
    return choose(where, "metric", metric, [f"{m}@{c}" for m in METRICS for c in cutoffs])


class _Tally:
    """Accumulate metrics over blocks of users."""

    def __init__(
        self, num_items: int, cutoffs: tuple[int, ...], rules: dict[str, str], sampled: np.ndarray
    ) -> None:
        self.num_items, self.cutoffs, self.rules = num_items, cutoffs, rules
        self.sampled, self.lists, self.done = sampled, list[np.ndarray](), 0
        self.values: dict[str, list[np.ndarray]] = {}
        self.item_lists = {k: np.zeros(num_items, np.int64) for k in cutoffs}
        self.item_targets = np.zeros(num_items, np.int64)
        self.item_hits = {k: np.zeros(num_items, np.int64) for k in cutoffs}

    def add(self, part: Holdout, lists: np.ndarray, exact: np.ndarray | None) -> None:
        distinct = _distinct(part.targets, self.num_items)
        sizes = part.targets.lengths if self.rules["repeats"] == "count" else distinct.lengths
        hits = is_target(lists, distinct, self.num_items)
        self._append("", user_metrics(hits, sizes, self.cutoffs, self.rules["ideal"]))
        np.add.at(self.item_targets, distinct.ids, 1)
        for k in self.cutoffs:
            head = lists[:, :k]
            np.add.at(self.item_lists[k], head[head >= 0], 1)
            np.add.at(self.item_hits[k], head[hits[:, :k]], 1)
        if exact is not None:
            self.add_also("exact ", part, exact)
            self._append(
                "", {f"overlap@{k}": overlap(lists[:, :k], exact[:, :k]) for k in self.cutoffs}
            )
        here = slice(*np.searchsorted(self.sampled, (self.done, self.done + len(lists))))
        kept = lists[self.sampled[here] - self.done, :KEPT]
        self.lists.append(kept.astype(np.int32))
        self.done += len(lists)

    def add_also(self, prefix: str, part: Holdout, lists: np.ndarray) -> None:
        """Add the metrics of a second ranking of the same users, under other names."""
        distinct = _distinct(part.targets, self.num_items)
        sizes = part.targets.lengths if self.rules["repeats"] == "count" else distinct.lengths
        hits = is_target(lists, distinct, self.num_items)
        self._append(prefix, user_metrics(hits, sizes, self.cutoffs, self.rules["ideal"]))

    def _append(self, prefix: str, values: dict[str, np.ndarray]) -> None:
        for name, column in values.items():
            self.values.setdefault(prefix + name, []).append(column.astype(np.float32))

    def finish(self) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Return the means and the per-user values, both by name."""
        per_user = {name: np.concatenate(parts) for name, parts in self.values.items()}
        means = {name: float(v.mean(dtype=np.float64)) for name, v in per_user.items()}
        means |= {f"coverage@{k}": float((self.item_lists[k] > 0).mean()) for k in self.cutoffs}
        return means, per_user


def _distinct(targets: Ragged, num_items: int) -> Ragged:
    cells = np.unique(targets.cells(num_items))
    counts = np.bincount(cells // num_items, minlength=len(targets))
    return Ragged(np.concatenate([[0], np.cumsum(counts)]), cells % num_items)
