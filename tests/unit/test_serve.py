"""The server: endpoints, limits, access and answers, over a real connection."""

from __future__ import annotations

import hmac
import io
import json
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from serving import Client
from softdex.serve import http
from softdex.serve.app import Call, Settings
from softdex.serve.batcher import Batcher
from softdex.serve.endpoints import ENDPOINTS
from softdex.serve.http import TURNS, Server
from softdex.serve.served import of_memory
from softdex.serve.start import Serving
from softdex.serve.tokens import Tokens

ARROW = "application/vnd.apache.arrow.stream"
READ, ADMIN = "read-token-0123456789", "admin-token-0123456789"


@pytest.fixture(scope="module")
def serving(model: sdx.Retriever) -> Iterator[Serving]:
    with sdx.serve({"cf": model}, port=0, max_wait=5, max_k=100, max_history=50) as found:
        yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    found = Client(serving.url)
    yield found
    found.close()


def rows(table: sdx.Recommendations) -> list[Any]:
    return table["item"].to_pylist()


# lists -------------------------------------------------------------------------------------------


def test_a_list_is_that_of_recommend(client: Client, model: sdx.Retriever) -> None:
    found = client.post("/v1/recommend", {"user": "u001", "k": 5, "columns": ["category"]})
    assert found.status == 200
    own = model.recommend("u001", k=5, columns="category").table.drop_columns("user").to_pylist()
    assert found.json["items"] == own
    assert found.json["user"] == "u001"
    assert (found.json["model"], found.headers["x-model"]) == ("cf", "cf")
    assert found.json["seal"] == found.headers["x-model-seal"]
    assert found.json["request_id"] == found.headers["x-request-id"]
    assert "fallback" not in found.json


@pytest.mark.parametrize(
    "given",
    [
        {"history": ["i001", "i002"], "k": 3},
        {"user": "u002", "history": ["i001"], "k": 3},
        {"user": "u001", "k": 4, "exclude_seen": False},
        {"user": "u001", "k": 4, "allow": ["i001", "i002", "i003"]},
        {"user": "u001", "k": 4, "deny": ["i001", "i002"]},
        {"user": "u001", "k": 4, "where": {"category": ["c000", "c001"]}},
        {"user": "u001", "k": 4, "at_most": {"category": 1}},
    ],
    ids=str,
)
def test_the_words_are_those_of_recommend(
    given: dict[str, Any], client: Client, model: sdx.Retriever
) -> None:
    words = dict(given)
    user, history = words.pop("user", None), words.pop("history", None)
    own = model.recommend(user, history=None if history is None else [history], **words)
    found = client.post("/v1/recommend", given)
    assert found.items == rows(own)


def test_requests_of_one_batch_get_their_own_lists(serving: Serving, model: sdx.Retriever) -> None:
    asked = [{"user": f"u{i:03}", "k": 3, "deny": [f"i{i:03}"]} for i in range(40)]
    client = Client(serving.url)
    found = client.post("/v1/recommend/batch", {"requests": asked}).json["answers"]
    for given, answer in zip(asked, found, strict=True):
        assert answer["user"] == given["user"]
        own = model.recommend(given["user"], k=3, deny=given["deny"])
        assert [each["item"] for each in answer["items"]] == rows(own)
    client.close()


def test_curl_takes_options_in_the_query(client: Client, model: sdx.Retriever) -> None:
    where = "where=category:c000&where=category:c001&columns=category"
    found = client.get(f"/v1/recommend/u001?k=4&{where}&deny=i001")
    own = model.recommend("u001", k=4, where={"category": ["c000", "c001"]}, deny=["i001"])
    assert found.items == rows(own)
    assert {each["category"] for each in found.json["items"]} <= {"c000", "c001"}


def test_every_option_of_the_query_counts(client: Client, model: sdx.Retriever) -> None:
    seen = model.recommend("u001", k=4, exclude_seen=False)
    assert client.get("/v1/recommend/u001?k=4&exclude_seen=false").items == rows(seen)
    allowed = ["i040", "i041", "i042"]
    found = client.get("/v1/recommend/u001?allow=i040&allow=i041&allow=i042&exclude_seen=false")
    assert sorted(found.items) == allowed
    popular = client.get("/v1/recommend/nobody?unknown=popular&k=2")
    assert (popular.json["fallback"], len(popular.items)) == ("popular", 2)
    for path in ("recommend/u001", "similar/i001"):
        assert client.get(f"/v1/{path}?model=fc").status == 404


