"""Scores, shares, vectors and drawn lists over a connection: the library's own answers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from serving import Client
from softdex.serve import registry, scores
from softdex.serve.answers import Asked
from softdex.serve.scores import scored
from softdex.serve.served import of_memory
from softdex.serve.start import Serving
from softdex.serve.words import Score

ARROW = "application/vnd.apache.arrow.stream"
FAST: dict[str, Any] = {"dim": 4, "epochs": 1, "device": "cpu"}
TREE: dict[str, Any] = {**FAST, "leaves": "random", "max_instances": 64, "beam": 4}
READERS = ["cf", "rg2", "tdm", "sasrec"]


@pytest.fixture(scope="module")
def models(model: sdx.Retriever, parts: sdx.Split) -> dict[str, sdx.Retriever]:
    return {
        "cf": model,
        "rg2": sdx.fit("rg2", parts.train, **FAST),
        "ssm": sdx.fit("ssm", parts.train, **FAST),
        "sasrec": sdx.fit("sasrec", parts.train, **FAST, heads=1),
        "tdm": sdx.fit("tdm", parts.train, **TREE),
    }


@pytest.fixture(scope="module")
def serving(
    models: dict[str, sdx.Retriever], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("scores") / "events.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "MEASURE", 1e-9)  # of the pace: seconds per start
        with sdx.serve(models, port=0, max_wait=5, max_history=50, events=path) as found:
            yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    found = Client(serving.url)
    yield found
    found.close()


def stored(model: sdx.Retriever, user: str) -> list[str]:
    row = model.users.lookup([user])
    return model.items.take(model.seen.take(row).ids).to_pylist()


def close(found: Any, own: Any) -> None:
    """Rows are equal, numbers up to rounding."""
    assert len(found) == len(own)
    for row, mine in zip(found, own, strict=True):
        assert row.keys() == mine.keys()
        for name, value in mine.items():
            if isinstance(value, float):
                assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
            else:
                assert row[name] == value, name


# scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cf", "rg2", "ssm", "tdm"])
@pytest.mark.parametrize("seen", [True, False], ids=["exclude_seen", "keep_seen"])
def test_scores_are_those_of_score(
    name: str, seen: bool, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    model = models[name]
    past = stored(model, "u007")
    unseen = [item for item in model.items.all()[:40].to_pylist() if item not in past]
    items = [unseen[9], *past[:2], unseen[3]]
    words: dict[str, Any] = {"exclude_seen": seen, "columns": ["category"]}
    found = client.post("/v1/score", {"user": "u007", "items": items, "model": name, **words})
    own = model.score(["u007"], items, **words).table.drop_columns(["user"]).to_pylist()
    assert found.status == 200, found.json
    close(found.json["items"], own)
    assert (found.json["user"], found.json["model"]) == ("u007", name)
    assert [row["rank"] is None for row in own] == [False, seen, seen, False]
    assert ("log_prob" in found.json["items"][0]) == (name in ("rg2", "ssm"))


def test_scores_by_history_are_those_of_score(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    for given in ({"history": ["i003"]}, {"user": "u007", "history": ["i003", "i004"]}):
        for name in ("cf", "rg2"):
            found = client.post("/v1/score", {**given, "items": ["i001"], "model": name})
            own = models[name].score(given.get("user"), ["i001"], history=[given["history"]])
            close(found.json["items"], own.table.drop_columns(["user"]).to_pylist())
            assert found.json["user"] == given.get("user")


def test_scores_of_one_batch_are_each_user_s_own(models: dict[str, sdx.Retriever]) -> None:

    served = of_memory("rg2", models["rg2"])
    words = [Score([f"i{i:03}", "i100"], f"u{i:03}") for i in range(20)]
    answers = scored([Asked(served, each, "", 0.0) for each in words])
    for each, raw in zip(words, answers, strict=True):
        own = models["rg2"].score([each.user], each.items).table.drop_columns(["user"])
        close(json.loads(raw)["items"], own.to_pylist())


def test_no_items_have_no_scores(client: Client, models: dict[str, sdx.Retriever]) -> None:
    for name in models:
        found = client.post("/v1/score", {"user": "u007", "items": [], "model": name})
        assert (found.status, found.json["items"]) == (200, [])


# shares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cf", "rg2", "ssm", "sasrec", "tdm"])
def test_shares_are_those_of_explain(
    name: str, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    given = {"user": "u007", "item": "i040", "k": 3, "columns": ["category"]}
    found = client.post("/v1/explain", {**given, "model": name}).json
    own = models[name].explain("u007", "i040", k=3, columns=["category"]).json()
    close(found["shares"], own["shares"])
    close([{n: found[n] for n in own if n not in ("shares", "path")}],
          [{n: own[n] for n in own if n not in ("shares", "path")}])  # fmt: skip
    assert (found["path"] is None) == (name != "tdm")
    if name == "tdm":
        close(found["path"], own["path"])
        assert len(found["path"]) > 2
    if own["exact"]:
        sums = found["base"] + found["rest"] + sum(row["share"] for row in found["shares"])
        assert sums == pytest.approx(found["score"], abs=1e-6)


def test_a_history_is_explained_without_a_user(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    found = client.post(
        "/v1/explain", {"history": ["i003", "i009"], "item": "i001", "model": "rg2"}
    )
    own = models["rg2"].explain(history=["i003", "i009"], item="i001").json()
    close(found.json["shares"], own["shares"])
    assert found.json["user"] is None


def test_of_a_long_history_the_latest_items_have_shares(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "CELLS", 10)
    given = {"history": [f"i00{i}" for i in range(5)], "item": "i040", "model": "sasrec"}
    shares = client.post("/v1/explain", given).json["shares"]
    assert {row["item"] for row in shares} == {"i003", "i004"}


# vectors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rg2", "ssm", "sasrec"])
def test_vectors_are_those_of_query_vectors_bit_by_bit(
    name: str, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    users = models[name].users.all()[:70].to_pylist()  # three slices
    found = client.post("/v1/vectors", {"users": users, "model": name}).json
    own = models[name].query_vectors(users)
    np.testing.assert_allclose(np.array(found["vectors"], np.float32), own, rtol=1e-5, atol=1e-6)
    one = client.post("/v1/vectors", {"users": users[:1], "model": name}).json["vectors"]
    assert np.array_equal(np.array(one, np.float32), models[name].query_vectors(users[:1]))
    assert "live" not in found


def test_vectors_of_histories_and_their_scores(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    histories = [["i003", "i009"], ["i017"]]
    found = client.post("/v1/vectors", {"histories": histories, "model": "rg2"}).json["vectors"]
    own = models["rg2"].query_vectors(history=histories)
    np.testing.assert_allclose(np.array(found, np.float32), own, rtol=1e-5)
    named = {"users": ["u007", "u012"], "histories": histories, "model": "rg2"}
    np.testing.assert_allclose(client.post("/v1/vectors", named).json["vectors"], own, rtol=1e-5)
    assert client.post("/v1/vectors", {"users": [], "model": "rg2"}).json["vectors"] == []
    many = [[f"i{i:03}"] for i in range(70)]  # three slices
    found = client.post("/v1/vectors", {"histories": many, "model": "rg2"}).json["vectors"]
    np.testing.assert_allclose(found, models["rg2"].query_vectors(history=many), rtol=1e-4)


# lists that are drawn ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cf", "rg2", "tdm"])
def test_a_drawn_list_is_that_of_recommend_with_the_seed(
    name: str, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    words: dict[str, Any] = {"k": 4, "mode": "sample", "temperature": 0.7, "seed": 11,
                             "columns": ["category"], "deny": ["i040"]}  # fmt: skip
    found = client.post("/v1/recommend", {"user": "u007", "model": name, **words})
    own = models[name].recommend("u007", **words)
    close(found.json["items"], own.table.drop_columns(["user"]).to_pylist())
    assert found.json["sampling"] == own.sampling
    path = f"/v1/recommend/u007?k=4&mode=sample&temperature=0.7&seed=11&model={name}&deny=i040"
    assert client.get(path).items == found.items


def test_a_seed_that_was_drawn_is_told_and_draws_the_list_again(client: Client) -> None:
    words = {"user": "u007", "mode": "sample", "temperature": 50, "model": "rg2"}
    first, other = (client.post("/v1/recommend", words).json for _ in range(2))
    assert first["sampling"]["seed"] != other["sampling"]["seed"]
    again = client.post("/v1/recommend", words | {"seed": first["sampling"]["seed"]}).json
    assert again["items"] == first["items"]
    assert again["items"] != other["items"]
    assert "sampling" not in client.get("/v1/recommend/u007").json


def test_requests_of_a_batch_are_drawn_with_their_own_seeds(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    asked = [{"user": f"u{i:03}", "k": 3, "mode": "sample", "seed": 7 + i % 3, "model": "rg2"}
             for i in range(40)]  # fmt: skip
    asked[5] = {"user": "nobody", "mode": "sample", "seed": 3, "unknown": "popular"}
    asked[6] = asked[6] | {"seed": -1}
    found = client.post("/v1/recommend/batch", {"requests": asked}).json["answers"]
    for at, (given, answer) in enumerate(zip(asked, found, strict=True)):
        if at == 6:
            assert (answer["status"], "expected seed" in answer["detail"]) == (422, True)
            continue
        words = {n: v for n, v in given.items() if n not in ("user", "model")}
        name = str(given.get("model", "cf"))
        own = models[name].recommend(given["user"], **words)
        close(answer["items"], own.table.drop_columns(["user"]).to_pylist())
        assert answer["sampling"]["seed"] == given["seed"]


def test_an_arrow_table_is_drawn_as_one_request(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    users, out = models["rg2"].users.all()[:70], io.BytesIO()
    with pa.ipc.new_stream(out, pa.schema([("user", pa.string())])) as writer:
        writer.write_table(pa.table({"user": users}))
    path = "/v1/recommend/batch?k=3&mode=sample&model=rg2"
    for seed in ("&seed=4", ""):
        raw = client.ask("POST", path + seed, out.getvalue(), Content_Type=ARROW)
        found = sdx.Recommendations(pa.ipc.open_stream(raw.body).read_all())
        assert found.sampling is not None
        own = models["rg2"].recommend(users, k=3, mode="sample", seed=found.sampling["seed"])
        assert found.sampling == own.sampling
        close(found.table.to_pylist(), own.table.to_pylist())


# live events -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
def test_scores_shares_vectors_and_draws_follow_live_events(
    name: str, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    model, user = models[name], f"u02{READERS.index(name)}"
    past, new = stored(model, user), "i033" if name != "tdm" else "i034"
    client.post("/v1/events", {"user": user, "item": new})
    history = [[*past, new]]
    asked = {"user": user, "model": name}
    found = client.post("/v1/score", {**asked, "items": ["i001", new]}).json
    own = model.score([user], ["i001", new], history=history).table.drop_columns(["user"])
    close(found["items"], own.to_pylist())
    assert (found["live"], found["items"][1]["rank"]) == (True, None)
    why = client.post("/v1/explain", {**asked, "item": "i001"}).json
    close(why["shares"], model.explain(user, "i001", history=history[0]).json()["shares"])
    assert why["live"] is True
    assert new in [row["item"] for row in why["shares"]]
    words: dict[str, Any] = {"mode": "sample", "seed": 5, "k": 6}
    drawn = client.post("/v1/recommend", asked | words).json
    lists = model.recommend([user], history=history, **words).table.drop_columns(["user"])
    close(drawn["items"], lists.to_pylist())
    if name in ("rg2", "sasrec"):
        both = client.post("/v1/vectors", {"users": ["u012", user], "model": name}).json
        own_vector = model.query_vectors([user], history=history)
        np.testing.assert_allclose(both["vectors"][1:], own_vector, rtol=1e-4)
        assert both["live"] == [None, True]


def test_a_model_of_user_vectors_scores_as_trained_and_says_so(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    client.post("/v1/events", {"user": "u024", "item": "i033"})
    found = client.post("/v1/score", {"user": "u024", "items": ["i001", "i033"], "model": "ssm"})
    own = models["ssm"].score(["u024"], ["i001", "i033"])
    scores = [row["score"] for row in found.json["items"]]
    assert scores == pytest.approx(own["score"].to_pylist(), rel=1e-5)
    assert (found.json["live"], found.json["items"][1]["rank"]) == (False, None)


def test_users_of_live_events_alone_are_scored_and_explained(client: Client) -> None:
    client.post("/v1/events", [{"user": "guest", "item": "i003"}])
    for path, given in (("/v1/score", {"items": ["i001"]}), ("/v1/explain", {"item": "i001"})):
        asked = {"user": "guest", "model": "rg2", **given}
        assert client.post(path, asked).json["live"] is True
        refused = client.post(path, asked | {"model": "ssm"})
        assert (refused.status, "unknown user ('guest')" in refused.json["detail"]) == (404, True)


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence", "field"),
    [
        ("score", {"items": ["i001"]}, 422, "score: expected user, or history", "user"),
        ("score", {"user": "u001"}, 422, "missing required field `items`", "items"),
        ("score", {"user": "u001", "items": ["i0O1"]}, 404, "score: 1 unknown item", None),
        ("score", {"user": "u0O1", "items": ["i001"]}, 404, "score: 1 unknown user", None),
        ("score", {"user": "u001", "items": ["i001"] * 51}, 422, "at most 50 items", "items"),
        ("score", {"user": "u001", "items": [], "columns": ["rank"]}, 422, "column", None),
        ("score", {"history": ["i001"], "items": [], "model": "ssm"}, 422, "cannot read a", None),
        ("explain", {"user": "u001"}, 422, "missing required field `item`", "item"),
        ("explain", {"item": "i001"}, 422, "explain: expected user, or history", "user"),
        ("explain", {"user": "u001", "item": "i0O1"}, 404, "explain: 1 unknown item", None),
        ("explain", {"user": "u001", "item": "i001", "k": 0}, 422, "expected k as a whole", None),
        ("explain", {"history": ["i001"] * 51, "item": "i001"}, 422, "at most 50", "history"),
        ("vectors", {"users": ["u001"]}, 422, "expected a model with item vectors", None),
        ("vectors", {}, 422, "vectors: expected users, or histories", "users"),
        ("vectors", {"users": ["u0O1"], "model": "rg2"}, 404, "unknown user ('u0O1')", None),
        ("vectors", {"users": ["u001"], "histories": []}, 422, "one history per user", "histories"),
        ("vectors", {"histories": [["i001"] * 51]}, 422, "at most 50 items", "histories"),
        ("recommend", {"user": "u001", "seed": 1}, 422, "Add mode='sample'", None),
        ("recommend", {"user": "u001", "mode": "random"}, 422, "Invalid enum value", "mode"),
        ("recommend", {"user": "u001", "mode": "sample", "temperature": 0}, 422, "from 0", None),
        ("recommend", {"user": "u001", "mode": "sample", "seed": 2**63}, 422, "seed as a", None),
        ("recommend", {"user": "u001", "mode": "sample", "at_most": {"a": 1}}, 422, "drawn", None),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_is_the_library_s_sentence(
    path: str, body: Any, status: int, sentence: str, field: str | None, client: Client
) -> None:
    found = client.post(f"/v1/{path}", body)
    assert (found.status, sentence in found.json["detail"]) == (status, True), found.json
    assert found.json.get("field") == field
