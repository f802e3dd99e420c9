"""The counting recipes against naive counting, and how `fit` treats its arguments."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

import softdex as sdx
from softdex import recipes
from softdex.encode.counting import Unpersonalised
from softdex.options import positive
from softdex.score.counting import Constant
from softdex.solve.closed import neighbours
from softdex.solve.closed.neighbours import cosine_neighbours


def dense_cosine(
    matrix: np.ndarray, shrink: float = 0.0, user_power: float = 0.0, asymmetry: float = 0.5
) -> np.ndarray:
    """The formula of `cosine_neighbours`, item pair by item pair."""
    size = (matrix**2).sum(1)
    norm = (matrix**2).sum(0)
    items = matrix.shape[1]
    sims = np.zeros((items, items))
    for i in range(items):
        for j in range(items):
            if i != j:
                dot = sum(
                    row[i] * row[j] * s**-user_power
                    for row, s in zip(matrix, size, strict=True)
                    if s > 0
                )
                down = norm[i] ** asymmetry * norm[j] ** (1 - asymmetry) + shrink
                sims[i, j] = dot / down if dot else 0.0
    return sims


@given(
    seed=st.integers(0, 10**6),
    shrink=st.sampled_from([0.0, 2.5]),
    user_power=st.sampled_from([0.0, 0.5]),
    asymmetry=st.sampled_from([0.5, 0.7]),
)
def test_all_neighbours_equal_the_formula(
    seed: int, shrink: float, user_power: float, asymmetry: float
) -> None:
    draw = np.random.default_rng(seed)
    matrix = draw.integers(1, 4, (8, 6)) * (draw.random((8, 6)) < 0.4)
    options = {"shrink": shrink, "user_power": user_power, "asymmetry": asymmetry}
    ours = cosine_neighbours(sp.csr_matrix(matrix), 6, **options).toarray()
    assert np.allclose(ours, dense_cosine(matrix.astype(float), **options), rtol=1e-5)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 5))
def test_short_lists_hold_the_largest_similarities(seed: int, n: int) -> None:
    draw = np.random.default_rng(seed)
    matrix = (draw.random((12, 9)) < 0.4).astype(float)
    ours = cosine_neighbours(sp.csr_matrix(matrix), n)
    for row, expected in zip(ours.toarray(), dense_cosine(matrix), strict=True):
        assert (row > 0).sum() == min(n, (expected > 0).sum())
        assert np.allclose(np.sort(row)[-n:], np.sort(expected)[-n:], rtol=1e-5)
    assert ours.diagonal().sum() == 0


def test_blocks_of_items_do_not_change_the_lists(
    log: sdx.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cosine_neighbours(log.csr(), 10)
    monkeypatch.setattr(neighbours, "LISTS_BYTES", 8 * 10 * 7)
    pieces = cosine_neighbours(log.csr(), 10)
    assert (whole != pieces).nnz == 0


def test_plain_cosine_equals_implicit(log: sdx.Interactions) -> None:
    nearest_neighbours = pytest.importorskip("implicit.nearest_neighbours")
    theirs = nearest_neighbours.CosineRecommender(K=log.num_items)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(log.csr().astype(np.float64), show_progress=False)
    expected = theirs.similarity.tocsr()
    expected.setdiag(0)
    ours = cosine_neighbours(log.csr(), log.num_items)
    assert np.allclose(ours.toarray(), expected.toarray(), atol=1e-5)


def test_item_cf_scores_are_sums_of_similarities_to_the_history(parts: sdx.Split) -> None:
    model = sdx.fit("item_cf", parts.train, neighbours=500, user_power=0, asymmetry=0.5)
    matrix = parts.train.csr(binary=True)
    sims = cosine_neighbours(matrix, 500).toarray()
    user = 5
    scores = matrix[user].toarray().ravel() @ sims
    scores[parts.train.histories[user]] = -1
    best = np.argsort(-scores, kind="stable")[:10]
    table = model.recommend([model.users.values[user].as_py()], k=10)
    assert table["item"].to_pylist() == model.items.take(best).to_pylist()
    assert np.allclose(table["score"].to_numpy(), scores[best], rtol=1e-5)


def test_item_cf_falls_back_to_popularity_where_it_knows_nothing(parts: sdx.Split) -> None:
    model, popular = sdx.fit("item_cf", parts.train), sdx.fit("popular", parts.train)
    strangers = [m.recommend(history=[[]], k=120)["item"].to_pylist() for m in (model, popular)]
    assert strangers[0] == strangers[1]


def test_popular_ranks_by_count_and_ties_by_key() -> None:
    log = sdx.read([("a", "x"), ("b", "x"), ("a", "z"), ("b", "y")])
    table = sdx.fit("popular", log).recommend(history=[[]], k=3)
    assert table["item"].to_pylist() == ["x", "y", "z"]
    assert table["score"].to_pylist() == [2, 1, 1]


def test_popular_with_a_half_life_prefers_what_is_new() -> None:
    rows = [("a", "old", 0), ("b", "old", 0), ("c", "old", 0), ("a", "new", 10)]
    table = sdx.fit("popular", sdx.read(rows), half_life=5.0).recommend(history=[[]], k=2)
    assert table["item"].to_pylist() == ["new", "old"]
    assert table["score"].to_pylist() == [1.0, 0.75]


def test_popular_counts_weights() -> None:
    log = sdx.read({"user": ["a", "b"], "item": ["x", "y"], "weight": [1.0, 5.0]})
    assert sdx.fit("popular", log).recommend(history=[[]], k=1)["item"].to_pylist() == ["y"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("itemcf", {}, "Did you mean 'item_cf'"),
        ("item_cf", {"neighbors": 5}, "Did you mean 'neighbours'"),
        ("item_cf", {"neighbours": 0}, "neighbours > 0"),
        ("item_cf", {"shrink": -1.0}, "shrink from 0 to 1e9"),
        ("popular", {"half_life": -2.0}, "half_life > 0"),
    ],
)
def test_bad_recipes_and_options_are_named(
    log: sdx.Interactions, name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=words):
        sdx.fit(name, log, **options)


def test_a_half_life_without_times_says_what_to_do() -> None:
    with pytest.raises(sdx.SoftdexError, match=r"read\(time="):
        sdx.fit("popular", sdx.read([("a", "x")]), half_life=1.0)


def test_fit_needs_a_log_with_rows(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.DataError, match=r"sdx\.read"):
        sdx.fit("popular", log.csr())
    with pytest.raises(sdx.DataError, match="empty"):
        sdx.fit("popular", log.select(np.zeros(len(log), bool)))


def test_fit_stores_what_it_was_made_of(parts: sdx.Split) -> None:
    model = sdx.fit("item_cf", parts.train, valid=parts.valid, neighbours=7)
    assert model.options["neighbours"] == 7
    assert model.card.data == parts.train.sha256
    assert model.card.split["sha256"] == parts.card.sha256
    assert model.card.metrics["valid"]["recall@20"] == model.evaluate(parts.valid)["recall@20"]


def test_every_recipe_has_a_sentence_and_documents_its_options() -> None:
    for name in recipes.names():
        assert recipes.about(name).endswith("."), name
        assert list(recipes.docs(name)) == recipes.choices(name), name
        assert all(text.endswith(".") for text in recipes.docs(name).values()), name


@pytest.mark.parametrize("name", recipes.names())
def test_rules_and_spaces_are_of_options_the_recipe_has(name: str) -> None:
    named = {o for option, rule in recipes.rules(name) for o in (option, rule.by)}
    assert named | set(recipes.space(name)) <= set(recipes.options(name))


@pytest.mark.parametrize("name", recipes.names())
def test_the_defaults_of_a_recipe_pass_its_own_checks(name: str) -> None:
    given = recipes.options(name)
    given = {option: given[option] for option in recipes.choices(name)}
    assert recipes.checked(name, given) == given


@pytest.mark.parametrize(("name", "given"), [
    ("ssm", {"temperature": 1, "seed": np.int64(2)}),
    ("ssm", {"encoder": "mix", "share": 1, "max_history": np.int32(5)}),
    ("bir", {"temperature": np.float64(0.1), "block": np.int64(64)}),
    ("dtr", {"leaves": "random", "beam": 10, "max_history": np.int32(5), "rounds": np.int64(1)}),
])  # fmt: skip
def test_numbers_of_any_kind_give_a_model_that_can_be_saved(
    parts: sdx.Split, tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    model = sdx.fit(name, parts.train, dim=8, epochs=1, device="cpu", **given)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert dict(again.evaluate(parts.test)) == dict(model.evaluate(parts.test))


@pytest.mark.parametrize(("name", "given"), [
    ("rg2", {"beta": 0}), ("din", {"rounds": np.int64(1)}), ("dtr", {"deal": np.str_("auction")}),
])  # fmt: skip
def test_what_is_so_anyway_may_be_said(name: str, given: dict[str, Any]) -> None:
    assert recipes.options(name) | recipes.checked(name, given) == recipes.options(name)


@pytest.mark.parametrize("name", ["rg2", "ssm", "mult_vae", "din"])
def test_the_options_of_a_model_fit_it_again(parts: sdx.Split, name: str) -> None:
    model = sdx.fit(name, parts.train, dim=4, epochs=1, device="cpu")
    again = sdx.fit(name, parts.train, **model.options)
    assert again.options == model.options


@pytest.mark.parametrize(("name", "given", "words"), [
    ("bpr", {"index": "full"}, "bpr: bpr needs draws"),
    ("sasrec", {"dim": 8, "heads": 3}, "sasrec: expected heads to divide dim"),
    ("rg2", {"encoder": "mix"}, "rg2: encoder='mix' has no closed form"),
    ("jtm", {"rounds": 9, "epochs": 2}, "jtm: 9 rounds need as many epochs"),
    ("dtr", {"leaves": "randm"}, "dtr: there is no saved model .* Did you mean 'random'"),
    ("dtr", {"leaves": "x" * 300}, "dtr: there is no saved model .* Known: sequence"),
    ("dtr", {"leaves": ""}, "dtr: there is no saved model .* Known: sequence"),
    ("ials", {"device": "meta"}, "device: expected 'auto', 'cpu', 'cuda' or 'cuda:1', got 'meta'"),
])  # fmt: skip
def test_a_mistake_is_told_under_the_name_that_was_asked_for(
    parts: sdx.Split, name: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"^{words}"):
        sdx.fit(name, parts.train, **given)


def scaled(
    train: sdx.Interactions, *, scale: Annotated[float, positive] = 1.0
) -> tuple[Unpersonalised, Constant]:
    """Rank items by their number of events, times a scale.

    Args:
        scale: of the scores.
    """
    counts = torch.from_numpy(train.item_counts.astype(np.float32))
    return Unpersonalised(), Constant(scale * counts)


def test_a_function_is_a_recipe_whose_signature_is_checked(parts: sdx.Split) -> None:
    model = sdx.fit(scaled, parts.train, valid=parts.valid, scale=2)
    assert (model.recipe, model.options) == ("scaled", {"scale": 2.0})
    assert dict(model.evaluate(parts.test)) == dict(
        sdx.fit("popular", parts.train).evaluate(parts.test)
    )
    assert recipes.about(scaled) == "Rank items by their number of events, times a scale."
    assert recipes.docs(scaled) == {"scale": "of the scores."}
    for wrong, words in (
        ({"scal": 2.0}, "scaled: unknown option 'scal'. Did you mean 'scale'"),
        ({"scale": -1.0}, "scaled: expected scale > 0, got -1.0"),
    ):
        with pytest.raises(sdx.SoftdexError, match=words):
            sdx.fit(scaled, parts.train, **wrong)
    with pytest.raises(sdx.SoftdexError, match="expected the name of a recipe, or a function"):
        sdx.fit(7, parts.train)  # type: ignore[arg-type]