def test_an_unknown_user_gets_the_most_popular_items_where_asked(client: Client) -> None:
    found = client.post("/v1/recommend", {"user": "nobody", "unknown": "popular", "k": 2})
    assert (found.json["fallback"], len(found.items)) == ("popular", 2)
    skipped = client.post("/v1/recommend", {"user": "nobody", "unknown": "skip"})
    assert skipped.items == []
    assert skipped.json["empty"].endswith("1 unknown user skipped, and none is left")


def test_a_list_without_items_says_why(client: Client) -> None:
    found = client.get("/v1/recommend/u001?where=category:c0000").json
    assert (found["items"], "Did you mean 'c000'?" in found["empty"]) == ([], True)
    asked = [{"user": "u001", "k": 2}, {"user": "nobody", "unknown": "skip", "k": 2}]
    lists = client.post("/v1/recommend/batch", {"requests": asked}).json["answers"]
    assert ["empty" in each for each in lists] == [False, True]


def test_similar_items_are_those_of_similar(client: Client, model: sdx.Retriever) -> None:
    found = client.post("/v1/similar", {"items": ["i001", "i002"], "k": 3}).json["similar"]
    for each in found:
        own = model.similar(each["item"], k=3)["similar"].to_pylist()
        assert [item["item"] for item in each["items"]] == own
    assert client.get("/v1/similar/i002?k=3").json["similar"] == found[1:]


@pytest.mark.parametrize(
    "words",
    [
        {"allow": ["i003", "i004"]},
        {"deny": ["i003", "i004"]},
        {"where": {"category": "c001"}},
        {"at_most": {"category": 1}},
        {"columns": ["category"]},
    ],
    ids=str,
)
def test_similar_items_keep_the_rules(
    words: dict[str, Any], client: Client, model: sdx.Retriever
) -> None:
    [found] = client.post("/v1/similar", {"items": ["i001"], "k": 5, **words}).json["similar"]
    own = model.similar("i001", k=5, **words).table.drop_columns("item")
    own = own.rename_columns({"similar": "item"})
    assert found["items"] == own.select(found["items"][0]).to_pylist()
    if words.keys() <= {"where", "columns"}:
        query = "where=category:c001" if "where" in words else "columns=category"
        assert client.get(f"/v1/similar/i001?k=5&{query}").json["similar"] == [found]


def test_a_batch_has_an_answer_or_a_problem_per_request(client: Client) -> None:
    asked = [{"user": "u001"}, {"user": "nobody"}, {}, {"user": "u002", "k": 101}, {"user": "u003"}]
    found = client.post("/v1/recommend/batch", {"requests": asked})
    assert found.status == 200
    answers = found.json["answers"]
    assert [each.get("status", 200) for each in answers] == [200, 404, 422, 422, 200]
    assert [each.get("user") for each in answers] == ["u001", None, None, None, "u003"]
    assert client.post("/v1/recommend/batch", {"requests": []}).json["answers"] == []


