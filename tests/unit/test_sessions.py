"""Sessions: the next-item protocol, and what is said where sessions or their order are missing."""

from __future__ import annotations

import numpy as np
import pytest

import softdex as sdx
from marks import slow
from softdex.model.learn import IN_ROW_ORDER

CLICKS = [
    *[("s1", i, 10 + n) for n, i in enumerate("abc")],
    *[("s2", i, 20 + n) for n, i in enumerate("ab")],
    *[("s3", i, 30 + n) for n, i in enumerate("ca")],
    *[("s4", i, 40 + n) for n, i in enumerate("abac")],
    ("s5", "b", 50),
]


def asked(holdout: sdx.Holdout) -> list[tuple[str, str, str]]:
    """The session, the prefix and the next click of every row."""
    items = holdout.item_keys.take
    sessions = holdout.user_keys.take(holdout.users).to_pylist()
    return [
        (s, "".join(items(holdout.history[b]).to_pylist()), *items(holdout.targets[b]).to_pylist())
        for b, s in enumerate(sessions)
    ]


def test_each_prefix_of_a_test_session_asks_for_its_next_click() -> None:
    log = sdx.read(CLICKS)
    train, valid, test = sdx.split.next_item(log, (0.4, 0.2, 0.4))
    assert set(train.users.take(train.user).to_pylist()) == {"s1", "s2"}
    assert valid is not None
    assert asked(valid) == [("s3", "c", "a")]
    assert asked(test) == [("s4", "a", "b"), ("s4", "ab", "a"), ("s4", "aba", "c")]
    assert not len(test.masked.ids)
    assert (test.card.name, test.card.counts["test targets"]) == ("next_item", 3)


def test_a_long_prefix_keeps_its_latest_clicks() -> None:
    test = sdx.split.next_item(sdx.read(CLICKS), (0.6, 0.4), history=2).test
    assert asked(test) == [("s4", "a", "b"), ("s4", "ab", "a"), ("s4", "ba", "c")]


def test_clicks_are_in_order_of_time_whatever_the_order_of_the_rows() -> None:
    log = sdx.read(CLICKS)
    mixed = log.select(np.random.default_rng(0).permutation(len(log)))
    one, other = (sdx.split.next_item(each, (0.6, 0.4)) for each in (log, mixed))
    assert asked(one.test) == asked(other.test)
    assert one.card == other.card


def test_sessions_of_a_column_are_the_test_sessions() -> None:
    table = {
        "session": [s for s, _, _ in CLICKS],
        "item": [i for _, i, _ in CLICKS],
        "position": [0, 1, 2, 0, 1, 0, 1, 0, 1, 2, 3, 0],
        "test": [s in ("s3", "s4") for s, _, _ in CLICKS],
    }
    log = sdx.read(table)
    train, valid, test = sdx.split.next_item(log, (0.5, 0.5), column="test")
    assert (len(train), valid) == (6, None)
    assert {s for s, _, _ in asked(test)} == {"s3", "s4"}
    with_valid = sdx.split.next_item(log, (0.4, 0.3, 0.3), column="test")
    assert with_valid.test.targets == test.targets
    assert len(set(with_valid.train.user)) == 2  # of three sessions, one is for validation
    with pytest.raises(sdx.DataError, match=r"not a clock\. Pass order='rows' or 'random'"):
        sdx.split.next_item(log)
    halves = sdx.read({**table, "test": [0, 1] * 6})
    with pytest.raises(sdx.DataError, match=r"column 'test' divides sessions\. Use split.given"):
        sdx.split.next_item(halves, column="test")


def test_sessions_without_time_are_divided_by_their_rows_if_asked() -> None:
    log = sdx.read([(s, i) for s, i, _ in CLICKS])
    with pytest.raises(sdx.DataError, match=r"the log has no time\. .* order='rows'"):
        sdx.split.next_item(log)
    assert {s for s, _, _ in asked(sdx.split.next_item(log, (0.6, 0.4), order="rows").test)} == {
        "s4"
    }


