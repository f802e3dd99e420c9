"""Describe a log: its size, density, time span and popularity skew, and what looks wrong."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex import notebook
from softdex.data.keys import Keys
from softdex.errors import counted
from softdex.tables import Record

if TYPE_CHECKING:
    from softdex.data.interactions import Interactions

HEAD = 5  # events in a notebook


def describe(log: Interactions) -> Record:
    """Summarise a log; see `Interactions.describe`."""
    users, items = int((log.user_counts > 0).sum()), int((log.item_counts > 0).sum())
    facts: dict[str, Any] = {"rows": len(log), "users": users, "items": items}
    if users < log.num_users:
        facts["users without a row"] = log.num_users - users
    if items < log.num_items:
        facts["items without a row"] = log.num_items - items
    if not len(log):
        return Record("Interactions", facts)
    counts = np.sort(log.item_counts[log.item_counts > 0])[::-1]
    facts["density"] = f"{len(log) / (users * items):.4%}"
    facts["rows per user"] = _spread(log.user_counts[log.user_counts > 0])
    facts["rows per item"] = _spread(counts)
    facts["repeated pairs"] = log.repeats()
    facts["time"] = "none" if log.time is None else time_span(log.time)
    top = counts[: max(1, items // 100)].sum() / counts.sum()
    facts["popularity"] = f"top 1 % of items take {top:.1%}; Gini {gini(counts):.2f}"
    for what, table in (("item", log.item_table), ("user", log.user_table)):
        if table is not None:
            facts[f"{what} columns"] = ", ".join(table.column_names)
    for i, warning in enumerate(lint(log), 1):
        facts[f"warning {i}"] = warning
    return Record("Interactions", facts)


def as_html(log: Interactions) -> str:
    """Return what is known of a log without a look at all of it, and its first events."""
    known: dict[str, Any] = {}
    if log.time is not None and len(log):
        known["time"] = time_span(np.array([log.time.min(), log.time.max()]))
    for what, table in (("item", log.item_table), ("user", log.user_table)):
        if table is not None:
            known[f"{what} columns"] = ", ".join(table.column_names)
    head = log.select(np.arange(min(HEAD, len(log)))).to_arrow()
    rows = [list(row.values()) for row in head.to_pylist()]
    return notebook.page(
        notebook.title(repr(log)),
        notebook.facts(known) if known else "",
        notebook.table(head.column_names, rows, len(log)),
    )


def lint(log: Interactions) -> list[str]:
    """Find what looks wrong in a log; see `Interactions.lint`."""
    found = []
    if log.time is not None and len(log) > 1:
        if log.time.min() == log.time.max():
            found.append("all times are equal: histories fall back to the order of the rows")
        elif not _sorted_per_user(log.user, log.time):
            found.append("rows are not in time order per user: histories are sorted by time")
    single = int((log.user_counts == 1).sum())
    if single:
        found.append(f"{counted(single, 'users')} with one row: nothing of theirs can be held out")
    for name, keys in (("user", log.users), ("item", log.items)):
        if _looks_like_floats(keys):
            found.append(
                f"{name} ids look like floats ({keys.values[0]}): integers that passed through "
                "a column with nulls? Cast them to int64 before reading"
            )
        if pc.any(pc.match_substring_regex(_strings(keys), r"^\s|\s$")).as_py():
            found.append(f"some {name} ids start or end with a blank: 'a' and 'a ' are two keys")
    return found


def _sorted_per_user(user: np.ndarray, time: np.ndarray) -> bool:
    earlier = np.diff(time[np.argsort(user, kind="stable")]) < 0
    same_user = np.diff(np.sort(user)) == 0
    return not earlier[same_user].any()


def _spread(counts: np.ndarray) -> str:
    low, middle, high = counts.min(), np.median(counts), counts.max()
    return f"{low:,} .. {high:,}, median {middle:g}, mean {counts.mean():.1f}"


def _strings(keys: Keys) -> pa.Array:
    return keys.values if pa.types.is_string(keys.values.type) else pa.array([], pa.string())


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
    """Gini coefficient of counts: 0 if all are equal, towards 1 as one takes everything."""
    ordered = np.sort(counts).astype(np.float64)
    n, total = len(ordered), ordered.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * total)) if total else 0.0


def time_span(time: np.ndarray) -> str:
    """First and last time, as dates if the numbers look like Unix time in some unit."""
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
