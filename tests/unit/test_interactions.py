"""The log itself: filters, merges, views, its hash and its description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from softdex.data.describe import gini, time_span
from softdex.errors import DataError, SoftdexError

EVENTS = {
    "user": ["a", "a", "b", "b", "b", "c"],
    "item": ["x", "y", "x", "x", "z", "x"],
    "time": [5, 1, 3, 2, 2, 9],
    "rating": [5.0, 3.0, 4.0, 1.0, 2.0, 5.0],
    "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "test": [0, 0, 0, 0, 0, 1],
}


def make(**columns: Any) -> sdx.Interactions:
    return sdx.read({**EVENTS, **columns}, quiet=True)


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    found = log.to_arrow().select(["user", "item"]).to_pydict()
    return list(zip(*found.values(), strict=True))


def test_a_log_knows_its_sizes() -> None:
    log = make()
    assert (len(log), log.num_users, log.num_items) == (6, 3, 3)
    assert repr(log) == "Interactions(6 rows, 3 users, 3 items)"
    assert log.user_counts.tolist() == [2, 3, 1]
    assert log.item_counts.tolist() == [4, 1, 1]


def test_a_log_never_changes() -> None:
    log = make()
    histories = log.histories
    arrays = [log.user, log.item, log.time, log.rating, log.weight, log.extra["test"]]
    arrays += [log.user_counts, log.item_counts, histories.ids, histories.indptr]
    for array in arrays:
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        log.user = log.item  # type: ignore[misc]


def test_the_matrix_sums_weights_and_counts_events() -> None:
    np.testing.assert_array_equal(make().csr().toarray(), [[1, 2, 0], [7, 0, 5], [6, 0, 0]])
    np.testing.assert_array_equal(make().csr(binary=True).toarray() > 0, make().csr().toarray() > 0)
    counts = sdx.read({n: EVENTS[n] for n in ("user", "item")}, quiet=True).csr()
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts.toarray(), [[1, 1, 0], [2, 0, 1], [1, 0, 0]])


def test_histories_are_in_time_order_and_ties_in_file_order() -> None:
    log = make()
    assert [log.items.take(row).to_pylist() for row in log.histories] == [
        ["y", "x"],
        ["x", "z", "x"],
        ["x"],
    ]
    unordered = sdx.read({n: EVENTS[n] for n in ("user", "item")}, quiet=True)
    assert [row.tolist() for row in unordered.histories] == [[0, 1], [0, 0, 2], [0]]


@pytest.mark.parametrize("mask", [True, False])
def test_select_keeps_keys_and_every_column(mask: bool) -> None:
    picked = np.array([5, 0])
    if mask:
        picked = np.isin(np.arange(6), picked)
    log = make().select(picked)
    assert sorted(rows(log)) == [("a", "x"), ("c", "x")]
    assert (log.num_users, log.num_items) == (3, 3)
    assert log.weight is not None
    assert sorted(log.weight.tolist()) == [1.0, 6.0]
    assert sorted(log.extra["test"].tolist()) == [0, 1]


def test_compact_forgets_keys_without_rows_and_their_item_rows() -> None:
    log = sdx.read(EVENTS, items={"item": ["x", "y", "z"], "n": [1, 2, 3]}, quiet=True)
    small = log.select(np.array([4, 5])).compact()
    assert rows(small) == [("b", "z"), ("c", "x")]
    assert small.users.all().to_pylist() == ["b", "c"]
    assert small.items.all().to_pylist() == ["x", "z"]
    assert small.item_table is not None
    assert small.item_table["n"].to_pylist() == [1, 3]
    assert small.compact().sha256 == small.sha256


USERS = {"user": ["a", "b", "c"], "n": [1, 2, 3]}


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (lambda log: log.select(np.array([4, 5])), [1, 2, 3]),
        (lambda log: log.select(np.array([4, 5])).compact(), [2, 3]),
        (lambda log: log.min_rating(5), [1, 3]),
        (lambda log: log.k_core(2, 1), [1, 2]),
        (lambda log: log.k_core(9), []),
        (lambda log: log.deduplicate("last"), [1, 2, 3]),
        (lambda log: log.deduplicate("sum"), [1, 2, 3]),
    ],
)
def test_the_user_table_keeps_one_row_per_user_key(
    part: Callable[[sdx.Interactions], sdx.Interactions], wanted: list[int]
) -> None:
    log = part(sdx.read(EVENTS, users=USERS, quiet=True))
    assert log.user_table is not None
    assert log.user_table["n"].to_pylist() == wanted
    assert log.num_users == len(wanted)


def test_no_table_is_part_of_the_hash_or_of_the_rows() -> None:
    log = sdx.read(EVENTS, users=USERS, items={"item": ["x"], "n": [1]}, quiet=True)
    assert log.sha256 == make().sha256
    assert log.to_arrow() == make().to_arrow()


def test_min_rating_filters_and_forgets() -> None:
    log = make().min_rating(4)
    assert rows(log) == [("a", "x"), ("b", "x"), ("c", "x")]
    assert log.num_items == 1
    with pytest.raises(DataError, match=r"no rating column. Name one: read\(rating=...\)"):
        sdx.read([(1, 2)], quiet=True).min_rating(4)


@pytest.mark.parametrize(
    ("rule", "weights", "times"),
    [
        ("last", [1.0, 2.0, 3.0, 5.0, 6.0], [5, 1, 3, 2, 9]),
        ("sum", [1.0, 2.0, 7.0, 5.0, 6.0], [5, 1, 3, 2, 9]),
    ],
)
def test_repeats_merge_into_their_latest_event(
    rule: str, weights: list[float], times: list[int]
) -> None:
    log = make().deduplicate(rule)
    assert log.weight is not None
    assert log.time is not None
    assert log.weight.tolist() == weights
    assert log.time.tolist() == times
    assert log.repeats() == 0


def test_without_weights_merged_repeats_are_counted() -> None:
    log = sdx.read([(1, 2), (1, 3), (1, 2), (1, 2)], quiet=True).deduplicate("sum")
    assert rows(log) == [(1, 3), (1, 2)]
    assert log.weight is not None
    assert log.weight.tolist() == [1.0, 3.0]


def test_keeping_repeats_changes_nothing() -> None:
    log = make()
    assert log.deduplicate("keep") is log
    with pytest.raises(SoftdexError, match="unknown repeat rule 'first'"):
        log.deduplicate("first")


def test_an_empty_log_goes_through_everything() -> None:
    nothing = make().select(np.zeros(6, bool))
    assert len(nothing.deduplicate("sum")) == len(nothing.deduplicate("last")) == 0
    assert nothing.csr().shape == (3, 3)
    assert nothing.k_core(1).num_users == 0
    assert nothing.compact().num_items == 0
    assert nothing.describe()["rows"] == 0
    assert nothing.lint() == []
    assert len(nothing.to_arrow()) == 0
    assert [len(row) for row in nothing.histories] == [0, 0, 0]


def test_a_core_is_found_by_iterating() -> None:
    """One pass drops item 9, which leaves user 3 with one row; the next drops user 3."""
    pairs = [(1, 5), (1, 6), (2, 5), (2, 6), (3, 6), (3, 9)]
    log = sdx.read(pairs, quiet=True).k_core(2)
    assert rows(log) == pairs[:4]
    assert log.users.all().to_pylist() == [1, 2]


def test_users_and_items_of_a_core_may_need_different_counts() -> None:
    pairs = [(1, 5), (1, 6), (2, 5), (3, 5)]
    assert rows(sdx.read(pairs, quiet=True).k_core(1, 3)) == [(1, 5), (2, 5), (3, 5)]
    assert rows(sdx.read(pairs, quiet=True).k_core(2, 1)) == [(1, 5), (1, 6)]
    assert len(sdx.read(pairs, quiet=True).k_core(5)) == 0


def test_a_log_is_the_same_after_a_trip_through_arrow() -> None:
    log = make()
    again = sdx.read(log.to_arrow(), quiet=True)
    assert again.sha256 == log.sha256
    assert log.to_arrow().column_names == ["user", "item", "time", "rating", "weight", "test"]


def test_a_kept_column_never_hides_a_key() -> None:
    source = {"user_id": [1], "user": ["Ann"], "item": [2]}
    log = sdx.read(source, user="user_id", keep=["user"], quiet=True)
    assert log.to_arrow().to_pydict() == {"user": [1], "item": [2]}


# the hash ----------------------------------------------------------------------------------------


def test_the_hash_is_the_same_on_every_machine() -> None:
    assert make().sha256 == make().sha256
    assert make().sha256[:16] == "d93bb63e9f03e72f"


@pytest.mark.parametrize(
    "column",
    [
        {"user": ["a", "a", "b", "b", "b", "d"]},
        {"user": ["a", "a", "b", "b", "c", "c"]},
        {"item": ["x", "y", "x", "z", "z", "x"]},
        {"time": [5, 1, 3, 2, 2, 8]},
        {"time": [5.5, 1, 3, 2, 2, 9]},
        {"rating": [5.0, 3.0, 4.0, 1.0, 2.0, 4.0]},
        {"weight": [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]},
        {"test": [0, 0, 0, 0, 1, 1]},
        {"test": ["0", "0", "0", "0", "0", "1"]},
    ],
)
def test_the_hash_sees_every_column(column: dict[str, Any]) -> None:
    assert make(**column).sha256 != make().sha256


def test_the_hash_sees_the_roles_and_the_pairing_of_cells() -> None:
    log = make()
    assert make(time=[1, 5, 3, 2, 2, 9]).sha256 != log.sha256
    pairs = {"user": [1, 2], "item": [1, 2]}
    as_rating = sdx.read({**pairs, "rating": [1, 2]}, quiet=True)
    as_weight = sdx.read({**pairs, "weight": [1, 2]}, quiet=True)
    assert as_rating.sha256 != as_weight.sha256


# what it says of itself --------------------------------------------------------------------------


def test_describe_counts_everything() -> None:
    tables = {"items": {"item": ["x"], "price": [1]}, "users": {"user": ["a"], "age": [3]}}
    log = sdx.read(EVENTS, **tables, quiet=True)
    facts = log.describe()
    assert {n: facts[n] for n in ("rows", "users", "items", "repeated pairs")} == {
        "rows": 6,
        "users": 3,
        "items": 3,
        "repeated pairs": 1,
    }
    assert facts["density"] == "66.6667%"
    assert facts["rows per user"] == "1 .. 3, median 2, mean 2.0"
    assert facts["rows per item"] == "1 .. 4, median 1, mean 2.0"
    assert facts["time"] == "1 .. 9"
    assert facts["popularity"] == "top 1 % of items take 66.7%; Gini 0.33"
    assert facts["item columns"] == "price"
    assert facts["user columns"] == "age"
    assert "time order" in facts["warning 1"]
    assert "rows per user" in str(facts)


def test_describe_counts_keys_without_rows() -> None:
    facts = make().select(np.array([0])).describe()
    assert facts["users without a row"] == 2
    assert facts["items without a row"] == 2
    assert sdx.read([(1, 2)], quiet=True).describe()["time"] == "none"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"time": [7, 7, 7, 7]}, "all times are equal"),
        ({"time": [2, 1, 3, 4]}, "rows are not in time order per user"),
        ({"user": [1, 1, 2, 3]}, "2 users with one row"),
        ({"user": ["1.0", "1.0", "2.0", "2.0"]}, "user ids look like floats (1.0)"),
        ({"item": [1.5, 2.5, 1.5, 2.5]}, "item ids look like floats (1.5)"),
        ({"item": ["a", "b", "a ", "b"]}, "some item ids start or end with a blank"),
    ],
)
def test_what_looks_wrong_is_said_in_a_sentence(columns: dict[str, Any], words: str) -> None:
    sound = {"user": [1, 1, 2, 2], "item": [5, 6, 5, 6], "time": [1, 3, 2, 4]}
    assert sdx.read(sound, quiet=True).lint() == []
    found = sdx.read(sound | columns, quiet=True).lint()
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    ("counts", "wanted"), [([3, 3, 3], 0.0), ([0, 0, 0, 8], 0.75), ([1, 3], 0.25), ([5], 0.0)]
)
def test_gini_is_the_mean_difference(counts: list[int], wanted: float) -> None:
    values = np.array(counts)
    pairs = np.abs(values[:, None] - values[None]).sum()
    assert gini(values) == pytest.approx(wanted)
    assert gini(values) == pytest.approx(pairs / (2 * len(values) * values.sum()))


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_unix_times_are_shown_as_dates_in_every_unit(scale: int) -> None:
    assert time_span(np.array([1_577_836_800, 1_580_515_200]) * scale) == "2020-01-01 .. 2020-02-01"


@pytest.mark.parametrize(
    ("times", "wanted"), [([1, 500], "1 .. 500"), ([0.5, 2.5], "0.5 .. 2.5"), ([1e30, 2e30], None)]
)
def test_other_times_are_shown_as_numbers(times: list[float], wanted: str | None) -> None:
    assert time_span(np.array(times)) == (wanted or "1e+30 .. 2e+30")


def test_dates_of_arrow_are_shown_as_dates() -> None:
    log = make(time=pa.array([18262] * 5 + [18263], pa.date32()))
    assert log.describe()["time"] == "2020-01-01 .. 2020-01-02"