def test_a_model_of_clicks_that_follow_each_other_knows_the_next_one() -> None:
    """In a ring of items the next click is the next item: who reads order finds it."""
    ring = [(s, (s + n) % 9, n) for s in range(40) for n in range(5)]
    split = sdx.split.next_item(sdx.read(ring), (0.8, 0.2), order="rows")
    small = {"dim": 16, "hidden": 16, "layers": 1, "epochs": 12, "lr": 0.03, "device": "cpu"}
    reader = sdx.fit("sasrec", split.train, **small)
    assert reader.evaluate(split.test, 1)["recall@1"] > 0.9
    assert sdx.fit("popular", split.train).evaluate(split.test, 1)["recall@1"] < 0.3


def test_given_on_whole_sessions_names_the_protocol_for_them(
    loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"user": ["a", "a", "b", "b"], "item": [1, 2, 1, 2], "test": [0, 0, 1, 1]}
    note = (
        "1 of 1 test users have no event in train, so that models know nothing of them. To ask for "
        "each click of a held-out session by those before it, use split.next_item(column='test')"
    )
    split = sdx.split.given(sdx.read(whole, quiet=True))
    assert split.card.notes == split.test.card.notes == [note]
    assert f"split.given: {note}" in capsys.readouterr().err
    parts = sdx.split.given(sdx.read({**whole, "test": [0, 1, 0, 1]}, quiet=True))
    assert parts.card.notes == []


@pytest.mark.parametrize("name", ["sasrec", "din", *slow("youtube_dnn", "dtr")])
def test_a_recipe_that_reads_order_says_that_a_log_has_none(
    name: str, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = sdx.read([(u, (u + n) % 9) for u in range(30) for n in range(5)], quiet=True)
    split = sdx.split.leave_last(log, order="rows", valid=False)
    model = sdx.fit(name, split.train, dim=4, epochs=1, device="cpu")
    assert model.card.warnings == [IN_ROW_ORDER]
    assert f"{name}: {IN_ROW_ORDER}" in capsys.readouterr().err
    result = model.evaluate(split.test, 1)
    assert f"note: {IN_ROW_ORDER}" in str(result)
    assert IN_ROW_ORDER in result.card.notes


def test_recipes_that_read_sets_and_logs_with_time_say_nothing(parts: sdx.Split) -> None:
    untimed = sdx.read([(u, (u + n) % 9) for u in range(30) for n in range(5)])
    assert sdx.fit("item_cf", untimed).card.warnings == ()
    assert sdx.fit("ssm", untimed, dim=4, epochs=1, device="cpu").card.warnings == ()
    timed = sdx.fit("sasrec", parts.train, dim=4, hidden=4, epochs=1, device="cpu")
    assert timed.card.warnings == ()


def test_the_error_of_clicks_is_over_sessions(log: sdx.Interactions) -> None:
    """Clicks of a session are alike, so the error of the mean is that of drawing sessions."""
    split = sdx.split.next_item(log, order="random")
    result = sdx.fit("item_cf", split.train).evaluate(split.test, 5)
    values, users = result.per_user["recall@5"].astype(float), result.users
    sessions = [values[users == user] for user in np.unique(users)]
    draw = np.random.default_rng(0)
    means = []
    for _ in range(2000):
        drawn = [sessions[n] for n in draw.integers(len(sessions), size=len(sessions))]
        means.append(np.concatenate(drawn).mean())
    assert result.standard_error("recall@5") == pytest.approx(np.std(means), rel=0.15)
    assert f"{len(sessions)} users asked {len(users)} times, next_item split" in str(result)
    rival = sdx.fit("popular", split.train).evaluate(split.test, 5)
    gap = next(row for row in result.compare(rival) if row["metric"] == "recall@5")
    theirs = [rival.per_user["recall@5"].astype(float)[users == user] for user in np.unique(users)]
    differences = []
    for _ in range(2000):
        drawn = draw.integers(len(sessions), size=len(sessions))
        total = sum((sessions[n] - theirs[n]).sum() for n in drawn)
        differences.append(total / sum(len(sessions[n]) for n in drawn))
    low, high = np.quantile(differences, (0.025, 0.975))
    assert (gap["low"], gap["high"]) == pytest.approx((low, high), abs=0.15 * (high - low))
