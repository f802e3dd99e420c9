"""Next item: whole sessions are held out, and each of their clicks is asked for by those before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softdex.data.card import Card
from softdex.data.holdout import TEST, TRAIN, VALID, Holdout, Split, join
from softdex.data.interactions import Interactions
from softdex.data.ragged import Ragged, empty, group, offsets
from softdex.data.split.parts import (
    Count,
    Seed,
    check_ratios,
    checked,
    clock,
    generator,
    in_shares,
    parts_from_column,
)
from softdex.errors import DataError, choose, did_you_mean


@checked
def next_item(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    column: str | None = None,
    order: str = "time",
    history: Count = 50,
    seed: Seed = 0,
) -> Split:
    """Hold out whole sessions; each prefix of a held-out session asks for its next click.

    A user of the log is a session. Nothing is masked: a repeated click is a target. A holdout has a
    row per prefix, so metrics are means over clicks.

    Args:
        log: the log to split; clicks of a session are in order of time, or of the rows if the log
            has no time.
        ratios: shares of sessions: (train, test) or (train, valid, test).
        column: take the test sessions from this column instead, as `given` does. Three ratios still
            hold out validation sessions, drawn from those in train, if the column names none.
        order: what puts sessions in order, the latest are test: the `time` of their last click, the
            `rows`, or `random`.
        history: latest clicks of a prefix that a model sees.
        seed: of a random order.

    Returns:
        `(train, valid, test)`; valid is None if nothing is held out for validation.
    """
    shares = check_ratios("next_item", ratios)
    arguments = {"ratios": list(ratios), "history": history, "seed": seed}
    if column is None:
        role = in_shares(_in_order(log, order, seed), shares, log.num_users)
        arguments |= {"order": order}
    else:
        role = _given(log, column, shares, seed)
        arguments |= {"column": column}
    clicks = group(log.user, log.item, log.num_users, by=log.time)
    blank = Card("next_item", arguments, {}, log.sha256, "")
    train = log.select(role[log.user] == TRAIN)
    valid, test = (_prefixes(log, clicks, role == part, history, blank) for part in (VALID, TEST))
    if not len(train) or not len(test):
        raise DataError(
            f"split.next_item: {log!r} has no session to train on, or none with two clicks to "
            "test. Use a log with more sessions."
        )
    return join(train, valid if len(valid) else None, test, blank)


def _in_order(log: Interactions, order: str, seed: int) -> np.ndarray:
    """Return the users with events in an order of their sessions."""
    choose("split.next_item", "order", order, ("time", "rows", "random"))
    users = np.flatnonzero(log.user_counts)
    if order == "random":
        return generator(seed).permutation(users)
    if order == "time":
        time = clock("next_item", log, "Pass order='rows' or 'random' to divide the sessions.")
        last = np.full(log.num_users, -np.inf)
        np.maximum.at(last, log.user, time)
        return users[np.argsort(last[users], kind="stable")]
    first = np.full(log.num_users, len(log))
    np.minimum.at(first, log.user, np.arange(len(log)))
    return users[np.argsort(first[users])]


def _given(log: Interactions, column: str, shares: list[float], seed: int) -> np.ndarray:
    """Return the part of each user, from a column that has one part per session."""
    if column not in log.extra:
        raise DataError(
            f"split.next_item: the log carries no column {column!r}. "
            f"{did_you_mean(column, log.extra)}"
        )
    part = parts_from_column(log.extra[column], column)
    role = np.full(log.num_users, TRAIN)
    role[log.user] = part
    if (role[log.user] != part).any():
        raise DataError(
            f"split.next_item: column {column!r} divides sessions. Use split.given, which holds "
            "out events."
        )
    if len(shares) == 3 and not (role == VALID).any():
        users = generator(seed).permutation(np.flatnonzero((role == TRAIN) & (log.user_counts > 0)))
        role[users[: round(len(users) * shares[1] / (shares[0] + shares[1]))]] = VALID
    return role


def _prefixes(
    log: Interactions, clicks: Ragged, members: np.ndarray, history: int, card: Card
) -> Holdout:
    """Return a holdout with a row per click of these sessions but the first."""
    place = np.arange(len(clicks.ids)) - clicks.indptr[:-1][clicks.row_of]
    at = np.flatnonzero((place > 0) & members[clicks.row_of])
    lengths = np.minimum(place[at], history)
    indptr = offsets(lengths)
    source = np.arange(indptr[-1]) + np.repeat(at - lengths - indptr[:-1], lengths)
    past, asked = Ragged(indptr, clicks.ids[source]), Ragged(np.arange(len(at) + 1), clicks.ids[at])
    users = clicks.row_of[at]
    return Holdout(log.users, log.items, users, past, asked, empty(len(at)), card)