def test_a_batch_that_was_computed_is_answered_however_many_look_things_up(
    model: sdx.Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sdx.serve(model, port=0, max_wait=5) as serving:
        client, app = Client(serving.url), serving._server.app
        monkeypatch.setattr(app, "_waiting", 16)
        assert client.get("/v1/items?q=i0").status == 429
        asked = {"requests": [{"user": "u001"}, {"user": "nobody"}]}
        assert client.post("/v1/recommend/batch", asked).status == 200
        client.close()


def test_a_table_of_no_users_is_a_table_of_no_lists(client: Client) -> None:
    raw = stream(pa.table({"user": pa.array([], pa.string())}))
    found = client.ask("POST", "/v1/recommend/batch", raw, Content_Type=ARROW)
    assert pa.ipc.open_stream(found.body).read_all().num_rows == 0
    assert client.get("/v1/recommend/u001").status == 200


def test_a_batch_has_limits(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, max_wait=5, max_batch=4, max_rows=30, max_k=100) as serving:
        client = Client(serving.url)
        asked = [{"user": "u001"}] * 3
        assert client.post("/v1/recommend/batch", {"requests": asked}).status == 200
        for requests, found in ((asked + asked, "got 6"), ([{**asked[0], "k": 31}], "got 31")):
            refused = client.post("/v1/recommend/batch", {"requests": requests})
            assert (refused.status, refused.json["field"]) == (422, "requests")
            assert found in refused.json["detail"]
        raw = stream(pa.table({"user": model.users.all()[:31]}))
        for k in (1, 0, -1):
            path = f"/v1/recommend/batch?k={k}"
            assert client.ask("POST", path, raw, Content_Type=ARROW).status == 422
        refused = client.post("/v1/vectors", {"users": ["u001"] * 5})
        assert "at most 4 requests, got 5" in refused.json["detail"]
        client.close()


def test_a_batch_is_also_an_arrow_stream(client: Client, model: sdx.Retriever) -> None:
    users = model.users.all()[:70]
    raw = stream(pa.table({"user": users}))
    found = client.ask("POST", "/v1/recommend/batch?k=3", raw, Content_Type=ARROW)
    assert found.headers["content-type"] == ARROW
    assert pa.ipc.open_stream(found.body).read_all().equals(model.recommend(users, k=3).table)
    more = "/v1/recommend/batch?k=3&exclude_seen=false&columns=category"
    given = client.ask("POST", more, raw, Content_Type=ARROW)
    own = model.recommend(users, k=3, exclude_seen=False, columns="category").table
    assert pa.ipc.open_stream(given.body).read_all().equals(own)
    for broken in (b"", b"no arrow", raw[:-90], stream(pa.table({"user": users}), "lz4")):
        assert client.ask("POST", "/v1/recommend/batch", broken, Content_Type=ARROW).status == 400
    wrong = client.ask(
        "POST", "/v1/recommend/batch", stream(pa.table({"x": [1]})), Content_Type=ARROW
    )
    assert wrong.status == 422
    long = client.ask("POST", "/v1/recommend/batch?k=101", raw, Content_Type=ARROW)
    assert (long.status, long.json["field"]) == (422, "k")


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table)
    return out.getvalue()


def test_unknown_keys_of_a_batch_are_counted(client: Client) -> None:
    def count() -> float:
        text = client.get("/metrics").body.decode()
        found = re.search(r"^softdex_unknown_keys_total (.+)$", text, re.MULTILINE)
        return float(found[1])  # type: ignore[index]

    before = count()
    asked = [{"user": "u001"}, {"user": "nobody"}, {"history": ["nothing"]}]
    client.post("/v1/recommend/batch", {"requests": asked})
    client.post("/v1/recommend", {"user": "nobody"})
    assert count() == before + 3


# the catalogue -----------------------------------------------------------------------------------


def test_items_are_found_by_the_start_of_their_key_and_by_text(
    client: Client, model: sdx.Retriever
) -> None:
    found = client.get("/v1/items?q=i01&limit=3").json["rows"]
    assert [each["item"] for each in found] == ["i010", "i011", "i012"]
    counts = model.item_counts[model.items.lookup(["i010", "i011", "i012"])]
    assert [each["events"] for each in found] == counts.tolist()
    category = found[0]["columns"]["category"]
    texts = client.get(f"/v1/items?q={category.upper()}&limit=1000").json["rows"]
    assert {each["columns"]["category"] for each in texts} == {category}
    assert client.get("/v1/items/i010").json["columns"]["category"] == category
    assert client.get("/v1/items?q=").json["rows"][0]["item"] == "i000"
    assert client.get("/v1/items?limit=0").json["field"] == "limit"


def test_users_are_found_with_their_history(client: Client, model: sdx.Retriever) -> None:
    found = client.get("/v1/users?q=u01&limit=2").json["rows"]
    assert [each["user"] for each in found] == ["u010", "u011"]
    history = client.get("/v1/users/u010").json["history"]
    assert len(history) == found[0]["events"]
    row = model.users.lookup(["u010"])
    assert history == model.items.take(model.seen.take(row).ids).to_pylist()
    assert client.get("/v1/users/nobody").status == 404


