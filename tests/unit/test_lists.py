"""Lists made elsewhere: the rules for what a table may hold, and the metrics of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pyarrow.parquet as pq
import pytest
from ir_measures import AP, RR, P, R, Success, nDCG

import softdex as sdx

LOG = [
    ("ann", "tea", 1),
    ("ann", "jam", 2),
    ("bob", "tea", 1),
    ("bob", "egg", 2),
    ("cyd", "pie", 1),
]


@pytest.fixture
def test() -> sdx.Holdout:
    """Ann asks for jam and Bob for egg; both had tea."""
    return sdx.split.leave_last(sdx.read(LOG, quiet=True), valid=False).test


def table(*rows: tuple[str, str, float], by: str = "rank") -> dict[str, list[Any]]:
    users, items, order = zip(*rows, strict=True)
    return {"user": list(users), "item": list(items), by: list(order)}


def test_lists_are_in_order_of_ranks_or_of_scores(test: sdx.Holdout) -> None:
    ranked = table(("ann", "egg", 1), ("bob", "egg", 1), ("ann", "jam", 2))
    scored = table(("ann", "jam", -3.0), ("bob", "egg", 0.0), ("ann", "egg", 5.0), by="score")
    for found in (ranked, scored):
        result = sdx.evaluate(found, test, k=2)
        assert result["mrr@2"] == pytest.approx((1 / 2 + 1) / 2)
        assert result.notes == ()
    assert sdx.evaluate(ranked, test, k=1)["hit@1"] == 0.5
    odd = {"who": ["ann"], "what": ["jam"], "place": [7]}
    named = sdx.evaluate(odd, test, 1, user="who", item="what", rank="place")
    assert named["hit@1"] == 0.5


def test_what_the_lists_lack_or_have_too_much_is_counted_and_said(
    test: sdx.Holdout, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = table(
        ("ann", "tea", 1),  # masked: leaves its place
        ("ann", "new", 2),  # unknown: keeps its place
        ("ann", "pie", 3),
        ("ann", "pie", 4),  # again: leaves its place
        ("ann", "jam", 5),  # so that jam is the third
        ("zoe", "jam", 1),
    )
    result = sdx.evaluate(found, test, k=3)
    assert result.notes == (
        "1 rows are of users who are not asked about",
        "1 rows have items that the log does not know ('new')",
        "1 rows have masked items and are left out",
        "1 rows repeat an item of their list and are left out",
        "1 of 2 users have no list and count as an empty one",
    )
    assert result["mrr@3"] == pytest.approx(1 / 3 / 2)
    assert result["coverage@3"] == 2 / 4
    printed = capsys.readouterr().err
    assert all(f"evaluate: {note}" in printed for note in result.notes)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"user": ["ann"], "item": ["jam"]},
            "a column of ranks or scores, got user, item",
        ),
        (table(("ann", "jam", float("nan"))), "column 'rank' holds numbers that are not finite"),
        ({"user": ["ann"], "item": ["jam"], "rank": ["1st"]}, "expected numbers in column 'rank'"),
        ({"user": ["ann"], "item": [None], "rank": [1]}, "rows without a user, an item or a rank"),
    ],
)
def test_tables_that_are_no_lists_are_refused(
    found: dict[str, Any], words: str, test: sdx.Holdout
) -> None:
    with pytest.raises(sdx.DataError, match=words):
        sdx.evaluate(found, test)


def test_names_that_are_none_are_refused(test: sdx.Holdout) -> None:
    found = table(("ann", "jam", 1))
    with pytest.raises(sdx.SoftdexError, match=r"unknown column 'ran'\. Did you mean 'rank'\?"):
        sdx.evaluate(found, test, rank="ran")
    with pytest.raises(sdx.SoftdexError, match=r"unknown metric 'ndgc'\. Did you mean 'ndcg'\?"):
        sdx.evaluate(found, test, metrics=["ndgc"])
    with pytest.raises(sdx.SoftdexError, match="expected metrics by name, or None for all"):
        sdx.evaluate(found, test, metrics=[])
    with pytest.raises(sdx.DataError, match="expected rank= or score=, got both"):
        sdx.evaluate(found, test, rank="rank", score="rank")


def test_a_model_is_told_to_evaluate_itself(model: sdx.Retriever, test: sdx.Holdout) -> None:
    with pytest.raises(sdx.DataError, match=r"got a Retriever\. Use model\.evaluate\(holdout\)\."):
        sdx.evaluate(model, test)


def test_the_lists_of_a_model_have_the_metrics_of_the_model(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    train, _, test = sdx.split.leave_last(log, valid=False)
    model = sdx.fit("item_cf", train)
    lists = model.recommend(test.user_keys.take(test.users), k=20)
    path = tmp_path / "lists.parquet"
    pq.write_table(lists.table, path)
    expected = model.evaluate(test, k=(5, 20))
    for found in (lists, lists.table, path, str(path)):
        assert dict(sdx.evaluate(found, test, k=(5, 20))) == dict(expected)


def test_metrics_of_lists_equal_ir_measures(log: sdx.Interactions) -> None:
    split = sdx.split.per_user(log, (0.6, 0.4))
    users, items = log.users.all().to_pylist(), log.items.all().to_pylist()
    draw = np.random.default_rng(0)
    rows = [(u, i, float(draw.random())) for u in users for i in draw.choice(items, 30, False)]
    masked = {
        (users[u], items[i])
        for u, row in zip(split.test.users, split.test.masked, strict=True)
        for i in row
    }
    rows = [row for row in rows if row[:2] not in masked]
    result = sdx.evaluate(table(*rows, by="score"), split.test, k=10, ideal="full")
    run: dict[str, dict[str, float]] = {}
    for u, i, score in rows:
        run.setdefault(u, {})[i] = score
    test = split.test
    truth = {
        users[u]: {items[i]: 1 for i in wanted}
        for u, wanted in zip(test.users, test.targets, strict=True)
        if len(wanted)
    }
    names = {P: "precision", R: "recall", RR: "mrr", Success: "hit", AP: "map"}
    found = ir_measures.calc_aggregate([m @ 10 for m in names], truth, run)
    for measure, name in names.items():
        assert result[f"{name}@10"] == pytest.approx(found[measure @ 10], abs=1e-6), name
    ndcg = sdx.evaluate(table(*rows, by="score"), test, k=10, metrics="ndcg")
    assert list(ndcg) == ["ndcg@10"]
    theirs = ir_measures.calc_aggregate([nDCG @ 10], truth, run)
    assert ndcg["ndcg@10"] == pytest.approx(theirs[nDCG @ 10], abs=1e-6)


def test_a_holdout_of_prefixes_asks_more_than_lists_per_user_can_say(log: sdx.Interactions) -> None:
    test = sdx.split.next_item(log, order="rows").test
    with pytest.raises(sdx.DataError, match="asks several times per user"):
        sdx.evaluate(table(("u001", "i001", 1)), test)


def test_chosen_metrics_are_those_reported(model: sdx.Retriever, parts: sdx.Split) -> None:
    result = model.evaluate(parts.test, (5, 10), metrics=["ndcg", "coverage"], index="both")
    assert {name.split("@")[0] for name in result} == {
        "ndcg", "exact ndcg", "overlap", "coverage",
    }  # fmt: skip
    assert dict(result).items() <= dict(model.evaluate(parts.test, (5, 10), index="both")).items()
    assert "recall" not in str(result)


# out ---------------------------------------------------------------------------------------------


def test_a_result_is_a_table_of_metrics_or_of_users(model: sdx.Retriever, parts: sdx.Split) -> None:
    result = model.evaluate(parts.test, (5, 10))
    rows = result.to_arrow().to_pylist()
    assert {f"{r['metric']}@{r['k']}": r["value"] for r in rows} == dict(result)
    by_name = {f"{r['metric']}@{r['k']}": r["standard_error"] for r in rows}
    assert by_name["ndcg@5"] == result.standard_error("ndcg@5")
    assert by_name["coverage@5"] is None
    users = result.to_arrow(per_user=True)
    assert users["user"].to_pylist() == parts.test.user_keys.take(result.users).to_pylist()
    assert np.array_equal(users["ndcg@5"].to_numpy(), result.per_user["ndcg@5"])


def test_results_and_logs_become_data_frames(model: sdx.Retriever, parts: sdx.Split) -> None:
    pytest.importorskip("pandas")
    result = model.evaluate(parts.test, 10)
    frame = result.to_pandas().set_index("metric")
    assert frame.loc["recall", "value"] == result["recall@10"]
    assert len(result.to_pandas(per_user=True)) == len(result.users)
    again = sdx.read(parts.train.to_pandas(), quiet=True)
    assert again.sha256 == parts.train.sha256


def test_without_pandas_a_sentence_says_what_to_install(
    model: sdx.Retriever, parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    words = r"pandas is not installed\. Install it \(pip install pandas\), or use to_arrow\(\)"
    with pytest.raises(sdx.SoftdexError, match=f"log.to_pandas: {words}"):
        parts.train.to_pandas()
    with pytest.raises(sdx.SoftdexError, match=f"Result.to_pandas: {words}"):
        model.evaluate(parts.test, 10).to_pandas()
