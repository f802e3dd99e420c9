"""Splits: what is trained on, and what is asked.

Every split is a named tuple `(train, valid, test)` with a `.card` that says how it was made.
The presets at the end are published protocols by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from softdex.data.holdout import (
    DROPPED,
    TEST,
    TEST_INPUT,
    TRAIN,
    VALID,
    VALID_INPUT,
    Holdout,
    Split,
    assemble,
    join,
)
from softdex.data.interactions import Interactions
from softdex.errors import DataError, choose, nearest


def per_user(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    seed: int = 0,
    order: str = "random",
    at_least: int = 1,
) -> Split:
    """Cut each user's events by ratio: (train, test) or (train, valid, test).

    Args:
        order: `random`, or `time`: the latest events are held out.
        at_least: each holdout gets so many events while train keeps at least one.
    """
    shares = _check_ratios("per_user", ratios)
    rank, count = _rank(log, _order_key("per_user", log, order, seed))
    sizes = np.stack([np.floor(count * s + 1e-9).astype(np.int64) for s in shares[1:]])
    for part in reversed(range(len(sizes))):
        short = (sizes[part] < at_least) & (count - sizes.sum(0) > at_least - sizes[part])
        sizes[part] = np.where(short, at_least, sizes[part])
    valid = sizes[0] if len(sizes) == 2 else np.zeros_like(count)
    parts = _cut(log, rank, count, valid, sizes[-1])
    arguments = {"ratios": list(ratios), "order": order, "at_least": at_least, "seed": seed}
    return assemble(
        log, "per_user", arguments, parts, has_valid=len(sizes) == 2, ordered=order == "time"
    )


def leave_last(log: Interactions, n: int = 1, *, valid: bool = True, order: str = "time") -> Split:
    """Hold out each user's last n events for test, and the n before for validation.

    Users with too few events stay in train whole. `order="rows"` takes the order of the rows
    where a log has no time.
    """
    rank, count = _rank(log, _order_key("leave_last", log, order, 0))
    test = np.where(count > n, n, 0)
    before = np.where(count - test > n, n, 0) if valid else np.zeros_like(count)
    part = _cut(log, rank, count, before, test)
    arguments = {"n": n, "valid": valid, "order": order}
    return assemble(log, "leave_last", arguments, part, has_valid=valid, ordered=True)


def by_user(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    seed: int = 0,
    fold_in: float = 0.5,
    order: str = "time",
) -> Split:
    """Hold out whole users: the first part of their events goes in, the rest is asked for.

    Args:
        ratios: shares of users: (train, test) or (train, valid, test).
        fold_in: share of a held-out user's events that the model may see.
        order: `time` (first part in, later part out), `rows`, or `random`.
    """
    shares = _check_ratios("by_user", ratios)
    rank, count = _rank(log, _order_key("by_user", log, order, seed))
    role = _user_roles(log, shares, seed)
    asked = rank >= np.maximum(1, np.floor(count * fold_in).astype(np.int64))[log.user]
    part = _held_out_parts(role[log.user], asked)
    arguments = {"ratios": list(ratios), "fold_in": fold_in, "order": order, "seed": seed}
    return assemble(log, "by_user", arguments, part, has_valid=len(shares) == 3, whole_users=True)


def global_time(
    log: Interactions, ratios: Sequence[float] = (0.8, 0.1, 0.1), *, cold: str = "drop"
) -> Split:
    """Cut the whole log at points in time: nobody's future is in anybody's training.

    Args:
        ratios: shares of events: (train, test) or (train, valid, test).
        cold: users without an event before their cut: `drop` their targets, or `keep` them.
    """
    choose("global_time", "rule for cold users", cold, ("drop", "keep"))
    shares = _check_ratios("global_time", ratios)
    time = _clock("global_time", log)
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


def given(log: Interactions, column: str = "test", *, valid: float = 0.0, seed: int = 0) -> Split:
    """The split that a column of the log already holds.

    Args:
        column: booleans or 0/1 (true: test), or the words train, valid, test.
        valid: share of each user's training events to cut off at random for validation; the test
            still masks them.
    """
    if column not in log.extra:
        raise DataError(
            f"split.given: the log carries no column {column!r}. {nearest(column, log.extra)} "
            f"Carry it along when reading: read(path, keep=[{column!r}])."
        )
    part = _parts_from_column(log.extra[column], column)
    if valid:
        in_train = part == TRAIN
        train = log.select(in_train)
        rank, count = _rank(train, _random(seed).random(len(train)))
        size = np.floor(count * valid + 1e-9).astype(np.int64)
        part[in_train] = np.where(rank >= (count - size)[train.user], VALID, TRAIN)
    arguments = {"column": column, "valid": valid, "seed": seed}
    return assemble(log, "given", arguments, part, has_valid=bool((part == VALID).any()))


# published protocols -----------------------------------------------------------------------------


def lightgcn(log: Interactions, *, valid: float = 0.0, seed: int = 0) -> Split:
    """LightGCN / NGCF: the split that ships with the data (column `test`); train is masked."""
    return _rename(given(log, "test", valid=valid, seed=seed), "lightgcn")


def rg(log: Interactions, *, seed: int = 0) -> Split:
    """RG2 / RGx (S2): 80/10/10 per user at random; test masks train and validation."""
    return _rename(per_user(log, (0.8, 0.1, 0.1), seed=seed), "rg")


def fastvae(log: Interactions, *, seed: int = 0, max_users: int | None = 5000) -> Split:
    """FastVAE (S1): round(0.8 n) events of each user in train, the rest test, 5,000 users asked."""
    if max_users is not None and max_users < 1:
        raise DataError(f"split.fastvae: expected max_users of at least 1, got {max_users}.")
    split = _eighty_twenty(log, seed, "fastvae", {"max_users": max_users})
    asked = np.flatnonzero(split.test.targets.lengths)
    if max_users is not None and len(asked) > max_users:
        drawn = _random(seed).choice(asked, max_users, replace=False)
        return _with_test(split, split.test.take(np.sort(drawn)))
    return split


def xir(log: Interactions, *, seed: int = 0) -> Split:
    """BIR / XIR (S3): 80/20 per user; users without a target count as 0."""
    split = _eighty_twenty(log, seed, "xir", {})
    return _with_test(split, replace(split.test, conventions={"empty": "zero"}))


def dtr(log: Interactions, *, seed: int = 0, min_events: int = 15, history: int = 69) -> Split:
    """DTR (S0): 80/10/10 of the users; first halves of held-out users are trained on too.

    Nothing is masked, a repeated label counts each time, and users whose first half is
    shorter than `min_events` are not asked.
    """
    enough = log.user_counts[log.user] >= min_events
    rank, count = _rank(log, _order_key("dtr", log, "time", seed))
    role = _user_roles(log, [0.8, 0.1, 0.1], seed)
    role = np.where((role != TRAIN) & (count / 2 + 1 < min_events), DROPPED, role)
    asked = rank >= (count / 2 + 1).astype(np.int64)[log.user]
    part = np.where(enough, _held_out_parts(role[log.user], asked), DROPPED)
    arguments = {"min_events": min_events, "history": history, "seed": seed}
    split = assemble(
        log, "dtr", arguments, part, has_valid=True, whole_users=True, mask=False, train_inputs=True
    )
    valid, test = (
        replace(h, history=h.history.last(history), conventions={"repeats": "count"})
        for h in (split.valid, split.test)
        if h is not None
    )
    return join(split.train, valid, test, split.card)


SPLITS: dict[str, Callable[..., Split]] = {
    f.__name__: f
    for f in (per_user, leave_last, by_user, global_time, given, lightgcn, rg, fastvae, xir, dtr)
}


def by_name(name: str, log: Interactions, **arguments: Any) -> Split:
    """The split of this name with these arguments, both checked."""
    choose("split", "split", name, list(SPLITS))
    known = [p for p in inspect.signature(SPLITS[name]).parameters if p != "log"]
    for argument in arguments:
        choose(f"split.{name}", "argument", argument, known)
    return SPLITS[name](log, **arguments)


def default_name(log: Interactions) -> tuple[str, str]:
    """Return the name of the split that suits a log, and the reason in words."""
    if "test" in log.extra:
        return "given", "the log has a column 'test'"
    if log.time is not None:
        return "leave_last", "the log has times"
    return "per_user", "the log has no time"


# how a split is put together ---------------------------------------------------------------------


def _check_ratios(where: str, ratios: Sequence[float]) -> list[float]:
    shares = [float(r) for r in ratios]
    if len(shares) not in (2, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise DataError(
            f"split.{where}: expected two or three positive ratios that sum to 1, got {ratios}."
        )
    return shares


def _random(seed: int) -> np.random.Generator:
    if not isinstance(seed, int) or seed < 0:
        raise DataError(f"split: expected a seed of at least 0, got {seed!r}.")
    return np.random.default_rng(seed)


def _order_key(where: str, log: Interactions, order: str, seed: int) -> np.ndarray | None:
    choose(f"split.{where}", "order", order, ("random", "time", "rows"))
    if order == "random":
        return _random(seed).random(len(log))
    if order == "time" and log.time is None:
        raise DataError(
            f"split.{where}: the log has no time. Pass order='rows' to trust the order of its rows "
            "or name the column: read(time=...)."
        )
    return log.time if order == "time" else None


def _clock(where: str, log: Interactions) -> np.ndarray:
    if log.time is None:
        raise DataError(f"split.{where}: the log has no time. Name the column: read(time=...).")
    first = np.full(log.num_users, np.inf)
    np.minimum.at(first, log.user, log.time)
    if np.isin(first[log.user_counts > 0], (0, 1)).all() and log.time.max() < 1e8:
        raise DataError(
            f"split.{where}: times are positions inside a history (every user starts at 0 or 1), "
            "not a clock. Use leave_last, or per_user(order='time')."
        )
    return log.time


def _rank(log: Interactions, key: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Place of each event in its user's order, and events per user."""
    count = log.user_counts
    order = np.argsort(log.user, kind="stable") if key is None else np.lexsort((key, log.user))
    rank = np.empty(len(log), np.int64)
    rank[order] = np.arange(len(log)) - np.repeat(np.cumsum(count) - count, count)
    return rank, count