def test_the_card_of_a_model_says_how_it_was_made(client: Client) -> None:
    card = client.get("/v1/models/cf").json
    assert card["recipe"] == "item_cf"
    assert card["options"]["neighbours"] > 0
    assert card["capacity"]["requests_per_second"] > 0
    listed = client.get("/v1/models").json
    assert (listed["default"], [each["name"] for each in listed["models"]]) == ("cf", ["cf"])


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "sentence", "field"),
    [
        (b'{"user":', 400, "The body is not JSON", None),
        (b"\xff", 400, "The body is not JSON", None),
        (b'{"user": "\xff"}', 400, "The body is not JSON", None),
        (b"[" * 9999, 422, "got `array`", ""),
        (b"[]", 422, "Expected `object`, got `array`.", ""),
        (b'{"user": true}', 422, "got `bool` at `user`.", "user"),
        (b'{"user": "u001", "kk": 1}', 422, "unknown field `kk`.", "kk"),
        (b'{"user": "u001", "wher": {}}', 422, "`wher`. Did you mean 'where'?", "wher"),
        (b'{"user": "u001", "mode": "sampel"}', 422, "at `mode`. Did you mean 'sample'?", "mode"),
        (b'{"user": "u001", "unknown": "?"}', 422, "Known: error, popular, skip.", "unknown"),
        (b'{"history": ["i001", null]}', 422, "got `null` at `history[1]`.", "history[1]"),
        (b"{}", 422, "recommend: expected user, or history", "user"),
        (b'{"user": "u001", "k": 0}', 422, "expected k as a whole number of at least 1", None),
        (b'{"user": "u001", "k": 101}', 422, "expected k of at most 100, got 101.", "k"),
        (b'{"history": [' + b'"i001",' * 50 + b'"i001"]}', 422, "at most 50 items", "history"),
        (b'{"user": "u00l1"}', 404, "recommend: 1 unknown user ('u00l1'). Did you mean 'u0", None),
        (b'{"history": ["i0O1"]}', 404, "unknown item in history ('i0O1'). Did you mean", None),
        (b'{"user": "u001", "columns": ["catgory"]}', 422, "Did you mean 'category'?", None),
        (b'{"user": "u001", "where": {"category": {"a": 1}}}', 422, "got `object`", "where[...]"),
        (b'{"user": "u001", "model": "fc"}', 404, "No model 'fc' is served. Known: cf.", None),
        (b'{"user": ' + b"9" * 400 + b"}", 422, "expected users as a list of keys", None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_refusal_is_a_problem_with_one_sentence(
    body: bytes, status: int, sentence: str, field: str | None, client: Client
) -> None:
    found = client.post("/v1/recommend", body)
    assert found.status == status
    assert sentence in found.json["detail"]
    assert found.json.get("field") == field
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json["request_id"] == found.headers["x-request-id"]
    assert client.get("/v1/recommend/u001").status == 200  # the connection goes on


def test_a_body_of_another_kind_or_length_is_refused(client: Client, serving: Serving) -> None:
    form = client.post(
        "/v1/recommend", b"user=u001", Content_Type="application/x-www-form-urlencoded"
    )
    assert form.status == 415
    assert client.post("/v1/recommend", b" " * (2**20 + 1)).status == 413
    other = Client(serving.url)
    chunks = (b" " * 2**16 for _ in range(40))
    other.connection.request("POST", "/v1/recommend", chunks, {"Content-Type": "application/json"})
    assert other.connection.getresponse().status == 413
    other.close()


@pytest.mark.parametrize(
    ("path", "media", "status"),
    [("/v1/models/cf/reload", "application/json", 403), ("/v1/recommend", "text/plain", 415),
     ("/v1/recomend", "application/json", 404), ("/livez", "application/json", 405),
     ("/v1/recommend", "application/json", 413)],
)  # fmt: skip
@pytest.mark.parametrize("chunked", [False, True])
def test_a_connection_goes_on_after_a_refusal_of_an_unread_body(
    path: str, media: str, status: int, chunked: bool, client: Client
) -> None:
    body: Any = (b"x" * 2**16 for _ in range(20)) if chunked else b"x" * 20 * 2**16
    client.connection.request("POST", path, body, {"Content-Type": media})
    found = client.connection.getresponse()
    assert (found.status, found.getheader("connection")) == (status, None)
    found.read()
    held = client.connection.sock
    assert client.get("/livez").status == 200
    assert client.connection.sock is held


def test_a_body_that_is_far_too_long_closes_the_connection_and_says_so(
    client: Client, serving: Serving
) -> None:
    for path in ("/v1/recommend", "/v1/models/cf/reload"):
        other = Client(serving.url)
        other.connection.putrequest("POST", path)
        other.connection.putheader("Content-Type", "application/json")
        other.connection.putheader("Content-Length", str(2**40))
        other.connection.endheaders()
        found = other.connection.getresponse()
        assert found.getheader("connection") == "close"
        other.close()
    assert client.get("/livez").status == 200


def test_wrong_queries_paths_and_methods_are_problems(client: Client) -> None:
    assert client.get("/v1/recommend/u001?k=x").json["field"] == "k"
    assert client.get("/v1/recommend/u001?kk=3").json["field"] == "kk"
    assert client.get("/v1/recommend/u001?where=genre").json["field"] == "where"
    assert client.get("/v1/recommend/u001?deny=%ff").status == 400
    lost = client.get("/v1/recomend")
    assert (lost.status, "Did you mean '/v1/recommend'?" in lost.json["detail"]) == (404, True)
    wrong = client.ask("PUT", "/v1/recommend", b"")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


def test_a_request_past_its_deadline_is_504_and_counted(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, max_wait=5, timeout=1e-9) as found:
        client = Client(found.url)
        assert client.get("/v1/recommend/u001").status == 504
        assert 'shed_total{reason="deadline"} 1.0' in client.get("/metrics").body.decode()
        client.close()


def test_a_client_may_set_a_deadline(client: Client) -> None:
    assert client.post("/v1/recommend", {"user": "u001"}, X_Timeout_Ms="900").status == 200
    for odd in ("soon", "0", "-1", "1.5", "3600001", "9" * 5000):
        for path, body in (("", {"user": "u001"}), ("/batch", {"requests": []})):
            found = client.post(f"/v1/recommend{path}", body, X_Timeout_Ms=odd)
            assert (found.status, "up to 3,600,000" in found.json["detail"]) == (422, True)


def test_a_deadline_is_that_of_the_client_up_to_that_of_the_server() -> None:
    for given, seconds in ((b"50", 0.05), (b"000000050", 0.05), (b"5000", 2.0)):
        call = Call({"headers": [(b"x-timeout-ms", given)]}, None, "")  # type: ignore[arg-type]
        assert call.deadline(2.0) - call.began == pytest.approx(seconds)


def test_every_computed_answer_has_a_deadline(
    client: Client, model: sdx.Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "deadline", lambda self, most: self.began)
    users = stream(pa.table({"user": model.users.all()[:3]}))
    found = [
        client.get("/v1/recommend/u001"),
        client.get("/v1/similar/i001"),
        client.post("/v1/score", {"user": "u001", "items": ["i001"]}),
        client.post("/v1/explain", {"user": "u001", "item": "i001"}),
        client.post("/v1/vectors", {"users": ["u001"]}),
        client.ask("POST", "/v1/recommend/batch", users, Content_Type=ARROW),
    ]
    assert [each.status for each in found] == [504] * len(found)
    lists = client.post("/v1/recommend/batch", {"requests": [{"user": "u001"}]})
    assert (lists.status, lists.json["answers"][0]["status"]) == (200, 504)


def test_a_request_that_would_wait_too_long_is_429_and_says_when_to_return(
    serving: Serving, model: sdx.Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batcher, "expected_wait", lambda self: 7.2)
    client = Client(serving.url)
    found = client.get("/v1/recommend/u001", X_Request_Id="mine")
    assert (found.status, found.headers["retry-after"]) == (429, "8")
    assert (found.headers["x-request-id"], found.json["request_id"]) == ("mine", "mine")
    assert "x-model" not in found.headers
    assert client.get("/livez").status == 200
    assert 'shed_total{reason="wait"}' in client.get("/metrics").body.decode()
    client.close()


class Beats:
    """A server whose clock is set by hand; `read` are the refused connections read again."""

    def __init__(self, refused: int = 0, *, full: bool = False) -> None:
        self.now, self.lags, self.read = 0.0, list[float](), list[int]()
        self.loop = SimpleNamespace(time=lambda: self.now, call_at=lambda *given: None)
        batcher = SimpleNamespace(beat=self.lags.append, is_full=lambda *, again: full)
        self.app, self._late, self._beat = SimpleNamespace(batcher=batcher), 0.0, None
        again = [SimpleNamespace(read_on=lambda i=i: self.read.append(i)) for i in range(refused)]
        self.connection = SimpleNamespace(refused=deque(again))

    def beat(self, late: float = 0.0) -> None:
        self.now += 1
        Server._beat(cast(Any, self), self.now - late)


def test_an_event_loop_that_was_late_once_refuses_nobody() -> None:
    server = Beats()
    for late in (0.0, 0.2, 0.0, 0.3, 0.1, 0.4):
        server.beat(late)
    assert server.lags == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.1, 0.1])


