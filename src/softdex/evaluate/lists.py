"""Evaluate lists that were made elsewhere, from a table of users, items, and ranks or scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from softdex.data.expect import expect
from softdex.data.holdout import Holdout
from softdex.data.keys import find
from softdex.data.ragged import Ragged, among, group, offsets
from softdex.data.roles import find_key_column
from softdex.data.sources import open_source
from softdex.errors import DataError, choose, first_few
from softdex.evaluate.evaluate import check_rules
from softdex.evaluate.evaluate import evaluate as ranked
from softdex.evaluate.result import Result
from softdex.messages import say

WHERE = "evaluate"


def evaluate(
    lists: Any,
    holdout: Holdout,
    k: int | Sequence[int] = (10, 20, 50),
    *,
    metrics: str | Sequence[str] | None = None,
    user: str | None = None,
    item: str | None = None,
    rank: str | None = None,
    score: str | None = None,
    empty: str | None = None,
    repeats: str | None = None,
    ideal: str | None = None,
) -> Result:
    """Measure recommendations that were made elsewhere, as `model.evaluate` measures a model.

    Users of the holdout without a list count as an empty list; rows of other users are ignored. An
    item that the log does not know keeps its place and is never a target. Masked items, and an item
    that comes again in a list, leave their place to the next. All are counted in notes.

    Args:
        lists: a path, or anything that `read` takes, with a row per user and item.
        holdout: the validation or test part of a split.
        k: one cut-off, or several.
        metrics: names such as "recall" or ["ndcg", "mrr"]; None reports all.
        user, item: columns of keys; None finds them by their usual names.
        rank: column of ranks, the best first; None takes `rank` if there is one.
        score: column of scores, the best last; None takes `score` if there is no rank. Equal ranks
            and equal scores keep the order of the rows.
        empty, repeats, ideal: as in `model.evaluate`.

    Example:
        >>> import softdex as sdx
        >>> log = sdx.read([("ann", "tea", 1), ("ann", "jam", 2), ("bob", "tea", 1)], quiet=True)
        >>> test = sdx.split.leave_last(log, valid=False).test
        >>> found = {"user": ["ann", "ann"], "item": ["egg", "jam"], "rank": [1, 2]}
        >>> sdx.evaluate(found, test, k=2)["mrr@2"]
        0.5
    """
    expect(Holdout, WHERE, holdout)
    if hasattr(lists, "evaluate"):
        raise DataError(
            f"{WHERE}: expected lists as a table of users, items, and ranks or scores, got a "
            f"{type(lists).__name__}. Use model.evaluate(holdout)."
        )
    check_rules({"k": k, "metrics": metrics}, len(holdout.item_keys))
    asked = np.flatnonzero(holdout.targets.lengths)
    if len(np.unique(holdout.users)) < len(holdout):
        raise DataError(
            f"{WHERE}: this holdout asks several times per user (a list per prefix of a session), "
            "which a table of users and items cannot answer. Use model.evaluate."
        )
    users, items, notes = _in_order(lists, holdout, user, item, rank, score)
    found = group(users, items, len(holdout))
    missing = int((found.lengths[asked] == 0).sum())
    if missing:
        notes.append(f"{missing:,} of {len(asked):,} users have no list and count as an empty one")
    for note in notes:
        say(f"{WHERE}: {note}")
    row_of = np.full(len(holdout.user_keys), -1)
    row_of[holdout.users] = np.arange(len(holdout))

    def search(part: Holdout, most: int, exact: bool) -> np.ndarray:
        return _padded(found.take(row_of[part.users]), most)

    counts = np.bincount(holdout.history.ids, minlength=len(holdout.item_keys))
    return ranked(
        search, replace(holdout, candidates=None), item_counts=counts, k=k, metrics=metrics,
        notes=notes, empty=empty, repeats=repeats, ideal=ideal,
    )  # fmt: skip


def _in_order(
    source: Any,
    holdout: Holdout,
    user: str | None,
    item: str | None,
    rank: str | None,
    score: str | None,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the row of the holdout and the item of each place, best first, -1 for an item that the
    log does not know; and notes on what was left out."""
    table, by, falling = _columns(source, user, item, rank, score)
    users = find(holdout.user_keys, table["user"], WHERE, "users", known=False)
    items = find(holdout.item_keys, table["item"], WHERE, "items", known=False)
    row_of = np.full(len(holdout.user_keys) + 1, -1)
    row_of[holdout.users] = np.arange(len(holdout))
    rows = row_of[users]
    order = np.lexsort((-by if falling else by, rows))
    order = order[rows[order] >= 0]
    notes = []
    if len(order) < len(rows):
        notes.append(f"{len(rows) - len(order):,} rows are of users who are not asked about")
    rows, items, names = rows[order], items[order], table["item"].take(pa.array(order))
    unknown = items < 0
    if unknown.any():
        shown = first_few(map(repr, names.filter(pa.array(unknown)).unique().to_pylist()))
        notes.append(f"{int(unknown.sum()):,} rows have items that the log does not know ({shown})")
    cells = rows * np.int64(len(holdout.item_keys)) + items
    masked = ~unknown & among(cells, holdout.masked.cells(len(holdout.item_keys)))
    if masked.any():
        notes.append(f"{int(masked.sum()):,} rows have masked items and are left out")
    known = np.flatnonzero(~unknown & ~masked)
    again = ~unknown & ~masked
    again[known[np.unique(cells[known], return_index=True)[1]]] = False
    if again.any():
        notes.append(f"{int(again.sum()):,} rows repeat an item of their list and are left out")
    keep = ~masked & ~again
    return rows[keep], items[keep], notes


def _columns(
    source: Any, user: str | None, item: str | None, rank: str | None, score: str | None
) -> tuple[pa.Table, np.ndarray, bool]:
    """Return users and items as a table, the column that orders them, and whether it falls."""
    opened = open_source(source, None, "utf-8")
    for name in (user, item, rank, score):
        if name is not None:
            choose(WHERE, "column", name, opened.names)
    keys = [find_key_column(opened, "user", user), find_key_column(opened, "item", item)]
    if rank is not None and score is not None:
        raise DataError(f"{WHERE}: expected rank= or score=, got both. Name one.")
    by = rank or score or next((name for name in ("rank", "score") if name in opened.names), None)
    if by not in opened.names:
        raise DataError(
            f"{WHERE}: expected a column of ranks or scores, got {first_few(opened.names)}. Name "
            "it: rank=... or score=..."
        )
    fetched = opened.fetch([*keys, by], keys)
    table = fetched.table
    if fetched.problems or any(table[name].null_count for name in (*keys, by)):
        raise DataError(f"{WHERE}: {opened.label} has rows without a user, an item or a {by}.")
    try:
        values = table[by].cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        kind = table[by].type
        raise DataError(f"{WHERE}: expected numbers in column {by!r}, got {kind}.") from None
    if not np.isfinite(values).all():
        raise DataError(f"{WHERE}: column {by!r} holds numbers that are not finite.")
    falling = score is not None or (rank is None and by == "score")
    return pa.table({"user": table[keys[0]], "item": table[keys[1]]}), values, falling


def _padded(lists: Ragged, most: int) -> np.ndarray:
    """Return the first `most` items of each list, (B, most), -1 after the end."""
    lengths = np.minimum(lists.lengths, most)
    out = np.full((len(lists), most), -1, np.int64)
    place = np.arange(lengths.sum()) - np.repeat(offsets(lengths)[:-1], lengths)
    row = np.repeat(np.arange(len(lists)), lengths)
    out[row, place] = lists.ids[lists.indptr[:-1][row] + place]
    return out
