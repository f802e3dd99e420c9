"""Splits: each rule on logs small enough to check by eye, and the cards of the splits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import softdex as sdx
from softdex.data.split import SPLITS, by_name

TEN = [("ann", f"i{n}", n) for n in range(10)]
LOG = [*TEN, ("bob", "i0", 3), ("bob", "i1", 1), ("bob", "i2", 2), ("cyd", "i5", 1)]


def names(keys: sdx.Interactions, rows: np.ndarray) -> list[str]:
    return keys.items.take(rows).to_pylist()


def asked(log: sdx.Interactions, holdout: sdx.Holdout, user: str) -> list[str]:
    row = list(holdout.users).index(int(log.users.lookup([user])[0]))
    return names(log, holdout.targets[row])


def trained(log: sdx.Interactions, train: sdx.Interactions, user: str) -> list[str]:
    return names(log, train.histories[int(log.users.lookup([user])[0])])


@pytest.fixture
def small() -> sdx.Interactions:
    return sdx.read(LOG)


def test_per_user_in_time_order_holds_out_the_latest_events(small: sdx.Interactions) -> None:
    train, valid, test = sdx.split.per_user(small, (0.8, 0.1, 0.1), order="time")
    assert valid is not None
    assert trained(small, train, "ann") == [f"i{n}" for n in range(8)]
    assert asked(small, valid, "ann") == ["i8"]
    assert asked(small, test, "ann") == ["i9"]
    assert trained(small, train, "bob") == ["i1"]
    assert asked(small, valid, "bob") == ["i2"]
    assert asked(small, test, "bob") == ["i0"]


def test_a_user_with_one_event_stays_in_train(small: sdx.Interactions) -> None:
    for split in (sdx.split.per_user(small), sdx.split.leave_last(small)):
        assert trained(small, split.train, "cyd") == ["i5"]
        assert asked(small, split.test, "cyd") == []


def test_test_masks_train_and_validation_but_validation_masks_train_only(
    small: sdx.Interactions,
) -> None:
    train, valid, test = sdx.split.per_user(small, seed=3)
    assert valid is not None
    ann = 0
    seen = set(train.histories[ann])
    assert set(valid.masked[ann]) == seen
    assert set(test.masked[ann]) == seen | set(valid.targets[ann])


def test_leave_last_asks_for_the_last_event_and_shows_everything_before(
    small: sdx.Interactions,
) -> None:
    _, valid, test = sdx.split.leave_last(small)
    assert valid is not None
    assert asked(small, test, "bob") == ["i0"]
    assert asked(small, valid, "bob") == ["i2"]
    bob = 1
    assert names(small, test.history[bob]) == ["i1", "i2"]
    assert names(small, valid.history[bob]) == ["i1"]


def test_leave_last_can_do_without_validation(small: sdx.Interactions) -> None:
    train, valid, test = sdx.split.leave_last(small, n=2, valid=False)
    assert valid is None
    assert asked(small, test, "ann") == ["i8", "i9"]
    assert trained(small, train, "bob") == ["i1"]


def test_a_log_without_time_has_no_last_event_unless_rows_are_trusted() -> None:
    log = sdx.read([(user, item) for user, item, _ in LOG])
    with pytest.raises(sdx.DataError, match=r"no time.*order='rows'"):
        sdx.split.leave_last(log)
    assert asked(log, sdx.split.leave_last(log, order="rows").test, "bob") == ["i2"]


def test_by_user_holds_out_users_whole_and_shows_their_first_half(log: sdx.Interactions) -> None:
    train, valid, test = sdx.split.by_user(log, (0.8, 0.1, 0.1), seed=1)
    assert valid is not None
    held_out = set(valid.users) | set(test.users)
    assert not held_out & set(train.user)
    assert len(test) == len(valid) == 30
    for row, user in enumerate(test.users):
        events = log.histories[user]
        half = max(1, len(events) // 2)
        assert list(test.history[row]) == list(events[:half])
        assert list(test.targets[row]) == list(events[half:])
        assert list(test.masked[row]) == list(test.history[row])


def test_global_time_trains_on_nothing_that_is_later_than_a_test_event(
    log: sdx.Interactions,
) -> None:
    train, _, test = sdx.split.global_time(log)
    assert train.time is not None
    assert log.time is not None
    first_test = test.card.arguments["cuts"][1]
    assert train.time.max() < test.card.arguments["cuts"][0] <= first_test
    late = {(u, i) for u, i, t in zip(log.user, log.item, log.time, strict=True) if t >= first_test}
    rows = test.users[test.targets.row_of]
    assert {*zip(rows, test.targets.ids, strict=True)} <= late


def test_global_time_refuses_positions_because_they_are_no_clock() -> None:
    log = sdx.read([(u, f"i{n}", n) for u in "abcdef" for n in range(6)])
    with pytest.raises(sdx.DataError, match="not a clock"):
        sdx.split.global_time(log)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([False, False, True], 1),
        ([0, 1, 1], 2),
        (["train", "test", "valid"], 1),
    ],
)
def test_given_takes_booleans_zero_one_and_words(cells: list[object], expected: int) -> None:
    table = {"user": ["a"] * 3, "item": ["x", "y", "z"], "test": cells}
    split = sdx.split.given(sdx.read(table), "test")
    assert len(split.test.targets.ids) == expected
    assert (split.valid is None) == ("valid" not in cells)


def test_given_names_the_nearest_column_and_how_to_carry_it() -> None:
    log = sdx.read({"user": ["a"], "item": ["x"], "test": [True]})
    with pytest.raises(sdx.DataError, match=r"no column 'tset'.*'test'.*keep="):
        sdx.split.given(log, "tset")


def test_given_can_cut_a_validation_share_off_train_without_touching_test() -> None:
    table = {
        "user": ["a"] * 20,
        "item": [f"i{n}" for n in range(20)],
        "test": [n >= 15 for n in range(20)],
    }
    log = sdx.read(table)
    plain, cut = sdx.split.lightgcn(log), sdx.split.lightgcn(log, valid=0.2)
    assert cut.valid is not None
    assert len(cut.valid.targets.ids) == 3
    assert np.array_equal(plain.test.targets.ids, cut.test.targets.ids)
    assert set(plain.test.masked.ids) == set(cut.test.masked.ids)


def test_repeated_targets_that_are_masked_are_dropped_and_the_card_says_so() -> None:
    log = sdx.read([("a", "x", 1), ("a", "y", 2), ("a", "x", 3)])
    with pytest.raises(sdx.DataError, match="nothing is held out"):
        sdx.split.leave_last(log, valid=False)
    log = sdx.read([("a", "x", 1), ("a", "y", 2), ("a", "x", 3), ("b", "x", 1), ("b", "y", 2)])
    split = sdx.split.leave_last(log, valid=False)
    assert split.card.notes == ["1 test events repeat a masked item and are no targets"]


def test_a_random_split_of_a_log_with_times_warns_of_leakage(
    log: sdx.Interactions, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    split = sdx.split.per_user(log)
    assert any("ignores time" in note for note in split.card.notes)
    assert "ignores time" in capsys.readouterr().err
    assert not any("ignores time" in note for note in sdx.split.leave_last(log).card.notes)


def test_the_card_counts_the_users_that_the_order_of_rows_divides() -> None:
    rows = [("ann", "tea", 1), ("ann", "jam", 2), ("ann", "pie", 2), ("bob", "tea", 3)]
    rows += [("bob", "pie", 3), ("cyd", "tea", 4), ("cyd", "pie", 5)]
    note = "users have a test event at the time of an event before it: the order of the rows"
    whole = sdx.read(rows)
    assert sdx.split.leave_last(whole).card.notes == [f"2 {note} divides these"]
    assert sdx.split.leave_last(sdx.read([rows[0], rows[1], *rows[5:]])).card.notes == []
    assert sdx.split.leave_last(whole, order="rows").card.notes == [f"2 {note} divides these"]
    turned = sdx.split.leave_last(sdx.read(rows[::-1])).card
    assert turned.data_sha256 == sdx.split.leave_last(whole).card.data_sha256
    assert turned.sha256 != sdx.split.leave_last(whole).card.sha256


def test_the_card_names_data_arguments_and_counts(log: sdx.Interactions) -> None:
    split = sdx.split.per_user(log, (0.7, 0.3), seed=5)
    card = split.card
    assert card.name == "per_user"
    assert card.arguments == {"ratios": [0.7, 0.3], "order": "random", "at_least": 1, "seed": 5}
    assert card.data_sha256 == log.sha256
    assert card.counts["train events"] + card.counts["test targets"] == len(log)
    assert split.test.card == card.of("test")
    assert split.train.card == card.of("train")
    assert {type(p.card) for p in (split.train, split.test)} == {type(card)}
    assert "per_user" in str(card)


def test_the_same_seed_gives_the_same_card_and_another_seed_another(log: sdx.Interactions) -> None:
    first, again, other = (sdx.split.per_user(log, seed=s).card for s in (0, 0, 1))
    assert first.sha256 == again.sha256 != other.sha256
    assert first.data_sha256 == other.data_sha256


@pytest.mark.parametrize("ratios", [(1.0,), (0.5, 0.6), (0.9, 0.2, -0.1), (0.25,) * 4])
def test_ratios_must_be_two_or_three_and_sum_to_one(
    small: sdx.Interactions, ratios: tuple[float, ...]
) -> None:
    with pytest.raises(sdx.DataError, match="ratios that sum to 1"):
        sdx.split.per_user(small, ratios)


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("per_user", {"ratios": 0.2}, "expected ratios as a list, each a number, got 0.2"),
        ("cold_items", {"ratios": ("a", "b")}, "expected ratios as a list, each a number"),
        ("leave_last", {"n": "1"}, "expected n as a whole number, got '1'"),
        ("leave_last", {"n": 1.5}, "expected n as a whole number, got 1.5"),
        ("leave_last", {"n": 0}, "expected n > 0, got 0"),
        ("by_user", {"fold_in": "half"}, "expected fold_in as a number, got 'half'"),
        ("by_user", {"fold_in": 2}, "expected fold_in from 0 to 1, got 2"),
        ("next_item", {"history": None}, "expected history as a whole number, got None"),
        ("rg", {"seed": -1}, "expected seed >= 0, got -1"),
        ("fastvae", {"max_users": 0}, "expected max_users > 0, got 0"),
    ],
)
def test_arguments_that_make_no_sense_are_one_error(
    name: str, wrong: dict[str, Any], words: str, small: sdx.Interactions
) -> None:
    with pytest.raises(sdx.SoftdexError, match=re.escape(f"split.{name}: {words}")):
        SPLITS[name](small, **wrong)


def test_unknown_names_and_arguments_name_the_nearest(small: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match="Did you mean 'leave_last'"):
        by_name("leave_lst", small)
    with pytest.raises(sdx.SoftdexError, match="Did you mean 'ratios'"):
        by_name("per_user", small, ratio=(0.5, 0.5))


def test_every_split_is_reachable_by_its_name(log: sdx.Interactions) -> None:
    for name in SPLITS:
        if name not in ("given", "lightgcn", "dtr"):
            assert by_name(name, log).card.name == SPLITS[name].__name__


def test_an_empty_holdout_is_refused() -> None:
    with pytest.raises(sdx.DataError, match="nothing is held out"):
        sdx.split.leave_last(sdx.read([("a", "x", 1), ("b", "y", 1)]))


# published protocols


def test_rg_gives_each_holdout_one_event_while_train_keeps_one(small: sdx.Interactions) -> None:
    train, valid, test = sdx.split.rg(small)
    assert valid is not None
    sizes = [len(train.histories[u]) for u in range(3)]
    assert sizes == [8, 1, 1]
    assert list(valid.targets.lengths) == [1, 1, 0]
    assert list(test.targets.lengths) == [1, 1, 0]


def test_fastvae_rounds_eighty_percent_and_asks_at_most_so_many_users(
    log: sdx.Interactions,
) -> None:
    train, valid, test = sdx.split.fastvae(log, max_users=50)
    assert valid is None
    assert len(test) == 50
    kept = np.rint(0.8 * log.user_counts).astype(int)
    assert np.array_equal(train.user_counts, kept)


def test_xir_counts_users_without_a_target_as_zero(small: sdx.Interactions) -> None:
    _, _, test = sdx.split.xir(small)
    assert test.conventions == {"empty": "zero"}
    assert len(test) == 3


def test_dtr_masks_nothing_and_trains_on_the_first_halves_of_held_out_users() -> None:
    log = sdx.read([(f"u{u}", f"i{n % 25}", n) for u in range(50) for n in range(40)])
    train, valid, test = sdx.split.dtr(log, history=10)
    assert valid is not None
    assert len(test) == len(valid) == 5
    assert len(test.masked.ids) == 0
    for row, user in enumerate(test.users):
        events = log.histories[user]
        assert list(train.histories[user]) == list(events[:21])
        assert list(test.history[row]) == list(events[11:21])
        assert list(test.targets[row]) == list(events[21:])
    assert test.conventions == {"repeats": "count"}


def test_over_the_folds_of_dtr_every_user_is_asked_once() -> None:
    log = sdx.read([(f"u{u}", f"i{n % 25}", n) for u in range(47) for n in range(40)])
    folds = [sdx.split.dtr(log, fold=fold) for fold in range(10)]
    for part in ("valid", "test"):
        asked = np.concatenate([getattr(split, part).users for split in folds])
        assert sorted(asked) == list(range(47))
    for split in folds:
        assert not set(split.valid.users) & set(split.test.users)
    assert len({split.test.card.sha256 for split in folds}) == 10
    with pytest.raises(sdx.SoftdexError, match="fold"):
        sdx.split.dtr(log, fold=10)


@pytest.mark.parametrize("name", ["per_user", "leave_last", "by_user", "global_time", "given"])
def test_every_split_carries_the_tables_of_items_and_users(name: str) -> None:
    rows = [(f"u{u}", f"i{i}", 100 * u + i, i % 2) for u in range(9) for i in range(6)]
    columns = dict(zip(("user", "item", "time", "test"), zip(*rows, strict=True), strict=True))
    tables = {"items": {"id": ["i3"], "n": [3]}, "users": {"id": ["u4", "u2"], "n": [4, 2]}}
    arguments = {"cold": "keep"} if name == "global_time" else {}
    train = by_name(name, sdx.read(columns, **tables), **arguments).train
    assert train.item_table is not None
    assert train.user_table is not None
    assert train.item_table["n"].to_pylist() == [3 if i == 3 else None for i in range(6)]
    assert train.user_table["n"].to_pylist() == [u if u in (2, 4) else None for u in range(9)]