def test_refused_connections_take_turns_and_fewer_of_them_while_the_server_is_full() -> None:
    for full, turns in ((True, TURNS), (False, 4 * TURNS)):
        server = Beats(5 * TURNS, full=full)
        server.beat()
        assert server.read == list(range(turns))
        for _ in range(5):
            server.beat()
        assert server.read == list(range(5 * TURNS))


def test_what_waited_on_a_refused_connection_is_refused_and_what_comes_later_is_not(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STALE", 0.5)
    monkeypatch.setattr(http, "TURNS", 0)  # refused connections are not read
    app, settings = serving._server.app, Settings(max_wait=0.02)
    monkeypatch.setattr(app, "settings", settings)
    wait = [7.2]
    monkeypatch.setattr(Batcher, "expected_wait", lambda self: wait[0])
    client, path = Client(serving.url), "/v1/recommend/u001"
    assert client.get(path).status == 429
    found = list[int]()
    asking = threading.Thread(target=lambda: found.append(client.get(path).status))
    asking.start()
    time.sleep(0.1)
    assert not found
    wait[0] = app.batcher.peak = 0.0
    monkeypatch.setattr(http, "TURNS", 20)
    asking.join()
    assert found == [429]
    assert client.get(path).status == 200
    assert app.batcher.coming == 0
    client.close()


def test_the_id_of_a_request_is_that_of_the_client_if_it_is_harmless(client: Client) -> None:
    assert client.get("/livez", X_Request_Id="abc-1").headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 200, "<script>"):
        assert client.get("/livez", X_Request_Id=odd).headers["x-request-id"] != odd


