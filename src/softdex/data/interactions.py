"""Interactions: an immutable log of users, items and times, in row numbers beside their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from softdex.data import describe
from softdex.data.arrow import to_pandas
from softdex.data.card import Card
from softdex.data.fingerprint import Coded, fingerprint, key_hashes
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged, group
from softdex.errors import DataError, choose, counted
from softdex.tables import Record

BLOCK = 2**22  # events that are counted at a time


@final
@dataclass(frozen=True, eq=False)
class Interactions:
    """A log of events, one per row: which user interacted with which item, and when.

    Columns are parallel arrays. A log is immutable: every method that filters or merges returns a
    new one. `sdx.read` makes logs.

    Attributes:
        users: user keys, sorted; `user` holds row numbers into them.
        items: item keys, sorted; `item` holds row numbers into them.
        user: the user of each event, int32.
        item: the item of each event, int32.
        time: a number per event that orders each user's events, or None.
        rating: float32 per event, or None. Ratings only filter (`min_rating`).
        weight: float32 per event, finite and above 0, or None. How much the event counts in
            training.
        extra: further columns by name, e.g. a `test` flag.
        item_table: an Arrow table with one row per item key, or None.
        card: the card of the split whose training part this log is, or None.
        user_table: an Arrow table with one row per user key, or None.
        events: what came from an event file: its identity (`store`), the number of its last event
            (`until`) and how many were appended (`events`); or None.
    """

    users: Keys
    items: Keys
    user: np.ndarray
    item: np.ndarray
    time: np.ndarray | None = None
    rating: np.ndarray | None = None
    weight: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    item_table: pa.Table | None = None
    card: Card | None = None
    user_table: pa.Table | None = None
    events: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        own = (self.user, self.item, self.time, self.rating, self.weight)
        for column in (*own, *self.extra.values()):
            if column is not None:
                _freeze(column)
        if self.weight is not None:
            _check_weights(self.weight)

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        users, items = counted(self.num_users, "users"), counted(self.num_items, "items")
        return f"Interactions({counted(len(self), 'rows')}, {users}, {items})"

    def _repr_html_(self) -> str:
        return describe.as_html(self)

    @property
    def num_users(self) -> int:
        """Number of user keys, including users without an event in this log."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Number of item keys, including items without an event in this log."""
        return len(self.items)

    @cached_property
    def sha256(self) -> str:
        """Hash of the events by their keys and values, whatever the order of rows and columns."""
        columns: dict[str, Coded | np.ndarray] = {
            f.name: column
            for f in fields(self)
            if isinstance(column := getattr(self, f.name), np.ndarray)
        }
        columns["user"] = Coded(key_hashes(self.users), self.user)
        columns["item"] = Coded(key_hashes(self.items), self.item)
        return fingerprint(columns | {f"extra {name}": c for name, c in self.extra.items()})

    def csr(self, *, binary: bool = False) -> sp.csr_matrix:
        """Users x items (float32): summed weights, or the number of events without weights.

        Args:
            binary: 1 wherever there is an event, instead.
        """
        data = np.ones(len(self), np.float32) if self.weight is None else self.weight
        shape = (self.num_users, self.num_items)
        matrix = sp.csr_matrix((data, (self.user, self.item)), shape=shape)
        if binary:
            matrix.data[:] = 1.0
        return matrix

    @cached_property
    def confidences(self) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Confidence of each (user, item) pair, users x items and items x users.

        The summed weights of a pair; without weights 1, however often the pair occurs.
        """
        by_user = self.csr(binary=self.weight is None)
        return by_user, by_user.T.tocsr()

    @cached_property
    def histories(self) -> Ragged:
        """Items per user, oldest first; ties, and logs without time, keep the order of the rows."""
        found = group(self.user, self.item, self.num_users, by=self.time)
        return Ragged(_freeze(found.indptr), _freeze(found.ids))

    @cached_property
    def item_counts(self) -> np.ndarray:
        """Events per item."""
        return _freeze(_counted(self.item, self.num_items))

    @cached_property
    def user_counts(self) -> np.ndarray:
        """Events per user."""
        return _freeze(_counted(self.user, self.num_users))

    def select(self, rows: np.ndarray) -> Interactions:
        """Keep these events (a mask or indices). Keys and row numbers stay as they are."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            time=None if self.time is None else self.time[rows],
            rating=None if self.rating is None else self.rating[rows],
            weight=None if self.weight is None else self.weight[rows],
            extra={name: column[rows] for name, column in self.extra.items()},
            card=None,
        )

    def compact(self) -> Interactions:
        """Drop keys without an event, and renumber the rest."""
        keep_users, keep_items = self.user_counts > 0, self.item_counts > 0
        return replace(
            self,
            users=_filter_keys(self.users, keep_users),
            items=_filter_keys(self.items, keep_items),
            user=(np.cumsum(keep_users, dtype=np.int32) - 1)[self.user],
            item=(np.cumsum(keep_items, dtype=np.int32) - 1)[self.item],
            item_table=_filter_table(self.item_table, keep_items),
            card=None,
            user_table=_filter_table(self.user_table, keep_users),
        )

    def min_rating(self, threshold: float) -> Interactions:
        """Keep events rated `threshold` or more; drop users and items left without events."""
        if self.rating is None:
            raise DataError("min_rating: the log has no rating column. Name one: read(rating=...).")
        return self.select(self.rating >= threshold).compact()

    def deduplicate(self, keep: str = "last") -> Interactions:
        """Merge repeated (user, item) pairs.

        Args:
            keep: `last` keeps the latest event of each pair; `sum` keeps it too, weighted by the
                sum over the pair (each event counts 1 in a log without weights); `keep` changes
                nothing.
        """
        choose("deduplicate", "repeat rule", keep, ("keep", "last", "sum"))
        if keep == "keep" or not len(self):
            return self
        pair = self.user * np.int64(self.num_items) + self.item
        order = (
            np.argsort(pair, kind="stable") if self.time is None else np.lexsort((self.time, pair))
        )
        last = np.append(np.diff(pair[order]) != 0, True)
        rows = order[last]
        kept = self.select(np.sort(rows))
        if keep == "last":
            return kept
        weight = np.ones(len(self), np.float32) if self.weight is None else self.weight
        total = np.bincount(np.cumsum(np.append(0, last[:-1])), weights=weight[order])
        return replace(kept, weight=total.astype(np.float32)[np.argsort(rows)])

    def k_core(self, users: int, items: int | None = None) -> Interactions:
        """Drop users and items with too few events, repeatedly, until all that remain have enough.

        Args:
            users: fewest events per user.
            items: fewest events per item; None takes the same number.
        """
        items = users if items is None else items
        keep = np.ones(len(self), bool)
        while True:
            by_user = np.bincount(self.user[keep], minlength=self.num_users)
            by_item = np.bincount(self.item[keep], minlength=self.num_items)
            enough = keep & (by_user[self.user] >= users) & (by_item[self.item] >= items)
            if enough.sum() == keep.sum():
                return self.select(keep).compact()
            keep = enough

    def to_arrow(self) -> pa.Table:
        """The log as an Arrow table with keys instead of row numbers; `read` accepts it."""
        columns = {"user": self.users.take(self.user), "item": self.items.take(self.item)}
        for name in ("time", "rating", "weight"):
            if getattr(self, name) is not None:
                columns[name] = pa.array(getattr(self, name))
        further = {name: pa.array(c) for name, c in self.extra.items() if name not in columns}
        return pa.table(columns | further)

    def to_pandas(self) -> Any:
        """The log as a pandas data frame with keys instead of row numbers; `read` accepts it."""
        return to_pandas("log.to_pandas", self.to_arrow())

    def repeats(self) -> int:
        """Number of events that repeat an earlier (user, item) pair."""
        return len(self) - self.csr().nnz

    def describe(self) -> Record:
        """Counts, density, time span, popularity skew and the warnings of `lint`.

        The result is a mapping that prints as a table.
        """
        return describe.describe(self)

    def lint(self) -> list[str]:
        """What looks wrong with this log, one sentence per finding; empty if nothing does."""
        return describe.lint(self)


