"""Protocols: the splits of published papers, by name, to compare with their numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from softdex.data.holdout import DROPPED, TRAIN, Holdout, Split, assemble, join
from softdex.data.interactions import Interactions
from softdex.data.split.general import given, per_user
from softdex.data.split.parts import (
    Count,
    Seed,
    Share,
    checked,
    generator,
    order_key,
    parts_by_rank,
    rank_per_user,
    tenths_of_users,
    with_inputs,
)
from softdex.options import Limit, positive


@checked
def lightgcn(log: Interactions, *, valid: Share = 0.0, seed: Seed = 0) -> Split:
    """Split as LightGCN and NGCF do: by the column `test` that ships with their data.

    Args:
        log: the log to split, with a column `test`.
        valid: share of each user's training events to hold out at random for validation.
        seed: of that choice.
    """
    return _rename(given(log, "test", valid=valid, seed=seed), "lightgcn")


@checked
def rg(log: Interactions, *, seed: Seed = 0) -> Split:
    """Split as RG2 and RGx do: 80/10/10 per user at random; test masks train and validation.

    Args:
        log: the log to split.
        seed: of the random order.
    """
    return _rename(per_user(log, (0.8, 0.1, 0.1), seed=seed), "rg")


@checked
def fastvae(
    log: Interactions, *, seed: Seed = 0, max_users: Annotated[int | None, positive] = 5000
) -> Split:
    """Split as FastVAE does: round(0.8 n) of a user's n events in train, the rest in test.

    Args:
        log: the log to split.
        seed: of the random order and of the choice of users.
        max_users: evaluate this many users at random; None evaluates all.
    """
    split = _eighty_twenty(log, seed, "fastvae", {"max_users": max_users})
    users = np.flatnonzero(split.test.targets.lengths)
    if max_users is not None and len(users) > max_users:
        drawn = generator(seed).choice(users, max_users, replace=False)
        return _with_test(split, split.test.take(np.sort(drawn)))
    return split


@checked
def xir(log: Interactions, *, seed: Seed = 0) -> Split:
    """Split as BIR and XIR do: 80/20 per user at random; users without a target count as 0.

    Args:
        log: the log to split.
        seed: of the random order.
    """
    split = _eighty_twenty(log, seed, "xir", {})
    return _with_test(split, replace(split.test, conventions={"empty": "zero"}))


@checked
def dtr(
    log: Interactions,
    *,
    seed: Seed = 0,
    fold: Annotated[int, Limit("from 0 to 9", lambda value: 0 <= value <= 9)] = 0,
    min_events: Count = 15,
    history: Count = 69,
) -> Split:
    """Split as DTR does: 80/10/10 of the users; the second half of a held-out user are targets.

    The first halves are trained on too. Nothing is masked, and a repeated target counts each time.

    Args:
        log: the log to split.
        seed: of the choice of users.
        fold: which tenth of the users is the test part, 0 to 9: over all folds each user is once.
        min_events: drop users with fewer events, and held-out users with a shorter first half.
        history: most recent items of the first half that the model sees.
    """
    enough = log.user_counts[log.user] >= min_events
    rank, count = rank_per_user(log, order_key("dtr", log, "time", seed))
    role = tenths_of_users(log, fold, seed)
    role = np.where((role != TRAIN) & (count / 2 + 1 < min_events), DROPPED, role)
    is_target = rank >= (count / 2 + 1).astype(np.int64)[log.user]
    part = np.where(enough, with_inputs(role[log.user], is_target), DROPPED)
    arguments = {"min_events": min_events, "history": history, "seed": seed}
    arguments |= {"fold": fold} if fold else {}
    split = assemble(
        log, "dtr", arguments, part, has_valid=True, whole_users=True, mask=False, train_inputs=True
    )
    valid, test = (
        replace(h, history=h.history.last(history), conventions={"repeats": "count"})
        for h in (split.valid, split.test)
        if h is not None
    )
    return join(split.train, valid, test, split.card)


def _eighty_twenty(log: Interactions, seed: int, name: str, arguments: dict[str, Any]) -> Split:
    rank, count = rank_per_user(log, generator(seed).random(len(log)))
    test = count - np.rint(0.8 * count).astype(np.int64)
    part = parts_by_rank(log, rank, count, np.zeros_like(count), test)
    return assemble(log, name, {**arguments, "seed": seed}, part, has_valid=False)


def _rename(split: Split, name: str) -> Split:
    return join(split.train, split.valid, split.test, replace(split.card, name=name))


def _with_test(split: Split, test: Holdout) -> Split:
    return join(split.train, split.valid, test, split.card)
