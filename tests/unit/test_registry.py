"""Hot swap: no request fails, answers name a seal that was served, a bad file changes nothing."""

from __future__ import annotations

import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import softdex as sdx
from serving import Client
from softdex.model import artifact
from softdex.serve import registry as registries
from softdex.serve.problems import Problem
from softdex.serve.registry import Registry, registry_of
from softdex.serve.start import reload_all
from softdex.serve.watch import look, models_in, watching
from softdex.serve.words import Recommend

ADMIN = "admin-token-0123456789"


@pytest.fixture(scope="module")
def other(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("popular", parts.train)


@pytest.fixture
def file(model: sdx.Retriever, tmp_path: Path) -> Path:
    model.save(tmp_path / "cf.sdx")
    return tmp_path / "cf.sdx"


@pytest.fixture
def served(file: Path) -> Registry:
    return registry_of({"cf": file})


def seal_of(file: Path) -> str:
    return file.read_bytes()[-64:].decode()


# swaps -------------------------------------------------------------------------------------------


def test_a_reload_swaps_one_reference(served: Registry, file: Path, other: sdx.Retriever) -> None:
    before = served.of(None)
    other.save(file)
    swap = served.reload("cf")
    after = served.of(None)
    assert (before.model.recipe, after.model.recipe) == ("item_cf", "popular")
    assert (swap.old, swap.new) == (before.seal, after.seal) == (before.seal, seal_of(file))
    assert served.reload("cf", file).old == swap.new


def test_the_next_model_is_warmed_up_with_recent_requests(
    served: Registry, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [Recommend(user="u001", k=3), Recommend(user="nobody"), Recommend(history=["i001"])]
    served.of(None).recent.extend(words)
    replayed: list[Any] = []
    answer = registries.recommend

    def recommend(asked: Any) -> Any:
        replayed.extend(each.words for each in asked)
        return answer(asked)

    monkeypatch.setattr(registries, "recommend", recommend)
    served.reload("cf")
    assert replayed[:3] == words
    assert [*served.of(None).recent] == words  # and a warm-up is no request


def test_swaps_under_load_fail_no_request_and_answers_name_served_seals(
    model: sdx.Retriever, other: sdx.Retriever, tmp_path: Path
) -> None:
    files, tokens = [tmp_path / "a.sdx", tmp_path / "b.sdx"], tmp_path / "tokens"
    model.save(files[0])
    other.save(files[1])
    tokens.write_text(f"admin {ADMIN}")
    seals, found = {seal_of(file)[:16] for file in files}, list[tuple[int, str, str]]()
    bearer = {"Authorization": f"Bearer {ADMIN}"}
    with sdx.serve({"m": files[0]}, port=0, tokens=tokens, max_wait=5, timeout=9) as serving:
        ends = threading.Event()

        def load() -> None:
            client = Client(serving.url, **bearer)
            while not ends.is_set():
                answer = client.post("/v1/recommend", {"user": "u001", "k": 3})
                seal = answer.json.get("seal", "")
                found.append((answer.status, seal, answer.headers["x-model-seal"]))
            client.close()

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        admin = Client(serving.url, **bearer)
        for i in range(1, 4):
            swap = admin.post("/v1/models/m/reload", {"path": str(files[i % 2])})
            assert swap.status == 200
            assert swap.json["new"] == seal_of(files[i % 2])
        ends.set()
        for thread in threads:
            thread.join()
        admin.close()
    assert {status for status, *_ in found} == {200}
    assert all(seal == header for _, seal, header in found)
    assert {seal for _, seal, _ in found} == seals


def test_a_warm_up_counts_nothing(served: Registry) -> None:
    served.of(None).recent.append(Recommend(user="nobody", unknown="popular"))
    served.reload("cf")
    assert (served.of(None).fallbacks, [*served.of(None).lists]) == (0, [])


def test_answers_and_headers_name_the_seal_that_answers(served: Registry, file: Path) -> None:
    sdx.fit("popular", sdx.read([(f"u{i}", f"i{i:03}") for i in range(120)])).save(file)
    served.reload("cf")
    found = served.of(None)
    assert found.short_seal == seal_of(file)[:16]
    assert dict(found.headers) == {b"x-model": b"cf", b"x-model-seal": found.short_seal.encode()}


def test_reloads_are_told_with_their_result(file: Path) -> None:
    told: list[tuple[str, str]] = []
    found = registry_of({"cf": file}, None, lambda *result: told.append(result))
    found.reload("cf")
    truncated(file)
    with pytest.raises(sdx.ArtifactError):
        found.reload("cf")
    assert told == [("cf", "ok"), ("cf", "failed")]


# bad files ---------------------------------------------------------------------------------------


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def damaged(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def foreign(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights", b"pickle")


def newer(file: Path) -> None:
    contents = artifact.read(file)
    manifest = contents.manifest | {"version": 1}
    version, artifact.VERSION = artifact.VERSION, 99
    try:
        artifact.write(file, contents._replace(manifest=manifest))
    finally:
        artifact.VERSION = version


def other_catalogue(file: Path) -> None:
    log = sdx.read([(f"u{i}", f"x{i % 7}") for i in range(30)])
    sdx.fit("popular", log).save(file)


def gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (truncated, "truncated"),
        (damaged, "checksum"),
        (foreign, "not a softdex artifact"),
        (newer, "Upgrade softdex"),
        (other_catalogue, "knows 0% of the items of cf"),
        (gone, "no file"),
    ],
)
def test_a_bad_file_leaves_the_old_model_and_its_reason(
    spoil: Any, reason: str, served: Registry, file: Path
) -> None:
    before = served.of(None)
    spoil(file)
    with pytest.raises(sdx.SoftdexError, match=reason):
        served.reload("cf")
    assert served.of(None) is before
    assert reason in served.troubles["cf"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("x" * 300, "File name too long"), ("a\0b", "null byte"), ("/dev/zero", "is not a file"),
     ("/dev", "no file")],
)  # fmt: skip
def test_a_path_of_no_file_is_one_sentence(path: str, reason: str, served: Registry) -> None:
    with pytest.raises(sdx.SoftdexError, match=reason):
        served.reload("cf", Path(path))
    assert reason in served.troubles["cf"]


def test_the_reason_of_a_failed_reload_is_in_the_answer_the_list_and_the_metrics(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(f"admin {ADMIN}")
    with sdx.serve({"cf": file}, port=0, max_wait=5, tokens=tmp_path / "tokens") as serving:
        client = Client(serving.url, Authorization=f"Bearer {ADMIN}")
        seal = seal_of(file)
        truncated(file)
        found = client.post("/v1/models/cf/reload", {})
        assert (found.status, "truncated" in found.json["detail"]) == (422, True)
        entry = client.get("/v1/models").json["models"][0]
        assert (entry["seal"], "truncated" in entry["trouble"]) == (seal, True)
        text = client.get("/metrics").body.decode()
        assert 'softdex_reloads_total{model="cf",result="failed"} 1.0' in text
        assert 'softdex_model_trouble{model="cf"} 1.0' in text
        assert client.get("/v1/recommend/u001").json["seal"] == seal[:16]
        other_catalogue(file)
        assert client.post("/v1/models/cf/reload", {}).status == 422
        assert client.post("/v1/models/cf/reload", {"other_catalogue": True}).status == 200
        assert client.get("/v1/models").json["models"][0]["trouble"] is None
        client.close()


def test_a_trouble_ends_with_the_next_good_file(
    served: Registry, file: Path, model: sdx.Retriever
) -> None:
    truncated(file)
    with pytest.raises(sdx.ArtifactError):
        served.reload("cf")
    assert "truncated" in served.troubles["cf"]
    model.save(file)
    served.reload("cf")
    assert served.troubles == {}


def test_another_catalogue_is_swapped_in_where_asked(served: Registry, file: Path) -> None:
    other_catalogue(file)
    served.reload("cf", other_catalogue=True)
    assert len(served.of(None).model.items) == 7


def test_a_model_that_fails_its_warm_up_is_not_served(
    served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(asked: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(registries, "recommend", fail)
    before = served.of(None)
    with pytest.raises(ZeroDivisionError):
        served.reload("cf")
    assert served.of(None) is before
    assert "a fault" in served.troubles["cf"]


def test_a_model_that_does_not_fit_beside_the_old_one_is_refused_before_it_is_read(
    served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "free_memory", lambda: 2**10)
    monkeypatch.setattr(registries, "read", None)
    with pytest.raises(sdx.SoftdexError, match=r"needs about .* MiB while it is loaded"):
        served.reload("cf")


def test_one_model_is_loaded_at_a_time(served: Registry) -> None:
    with served._loading, pytest.raises(Problem, match="Another model is being loaded"):
        served.reload("cf")


# several models ----------------------------------------------------------------------------------


def test_users_go_to_variants_by_stated_shares_and_stay_there(
    model: sdx.Retriever, other: sdx.Retriever
) -> None:
    models = {"a": model, "b": other}
    first = registry_of(models, {"a": 3, "b": 1})
    again = registry_of(models, {"a": 0.75, "b": 0.25})
    chosen = [first.of(None, f"u{i}").name for i in range(4000)]
    assert chosen == [again.of(None, f"u{i}").name for i in range(4000)]
    assert "".join(chosen[:16]) == "aaaabbabbaabbaaa"  # in any process, for ever
    assert chosen.count("b") == pytest.approx(1000, abs=110)  # four standard errors
    assert first.of("b", "u1").name == "b"
    assert first.of(None).name == "a"


def test_a_share_of_a_user_goes_over_the_connection(
    model: sdx.Retriever, other: sdx.Retriever
) -> None:
    with sdx.serve(
        {"a": model, "b": other}, port=0, max_wait=5, shares={"a": 1, "b": 1}
    ) as serving:
        client = Client(serving.url)
        found = [client.get(f"/v1/recommend/u{i:03}").headers["x-model"] for i in range(40)]
        assert set(found) == {"a", "b"}
        assert client.get("/v1/recommend/u001?model=b").headers["x-model"] == "b"
        client.close()


def test_a_key_is_the_same_user_as_a_number_and_as_text(
    model: sdx.Retriever, other: sdx.Retriever
) -> None:
    both = registry_of({"a": model, "b": other}, {"a": 1, "b": 1})
    assert all(both.of(None, i).name == both.of(None, str(i)).name for i in range(50))


def test_every_model_has_a_share_or_none_has(model: sdx.Retriever, other: sdx.Retriever) -> None:
    models = {"a": model, "b": other}
    with pytest.raises(sdx.SoftdexError, match="expected a share for every model, got none for a"):
        registry_of(models, {"b": 0.1})
    assert registry_of(models, {"a": 0, "b": 1}).of(None, "u1").name == "b"


@pytest.mark.parametrize("shares", [{"c": 1}, {"a": -1}, {"a": float("nan")}, {"a": 0}, {"a": "1"}])
def test_wrong_shares_are_refused(shares: dict[str, float], model: sdx.Retriever) -> None:
    with pytest.raises(sdx.SoftdexError, match="share"):
        registry_of({"a": model}, shares)


def test_a_hangup_reads_every_model_again(
    served: Registry, file: Path, other: sdx.Retriever
) -> None:
    other.save(file)
    reload_all(served)
    assert served.of(None).model.recipe == "popular"
    truncated(file)
    reload_all(served)
    assert served.of(None).model.recipe == "popular"
    assert "cf" in served.troubles


def test_a_watched_folder_serves_what_is_new_or_has_changed(
    served: Registry, file: Path, other: sdx.Retriever
) -> None:
    known = models_in(file.parent)
    look(served, file.parent, known)
    before = served.of("cf")
    other.save(file)
    other.save(file.with_name("two.sdx"))
    (file.parent / "bad.sdx").write_bytes(b"PK")
    look(served, file.parent, known)
    assert served.of("cf").model.recipe == served.of("two").model.recipe == "popular"
    assert "bad" in served.troubles
    assert "bad" not in served.models
    now = served.of("cf")
    look(served, file.parent, known)  # nothing has changed
    assert served.of("cf") is now is not before


def test_a_file_that_comes_while_another_is_loaded_is_served_at_the_next_look(
    served: Registry, file: Path, other: sdx.Retriever
) -> None:
    known = models_in(file.parent)
    other.save(file)
    with served._loading:
        look(served, file.parent, known)
    assert served.of("cf").model.recipe == "item_cf"
    look(served, file.parent, known)
    assert served.of("cf").model.recipe == "popular"


def test_a_folder_is_watched_in_the_background(
    served: Registry, file: Path, other: sdx.Retriever
) -> None:
    with watching(served, file.parent, every=0.02):
        other.save(file)
        until = time.monotonic() + 10
        while served.of(None).model.recipe != "popular" and time.monotonic() < until:
            time.sleep(0.02)
    assert served.of(None).model.recipe == "popular"
    with pytest.raises(sdx.SoftdexError, match="not a folder"), watching(served, file):
        pass


def test_what_changed_between_load_and_watch_is_swapped_in(
    served: Registry, file: Path, other: sdx.Retriever
) -> None:
    other.save(file.with_name("two.sdx"))
    with watching(served, file.parent, every=60):
        assert served.models.keys() == {"cf"}
    other.save(file)
    with watching(served, file.parent, every=0.02):
        until = time.monotonic() + 10
        while served.of(None).model.recipe != "popular" and time.monotonic() < until:
            time.sleep(0.02)
    assert served.of(None).model.recipe == "popular"
    assert served.models.keys() == {"cf"}  # the other one was there before


def test_a_server_in_the_background_watches_too(file: Path, other: sdx.Retriever) -> None:
    with sdx.serve(file, port=0, watch=str(file.parent)) as serving:
        other.save(file)
        client, until = Client(serving.url), time.monotonic() + 10
        while client.get("/v1/models").json["models"][0]["recipe"] != "popular":
            assert time.monotonic() < until
            time.sleep(0.05)
        client.close()


def test_two_models_of_one_name_are_refused(model: sdx.Retriever) -> None:
    served = registry_of({"a": model}).of("a")
    with pytest.raises(sdx.SoftdexError, match="same name"):
        Registry([served, served])
