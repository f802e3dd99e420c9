"""Live events over a connection: the next request of the user sees them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import softdex as sdx
from serving import Client
from softdex.serve import registry
from softdex.serve.events import Events
from softdex.serve.live import Live
from softdex.serve.registry import registry_of
from softdex.serve.start import Serving
from softdex.serve.words import Event

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "MEASURE", 1e-9)  # of the pace: seconds per start
        yield


@pytest.fixture(scope="module")
def models(model: sdx.Retriever, parts: sdx.Split) -> dict[str, sdx.Retriever]:
    return {
        "cf": model,
        "rg2": sdx.fit("rg2", parts.train, dim=4, epochs=1, device="cpu"),
        "ssm": sdx.fit("ssm", parts.train, dim=4, epochs=1, device="cpu"),
    }


@pytest.fixture(scope="module")
def serving(
    models: dict[str, sdx.Retriever], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("live") / "events.db"
    with sdx.serve(models, port=0, max_wait=5, events=path) as found:
        yield found


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    found = Client(serving.url)
    yield found
    found.close()


def ask(client: Client, user: str, model: str, **words: Any) -> Any:
    return client.post("/v1/recommend", {"user": user, "model": model, "k": 8, **words})


def stored(model: sdx.Retriever, user: str) -> list[str]:
    row = model.users.lookup([user])
    return model.items.take(model.seen.take(row).ids).to_pylist()


@pytest.mark.parametrize("name", ["cf", "rg2"])
def test_the_next_list_is_that_of_the_history_with_the_event(
    name: str, client: Client, models: dict[str, sdx.Retriever]
) -> None:
    model, user = models[name], {"cf": "u001", "rg2": "u002"}[name]
    before = ask(client, user, name)
    assert "live" not in before.json
    done = client.post("/v1/events", {"user": user, "item": before.items[0]})
    assert (done.status, done.json["new"], done.json["repeated"]) == (202, 1, 0)
    after = ask(client, user, name)
    assert after.json["live"] is True
    own = model.recommend(user, k=8, history=[[*stored(model, user), before.items[0]]])
    assert after.items == own["item"].to_pylist()
    scores = [each["score"] for each in after.json["items"]]
    assert scores == pytest.approx(own["score"].to_pylist(), rel=1e-5)
    assert before.items[0] not in after.items


def test_a_model_of_user_vectors_excludes_live_events_and_says_so(client: Client) -> None:
    before = ask(client, "u003", "ssm")
    done = client.post("/v1/events", {"user": "u003", "item": before.items[0]})
    assert done.json["live"] == {"cf": True, "rg2": True, "ssm": False}
    after = ask(client, "u003", "ssm")
    assert after.json["live"] is False
    assert after.items[:-1] == before.items[1:]
    assert ask(client, "u003", "ssm", exclude_seen=False).items[0] in before.items
    card = client.get("/v1/models/ssm").json["live"]
    assert (card["reads"], "one vector per user" in card["how"]) == (False, True)
    assert client.get("/v1/models/rg2").json["live"]["how"] == "folded in"


def test_a_user_whom_no_model_knows_is_served_by_live_events(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    assert ask(client, "new", "rg2").status == 404
    client.post("/v1/events", [{"user": "new", "item": "i001"}, {"user": "new", "item": "i002"}])
    own = models["rg2"].recommend(history=[["i001", "i002"]], k=8)["item"].to_pylist()
    for unknown in ("error", "skip", "popular"):
        assert ask(client, "new", "rg2", unknown=unknown).items == own
    refused = ask(client, "new", "ssm")
    assert (refused.status, "unknown user ('new')" in refused.json["detail"]) == (404, True)
    popular = ask(client, "new", "ssm", unknown="popular")
    assert (popular.json["fallback"], popular.json["live"]) == ("popular", False)
    assert not {"i001", "i002"} & {*popular.items}
    assert ask(client, "new", "ssm", unknown="skip").items == []


@pytest.mark.parametrize("user", [2**64, -(10**40), "\U0001f4a9 \u202e\0'\"", "a/b?c=d&e%2f#"])
def test_any_key_may_have_events_and_lists(user: Any, client: Client) -> None:
    assert client.post("/v1/events", {"user": user, "item": "i004"}).status == 202
    by_key = ask(client, str(user), "rg2")
    assert (by_key.json["user"], by_key.json["live"]) == (str(user), True)
    assert ask(client, user, "rg2").status in (200, 422)  # numbers of 64 bits are keys
    path = quote(str(user), safe="")
    found = client.get(f"/v1/users/{path}").json
    assert (found["user"], found["live"]) == (str(user), ["i004"])
    assert client.get(f"/v1/recommend/{path}?model=rg2&k=8").items == by_key.items


def test_a_batch_sees_live_events_too(client: Client, models: dict[str, sdx.Retriever]) -> None:
    client.post("/v1/events", [{"user": "fresh", "item": "i003"}, {"user": "u004", "item": "i003"}])
    users = ["u005", "fresh", "lost", "u004"]
    for unknown, statuses in (("error", [200, 200, 404, 200]), ("skip", [200] * 4)):
        asked = [{"user": user, "model": "cf", "unknown": unknown} for user in users]
        found = client.post("/v1/recommend/batch", {"requests": asked}).json["answers"]
        assert [each.get("status", 200) for each in found] == statuses
        assert [each.get("live") for each in found] == [None, True, None, True]
        assert "i003" not in [each["item"] for each in found[3]["items"]]
    out = io.BytesIO()
    table = pa.table({"user": users})
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    path = "/v1/recommend/batch?k=3&unknown=skip&model=cf"
    raw = client.ask("POST", path, out.getvalue(), Content_Type=ARROW)
    lists = pa.ipc.open_stream(raw.body).read_all()
    assert lists["user"].to_pylist() == [user for user in users if user != "lost" for _ in range(3)]
    refused = client.ask("POST", path.replace("skip", "error"), out.getvalue(), Content_Type=ARROW)
    assert (refused.status, "unknown user ('lost')" in refused.json["detail"]) == (404, True)
    singles = [
        item for user in users if user != "lost" for item in ask(client, user, "cf", k=3).items
    ]
    assert lists["item"].to_pylist() == singles


def test_a_history_that_is_given_stays_as_it_is(
    client: Client, models: dict[str, sdx.Retriever]
) -> None:
    client.post("/v1/events", {"user": "u006", "item": "i007"})
    found = ask(client, "u006", "cf", history=["i001"])
    own = models["cf"].recommend("u006", history=[["i001"]], k=8)
    assert (found.items, "live" in found.json) == (own["item"].to_pylist(), False)


def test_a_user_is_shown_with_live_events(client: Client, model: sdx.Retriever) -> None:
    client.post("/v1/events", [{"user": "u008", "item": "i009"}, {"user": "guest", "item": "i009"},
                               {"user": "guest", "item": "of tomorrow"}])  # fmt: skip
    found = client.get("/v1/users/u008").json
    assert (found["history"], found["live"]) == (stored(model, "u008"), ["i009"])
    guest = client.get("/v1/users/guest").json
    assert (guest["user"], guest["history"], guest["live"]) == ("guest", [], ["i009"])
    assert "live" not in client.get("/v1/users/u010").json


def test_repeated_ids_and_wrong_events_are_told(client: Client) -> None:
    event = {"user": "u011", "item": "i001", "event_id": "once"}
    assert client.post("/v1/events", event).json["new"] == 1
    again = client.post("/v1/events", [event, event]).json
    assert (again["new"], again["repeated"]) == (0, 2)
    assert client.post("/v1/events", []).json["new"] == 0
    many = [{**event, "event_id": f"{i}"} for i in range(600)]
    assert client.post("/v1/events", many).json["new"] == 600
    assert client.post("/v1/events", [*many, {"user": "", "item": "a"}]).status == 422
    for body, status, sentence in (
        ({"user": "u011"}, 422, "missing required field `item`"),
        ({"user": "u011", "item": None}, 422, "got `null` at `item`"),
        ([event, {"user": "a", "item": "b", "weight": -1}], 422, "event 1: expected a weight"),
        ({"user": "a", "item": "b", "rating": 5}, 422, "unknown field `rating`"),
        ("event", 422, "Expected"),
        (b"{", 400, "not JSON"),
    ):
        found = client.post("/v1/events", body)
        assert (found.status, sentence in found.json["detail"]) == (status, True), found.json
    text = client.get("/metrics").body.decode()
    assert 'softdex_events_total{result="duplicate"} 2.0' in text
    assert "softdex_events_commit_seconds_count" in text


def test_a_full_disk_is_503_and_lists_are_still_served(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    with sdx.serve(model, port=0, max_wait=5, events=tmp_path / "e.db") as found:
        kept = found._server.app.registry.events
        assert kept is not None
        client, writer = Client(found.url), kept._writer
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        big = [{"user": "u001", "item": "x" * 900}] * 50
        refused = client.post("/v1/events", big)
        assert (refused.status, "the disk is full" in refused.json["detail"]) == (503, True)
        assert client.get("/v1/recommend/u001").status == 200
        client.close()


def test_a_server_without_a_file_of_events_takes_none(model: sdx.Retriever) -> None:
    with sdx.serve(model, port=0, max_wait=5) as found:
        client = Client(found.url)
        refused = client.post("/v1/events", {"user": "u001", "item": "i001"})
        assert (refused.status, "--events FILE" in refused.json["detail"]) == (404, True)
        client.close()


def test_events_outlive_the_server_and_a_failed_start_keeps_no_lock(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    path = tmp_path / "events.db"
    with pytest.raises(sdx.SoftdexError):
        sdx.serve(model, port=0, events=path, shares={"nix": 1})
    lists = []
    for _ in range(2):
        with sdx.serve(model, port=0, max_wait=5, events=path) as found:
            client = Client(found.url)
            client.post("/v1/events", {"user": "u001", "item": "i050", "event_id": "a"})
            lists.append(client.get("/v1/recommend/u001"))
            client.close()
    assert lists[0].json["live"] is lists[1].json["live"] is True
    assert lists[0].items == lists[1].items


# the loop ----------------------------------------------------------------------------------------


def test_a_model_reads_no_event_twice_and_misses_none(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    events = Events(path)
    given = [Event("ann", "tea", 1), Event("ann", "new", 2), Event("ann", "jam", 3)]
    events.append(given).result(10)
    table = {"user": ["ann", "bob", "bob"], "item": ["ale", "tea", "jam"], "time": [0, 0, 1]}
    old = sdx.fit("item_cf", sdx.read(table))
    assert named(old, events) == ["tea", "jam"]  # it does not know the new item
    log = sdx.read(table, events=path)
    assert named(sdx.fit("item_cf", log), events) == []
    held_out = sdx.split.leave_last(log, valid=False).train
    refit = sdx.fit("item_cf", held_out)
    assert named(refit, events) == ["jam"]
    events.append([Event("ann", "tea", 4)]).result(10)
    assert named(refit, events) == ["jam", "tea"]  # again, after the training
    other = Events(tmp_path / "other.db")
    other.append(given).result(10)
    assert named(refit, other) == ["tea", "new", "jam"]  # of another file: all of them
    events.close()
    other.close()


def named(model: sdx.Retriever, events: Events) -> list[str]:
    live = Live(model, events)
    first = live.rows("ann")
    assert live.rows("ann") is first
    return model.items.take(first).to_pylist()


def test_a_refit_with_events_is_swapped_in_and_rolled_back(
    log: sdx.Interactions, model: sdx.Retriever, tmp_path: Path
) -> None:
    path, file = tmp_path / "events.db", tmp_path / "shop.sdx"
    model.save(file)
    shutil.copy(file, tmp_path / "before.sdx")
    events = Events(path)
    served = registry_of({"shop": file}, None, lambda name, result: None, events)
    events.append([Event("u001", "brand new"), Event("u001", "i005")]).result(10)
    assert len(served.of("shop").live.rows("u001")) == 1  # type: ignore[union-attr]
    sdx.fit("item_cf", sdx.read(log.to_arrow(), events=path)).save(file)
    served.reload("shop")
    assert served.of("shop").model.items.lookup(["brand new"])[0] >= 0
    assert len(served.of("shop").live.rows("u001")) == 0  # type: ignore[union-attr]
    served.reload("shop", tmp_path / "before.sdx")
    assert len(served.of("shop").live.rows("u001")) == 1  # type: ignore[union-attr]
    events.close()


def test_an_event_without_an_item_is_refused_by_its_place(client: Client) -> None:
    found = client.post("/v1/events", [{"user": "u001", "item": "i001"}, {"user": "u001"}])
    assert found.status == 422
    assert found.json["detail"] == "Object missing required field `item` at `[1]`."
    assert found.json["field"] == "[1].item"