def _counted(column: np.ndarray, n: int) -> np.ndarray:
    """How often each number up to n occurs, in blocks: bincount would copy a column as int64."""
    total, size = np.zeros(n, np.int64), max(BLOCK, n)
    for start in range(0, len(column), size):
        total += np.bincount(column[start : start + size], minlength=n)
    return total


def _freeze(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _check_weights(weight: np.ndarray) -> None:
    """Raise unless the weights are above 0 and sum to what a float32 holds."""
    wrong = ~(weight > 0) | ~np.isfinite(weight)
    if wrong.any():
        raise DataError(
            f"Interactions: expected finite weights above 0, got {weight[wrong][0]} at row "
            f"{int(np.argmax(wrong))}. An event of weight 0 counts for nothing: leave it out."
        )
    total = float(weight.sum(dtype=np.float64))
    if total > float(np.finfo(np.float32).max):
        raise DataError(
            f"Interactions: the weights sum to {total:.3g}, more than a float32 holds. Scale them "
            "down, or pass weight=False to read."
        )


def _filter_keys(keys: Keys, keep: np.ndarray) -> Keys:
    return keys if keep.all() else Keys(keys.values.filter(pa.array(keep)), keys.type)


def _filter_table(table: pa.Table | None, keep: np.ndarray) -> pa.Table | None:
    return None if table is None else table.filter(pa.array(keep))