def _cut(
    log: Interactions, rank: np.ndarray, count: np.ndarray, valid: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """Parts by rank: train first, then so many events of validation, then of test."""
    left = count[log.user] - rank
    part = np.where(left <= (valid + test)[log.user], VALID, TRAIN)
    return np.where(left <= test[log.user], TEST, part)


def _user_roles(log: Interactions, shares: list[float], seed: int) -> np.ndarray:
    """TRAIN, VALID or TEST for each user, at random."""
    users = _random(seed).permutation(np.flatnonzero(log.user_counts))
    ends = np.round(np.cumsum(shares) * len(users)).astype(np.int64)
    role = np.full(log.num_users, TRAIN)
    role[users[ends[-2] :]] = TEST
    if len(shares) == 3:
        role[users[ends[0] : ends[1]]] = VALID
    return role


def _held_out_parts(role: np.ndarray, asked: np.ndarray) -> np.ndarray:
    part = np.where((role == VALID) & ~asked, VALID_INPUT, role)
    return np.where((role == TEST) & ~asked, TEST_INPUT, part)


def _parts_from_column(column: np.ndarray, name: str) -> np.ndarray:
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


def _eighty_twenty(log: Interactions, seed: int, name: str, arguments: dict[str, Any]) -> Split:
    rank, count = _rank(log, _random(seed).random(len(log)))
    test = count - np.rint(0.8 * count).astype(np.int64)
    part = _cut(log, rank, count, np.zeros_like(count), test)
    return assemble(log, name, {**arguments, "seed": seed}, part, has_valid=False)


def _rename(split: Split, name: str) -> Split:
    return join(split.train, split.valid, split.test, replace(split.card, name=name))


def _with_test(split: Split, test: Holdout) -> Split:
    return join(split.train, split.valid, test, split.card)
