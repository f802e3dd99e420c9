"""Laws that every split keeps on random logs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import softdex as sdx

SPLITS: dict[str, Callable[[sdx.Interactions], sdx.Split]] = {
    "random": lambda log: sdx.split.per_user(log, (0.6, 0.2, 0.2), seed=1),
    "in time": lambda log: sdx.split.per_user(log, (0.6, 0.4), order="time"),
    "last": sdx.split.leave_last,
    "users": lambda log: sdx.split.by_user(log, (0.5, 0.5), seed=2),
    "clock": lambda log: sdx.split.global_time(log, (0.7, 0.3), cold="keep"),
    "eighty": sdx.split.xir,
    "items": lambda log: sdx.split.cold_items(log, (0.5, 0.2, 0.3), seed=3),
}
events = st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(10**9, 10**9 + 30))


@pytest.mark.parametrize("name", SPLITS)
@given(rows=st.lists(events, min_size=4, max_size=60))
def test_holdouts_partition_the_log_and_never_ask_for_what_is_masked(
    name: str, rows: list[tuple[int, int, int]]
) -> None:
    log = sdx.read(rows)
    try:
        split = SPLITS[name](log)
    except sdx.DataError as error:
        assume("held out" not in str(error) and "left for training" not in str(error))
        raise
    trained = {*zip(split.train.user.tolist(), split.train.item.tolist(), strict=True)}
    count = len(split.train)
    for holdout in (h for h in split[1:] if h is not None):
        asked = set(_cells(holdout, "targets"))
        assert not asked & set(_cells(holdout, "masked"))
        assert set(_cells(holdout, "history")) <= set(_cells(holdout, "masked"))
        if name != "clock":
            assert not asked & trained
        count += len(holdout.targets.ids)
        assert len(np.unique(holdout.users)) == len(holdout.users)
        assert holdout.csr().shape == split.train.csr().shape
        assert holdout.csr().sum() == len(holdout.targets.ids)
    assert count <= len(log)


def _cells(holdout: sdx.Holdout, part: str) -> list[tuple[int, int]]:
    ragged = getattr(holdout, part)
    return [*zip(holdout.users[ragged.row_of].tolist(), ragged.ids.tolist(), strict=True)]


@given(rows=st.lists(events, min_size=4, max_size=60))
def test_in_time_order_no_training_event_is_later_than_a_held_out_one(
    rows: list[tuple[int, int, int]],
) -> None:
    log = sdx.read([(u, n, t) for n, (u, _, t) in enumerate(rows)])
    assume((log.user_counts > 1).any())
    split = sdx.split.leave_last(log)
    assert log.time is not None
    when = dict(zip(log.item.tolist(), log.time.tolist(), strict=True))
    for row, user in enumerate(split.test.users):
        past = [when[i] for i in split.train.histories[user]]
        for target in split.test.targets[row]:
            assert not past or max(past) <= when[target]
