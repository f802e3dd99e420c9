"""A small log in plain rows, so that a loop can read it without the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import softdex as sdx

LENGTHS = (5, 4, 9, 1, 6, 3, 7, 4)
GENRES = [["a"], ["b", "c"], [], ["a", "c"], ["c"], ["b"], ["a"], ["c", "b"], ["d"], ["a"], ["e"]]
PRICES = [1.0, 2.5, None, 4.0, 0.5, 7.0, 2.0, 3.0, 1.5, 9.0, 4.5]


class Plain(NamedTuple):
    """A log, and its rows (user, item, time, weight) by the row numbers of sorted keys."""

    log: sdx.Interactions
    rows: list[tuple[int, int, float, float]]
    users: list[str]
    items: list[str]

    def history(self, user: int) -> list[tuple[int, float]]:
        """Items of a user with their weights, oldest first; ties in the order of the rows."""
        mine = [(time, n) for n, (u, _, time, _) in enumerate(self.rows) if u == user]
        return [(self.rows[n][1], self.rows[n][3]) for _, n in sorted(mine)]

    @property
    def counts(self) -> list[int]:
        """Events per item."""
        return [sum(item == row[1] for row in self.rows) for item in range(len(self.items))]

    def confidence(self) -> np.ndarray:
        """Summed weights per user and item, of a log without weights 1."""
        found = np.zeros((len(self.users), len(self.items)))
        for user, item, _, weight in self.rows:
            found[user, item] += weight
        return found if self.log.weight is not None else (found > 0).astype(float)


def world(*, weights: bool = True, table: bool = False, repeats: bool = True) -> Plain:
    """8 users and 11 items, events in any order, ties and a repeat; one item has no event."""
    rng = np.random.default_rng(11)
    rows: list[tuple[str, str, float, float]] = []
    for user, length in enumerate(LENGTHS):
        chance = 1.0 / np.arange(1, 11)
        items = rng.choice(10, length, replace=False, p=chance / chance.sum())
        for place, item in enumerate(items):
            time = 100.0 + 10 * (place - (place == 3 and user == 4))  # a tie
            rows.append((f"u{user}", f"i{item}", time, 0.5 + (2 * user + 3 * int(item)) % 5 / 2))
        if user == 2 and repeats:
            rows.append((f"u{user}", f"i{items[1]}", 165.0, 1.5))
    rows = [rows[n] for n in rng.permutation(len(rows))]
    every = [f"i{item}" for item in range(11)] if table else sorted({row[1] for row in rows})
    users, items_ = sorted({row[0] for row in rows}), sorted(every)
    columns: dict[str, Any] = {
        name: [row[n] for row in rows] for n, name in enumerate(("user", "item", "time", "weight"))
    }
    if not weights:
        del columns["weight"]
    given: dict[str, Any] = {}
    if table:
        names = [f"i{item}" for item in range(11)]
        given["items"] = pa.table({"item": names, "price": PRICES, "genre": GENRES})
    log = sdx.read(columns, **given)
    plain = [(users.index(u), items_.index(i), t, w if weights else 1.0) for u, i, t, w in rows]
    assert (log.users.all().to_pylist(), log.items.all().to_pylist()) == (users, items_)
    return Plain(log, plain, users, items_)


def held(plain: Plain) -> tuple[Plain, sdx.Holdout]:
    """The log without the last event of each user, and these events."""
    train, _, last = sdx.split.leave_last(plain.log, valid=False)
    left = [plain.history(u)[-1][0] for u in range(len(plain.users))]
    wanted = [left[u] for u, n in zip(last.users, last.targets.lengths, strict=True) if n]
    assert last.targets.ids.tolist() == wanted
    time = [float(t) for t in train.time] if train.time is not None else []
    weight = np.ones(len(train)) if train.weight is None else train.weight
    rows = list(zip(train.user.tolist(), train.item.tolist(), time, weight.tolist(), strict=True))
    return plain._replace(log=train, rows=rows), last


def check_metrics(found: Any, plain: Plain, last: sdx.Holdout, scores: Any, k: int = 20) -> None:
    """NDCG and recall of the lists by scores(user), items of the log left out."""
    gains, recalls = [], []
    for at, user in enumerate(last.users.tolist()):
        target = set(
            last.targets.ids[last.targets.indptr[at] : last.targets.indptr[at + 1]].tolist()
        )
        if not target:
            continue
        seen = {item for item, _ in plain.history(user)}
        ranks = [n for n, (i, _) in enumerate(best(scores(user), k, seen)) if i in target]
        gains.append(
            sum(1 / np.log2(n + 2) for n in ranks)
            / sum(1 / np.log2(n + 2) for n in range(len(target)))
        )
        recalls.append(len(ranks) / len(target))
    for name, values in (("ndcg", gains), ("recall", recalls)):
        wanted = float(np.mean(values))
        assert abs(found.get(f"{name}@{k}", wanted) - wanted) < 1e-4


def best(scores: Any, k: int, out: set[int]) -> list[tuple[int, float]]:
    """The top k items that are not out, ties by number; none of minus infinity."""
    order = sorted((-score, item) for item, score in enumerate(scores) if item not in out)
    return [(item, -low) for low, item in order[:k] if low < np.inf]


def same_lists(found: Any, names: list[str], wanted: dict[Any, list[tuple[int, float]]]) -> None:
    """The table of lists holds these items with these scores."""
    lists: dict[Any, list[tuple[str, float]]] = {name: [] for name in wanted}
    for user, item, score in zip(
        *(found[c].to_pylist() for c in ("user", "item", "score")), strict=True
    ):
        lists[user].append((item, score))
    for name, pairs in wanted.items():
        got = lists[name]
        np.testing.assert_allclose([s for _, s in got], [s for _, s in pairs], 2e-4, 2e-4)
        tied = len({round(s, 3) for _, s in pairs}) < len(pairs)
        if not tied:
            assert [i for i, _ in got] == [names[i] for i, _ in pairs], name


@contextmanager
def measured(*values: float) -> Iterator[None]:
    """Measure these numbers after the epochs of a training with `valid`."""
    left = iter(values)
    with patch("softdex.model.learn.measurer", lambda *a, **k: lambda: next(left)):
        yield
