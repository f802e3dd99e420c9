"""Batches of requests: only requests with the same options are answered together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import fields, replace

import softdex as sdx
from softdex.serve.answers import Asked, group_of, similar
from softdex.serve.scores import group_of as group_of_scores
from softdex.serve.served import Served, of_memory
from softdex.serve.words import Recommend, Score, Similar

COMMON: dict[str, Any] = {
    "k": 4, "allow": ["i001"], "where": {"category": "c000"}, "at_most": {"category": 1},
    "columns": ["category"],
}  # fmt: skip
OPTIONS: dict[str, Any] = COMMON | {
    "exclude_seen": False, "unknown": "popular", "mode": "sample", "temperature": 2.0,
}  # fmt: skip
OF_ONE = {"user": "u002", "deny": ["i002"], "seed": 5}  # each request has its own


@pytest.fixture(scope="module")
def served(model: sdx.Retriever) -> Served:
    return of_memory("cf", model)


def test_requests_with_other_options_are_not_answered_together(served: Served) -> None:
    base = Recommend(user="u001")
    names = {each.name for each in fields(Recommend)}
    assert names == OPTIONS.keys() | OF_ONE.keys() | {"history", "model"}
    for name, value in OPTIONS.items():
        assert group_of(served, replace(base, **{name: value})) != group_of(served, base), name
    for name, value in OF_ONE.items():
        assert group_of(served, replace(base, **{name: value})) == group_of(served, base), name
    given = [base, Recommend(history=["i001"]), replace(base, history=["i001"])]
    assert len({group_of(served, each) for each in given}) == 3


def test_requests_for_another_model_are_not_answered_together(
    served: Served, model: sdx.Retriever
) -> None:
    other = of_memory("cf", model)
    assert group_of(served, Recommend(user="u001")) != group_of(other, Recommend(user="u001"))


def test_similar_items_with_other_options_are_not_found_together(served: Served) -> None:
    base, options = Similar(["i001"]), COMMON | {"deny": ["i002"]}
    assert {each.name for each in fields(Similar)} == options.keys() | {"items", "model"}
    for name, value in options.items():
        assert group_of(served, replace(base, **{name: value})) != group_of(served, base), name
    assert group_of(served, Similar(["i002", "i003"])) == group_of(served, base)


def test_scores_with_other_options_are_not_found_together(served: Served) -> None:
    base, two = Score(["i001"], "u001"), ["i001", "i002"]
    options: dict[str, Any] = {"items": two, "exclude_seen": False, "columns": ["category"]}
    assert {each.name for each in fields(Score)} == options.keys() | {"user", "history", "model"}
    for name, value in options.items():
        other = replace(base, **{name: value})
        assert group_of_scores(served, other) != group_of_scores(served, base), name
    assert group_of_scores(served, Score(["i009"], "u002")) == group_of_scores(served, base)
    given = [base, Score(["i001"], history=two), Score(["i001"], "u001", two)]
    assert len({group_of_scores(served, each) for each in given}) == 3


def test_similar_items_of_one_batch_are_each_request_s_own(
    served: Served, model: sdx.Retriever
) -> None:
    words = [Similar(["i001", "i002"], 3), Similar([], 3), Similar(["i003"], 3)]
    found = [json.loads(raw) for raw in similar([Asked(served, each, "", 0.0) for each in words])]
    assert [[e["item"] for e in each["similar"]] for each in found] == [w.items for w in words]
    own = model.similar(["i001", "i002", "i003"], k=3)["similar"].to_pylist()
    assert [i["item"] for each in found for e in each["similar"] for i in e["items"]] == own
