"""Interactions: an immutable log of (user, item, time) in row numbers, keys kept aside."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from softdex.data.keys import Keys
from softdex.data.ragged import Ragged, group
from softdex.errors import DataError, choose
from softdex.tables import Record


@final
@dataclass(frozen=True, eq=False)
class Interactions:
    """A log. Columns are parallel arrays; nothing in it ever changes.

    Attributes:
        users, items: keys; `user` and `item` are rows into them.
        time: any number that orders a user's events, or None.
        rating, weight: float32, or None. A rating is an opinion and only filters
            (`min_rating`); a weight says how much an event counts.
        extra: other columns that were asked for (a `test` flag, say).
        item_table: one row per item key, or None.
        card: how the split was made that this log is the training part of, or None.
        user_table: one row per user key, or None.
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
    card: Mapping[str, Any] | None = None
    user_table: pa.Table | None = None

    def __post_init__(self) -> None:
        own = (self.user, self.item, self.time, self.rating, self.weight)
        for column in (*own, *self.extra.values()):
            if column is not None:
                _freeze(column)

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return (
            f"Interactions({len(self):,} rows, {self.num_users:,} users, {self.num_items:,} items)"
        )

    @property
    def num_users(self) -> int:
        """Number of user keys, those without a row in this log included."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Number of item keys, those without a row in this log included."""
        return len(self.items)

    @cached_property
    def sha256(self) -> str:
        """Hash of keys and columns: the same log has the same hash on every machine."""
        digest = hashlib.sha256(f"{self.users.sha256}{self.items.sha256}".encode())
        for f in fields(self):
            column = getattr(self, f.name)
            if isinstance(column, np.ndarray):
                digest.update(f"{f.name}{column.dtype}".encode())
                digest.update(np.ascontiguousarray(column).data)
        for name, column in sorted(self.extra.items()):
            plain = column.dtype.kind in "biuf"
            digest.update(f"{name}{column.dtype}".encode())
            digest.update(column.tobytes() if plain else repr(column.tolist()).encode())
        return digest.hexdigest()

    def csr(self, *, binary: bool = False) -> sp.csr_matrix:
        """Users x items (float32): summed weights, or 1 wherever there is an event."""
        data = np.ones(len(self), np.float32) if self.weight is None else self.weight
        shape = (self.num_users, self.num_items)
        matrix = sp.csr_matrix((data, (self.user, self.item)), shape=shape)
        if binary:
            matrix.data[:] = 1.0
        return matrix

    @cached_property
    def confidences(self) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """What each pair of user and item counts, by user and by item: its weights, or 1 once."""
        by_user = self.csr(binary=self.weight is None)
        return by_user, by_user.T.tocsr()

    @cached_property
    def histories(self) -> Ragged:
        """Each user's items, oldest first; file order where there is no time, or a tie."""
        found = group(self.user, self.item, self.num_users, by=self.time)
        return Ragged(_freeze(found.indptr), _freeze(found.ids))

    @cached_property
    def item_counts(self) -> np.ndarray:
        """Events per item."""
        return _freeze(np.bincount(self.item, minlength=self.num_items))

    @cached_property
    def user_counts(self) -> np.ndarray:
        """Events per user."""
        return _freeze(np.bincount(self.user, minlength=self.num_users))

    def select(self, rows: np.ndarray) -> Interactions:
        """The rows of a mask or an index array; keys stay as they are."""
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
        """Forget the keys that no row uses."""
        keep_users, keep_items = self.user_counts > 0, self.item_counts > 0
        return replace(
            self,
            users=_subset(self.users, keep_users),
            items=_subset(self.items, keep_items),
            user=(np.cumsum(keep_users, dtype=np.int32) - 1)[self.user],
            item=(np.cumsum(keep_items, dtype=np.int32) - 1)[self.item],
            item_table=_kept(self.item_table, keep_items),
            card=None,
            user_table=_kept(self.user_table, keep_users),
        )

    def min_rating(self, threshold: float) -> Interactions:
        """Only the rows rated at least so high; users and items left empty are dropped."""
        if self.rating is None:
            raise DataError("min_rating: the log has no rating column. Name one: read(rating=...).")
        return self.select(self.rating >= threshold).compact()

    def deduplicate(self, keep: str = "last") -> Interactions:
        """Merge repeats of a (user, item) pair.

        `last` keeps the latest event of each pair, `sum` also adds up the weights (1 each when
        there are none), `keep` changes nothing.
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
        """Drop users and items with too few rows, again and again until all have enough."""
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
        """The log with its keys, as it can be read again."""
        columns = {"user": self.users.take(self.user), "item": self.items.take(self.item)}
        for name in ("time", "rating", "weight"):
            if getattr(self, name) is not None:
                columns[name] = pa.array(getattr(self, name))
        further = {name: pa.array(c) for name, c in self.extra.items() if name not in columns}
        return pa.table(columns | further)

    def repeats(self) -> int:
        """How many rows repeat an earlier (user, item) pair."""
        return len(self) - self.csr().nnz

    def describe(self) -> Record:
        """Counts, density, time span, popularity skew and the linter's warnings."""
        users, items = int((self.user_counts > 0).sum()), int((self.item_counts > 0).sum())
        counts = np.sort(self.item_counts[self.item_counts > 0])[::-1]
        facts: dict[str, Any] = {"rows": len(self), "users": users, "items": items}
        if users < self.num_users:
            facts["users without a row"] = self.num_users - users
        if items < self.num_items:
            facts["items without a row"] = self.num_items - items
        if not len(self):
            return Record("Interactions", facts)
        facts["density"] = f"{len(self) / (users * items):.4%}"
        per_user = self.user_counts[self.user_counts > 0]
        facts["rows per user"] = _spread(per_user)
        facts["rows per item"] = _spread(counts)
        facts["repeated pairs"] = self.repeats()
        facts["time"] = "none" if self.time is None else span(self.time)
        top = counts[: max(1, items // 100)].sum() / counts.sum()
        facts["popularity"] = f"top 1 % of items take {top:.1%}; Gini {gini(counts):.2f}"
        for what, table in (("item", self.item_table), ("user", self.user_table)):
            if table is not None:
                facts[f"{what} columns"] = ", ".join(table.column_names)
        for i, warning in enumerate(self.lint(), 1):
            facts[f"warning {i}"] = warning
        return Record("Interactions", facts)

    def lint(self) -> list[str]:
        """What looks wrong with this log, one sentence each; empty when nothing does."""
        found = []
        if self.time is not None and len(self) > 1:
            if self.time.min() == self.time.max():
                found.append("all times are equal: order falls back to the order of the rows")
            elif (np.diff(self.time[np.argsort(self.user, kind="stable")]) < 0)[
                np.diff(np.sort(self.user)) == 0
            ].any():
                found.append("times are unsorted inside users: histories are sorted by time")
        single = int((self.user_counts == 1).sum())
        if single:
            found.append(f"{single:,} users have one row: nothing of theirs can be held out")
        for name, keys in (("user", self.users), ("item", self.items)):
            if _looks_like_floats(keys):
                found.append(
                    f"{name} ids look like floats ({keys.values[0]}): integers that passed through "
                    "a column with nulls? Cast them to int64 before reading"
                )
            if pc.any(pc.match_substring_regex(_texts(keys), r"^\s|\s$")).as_py():
                found.append(f"some {name} ids have blanks around them: 'a' and 'a ' differ")
        return found


def _freeze(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _texts(keys: Keys) -> pa.Array:
    return keys.values if pa.types.is_string(keys.values.type) else pa.array([], pa.string())


def _subset(keys: Keys, keep: np.ndarray) -> Keys:
    return keys if keep.all() else Keys(keys.values.filter(pa.array(keep)), keys.type)


def _kept(table: pa.Table | None, keep: np.ndarray) -> pa.Table | None:
    return None if table is None else table.filter(pa.array(keep))


def _spread(counts: np.ndarray) -> str:
    low, middle, high = counts.min(), np.median(counts), counts.max()
    return f"{low:,} .. {high:,}, median {middle:g}, mean {counts.mean():.1f}"


def _looks_like_floats(keys: Keys) -> bool:
    head = keys.values.slice(0, 1000)
    if not len(head):
        return False
    if pa.types.is_floating(head.type):
        return True
    if not pa.types.is_string(head.type):
        return False
    return bool(pc.all(pc.match_substring_regex(head, r"^-?\d+\.0*$")).as_py())


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of counts: 0 when all are equal, towards 1 when one has everything."""
    ordered = np.sort(counts).astype(np.float64)
    n = len(ordered)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def span(time: np.ndarray) -> str:
    """First and last time, as dates when the numbers look like Unix time."""
    first, last = float(time.min()), float(time.max())
    size = abs(float(np.median(time)))
    for scale, floor in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11), (1.0, 1e8)):
        if size >= floor:
            epoch = dt.datetime(1970, 1, 1)
            try:
                start, stop = (epoch + dt.timedelta(seconds=t / scale) for t in (first, last))
            except OverflowError:
                break
            return f"{start:%Y-%m-%d} .. {stop:%Y-%m-%d}"
    return f"{first:g} .. {last:g}"
