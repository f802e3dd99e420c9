"""Lists, ranks, probabilities and figures of trained models, by plain rows."""

from __future__ import annotations

import math
from typing import Any

import pytest

import softdex as sdx
from composition.models import (
    MODELS,
    Key,
    fitted,
    keys,
    lists_of,
    past,
    scores_of,
)
from composition.suite import SMALL, tiny

PRICES = [3.0, None, 1.5, 4.0, 9.0, 2.0, 2.5, None, 6.0, 1.0, 5.0, 7.0]  # of i0 to i11
CHEAP = {f"i{n}" for n, price in enumerate(PRICES) if price is not None and price < 4}
FEW, SOME = ["i2", "i5", "i9", "i3", "i0"], ["i5", "i1"]
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "seen too": {"exclude_seen": False},
    "allow": {"allow": FEW},
    "deny": {"deny": SOME},
    "both": {"allow": FEW, "deny": SOME},
    "where": {"where": {"price": [3.0, 1.5, 2.0, 2.5, 1.0]}},
    "where and allow": {"where": {"price": [3.0, 1.5, 2.0, 2.5, 1.0]}, "allow": FEW},
    "per user": {"allow": {"u1": FEW, "u2": SOME}, "deny": {"u1": ["i9"], "u0": ["i3"]}},
}  # fmt: skip


def allowed(rules: dict[str, Any], user: Key, item: Key, seen: list[Key]) -> bool:
    """Whether an item may come back, said in the plainest way."""
    allow, deny = rules.get("allow"), rules.get("deny", [])
    allow = allow.get(user, []) if isinstance(allow, dict) else allow
    deny = deny.get(user, []) if isinstance(deny, dict) else deny
    return (
        (allow is None or item in allow)
        and item not in deny
        and ("where" not in rules or item in CHEAP)
        and (item not in seen or not rules.get("exclude_seen", True))
    )


@pytest.mark.parametrize("name", MODELS)
def test_lists_hold_the_best_items_that_the_rules_allow(name: str) -> None:
    model = fitted(name)
    model.build_index("flat")
    (users, items), seen = keys(model), past(model)
    scores = scores_of(model, users, items)
    for words, rules in RULES.items():
        found = lists_of(model.recommend(users, k=4, **rules))
        for user in users:
            left = [i for i in items if allowed(rules, user, i, seen[user])]
            wanted = sorted(left, key=lambda i: (-scores[user, i], items.index(i)))[:4]
            close = {round(scores[user, i], 4) for i in left}
            if len(close) == len(left):  # no ties within rounding
                assert found.get(user, []) == wanted, (words, user)
            got = [scores[user, i] for i in found.get(user, [])]
            assert got == pytest.approx([scores[user, i] for i in wanted], abs=1e-4), (words, user)


@pytest.mark.parametrize("name", ["ials", "own vectors and histories", "fastvae", "dtr"])
def test_users_without_events_get_the_most_popular_items_that_the_rules_allow(name: str) -> None:
    model = fitted(name)
    _, items = keys(model)
    count = dict(zip(items, model.item_counts.tolist(), strict=True))
    best = max(items, key=lambda i: count[i])
    model.remove_items(best)
    order = sorted(set(items) - {best}, key=lambda i: (-count[i], items.index(i)))
    everyone = lists_of(model.recommend(["u1", "new"], k=3, unknown="popular"))
    assert everyone["new"] == order[:3]
    rules = {"u1": FEW, "new": ["i10", "i3", "i9"]}
    own = lists_of(model.recommend(["u1", "new"], k=3, unknown="popular", allow=rules))
    assert own["new"] == [i for i in order if i in rules["new"]]
    assert set(own["u1"]) <= set(FEW)


@pytest.mark.parametrize("name", ["ials", "own vectors and histories", "fastvae"])
def test_probabilities_are_the_softmax_over_items_that_are_not_removed(name: str) -> None:
    model = fitted(name)
    model.temperature = 0.4
    users, items = keys(model)
    scores = scores_of(model, users, items)
    model.remove_items(["i3", "i7"])
    left = [i for i in items if i not in ("i3", "i7")]
    found = model.log_prob(users, items)
    for n, user in enumerate(users):
        mass = math.log(sum(math.exp(scores[user, i] / 0.4) for i in left))
        wanted = [scores[user, i] / 0.4 - mass if i in left else -math.inf for i in items]
        assert found[n].tolist() == pytest.approx(wanted, abs=1e-4)


def test_ranks_of_given_items_are_those_of_the_lists() -> None:
    model = fitted("ssm")
    users, items = keys(model)
    for exclude in (True, False):
        lists = lists_of(model.recommend(users, k=len(items), exclude_seen=exclude))
        for row in model.score(users, items, exclude_seen=exclude).to_pylist():
            mine = lists[row["user"]]
            place = mine.index(row["item"]) + 1 if row["item"] in mine else None
            assert row["rank"] == place


# measuring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ssm", "own vectors and histories", "ials", "sasrec", "item_cf"])
def test_a_holdout_is_measured_by_lists_without_what_a_user_has_seen(name: str) -> None:
    parts = sdx.split.leave_last(tiny(weights=False))
    model, test = fitted(name, parts.train), parts.test
    _, items = keys(model)
    gains = []
    for n, row in enumerate(test.users.tolist()):
        target = {items[i] for i in test.targets[n].tolist()}
        masked = {items[i] for i in test.masked[n].tolist()}
        if not target:
            continue
        later = [items[i] for i in test.history[n].tolist()]
        user = model.users.all().to_pylist()[row]
        if model.encoder.history_first:  # solved for from the whole history
            found = model.score(items=items, history=[later], exclude_seen=False)
        elif model.encoder.reads_history:
            found = model.score([user], items, history=[later], exclude_seen=False)
        else:
            found = model.score([user], items, exclude_seen=False)
        scores = dict(zip(found["item"].to_pylist(), found["score"].to_pylist(), strict=True))
        left = sorted((i for i in items if i not in masked), key=lambda i: -scores[i])[:3]
        ideal = sum(1 / math.log2(n + 2) for n in range(min(3, len(target))))
        gains.append(sum(1 / math.log2(n + 2) for n, i in enumerate(left) if i in target) / ideal)
    assert model.evaluate(test, k=3)["ndcg@3"] == pytest.approx(sum(gains) / len(gains), abs=1e-6)


def test_options_that_are_given_go_over_those_of_a_variant() -> None:
    assert sdx.fit(
        "ssl", tiny(), quiet=True, **SMALL | {"temperature": 0.7}
    ).index.scorer.temperature.item() == pytest.approx(0.7)


def test_shares_of_a_mixed_query_sum_to_the_score() -> None:
    model = fitted("own vectors and histories")
    why = model.explain("u2", "i4")
    assert why.base + sum(why.table["share"].to_pylist()) == pytest.approx(why.score, abs=1e-6)
    [row] = model.score(["u2"], ["i4"]).to_pylist()
    assert why.score == pytest.approx(row["score"], abs=1e-5)
