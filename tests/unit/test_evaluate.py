"""Metrics by hand, conventions, comparison and breakdowns."""

from __future__ import annotations

import math

import numpy as np
import pytest

import softdex as sdx
from softdex.evaluate.evaluate import evaluate
from softdex.evaluate.metrics import overlap, user_metrics


def holdout(
    targets: dict[str, list[str]], masked: dict[str, list[str]] | None = None
) -> sdx.Holdout:
    """A holdout over the items a..j with these targets."""
    rows = [(u, i, 1) for u, items in targets.items() for i in items]
    filler = [(u, i, 0) for u in targets for i in "j"]
    rest = [("filler", i, 0) for i in "abcdefghij"]
    log = sdx.read(
        {
            "user": [r[0] for r in (*filler, *rest, *rows)],
            "item": [r[1] for r in (*filler, *rest, *rows)],
            "test": [False] * (len(filler) + len(rest)) + [True] * len(rows),
        }
    )
    return sdx.split.given(log).test


def ranking(lists: dict[int, str]) -> object:
    """A search that answers with fixed lists of items a..j; `_` ends a list."""

    def search(part: sdx.Holdout, k: int, exact: bool) -> np.ndarray:
        rows = [[ord(c) - ord("a") if c != "_" else -1 for c in lists[u]][:k] for u in part.users]
        return np.array([row + [-1] * (k - len(row)) for row in rows])

    return search


COUNTS = np.arange(10)


def test_metrics_of_one_user_by_hand() -> None:
    hits = np.array([[0, 1, 0, 1, 0]])
    got = user_metrics(hits, np.array([3]), [5])
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert got["precision@5"][0] == pytest.approx(2 / 5)
    assert got["recall@5"][0] == pytest.approx(2 / 3)
    assert got["f@5"][0] == pytest.approx(0.5)
    assert got["mrr@5"][0] == pytest.approx(1 / 2)
    assert got["map@5"][0] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert got["ndcg@5"][0] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert got["hit@5"][0] == 1


def test_the_truncated_ideal_lets_a_full_list_of_hits_score_one_and_the_full_one_does_not() -> None:
    hits, sizes = np.ones((1, 2), bool), np.array([4])
    assert user_metrics(hits, sizes, [2])["ndcg@2"][0] == pytest.approx(1)
    assert user_metrics(hits, sizes, [2])["map@2"][0] == pytest.approx(1)
    full = user_metrics(hits, sizes, [2], ideal="full")
    ideal = sum(1 / math.log2(r + 1) for r in range(1, 5))
    assert full["ndcg@2"][0] == pytest.approx((1 + 1 / math.log2(3)) / ideal)
    assert full["map@2"][0] == pytest.approx(2 / 4)


def test_a_first_hit_beyond_the_cut_off_counts_nothing_there() -> None:
    got = user_metrics(np.array([[0, 0, 1]]), np.array([1]), [2, 3])
    assert got["mrr@2"][0] == 0
    assert got["mrr@3"][0] == pytest.approx(1 / 3)


def test_means_and_standard_errors_are_over_users() -> None:
    test = holdout({"u": ["a"], "v": ["b"]})
    result = evaluate(ranking({1: "ab", 2: "cd"}), test, item_counts=COUNTS, k=2)
    assert result["recall@2"] == 0.5
    assert list(result.per_user["recall@2"]) == [1, 0]
    assert result.standard_error("recall@2") == pytest.approx(math.sqrt(0.5 / 2))
    assert result["coverage@2"] == pytest.approx(4 / 10)
    assert math.isnan(result.standard_error("coverage@2"))


def test_users_without_targets_are_skipped_or_count_as_zero() -> None:
    test = holdout({"u": ["a"]})
    lists = ranking({0: "bc", 1: "ab"})
    assert evaluate(lists, test, item_counts=COUNTS, k=2)["recall@2"] == 1
    assert evaluate(lists, test, item_counts=COUNTS, k=2, empty="zero")["recall@2"] == 0.5


def test_repeated_targets_count_once_or_each_time() -> None:
    test = holdout({"u": ["a", "a", "b"]})
    lists = ranking({1: "ac"})
    assert evaluate(lists, test, item_counts=COUNTS, k=2)["recall@2"] == pytest.approx(1 / 2)
    each = evaluate(lists, test, item_counts=COUNTS, k=2, repeats="count")
    assert each["recall@2"] == pytest.approx(1 / 3)
    assert each.conventions == {"empty": "skip", "repeats": "count", "ideal": "truncated"}


def test_a_short_list_is_padded_and_pads_are_never_hits() -> None:
    test = holdout({"u": ["a", "b"]})
    result = evaluate(ranking({1: "a_"}), test, item_counts=COUNTS, k=3)
    assert result["recall@3"] == 0.5
    assert result["precision@3"] == pytest.approx(1 / 3)


def test_both_shows_what_the_model_loses_and_what_the_index_loses() -> None:
    test = holdout({"u": ["a", "b"]})

    def search(part: sdx.Holdout, k: int, exact: bool) -> np.ndarray:
        return np.array([[0, 1]]) if exact else np.array([[0, 5]])

    result = evaluate(search, test, item_counts=COUNTS, k=2, index="both")
    assert result["recall@2"] == 0.5
    assert result["exact recall@2"] == 1.0
    assert result["overlap@2"] == 0.5
    alone = evaluate(search, test, item_counts=COUNTS, k=2, index="exact")
    assert alone["recall@2"] == 1.0
    assert "overlap@2" not in alone


