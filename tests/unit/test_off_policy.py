"""Off-policy estimates: unbiased, with intervals that hold the truth, on worlds that know it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

import softdex as sdx
from marks import slow
from softdex.encode.history import Mixed
from softdex.encode.table import Users
from softdex.model.card import Card
from softdex.model.off_policy import ratio
from softdex.model.parts import known_from, parts_from
from softdex.score.product import Dot

USERS, ITEMS = 1500, 12


class Setting:
    """A world with a logging policy, a model whose policy is another one, and the truth."""

    def __init__(self, *, exclude_seen: bool = False) -> None:
        world = sdx.synthetic.world(users=USERS, items=ITEMS, seed=1, events=3, depth=2)
        self.log, eta = world.interactions(), world.eta(np.arange(USERS))
        self.reward = np.minimum(1.0, 3 * eta)  # a click's probability
        self.logging = 0.5 * eta**0.5 / (eta**0.5).sum(1, keepdims=True) + 0.5 / ITEMS
        draw = torch.Generator().manual_seed(2)
        users = torch.randn(USERS, 4, generator=draw)
        items = torch.randn(ITEMS, 4, generator=draw)
        parts = parts_from(Users(users), Dot(items))
        self.model = sdx.Retriever(Card("drawn"), parts, known_from(self.log))
        self.policy = np.exp(self.model.log_prob(self.log.users.all()).astype(np.float64))
        if exclude_seen:
            self.policy[self.log.user, self.log.item] = 0
            self.policy /= self.policy.sum(1, keepdims=True)
        self.truth = float((self.policy * self.reward).sum(1).mean())

    def events(self, seed: int, users: int = 130) -> pa.Table:
        """Events of users drawn anew, about three of each."""
        draw = np.random.default_rng([seed, 7])
        user = np.repeat(draw.integers(USERS, size=users), draw.integers(1, 6, users))
        count = len(user)
        item = (draw.random((count, 1)) > self.logging[user].cumsum(1)).sum(1)
        item = np.minimum(item, ITEMS - 1)
        return pa.table({
            "user": self.log.users.take(user),
            "item": self.log.items.take(item),
            "reward": (draw.random(count) < self.reward[user, item]).astype(float),
            "propensity": self.logging[user, item],
        })  # fmt: skip


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting()


# the truth is known ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exclude_seen", "interval", "seeds"),
    [(False, "normal", 150), (True, "bootstrap", 100), *slow((False, "bootstrap", 300))],
)
def test_estimates_are_unbiased_and_intervals_hold_the_truth_as_often_as_they_say(
    exclude_seen: bool, interval: str, seeds: int
) -> None:
    setting = Setting(exclude_seen=exclude_seen)
    given: dict[str, Any] = {"exclude_seen": exclude_seen, "interval": interval, "samples": 200}
    found = [
        sdx.off_policy(setting.events(seed), setting.model, seed=seed, **given)
        for seed in range(seeds)
    ]
    logged = (setting.logging * setting.reward).sum(1).mean()
    for name in ("ips", "snips", "dr", "logged"):
        truth = logged if name == "logged" else setting.truth
        values = np.array([each[name].value for each in found])
        spread = values.std(ddof=1)
        assert abs(values.mean() - truth) < 3.5 * spread / np.sqrt(seeds)
        errors = np.array([each[name].standard_error for each in found])
        assert errors.mean() == pytest.approx(spread, rel=0.25)
        held = np.mean([each[name].low <= truth <= each[name].high for each in found])
        assert 0.88 <= held <= 0.99 + 1 / seeds
    weights = np.array([each.mean_weight for each in found])
    assert abs(weights.mean() - 1) < 3.5 * weights.std() / np.sqrt(seeds)
    assert abs(setting.truth - logged) > 0.02  # another policy


def test_the_doubly_robust_estimate_is_sharp_with_good_rewards_and_right_with_wrong_ones(
    setting: Setting,
) -> None:
    rows = {key: i for i, key in enumerate(setting.log.users.all().to_pylist())}

    def good(users: pa.Array) -> np.ndarray:
        return setting.reward[[rows[u] for u in users.to_pylist()]]

    def wrong(users: pa.Array) -> np.ndarray:
        return 1 - good(users)

    ends = {good: [], wrong: []}  # type: ignore[var-annotated]
    ips = []
    for seed in range(60):
        events = setting.events(seed)
        for rewards, values in ends.items():
            found = sdx.off_policy(events, setting.model, exclude_seen=False, rewards=rewards)
            values.append(found["dr"].value)
        ips.append(found["ips"].value)
    for values in ends.values():
        assert abs(np.mean(values) - setting.truth) < 3.5 * np.std(values) / np.sqrt(60)
    assert np.std(ends[good]) < 0.95 * np.std(ips)
    assert np.std(ends[good]) < 0.8 * np.std(ends[wrong])


# against plain loops -----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [None, 0.3])
def test_estimates_are_those_of_a_loop_over_the_events(temperature: float | None) -> None:
    setting = Setting()
    setting.model.temperature = 1.7
    heat, rows = temperature or 1.7, setting.events(3, 15).to_pylist()
    above = [["i01", "i02"], [], ["i03"]]
    for n, row in enumerate(rows):
        row["above"] = above[n % 3]
    names = setting.log.items.all().to_pylist()
    scores = setting.model.score(setting.log.users.all(), exclude_seen=False)["score"].to_numpy()
    scores = scores.reshape(USERS, ITEMS).astype(np.float64)
    seen = setting.log.csr().toarray() > 0
    weights, rewards = [], []
    for row in rows:
        [u] = setting.log.users.lookup([row["user"]])
        free = [i for i in range(ITEMS) if not seen[u, i] and names[i] not in row["above"]]
        mass = sum(np.exp(scores[u, i] / heat) for i in free)
        at = names.index(row["item"])
        chance = np.exp(scores[u, at] / heat) / mass if at in free else 0.0
        weights.append(chance / row["propensity"])
        rewards.append(row["reward"])
    w, r = np.array(weights), np.array(rewards)
    found = sdx.off_policy(rows, setting.model, temperature=temperature)
    assert found["ips"].value == pytest.approx((w * r).mean(), rel=1e-5)
    assert found["snips"].value == pytest.approx((w * r).sum() / w.sum(), rel=1e-5)
    assert found["logged"].value == pytest.approx(r.mean())
    assert found.effective == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-4)
    assert (found.max_weight, found.mean_weight) == pytest.approx((w.max(), w.mean()), rel=1e-5)
    assert found.unsupported == pytest.approx((w == 0).mean())
    assert found.temperature == heat


def test_events_of_one_user_are_one_draw() -> None:
    one = ratio(np.array([3.0, 1.0, 2.0]), np.ones(3), "normal", 0.95, 1, 0)
    assert one.standard_error == pytest.approx(1 / np.sqrt(3))
    assert (one.low, one.high) == pytest.approx((2 - 1.96 / 3**0.5, 2 + 1.96 / 3**0.5), rel=1e-3)
    doubled = ratio(np.array([6.0, 2.0, 4.0]), np.full(3, 2.0), "normal", 0.95, 1, 0)
    assert doubled == pytest.approx(one)  # every event twice is no more to know
    assert np.isnan(ratio(np.ones(1), np.ones(1), "normal", 0.95, 1, 0).low)


def test_histories_of_the_time_stand_for_users(setting: Setting) -> None:
    items = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(0))
    scorer = Dot(items)
    encoder = Mixed(torch.zeros(USERS, 4), torch.tensor(0.0), torch.tensor(5), scorer.items)
    model = sdx.Retriever(Card("read"), parts_from(encoder, scorer), known_from(setting.log))
    events = setting.events(0, 20).slice(0, 20)
    past = [["i01"], ["i02", "i05"]] * 10
    found = sdx.off_policy(
        events.drop_columns("user").append_column("history", pa.array(past)), model
    )
    assert found.users == 20
    log_p = model.log_prob(history=past)
    gone = log_p.copy()
    for row, seen in zip(gone, past, strict=True):
        row[model.items.lookup(seen)] = -np.inf
    chance = np.exp(gone) / np.exp(gone).sum(1, keepdims=True)
    shown = chance[np.arange(20), model.items.lookup(events["item"])]
    weight = shown / events["propensity"].to_numpy()
    assert found.mean_weight == pytest.approx(weight.mean(), rel=1e-5)


def test_a_policy_that_may_show_nothing_earns_nothing(setting: Setting) -> None:
    events = setting.events(0, 4).slice(0, 4)
    every = pa.array([setting.log.items.all().to_pylist()] * 4)
    found = sdx.off_policy(events.append_column("above", every), setting.model)
    assert (found["ips"].value, found["dr"].value, found.unsupported) == (0.0, 0.0, 1.0)
    assert np.isnan(found["snips"].value)


def test_the_result_prints_and_is_a_table(setting: Setting) -> None:
    frame = pl.from_arrow(setting.events(0)).rename({"reward": "click"})  # type: ignore[union-attr]
    found = sdx.off_policy(frame, setting.model, columns={"reward": "click"}, level=0.9)
    assert found.table["estimator"].to_pylist() == ["logged", "ips", "snips", "dr"]
    text = repr(found)
    assert text.startswith("Expected reward per event, ")
    assert "90% normal intervals" in text
    assert "effective" not in text
    again = sdx.off_policy(frame, setting.model, columns={"reward": "click"}, level=0.9)
    assert again.table == found.table
    with pytest.raises(sdx.SoftdexError, match="unknown estimator 'dm'"):
        found["dm"]


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({"propensity": None}, {}, "the events have no column 'propensity'. Log the probability"),
        ({"reward": None}, {}, "the events have no column 'reward'. Known: .* Name it by columns="),
        ({"user": None}, {}, "the events have no column 'user'"),
        ({"propensity": 0.0}, {}, "expected propensities above 0, got 0 in row 0 of 'propensity'"),
        ({"propensity": -0.1}, {}, "expected propensities above 0, got -0.1 in row 0"),
        ({"propensity": 1.5}, {}, "expected propensities of at most 1, got 1.5 in row 0"),
        ({"propensity": float("nan")}, {}, "expected a number in row 0 of 'propensity', got none"),
        ({"reward": "yes"}, {}, "expected numbers in 'reward', got string"),
        ({"item": "i99"}, {}, r"1 unknown item \('i99'\)"),
        ({"user": "u999"}, {}, r"1 unknown user \('u999'\)"),
        ({"above": ["i99"]}, {}, r"1 unknown item in above \('i99'\)"),
        ({"above": "i01"}, {}, r"expected above=\[\[item, ...\], ...\]"),
        ({"history": ["i01"]}, {}, "drawn keeps one vector per user and cannot read a history"),
        ({}, {"columns": {"click": "reward"}}, "unknown column 'click'"),
        ({}, {"columns": {"reward": "clck"}}, "the events have no column 'clck'"),
        ({}, {"interval": "exact"}, "unknown interval 'exact'"),
        ({}, {"level": 95}, "expected level from 0.5 to 0.9999, got 95"),
        ({}, {"temperature": 0}, "expected temperature from 0.0001 to 10000, got 0"),
        ({}, {"samples": 0}, "expected k as a whole number"),
        ({}, {"rewards": lambda users: np.zeros(3)}, "expected rewards= to return finite numbers"),
    ],
)
def test_a_mistake_is_one_clear_sentence(
    setting: Setting, change: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    rows = setting.events(0, 3).to_pylist()[:1]
    rows = [{n: v for n, v in (row | change).items() if v is not None} for row in rows]
    with pytest.raises(sdx.SoftdexError, match=f"^off_policy: {words}"):
        sdx.off_policy(rows, setting.model, **arguments)


def test_no_table_no_events_and_models_without_a_softmax_are_refused(
    setting: Setting, model: sdx.Retriever
) -> None:
    events = setting.events(0, 3).slice(0, 3)
    with pytest.raises(sdx.SoftdexError, match="off_policy: expected at least one event"):
        sdx.off_policy(events.slice(0, 0), setting.model)
    with pytest.raises(sdx.SoftdexError, match="off_policy: expected events as a table in memory"):
        sdx.off_policy("events.parquet", setting.model)
    users = model.users.take(np.arange(3))
    items = model.items.take(np.arange(3))
    events = events.set_column(0, "user", users).set_column(1, "item", items)
    with pytest.raises(sdx.SoftdexError, match="off_policy: expected a model with item vectors"):
        sdx.off_policy(events, model)