# the server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/livez", "/readyz",
                                  "/v2/health/live", "/v2/health/ready"])  # fmt: skip
def test_health_is_ok(path: str, client: Client) -> None:
    assert client.get(path).json == {"status": "ok", "reasons": []}


def test_a_server_whose_threads_have_ended_says_so(model: sdx.Retriever, tmp_path: Path) -> None:
    with sdx.serve(model, port=0, max_wait=5, events=tmp_path / "e.db") as serving:
        client, app = Client(serving.url), serving._server.app
        app.batcher.close()
        assert client.get("/livez").json == {
            "status": "broken", "reasons": ["The thread of the model has ended."],
        }  # fmt: skip
        assert app.registry.events is not None
        app.registry.events.close()
        ready = client.get("/readyz")
        assert (ready.status, ready.json["status"]) == (503, "not ready")
        assert len(ready.json["reasons"]) == 2
        client.close()


def test_the_metrics_count_requests_batches_and_lists(client: Client) -> None:
    client.get("/v1/recommend/u001")
    client.post("/v1/recommend", {"user": "nobody", "unknown": "popular"})
    text = client.get("/metrics").body.decode()
    for name in (
        'softdex_requests_total{endpoint="/v1/recommend/{user}",status="200"}',
        "softdex_request_seconds_count", "softdex_queue_wait_seconds_count", "softdex_queue_depth",
        "softdex_batch_users_count", 'softdex_batch_seconds_count{model="cf"}',
        "softdex_unknown_keys_total", 'softdex_fallbacks_total{model="cf"}',
        'softdex_model_info{model="cf",recipe="item_cf"', 'softdex_served_coverage{model="cf"}',
        'softdex_served_popularity{model="cf"}', "softdex_model_loaded_seconds",
    ):  # fmt: skip
        assert name in text
    coverage = re.search(r'served_coverage\{model="cf"\} (.+)', text)
    assert 0 < float(coverage[1]) <= 1  # type: ignore[index]
    assert "u001" not in text