def test_overlap_is_the_share_of_the_exact_list_that_is_served() -> None:
    got = overlap(np.array([[1, 2, -1], [4, 5, 6]]), np.array([[2, 3, -1], [6, 5, 4]]))
    assert list(got) == [0.5, 1.0]


def test_an_unknown_metric_name_names_the_nearest() -> None:
    result = evaluate(ranking({1: "ab"}), holdout({"u": ["a"]}), item_counts=COUNTS, k=2)
    with pytest.raises(sdx.SoftdexError, match="Did you mean 'recall@2'"):
        result["recal@2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "cut-offs k of at least 1"),
        ({"k": ()}, "cut-offs k of at least 1"),
        ({"index": "servd"}, "Did you mean 'served'"),
        ({"empty": "none"}, "unknown value of empty"),
        ({"ideal": "trunc"}, "Did you mean 'truncated'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(sdx.SoftdexError, match=words):
        evaluate(ranking({1: "ab"}), holdout({"u": ["a"]}), item_counts=COUNTS, **arguments)


def test_the_answer_does_not_depend_on_the_batch_size(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    search = lambda part, k, exact: model.search(part.users, part.history, k, part.masked)  # noqa: E731
    counts = model.item_counts
    whole = evaluate(search, parts.test, item_counts=counts, k=(5, 10))
    pieces = evaluate(search, parts.test, item_counts=counts, k=(5, 10), batch=7)
    assert dict(whole) == dict(pieces)


def test_evaluate_prints_as_a_table(model: sdx.Retriever, parts: sdx.Split) -> None:
    text = str(model.evaluate(parts.test, k=(5, 10)))
    assert "leave_last" in text
    assert "@5" in text
    assert "ndcg" in text
    assert "±" in text


def test_a_holdout_of_another_log_is_refused(model: sdx.Retriever) -> None:
    other = sdx.split.leave_last(sdx.synthetic.world(users=50, items=40).interactions())
    with pytest.raises(sdx.DataError, match="another log"):
        model.evaluate(other.test)
    with pytest.raises(sdx.DataError, match="expected a holdout"):
        model.evaluate(other.train)  # type: ignore[arg-type]


# comparison and breakdowns


def test_the_paired_bootstrap_sees_a_difference_that_is_there(parts: sdx.Split) -> None:
    better = sdx.fit("item_cf", parts.train).evaluate(parts.test, k=20)
    worse = sdx.fit("popular", parts.train).evaluate(parts.test, k=20)
    row = next(r for r in better.compare(worse) if r["metric"] == "recall@20")
    assert row["difference"] == pytest.approx(better["recall@20"] - worse["recall@20"])
    assert row["low"] < row["difference"] < row["high"]
    assert row["p"] < 0.05
    assert better.compare(worse) == better.compare(worse)


def test_the_bootstrap_interval_agrees_with_the_normal_one(parts: sdx.Split) -> None:
    a = sdx.fit("item_cf", parts.train).evaluate(parts.test, k=20)
    b = sdx.fit("popular", parts.train).evaluate(parts.test, k=20)
    gap = a.per_user["ndcg@20"] - b.per_user["ndcg@20"]
    half = 1.96 * gap.std(ddof=1) / math.sqrt(len(gap))
    row = next(r for r in a.compare(b, samples=4000) if r["metric"] == "ndcg@20")
    assert row["high"] - row["low"] == pytest.approx(2 * half, rel=0.1)


def test_a_model_compared_with_itself_shows_no_difference(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    result = model.evaluate(parts.test, k=10)
    for row in result.compare(result):
        assert row["difference"] == row["low"] == row["high"] == 0
        assert row["p"] == 1


def test_results_of_different_splits_are_not_compared(
    model: sdx.Retriever, log: sdx.Interactions
) -> None:
    first = model.evaluate(sdx.split.leave_last(log).test, k=10)
    other = model.evaluate(sdx.split.per_user(log).test, k=10, leak="allow")
    with pytest.raises(sdx.SoftdexError, match="expected results of the same users and split"):
        first.compare(other)


def test_history_groups_add_up_to_the_whole(model: sdx.Retriever, parts: sdx.Split) -> None:
    result = model.evaluate(parts.test, k=(10, 20))
    rows = result.by("history", 20)
    users = sum(r["users"] for r in rows)
    assert users == len(result.users)
    mean = sum(r["users"] * r["recall@20"] for r in rows) / users
    assert mean == pytest.approx(result["recall@20"], abs=1e-6)


def test_popularity_groups_hold_every_target_and_a_third_of_the_events_each(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    result = model.evaluate(parts.test, k=20)
    rows = result.by("popularity")
    assert sum(r["targets"] for r in rows) == len(parts.test.targets.ids)
    assert sum(r["count"] for r in rows) == parts.train.num_items
    order = np.sort(parts.train.item_counts)[::-1]
    head = order[: rows[0]["count"]].sum() / order.sum()
    assert 1 / 3 <= head < 1 / 3 + order[0] / order.sum() + 1e-9
    with pytest.raises(sdx.SoftdexError, match="was not evaluated"):
        result.by("popularity", 7)
    with pytest.raises(sdx.SoftdexError, match="Did you mean 'popularity'"):
        result.by("populariti")
