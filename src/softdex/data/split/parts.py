"""Parts: assign the events of a log to train, validation and test, by rank or by user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Annotated, ParamSpec

import numpy as np

from softdex.data.expect import expect
from softdex.data.holdout import TEST, TEST_INPUT, TRAIN, VALID, VALID_INPUT, Split
from softdex.data.interactions import Interactions
from softdex.errors import DataError, choose
from softdex.options import at_least_0, check, from_0_to_1, kinds, positive

P = ParamSpec("P")
Seed = Annotated[int, at_least_0]
Count = Annotated[int, positive]
Share = Annotated[float, from_0_to_1]


def checked(split: Callable[P, Split]) -> Callable[P, Split]:
    """Let a split refuse what is no log, and arguments that its annotations do not take."""
    where = f"split.{split.__name__}"

    @wraps(split)
    def called(*args: P.args, **given: P.kwargs) -> Split:
        arguments = signature(split).bind(*args, **given).arguments
        expect(Interactions, where, arguments.pop("log"))
        check(where, kinds(split), arguments)
        return split(*args, **given)

    return called


def check_ratios(where: str, ratios: Sequence[float]) -> list[float]:
    """The ratios as floats; raise unless they are two or three, positive, and sum to 1."""
    shares = [float(r) for r in ratios]
    if len(shares) not in (2, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise DataError(
            f"split.{where}: expected two or three positive ratios that sum to 1, got {ratios}."
        )
    return shares


def generator(seed: int) -> np.random.Generator:
    """The random generator of a split."""
    return np.random.default_rng(seed)


def order_key(where: str, log: Interactions, order: str, seed: int) -> np.ndarray | None:
    """What to sort each user's events by: `random`, `time`, or None for the order of the `rows`."""
    choose(f"split.{where}", "order", order, ("random", "time", "rows"))
    if order == "random":
        return generator(seed).random(len(log))
    if order == "time" and log.time is None:
        raise DataError(
            f"split.{where}: the log has no time. Name the column, read(time=...), or pass "
            "order='rows' to use the order of its rows."
        )
    return log.time if order == "time" else None


def clock(where: str, log: Interactions, instead: str) -> np.ndarray:
    """The times of a log; raise if there are none, or if they only count each user's events.

    `instead` says what to do then.
    """
    if log.time is None:
        raise DataError(
            f"split.{where}: the log has no time. Name the column: read(time=...). {instead}"
        )
    first = np.full(log.num_users, np.inf)
    np.minimum.at(first, log.user, log.time)
    if np.isin(first[log.user_counts > 0], (0, 1)).all() and log.time.max() < 1e8:
        raise DataError(
            f"split.{where}: times are positions in a history (every user starts at 0 or 1), not a "
            f"clock. {instead}"
        )
    return log.time


def rank_per_user(log: Interactions, key: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each event among its user's, by a key or by row; and the events per user."""
    count = log.user_counts
    order = np.argsort(log.user, kind="stable") if key is None else np.lexsort((key, log.user))
    rank = np.empty(len(log), np.int64)
    rank[order] = np.arange(len(log)) - np.repeat(np.cumsum(count) - count, count)
    return rank, count


def parts_by_rank(
    log: Interactions, rank: np.ndarray, count: np.ndarray, valid: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """The part of each event: a user's last `test` events, the `valid` before them, the rest."""
    left = count[log.user] - rank
    part = np.where(left <= (valid + test)[log.user], VALID, TRAIN)
    return np.where(left <= test[log.user], TEST, part)


def parts_of_users(log: Interactions, shares: list[float], seed: int) -> np.ndarray:
    """The part of each user at random, in these shares: TRAIN, VALID or TEST."""
    users = generator(seed).permutation(np.flatnonzero(log.user_counts))
    return in_shares(users, shares, log.num_users)


def tenths_of_users(log: Interactions, fold: int, seed: int) -> np.ndarray:
    """The part of each user at random, 80/10/10: every user is in TEST in one fold of 0 to 9."""
    users = generator(seed).permutation(np.flatnonzero(log.user_counts))
    tenths = np.split(users, np.round(np.arange(1, 10) * len(users) / 10).astype(np.int64))
    part = np.full(log.num_users, TRAIN)
    part[tenths[9 - fold]], part[tenths[8 - fold]] = TEST, VALID
    return part


def in_shares(users: np.ndarray, shares: list[float], num_users: int) -> np.ndarray:
    """The part of each user, in these shares of an order of them: TRAIN, then VALID, then TEST."""
    ends = np.round(np.cumsum(shares) * len(users)).astype(np.int64)
    part = np.full(num_users, TRAIN)
    part[users[ends[-2] :]] = TEST
    if len(shares) == 3:
        part[users[ends[0] : ends[1]]] = VALID
    return part


def with_inputs(part: np.ndarray, is_target: np.ndarray) -> np.ndarray:
    """Make the events of held-out users that are no targets their inputs."""
    part = np.where((part == VALID) & ~is_target, VALID_INPUT, part)
    return np.where((part == TEST) & ~is_target, TEST_INPUT, part)


def parts_from_column(column: np.ndarray, name: str) -> np.ndarray:
    """The part of each event, from booleans, 0/1, or the words train, valid, test."""
    if column.dtype == bool or (column.dtype.kind in "iu" and set(np.unique(column)) <= {0, 1}):
        return np.where(column.astype(bool), TEST, TRAIN)
    words = {"train": TRAIN, "valid": VALID, "validation": VALID, "test": TEST}
    kinds, place = np.unique(column.astype(str), return_inverse=True)
    strange = [k for k in kinds if k not in words]
    if strange:
        raise DataError(
            f"split.given: column {name!r} holds {strange[0]!r}. Expected booleans, 0/1, or the "
            "words train, valid, test."
        )
    return np.array([words[k] for k in kinds])[place]