def test_coverage_and_popularity_are_those_of_the_lists(model: sdx.Retriever) -> None:
    served, order = of_memory("cf", model), np.argsort(-model.item_counts, kind="stable")
    assert served.listed() == (0, 0)
    served.lists.append(order[:1])
    assert served.listed() == (pytest.approx(1 / len(order)), 1)
    served.lists.append(order[[0, -1]])
    at_most = (model.item_counts <= model.item_counts[order[-1]]).mean()
    assert served.listed() == pytest.approx((2 / len(order), (2 + at_most) / 3))


def test_pages_load_nothing_from_elsewhere(client: Client) -> None:
    for path in ("/docs", "/"):
        found = client.get(path)
        assert found.headers["content-type"].startswith("text/html")
        assert found.headers["content-security-policy"] == "default-src 'self'"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert not re.search(rb"""(src|href)=["']?(https?:)?//""", found.body)
    for endpoint in ENDPOINTS:
        assert endpoint.path.replace(":path", "").encode() in client.get("/docs").body


def test_cross_origin_requests_are_not_allowed(client: Client) -> None:
    found = client.get("/v1/models", Origin="https://example.org")
    assert not [name for name in found.headers if name.startswith("access-control")]
    assert client.ask("OPTIONS", "/v1/recommend", b"", Origin="https://example.org").status == 405


# access ------------------------------------------------------------------------------------------


