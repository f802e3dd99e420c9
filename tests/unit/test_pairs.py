"""Pairs: the joint bootstrap equals loops, and its intervals hold for all pairs at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import softdex as sdx
from softdex.evaluate.pairs import pairs

METRIC = "ndcg@20"


@pytest.fixture(scope="module")
def result(parts: sdx.Split) -> sdx.Result:
    return sdx.fit("popular", parts.train).evaluate(parts.test, (5, 20))


def made(result: sdx.Result, values: np.ndarray) -> dict[str, sdx.Result]:
    """Results with these values per user, (M, users): a, b, ..."""
    users = np.arange(values.shape[1])
    return {
        chr(ord("a") + i): replace(
            result, means={METRIC: float(row.mean())}, per_user={METRIC: row}, users=users
        )
        for i, row in enumerate(values)
    }


def test_every_pair_is_compared_on_the_same_draws_of_users(result: sdx.Result) -> None:
    rng = np.random.default_rng(1)
    values = rng.random((4, 30)) + 0.1 * np.arange(4)[:, None]
    found = pairs(made(result, values), METRIC, samples=200, seed=3)
    order = np.argsort(-values.mean(1))
    assert found.names == tuple("abcd"[i] for i in order)
    draws = np.random.default_rng(3)
    drawn = [draws.integers(30, size=30) for _ in range(200)]
    gaps = {
        (i, j): [values[i][d].mean() - values[j][d].mean() for d in drawn]
        for i, j in combinations(order, 2)
    }
    spread = {pair: np.std(g, ddof=1) for pair, g in gaps.items()}
    largest = [
        max(abs(gaps[p][s] - np.mean(gaps[p])) / spread[p] for p in gaps) for s in range(200)
    ]
    reach = np.quantile(largest, 0.95)
    for (i, j), error in spread.items():
        here, there = (found.names.index("abcd"[at]) for at in (i, j))
        difference = values[i].mean() - values[j].mean()
        for row, column, sign in ((here, there, 1), (there, here, -1)):
            assert found.difference[row, column] == pytest.approx(sign * difference)
            assert found.margin[row, column] == pytest.approx(reach * error)
            beyond = np.mean(np.array(largest) >= abs(difference) / error)
            assert found.p[row, column] == pytest.approx(max(beyond, 1 / 200))
            assert found.apart[row, column] == (abs(difference) > reach * error)


def test_equal_models_are_rarely_told_apart_however_many_they_are(result: sdx.Result) -> None:
    rng = np.random.default_rng(0)
    any_pair = each_pair = 0
    for seed in range(100):
        values = rng.random((8, 60)) + rng.random(60)  # users differ, models do not
        found = pairs(made(result, values), METRIC, samples=200, seed=seed)
        any_pair += bool(found.apart.any())
        alone = pairs(dict(list(made(result, values).items())[:2]), METRIC, samples=200, seed=seed)
        each_pair += bool(alone.apart.any())
    assert each_pair <= 15
    assert any_pair <= 15  # 28 intervals of 95 % each would err in more than half of the tables


def test_a_difference_that_is_large_for_all_users_is_found(result: sdx.Result) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((3, 50)) + np.array([[0.0], [0.0], [0.6]])
    found = pairs(made(result, values), METRIC)
    assert found.names[0] == "c"
    assert found.apart[0].tolist() == [False, True, True]
    assert not found.apart[1, 2]
    rows = found.against("c")
    assert [row["against"] for row in rows] == list(found.names[1:])
    for row, gap in zip(rows, found.difference[0, 1:], strict=True):
        assert row["low"] < row["difference"] == gap < row["high"]
        assert row["real"]
        assert row["p"] == 0.001


def test_users_asked_several_times_are_drawn_as_one(result: sdx.Result) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((2, 20)) + np.array([[0.0], [0.4]])
    once, often = made(result, values), made(result, np.repeat(values, 5, 1))
    users = np.repeat(np.arange(20), 5)
    often = {name: replace(each, users=users) for name, each in often.items()}
    one, other = (pairs(each, METRIC) for each in (once, often))
    assert (one.users, other.users) == (20, 20)
    np.testing.assert_allclose(one.margin, other.margin)


def test_models_that_cannot_be_compared_are_not_told_apart(result: sdx.Result) -> None:
    same = pairs({"a": result, "b": result}, METRIC)
    assert not same.apart.any()
    assert same.p[0, 1] == 1.0
    single = pairs(made(result, np.array([[0.0], [1.0]])), METRIC)
    assert not single.apart.any()


def test_results_of_other_users_and_metrics_that_are_no_means_are_refused(
    result: sdx.Result,
) -> None:
    other = replace(result, users=result.users[::-1])
    with pytest.raises(sdx.SoftdexError, match="pairs: expected results of the same users"):
        pairs({"a": result, "b": other}, METRIC)
    with pytest.raises(sdx.SoftdexError, match="pairs: unknown metric of users 'coverage@20'"):
        pairs({"a": result}, "coverage@20")
