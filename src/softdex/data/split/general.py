"""General splits: by ratio, last events, users, points in time, or a column of the log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softdex.data.holdout import DROPPED, TEST, TRAIN, VALID, Split, assemble, join
from softdex.data.interactions import Interactions
from softdex.data.split.parts import (
    Count,
    Seed,
    Share,
    check_ratios,
    checked,
    clock,
    generator,
    order_key,
    parts_by_rank,
    parts_from_column,
    parts_of_users,
    rank_per_user,
    with_inputs,
)
from softdex.errors import DataError, choose, did_you_mean
from softdex.messages import say


@checked
def per_user(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    seed: Seed = 0,
    order: str = "random",
    at_least: Count = 1,
) -> Split:
    """Split each user's events by ratio.

    Training items are excluded from recommendations at validation; training and validation items
    at test.

    Args:
        log: the log to split.
        ratios: shares of a user's events: (train, test) or (train, valid, test).
        seed: of the random order.
        order: `random`; `time` holds out each user's latest events, `rows` the last rows.
        at_least: fewest events of a user per holdout, as long as one is left for training.

    Returns:
        `(train, valid, test)`; valid is None if there are two ratios.

    Example:
        >>> import softdex as sdx
        >>> log = sdx.read([(u, i) for u in range(3) for i in range(10)], quiet=True)
        >>> train, valid, test = sdx.split.per_user(log)
        >>> len(train), valid, test
        (24, Holdout(3 users with 3 targets, per_user), Holdout(3 users with 3 targets, per_user))
    """
    shares = check_ratios("per_user", ratios)
    rank, count = rank_per_user(log, order_key("per_user", log, order, seed))
    sizes = np.stack([np.floor(count * s + 1e-9).astype(np.int64) for s in shares[1:]])
    for part in reversed(range(len(sizes))):
        short = (sizes[part] < at_least) & (count - sizes.sum(0) > at_least - sizes[part])
        sizes[part] = np.where(short, at_least, sizes[part])
    valid = sizes[0] if len(sizes) == 2 else np.zeros_like(count)
    parts = parts_by_rank(log, rank, count, valid, sizes[-1])
    arguments = {"ratios": list(ratios), "order": order, "at_least": at_least, "seed": seed}
    return assemble(
        log, "per_user", arguments, parts, has_valid=len(sizes) == 2, ordered=order == "time"
    )


@checked
def leave_last(
    log: Interactions, n: Count = 1, *, valid: bool = True, order: str = "time"
) -> Split:
    """Hold out each user's last events: the last n for test, the n before them for validation.

    Users with too few events stay in train with all of them.

    Args:
        log: the log to split.
        n: events per user and holdout.
        valid: also hold out for validation.
        order: `time`, or `rows` for the order of the rows in a log without time.

    Returns:
        `(train, valid, test)`. The history at test includes the validation events.
    """
    rank, count = rank_per_user(log, order_key("leave_last", log, order, 0))
    test = np.where(count > n, n, 0)
    before = np.where(count - test > n, n, 0) if valid else np.zeros_like(count)
    part = parts_by_rank(log, rank, count, before, test)
    arguments = {"n": n, "valid": valid, "order": order}
    return assemble(log, "leave_last", arguments, part, has_valid=valid, ordered=True)


@checked
def by_user(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    seed: Seed = 0,
    fold_in: Share = 0.5,
    order: str = "time",
) -> Split:
    """Hold out whole users: the first part of their events is history, the rest are targets.

    Use it for models that serve users they were not trained on.

    Args:
        log: the log to split.
        ratios: shares of users: (train, test) or (train, valid, test).
        seed: of the choice of users.
        fold_in: share of a held-out user's events that are history; at least one event is.
        order: `time` takes the earliest events as history, `rows` the first rows, `random` any.

    Returns:
        `(train, valid, test)`; valid is None if there are two ratios.
    """
    shares = check_ratios("by_user", ratios)
    rank, count = rank_per_user(log, order_key("by_user", log, order, seed))
    role = parts_of_users(log, shares, seed)
    is_target = rank >= np.maximum(1, np.floor(count * fold_in).astype(np.int64))[log.user]
    part = with_inputs(role[log.user], is_target)
    arguments = {"ratios": list(ratios), "fold_in": fold_in, "order": order, "seed": seed}
    return assemble(log, "by_user", arguments, part, has_valid=len(shares) == 3, whole_users=True)


@checked
def global_time(
    log: Interactions, ratios: Sequence[float] = (0.8, 0.1, 0.1), *, cold: str = "drop"
) -> Split:
    """Split the whole log at points in time, so that no model trains on any user's future.

    Args:
        log: the log to split; its times must be a clock that all users share.
        ratios: shares of events: (train, test) or (train, valid, test).
        cold: targets of users whose first event is not before the holdout begins: `drop` or `keep`.

    Returns:
        `(train, valid, test)`; valid is None if there are two ratios. The history at test
        includes the validation events.
    """
    choose("global_time", "rule for cold users", cold, ("drop", "keep"))
    shares = check_ratios("global_time", ratios)
    time = clock("global_time", log, "Without a clock use leave_last or per_user.")
    cuts = [np.quantile(time, q, method="higher") for q in np.cumsum(shares)[:-1]]
    part = np.where(time >= cuts[-1], TEST, TRAIN)
    if len(cuts) == 2:
        part = np.where((time >= cuts[0]) & (time < cuts[1]), VALID, part)
    if cold == "drop":
        first = np.full(log.num_users, np.inf)
        np.minimum.at(first, log.user, time)
        for target, cut in zip((TEST, VALID), reversed(cuts), strict=False):
            part = np.where((part == target) & (first[log.user] >= cut), DROPPED, part)
    arguments = {"ratios": list(ratios), "cold": cold, "cuts": [float(c) for c in cuts]}
    return assemble(log, "global_time", arguments, part, has_valid=len(cuts) == 2, ordered=True)


@checked
def given(log: Interactions, column: str = "test", *, valid: Share = 0.0, seed: Seed = 0) -> Split:
    """Use the split that comes with the data, in a column of the log.

    Args:
        log: the log to split; `read` carries columns called test, split or fold along.
        column: booleans or 0/1 (true is test), or the words train, valid and test.
        valid: share of each user's training events to hold out at random for validation. Their
            items are still masked at test.
        seed: of that choice.

    Returns:
        `(train, valid, test)`; valid is None without validation events.
    """
    if column not in log.extra:
        raise DataError(
            f"split.given: the log carries no column {column!r}. "
            f"{did_you_mean(column, log.extra)} Carry it along when reading: "
            f"read(path, keep=[{column!r}])."
        )
    part = parts_from_column(log.extra[column], column)
    if valid:
        in_train = part == TRAIN
        train = log.select(in_train)
        rank, count = rank_per_user(train, generator(seed).random(len(train)))
        size = np.floor(count * valid + 1e-9).astype(np.int64)
        part[in_train] = np.where(rank >= (count - size)[train.user], VALID, TRAIN)
    arguments = {"column": column, "valid": valid, "seed": seed}
    split = assemble(log, "given", arguments, part, has_valid=bool((part == VALID).any()))
    return _noted(split, column)


def _noted(split: Split, column: str) -> Split:
    """Note and say that most test users have no history, as where whole sessions are held out."""
    asked = split.test.targets.lengths > 0
    without = int((asked & (split.test.history.lengths == 0)).sum())
    if 2 * without <= asked.sum():
        return split
    note = (
        f"{without:,} of {int(asked.sum()):,} test users have no event in train, so that models "
        "know nothing of them. To ask for each click of a held-out session by those before it, use "
        f"split.next_item(column={column!r})"
    )
    say(f"split.given: {note}")
    return join(split.train, split.valid, split.test, split.card.noted([note]))