def test_tokens_say_who_may_ask_and_who_may_reload(model: sdx.Retriever, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of the test\nread {READ}\nadmin {ADMIN}  # ours\n")
    with sdx.serve(model, port=0, max_wait=5, tokens=file, host="0.0.0.0") as found:
        client = Client(found.url.replace("0.0.0.0", "127.0.0.1"))
        for path in ("/v1/recommend/u001", "/v1/models", "/metrics", "/v1/users/u001"):
            assert client.get(path).status == 401
            assert client.get(path, Authorization="Bearer " + "x" * 20).status == 401
            assert client.get(path, Authorization=f"Basic {READ}").status == 401
            assert client.get(path, Authorization=f"Bearer {READ}").status == 200
        assert client.get("/livez").status == 200
        path = "/v1/models/model/reload"
        assert client.post(path, {}).status == 401
        assert client.post(path, {}, Authorization=f"Bearer {READ}").status == 403
        assert client.post(path, {}, Authorization=f"Bearer {ADMIN}").status == 422  # of memory
        client.close()


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, compare = list[bytes](), hmac.compare_digest

    def count(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return compare(known, given)

    monkeypatch.setattr(hmac, "compare_digest", count)
    tokens = Tokens([f"read {READ}", f"admin {ADMIN}", f"read {ADMIN}"], "here")
    for token, role in ((READ, "read"), (ADMIN, "admin"), ("x" * 20, None)):
        assert tokens.role(b"Bearer " + token.encode()) == role
        assert len({len(each) for each in compared}) == 1
        assert len(compared) == 3
        compared.clear()


def test_without_tokens_nobody_may_reload(client: Client) -> None:
    found = client.post("/v1/models/cf/reload", {"path": "/etc/passwd"})
    assert (found.status, "--tokens FILE" in found.json["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "holds no token"), ("read short", "shorter than 16"), ("write " + "x" * 20, "line 1"),
     ("read a b", "line 1")],
)  # fmt: skip
def test_a_file_of_tokens_is_refused_with_the_reason(
    text: str, sentence: str, model: sdx.Retriever, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(sdx.SoftdexError, match=sentence) as error:
        sdx.serve(model, port=0, tokens=tmp_path / "tokens")
    assert "short'" not in str(error.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_another_address_without_tokens_is_refused(host: str, model: sdx.Retriever) -> None:
    with pytest.raises(
        sdx.SoftdexError, match=r"is open to other machines\. Pass a file of tokens"
    ):
        sdx.serve(model, host=host, port=0)


def test_a_port_that_is_taken_is_one_sentence(serving: Serving, model: sdx.Retriever) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"cannot listen on .*Choose another"):
        sdx.serve(model, port=int(serving.url.rsplit(":", 1)[1]))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(sdx.SoftdexError, match="serve"):
        sdx.serve(17, port=0)  # type: ignore[arg-type]
    with pytest.raises(sdx.SoftdexError, match="at least one model"):
        sdx.serve({}, port=0)
    with pytest.raises(sdx.SoftdexError, match="max_wat"):
        sdx.serve({}, port=0, max_wat=1)
    for name, odd in (("max_wait", -1), ("timeout", float("nan")), ("drain", float("inf")),
                      ("max_k", "9")):  # fmt: skip
        with pytest.raises(sdx.SoftdexError, match=f"expected {name} as a (whole )?number"):
            sdx.serve({}, port=0, **{name: odd})
    with pytest.raises(sdx.SoftdexError, match="expected port as a whole number"):
        sdx.serve({}, port="80")  # type: ignore[arg-type]
    with pytest.raises(sdx.SoftdexError, match=r"serve: .*not .?int"):
        sdx.serve({}, port=0, watch=5)


def test_keys_of_requests_are_not_logged(
    model: sdx.Retriever, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, tokens = tmp_path / "cf.sdx", tmp_path / "tokens"
    model.save(file)
    tokens.write_text(f"admin {ADMIN}\n")
    with sdx.serve(file, port=0, max_wait=5, tokens=tokens) as found, caplog.at_level(1):
        client = Client(found.url, Authorization=f"Bearer {ADMIN}")
        asked = {"user": "u001", "deny": ["secret-key"], "k": 2}
        assert client.post("/v1/recommend", asked).status == 200
        assert client.post("/v1/recommend", {"user": "secret-user"}).status == 404
        assert client.post("/v1/models/cf/reload", {}).status == 200  # asks again to warm up
        client.close()
    assert "secret" not in caplog.text


# slow clients ------------------------------------------------------------------------------------


def test_slow_clients_are_cut_off_and_others_are_answered(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, header_seconds=0.3, request_seconds=0.6, max_wait=5) as found:
        address = ("127.0.0.1", int(found.url.rsplit(":", 1)[1]))
        head = b"POST /v1/recommend HTTP/1.1\r\nContent-Type: application/json\r\n"
        slow = [
            b"",
            b"GET /livez HTT",
            head,
            head + b"Content-Length: 100\r\n\r\n{",
            head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        ]
        sockets = [socket.create_connection(address, timeout=5) for _ in slow]
        for each, text in zip(sockets, slow, strict=True):
            each.sendall(text)
        client, began = Client(found.url), time.monotonic()
        while time.monotonic() - began < 0.8:
            assert client.get("/v1/recommend/u001").status == 200
        for each in sockets:
            assert ended(each)
            each.close()
        assert 'shed_total{reason="slow"} 5.0' in client.get("/metrics").body.decode()
        client.close()


def test_a_client_that_does_not_read_is_cut_off(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, max_wait=5, header_seconds=0.4) as found:
        address = ("127.0.0.1", int(found.url.rsplit(":", 1)[1]))
        body = json.dumps({"requests": [{"user": "u001", "k": 100}] * 2000}).encode()
        head = "POST /v1/recommend/batch HTTP/1.1\r\nContent-Type: application/json\r\n"
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.settimeout(10)
            deaf.connect(address)
            deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            client, began = Client(found.url), time.monotonic()
            while 'shed_total{reason="slow"} 1.0' not in client.get("/metrics").body.decode():
                assert time.monotonic() - began < 8
                time.sleep(0.1)
            assert not [*found._server.server_state.connections][1:]
            client.close()


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_headers_and_connections_have_limits(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, max_wait=5, max_connections=3) as found:
        address = ("127.0.0.1", int(found.url.rsplit(":", 1)[1]))
        for text in (b"GET /livez HTTP/1.1\r\nA: " + b"x" * 70_000, b"G" * 70_000):
            with socket.create_connection(address, timeout=5) as each:
                each.sendall(text)
                assert each.recv(100)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        time.sleep(0.05)
        held = [socket.create_connection(address, timeout=5) for _ in range(3)]
        time.sleep(0.05)
        with socket.create_connection(address, timeout=5) as each:
            assert ended(each)
        for each in held:
            each.close()


def test_a_notebook_stops_its_server(model: sdx.Retriever) -> None:
    found = sdx.serve(model, port=0)
    client = Client(found.url)
    assert client.get("/readyz").status == 200
    assert found.url in repr(found)
    found.close()
    with pytest.raises(OSError):
        Client(found.url).get("/readyz")
    client.close()
