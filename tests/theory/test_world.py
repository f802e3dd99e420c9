"""The synthetic world: its probabilities are exact, its draws follow them, its ceiling holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

import softdex as sdx
from marks import slow
from softdex.synthetic import World, world
from softdex.synthetic.draws import in_order


def eta_by_walking(w: World, user: int, last: int = -1) -> np.ndarray:
    """Return eta(y | u, last) per leaf: the product of the choices at every node on the path."""
    depth, arity = len(w.levels), w.arity
    probability = np.zeros(w.num_items)
    for item, slot in enumerate(w.slot_of):
        p = 1.0
        for level in range(depth):
            node = slot // arity ** (depth - level - 1)
            siblings = range(node // arity * arity, node // arity * arity + arity)
            weight = [
                w.levels[level][s] * math.exp(w.taste[user] @ w.vectors[level][s]) for s in siblings
            ]
            here = weight[node % arity] / sum(weight)
            if level == 0 and last >= 0:
                stays = node == w.slot_of[last] // arity ** (depth - 1)
                here = (1 - w.stickiness) * here + w.stickiness * stays
            p *= here
        probability[item] = (1 - w.noise) * p + w.noise * w.popularity[item]
    return probability


@given(seed=st.integers(0, 1000), items=st.integers(1, 40), depth=st.integers(1, 4))
def test_eta_is_the_product_of_the_choices_on_the_path_and_sums_to_one(
    seed: int, items: int, depth: int
) -> None:
    w = world(users=3, items=items, depth=depth, seed=seed)
    eta = w.eta(np.arange(3))
    assert np.allclose(eta.sum(1), 1)
    assert np.allclose(eta[2], eta_by_walking(w, 2))
    w = world(users=3, items=items, depth=depth, seed=seed, stickiness=0.3)
    last = np.array([0, -1, items - 1])
    eta = w.eta(np.arange(3), last)
    assert np.allclose(eta.sum(1), 1)
    for user in range(3):
        assert np.allclose(eta[user], eta_by_walking(w, user, last[user]))


def test_without_taste_everybody_follows_popularity() -> None:
    w = world(users=4, items=50, strength=0.0)
    assert np.allclose(w.eta(np.arange(4)), w.popularity)


def test_popularity_is_zipf_with_the_skew_asked_for() -> None:
    popularity = np.sort(world(items=500, skew=1.3).popularity)[::-1]
    ranks = np.arange(1, 501)
    slope = np.polyfit(np.log(ranks), np.log(popularity), 1)[0]
    assert slope == pytest.approx(-1.3)


def test_draws_follow_eta() -> None:
    w = world(users=1, items=30, events=40_000, seed=3)
    counts = w.interactions(repeats=True).item_counts
    assert chisquare(counts, w.eta(np.array([0]))[0] * counts.sum()).pvalue > 0.001


@pytest.mark.parametrize("repeats", [True, False])
def test_sticky_draws_follow_eta_given_the_event_before_and_what_is_new(repeats: bool) -> None:
    """Of 20,000 users with two events each, the second one, per category of the first."""
    users, items = 20_000, 12
    w = world(users=users, items=items, events=0.0, seed=3, strength=0.0, stickiness=0.6)
    lengths = np.full(users, 2)
    draw = np.random.default_rng(0)
    pairs = in_order(w, lengths, draw, repeats=repeats).reshape(users, 2)
    eta = w.eta(np.arange(items), np.arange(items))
    if not repeats:
        np.fill_diagonal(eta, 0)
    eta /= eta.sum(1, keepdims=True)
    counts = np.zeros((items, items))
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    expected = eta * counts.sum(1, keepdims=True)
    met = expected > 0
    assert not counts[~met].any()
    found = ((counts - expected)[met] ** 2 / expected[met]).sum()
    assert chi2.sf(found, met.sum() - items) > 0.001
    first = np.bincount(pairs[:, 0], minlength=items)
    assert chisquare(first, w.eta(np.array([0]))[0] * users).pvalue > 0.001


def test_users_who_have_had_nearly_all_that_is_likely_are_drawn_the_rest() -> None:
    log = world(users=30, items=20, events=60, skew=5.0, stickiness=0.9).interactions()
    assert log.repeats() == 0
    assert log.user_counts.max() == 10  # half of the items


def test_without_repeats_nobody_has_an_item_twice_and_lengths_are_set_beforehand() -> None:
    w = world(users=100, items=60, events=20)
    log = w.interactions()
    assert log.repeats() == 0
    assert log.user_counts.mean() == pytest.approx(20, rel=0.15)


def test_the_same_seed_gives_the_same_log_and_another_seed_other_events() -> None:
    first, again = (world(users=50, items=40, seed=2).interactions() for _ in range(2))
    assert first.sha256 == again.sha256
    assert world(users=50, items=40, seed=2).interactions(seed=1).sha256 != first.sha256


def test_best_lists_the_most_probable_items_that_are_not_excluded(
    parts: sdx.Split, world: World
) -> None:
    ids, probabilities = world.best(5, parts.test.users, parts.test.masked)
    for row, user in enumerate(parts.test.users[:20]):
        eta = world.eta(np.array([user]))[0]
        eta[parts.test.masked[row]] = -1
        assert list(ids[row]) == list(np.argsort(-eta, kind="stable")[:5])
        assert np.allclose(probabilities[row], eta[ids[row]])


def test_lists_longer_than_the_catalogue_are_padded() -> None:
    w = world(users=50, items=12, events=4)
    ids, probabilities = w.best(20, np.arange(2))
    assert ids.shape == (2, 20)
    assert (ids[:, 12:] == -1).all()
    assert np.allclose(probabilities.sum(1), 1)
    assert w.evaluate(sdx.split.leave_last(w.interactions()).test)["recall@20"] == 1


def test_hard_worlds_still_give_users_no_item_twice() -> None:
    log = world(users=40, items=30, events=25, skew=4.0, strength=4.0).interactions()
    assert log.repeats() == 0
    assert (np.diff(log.user) >= 0).all()


@pytest.mark.parametrize(
    ("metric", "stickiness"),
    [
        *((m, 0.0) for m in ("recall", "ndcg", "mrr", "precision", "f", "map", "hit")),
        ("ndcg", 0.7),
        *slow(("recall", 0.7), ("mrr", 0.7)),
    ],
)
def test_the_ceiling_is_what_the_best_lists_score_on_average(
    metric: str, stickiness: float
) -> None:
    """The expectation is exact: the realised score of the best lists is within 4 errors of it."""
    w = world(users=4000, items=80, events=6, seed=5, stickiness=stickiness)
    test = sdx.split.leave_last(w.interactions()).test
    asked = test.take(np.flatnonzero(test.targets.lengths))
    result = w.evaluate(asked, 10)
    error = result.standard_error(f"{metric}@10")
    assert abs(w.ceiling(metric, 10, asked) - result[f"{metric}@10"]) < 4 * error


def test_a_sticky_world_is_best_read_by_its_last_event() -> None:
    w = world(users=2000, items=80, events=6, seed=5, stickiness=0.7)
    test = sdx.split.leave_last(w.interactions()).test
    last = test.history.ids[test.history.indptr[1:] - 1]
    plain, _ = w.best(10, test.users, test.masked)
    best, probability = w.best(10, test.users, test.masked, last)
    eta = w.eta(test.users, last)
    assert np.allclose(probability, np.take_along_axis(eta, best, 1))
    assert probability.sum() > np.take_along_axis(eta, plain, 1).sum() * 1.1
    with pytest.raises(sdx.SoftdexError, match=r"depend on the last event\. Give holdout="):
        w.ceiling("recall", 10)


def test_no_model_is_above_the_ceiling_and_the_truth_has_no_regret(
    parts: sdx.Split, world: World
) -> None:
    for name in ("popular", "item_cf"):
        model = sdx.fit(name, parts.train)
        assert world.regret(model, 10, holdout=parts.test) > 0
        assert world.regret(model, 10) > 0

    class Truth:
        users, items = world.user_keys(), world.item_keys()
        seen = parts.train.histories

        def search(self, users, history, k, masked=None):  # type: ignore[no-untyped-def]
            return world.best(k, users, masked)[0]

    for metric in ("recall", "ndcg"):
        assert world.regret(Truth(), 10, metric=metric, holdout=parts.test) == pytest.approx(0)
        assert world.regret(Truth(), 10, metric=metric) == pytest.approx(0)


def test_regret_orders_models_as_their_scores_do(parts: sdx.Split, world: World) -> None:
    regrets = [
        world.regret(sdx.fit(name, parts.train), 20, holdout=parts.test)
        for name in ("item_cf", "popular")
    ]
    assert regrets[0] < regrets[1]


def test_a_million_items_need_no_users_by_items_array() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    w = world(users=20_000, items=1_000_000, events=2)
    log = w.interactions()
    ids, _ = w.best(10, np.arange(3))
    assert log.num_items == 1_000_000
    assert ids.shape == (3, 10)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 20_000 * 1_000_000 * 8 / 50, grown  # measured 0.7 GB; the array would be 160 GB


@pytest.mark.parametrize("bad", [{"users": 0}, {"noise": 1.5}, {"stickiness": 1.0}, {"depth": 0}])
def test_senseless_worlds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(sdx.SoftdexError, match="world: expected"):
        world(**bad)  # type: ignore[arg-type]


def test_a_world_refuses_models_and_holdouts_of_other_worlds(
    model: sdx.Retriever, parts: sdx.Split
) -> None:
    other = world(users=10, items=10)
    with pytest.raises(sdx.SoftdexError, match="expected a holdout of this world"):
        other.ceiling("recall", 5, parts.test)
    with pytest.raises(sdx.SoftdexError, match="expected a model trained on this world"):
        other.regret(model, 5)
    with pytest.raises(sdx.SoftdexError, match="Did you mean 'recall'"):
        other.ceiling("recal", 5)
