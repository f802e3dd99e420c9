"""Scores of given items: those of `recommend`, with exact ranks and log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softdex as sdx

FAST: dict[str, Any] = {"dim": 8, "epochs": 2, "device": "cpu"}
USERS = ["u001", "u007"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popular": ("popular", {}),
    "item_cf": ("item_cf", {}),
    "ials": ("ials", FAST),
    "cosine": ("ssm", FAST | {"negatives": 20}),
    "sasrec": ("sasrec", {**FAST, "heads": 1, "epochs": 1}),
    "tree": ("tdm", {**FAST, "leaves": "random", "epochs": 1, "max_instances": 64, "beam": 4}),
}


@pytest.fixture(scope="module")
def models(parts: sdx.Split) -> dict[str, sdx.Retriever]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTDEX_QUIET", "1")
        return {n: sdx.fit(name, parts.train, **given) for n, (name, given) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_every_item_of_an_exact_list_has_its_score_and_rank(
    name: str, models: dict[str, sdx.Retriever]
) -> None:
    model = models[name]
    if name == "tree":
        model.index.effort = np.inf
    every = model.recommend(USERS, len(model.items))
    for user in USERS:
        rows = [r for r in every.to_pylist() if r["user"] == user]
        found = model.score([user], [r["item"] for r in rows])
        assert found["user"].to_pylist() == [user] * len(rows)
        assert found["item"].to_pylist() == [r["item"] for r in rows]
        assert found["rank"].to_pylist() == [r["rank"] for r in rows]
        scores = [r["score"] for r in rows]
        assert found["score"].to_pylist() == pytest.approx(scores, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_seen_and_removed_items_have_a_score_and_no_rank(
    name: str, models: dict[str, sdx.Retriever]
) -> None:
    model = models[name]
    past = model.items.take(model.seen[int(model.users.lookup(["u007"])[0])]).to_pylist()
    found = model.score(["u007"], past[:2])
    assert found["rank"].to_pylist() == [None, None]
    assert np.isfinite(found["score"].to_numpy()).all()
    assert None not in model.score(["u007"], past[:2], exclude_seen=False)["rank"].to_pylist()
    [best] = model.recommend(["u007"], 1)["item"].to_pylist()
    model.remove_items(best)
    [row] = model.score(["u007"], best).to_pylist()
    model.restore_items(best)
    assert row["rank"] is None
    assert row.get("log_prob", -np.inf) == -np.inf


@pytest.mark.parametrize("name", ["ials", "cosine", "sasrec"])
def test_models_with_item_vectors_have_log_probabilities(
    name: str, models: dict[str, sdx.Retriever]
) -> None:
    model, lists = models[name], [["i003", "i050"], ["i017", "i003"]]
    model.temperature = 0.5
    found = model.score(USERS, lists)
    wanted = model.log_prob(USERS, lists).ravel()
    assert found["log_prob"].to_numpy() == pytest.approx(wanted, rel=1e-5)
    assert "log_prob" not in models["item_cf"].score(USERS, lists).column_names


def test_an_approximate_index_gives_exact_ranks(parts: sdx.Split) -> None:
    model = sdx.fit("ials", parts.train, **FAST)
    exact = model.score(USERS)
    model.build_index("imi", recall=0.1, k=5, codewords=4)
    assert model.score(USERS)["rank"].to_pylist() == exact["rank"].to_pylist()


def test_histories_are_scored_and_columns_added(models: dict[str, sdx.Retriever]) -> None:
    found = models["ials"].score(
        items=["i003", "i009"], history=[["i003"], ["i017"]], columns="category"
    )
    assert found.column_names == ["user", "rank", "item", "score", "log_prob", "category"]
    assert found["user"].to_pylist() == [0, 0, 1, 1]
    ranks = found["rank"].to_pylist()
    assert ranks[0] is None
    assert None not in ranks[1:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"items": "i003"}, "expected users, or history="),
        ({"users": "u7", "items": "i003"}, r"1 unknown user \('u7'\)"),
        ({"users": USERS, "items": "i3"}, r"1 unknown item \('i3'\)"),
        ({"users": USERS, "items": [["i003"]]}, "2 users but 1 lists of items"),
        ({"users": USERS, "items": [["i003"], []]}, "expected items=.* all of the same length"),
        ({"users": USERS, "items": "i003", "columns": "log_prob"}, "no item column 'log_prob'"),
    ],
)
def test_a_mistake_is_one_clear_sentence(
    arguments: dict[str, Any], words: str, models: dict[str, sdx.Retriever]
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"^score: {words}"):
        models["ials"].score(**arguments)
