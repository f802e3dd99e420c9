"""What the page asks for beside lists: facts, what was held out, users to look at, differences."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from serving import Answer, Client
from softdex.cli import run
from softdex.serve.study import Study


@pytest.fixture(scope="module")
def second(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("rg2", parts.train, dim=4)


@pytest.fixture(scope="module")
def result(model: sdx.Retriever, parts: sdx.Split) -> sdx.Result:
    return model.evaluate(parts.test, k=(10, 20, 50, 100))


@pytest.fixture(scope="module")
def client(model: sdx.Retriever, second: sdx.Retriever, parts: sdx.Split) -> Iterator[Client]:
    models = {"cf": model, "rg": second}
    with sdx.look(models, parts.test, browser=False) as serving:
        found = Client(serving.url)
        yield found
        found.close()


def asked(client: Client, path: str) -> Answer:
    """Ask until it is computed, as the page does."""
    while (found := client.get(path)).status == 202:
        assert found.json == {"working": True}
    return found


def test_facts_say_what_a_model_can_do_and_which_values_columns_have(
    client: Client, model: sdx.Retriever
) -> None:
    facts = client.get("/v1/study").json
    assert facts["model"] == "cf"
    assert facts["users"] == 300
    assert facts["holdout"]
    assert facts["reads_history"]
    assert facts["category"] == "category"
    [category] = [each for each in facts["columns"] if each["name"] == "category"]
    assert model.item_table is not None
    values, counts = np.unique(model.item_table["category"].to_pylist(), return_counts=True)
    assert dict(category["values"]) == dict(zip(values, counts, strict=True))
    assert [n for _, n in category["values"]] == sorted(counts, reverse=True)


def test_the_metrics_are_those_of_evaluate(client: Client, result: sdx.Result) -> None:
    found = asked(client, "/v1/study/result").json
    assert found["users"] == len(result.users)
    for name, value in result.items():
        assert found["metrics"][name]["value"] == pytest.approx(value, abs=1e-12)
    error = found["metrics"]["ndcg@10"]["error"]
    assert error == pytest.approx(result.standard_error("ndcg@10"))
    assert found["metrics"]["coverage@10"]["error"] is None


@pytest.mark.parametrize(("kind", "sign"), [("hard", 1), ("easy", -1)])
def test_users_with_the_worst_and_the_best_lists(
    kind: str, sign: int, client: Client, result: sdx.Result
) -> None:
    path = f"/v1/study/users?kind={kind}&limit=30&metric=recall@10"
    rows = asked(client, path).json["rows"]
    values = sorted(result.per_user["recall@10"].tolist(), key=lambda value: sign * value)
    assert [row["value"] for row in rows] == pytest.approx(values[:30])
    for value in {row["value"] for row in rows}:  # among equals, those with most events first
        events = [row["events"] for row in rows if row["value"] == value]
        assert events == sorted(events, reverse=True)


def test_cold_users_have_the_fewest_events_and_random_ones_depend_on_the_seed(
    client: Client, model: sdx.Retriever
) -> None:
    rows = client.get("/v1/study/users?kind=cold&limit=25").json["rows"]
    assert [row["events"] for row in rows] == sorted(model.seen.lengths.tolist())[:25]
    draws = [client.get(f"/v1/study/users?seed={seed}&limit=9").json["rows"] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_what_was_held_out_of_a_user_comes_with_the_request_that_is_measured(
    client: Client, model: sdx.Retriever, parts: sdx.Split, result: sdx.Result
) -> None:
    for user in ("u001", "u007"):
        found = asked(client, f"/v1/study/users/{user}").json
        row = model.users.lookup([user])
        at = np.flatnonzero(parts.test.users == row[0])
        assert found["targets"] == model.items.take(parts.test.targets.take(at).ids).to_pylist()
        listed = client.post("/v1/recommend", {"user": user, "k": 20, **found["ask"]}).items
        hits = np.isin(listed, found["targets"])
        marks = asked(client, f"/v1/study/users/{user}?metrics=true").json["metrics"]
        assert marks["hit@20"] == hits.any()
        place = list(result.users).index(row[0])
        assert marks["ndcg@20"] == pytest.approx(result.per_user["ndcg@20"][place])
    assert client.get("/v1/study/users/nobody").status == 404


def test_the_difference_of_two_models_is_paired(
    client: Client, second: sdx.Retriever, parts: sdx.Split, result: sdx.Result
) -> None:
    other = second.evaluate(parts.test, k=(10, 20, 50, 100))
    found = asked(client, "/v1/study/differences?other=rg&metric=ndcg@10&limit=300").json
    rows = {row["metric"]: row for row in found["metrics"]}
    for row in result.compare(other):
        assert {**row, "one": 0, "other": 0} == {**rows[row["metric"]], "one": 0, "other": 0}
    gaps = result.per_user["ndcg@10"] - other.per_user["ndcg@10"]
    assert (found["wins"], found["losses"]) == ((gaps > 0).sum(), (gaps < 0).sum())
    shown = [row["one"] - row["other"] for row in found["better"]]
    assert shown == pytest.approx(sorted(gaps[gaps > 0], reverse=True))
    shown = [row["one"] - row["other"] for row in found["worse"]]
    assert shown == pytest.approx(sorted(gaps[gaps < 0]))
    assert asked(client, "/v1/study/differences?other=rg&metric=x").status == 422


def test_items_are_shown_by_key_and_unknown_ones_are_null(client: Client) -> None:
    rows = client.post("/v1/items", {"items": ["i003", "nothing", "i001"]}).json["rows"]
    assert [row and row["item"] for row in rows] == ["i003", None, "i001"]
    assert rows[0]["columns"]["category"]


def test_without_a_holdout_the_page_says_so(model: sdx.Retriever, tmp_path: Path) -> None:
    model.save(tmp_path / "cf.sdx")
    with (
        sdx.serve(tmp_path / "cf.sdx", port=0, max_wait=60) as serving,
        closing(Client(serving.url)) as client,
    ):
        assert not client.get("/v1/study").json["holdout"]
        found = asked(client, "/v1/study/result")
        assert found.status == 404
        assert "It is not known what was held out" in found.json["detail"]
        assert client.get("/v1/study/users?kind=cold").status == 200


def test_a_swap_brings_the_study_of_the_new_model(
    world: sdx.synthetic.World, tmp_path: Path
) -> None:
    log, data = world.interactions(), tmp_path / "log.parquet"
    pq.write_table(log.to_arrow(), data)
    for name, recipe in (("one", "popular"), ("two", "item_cf")):
        plan: Any = {"recipe": recipe, "out": str(tmp_path / name), "data": {"source": str(data)}}
        run.fit(plan)
    with (
        sdx.serve({"a": tmp_path / "one"}, port=0, max_wait=60) as serving,
        closing(Client(serving.url)) as client,
    ):
        before = asked(client, "/v1/study/result").json["metrics"]
        serving._server.app.registry.reload("a", tmp_path / "two")
        after = asked(client, "/v1/study/result").json["metrics"]
    assert before != after
    for name, found in (("one", before), ("two", after)):
        _, result = run.evaluate(tmp_path / name, {"k": [10, 20, 50, 100]}, None)
        assert found["ndcg@20"]["value"] == pytest.approx(result["ndcg@20"])


def test_lists_are_answered_while_a_part_is_computed(
    monkeypatch: pytest.MonkeyPatch, model: sdx.Retriever, parts: sdx.Split
) -> None:
    goes_on = threading.Event()
    with (
        sdx.look(model, parts.test, browser=False) as serving,
        closing(Client(serving.url)) as own,
    ):
        study = serving._server.app.registry.of(None).study
        monkeypatch.setattr(Study, "result", property(lambda self: goes_on.wait(20) and 1 / 0))
        assert own.get("/v1/study/result").status == 202
        assert own.get("/v1/recommend/u001").status == 200
        assert own.get("/v1/study/result").status == 202
        assert len(study._parts) == 1  # it is computed once
        goes_on.set()
        assert asked(own, "/v1/study/result").status == 500
