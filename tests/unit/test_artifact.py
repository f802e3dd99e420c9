"""The file a model is kept in: the same bytes every time, whole or not at all, never trusted."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import hostile
import softdex as sdx
from softdex.encode.table import Users
from softdex.errors import ArtifactError
from softdex.files import write_atomically
from softdex.model.artifact import MEMBERS, plain
from softdex.model.card import Card
from softdex.model.parts import Known, Parts, parts_from
from softdex.score.product import Dot

ROWS = [
    ("ann", "tea", 1), ("ann", "jam", 2), ("bob", "tea", 1), ("bob", "jam", 3), ("bob", "pie", 4),
    ("cat", "pie", 1), ("cat", "tea", 2), ("dan", "ham", 1), ("dan", "tea", 4),
]  # fmt: skip
ITEMS = pa.table(
    {
        "item": ["tea", "jam", "pie", "ham"],
        "price": [1, 2, None, 4],
        "tags": [["hot"], ["sweet", "red"], ["sweet"], None],
    }
)
DATA = Path(__file__).parents[1] / "data"


def fitted(recipe: str = "item_cf", **options: Any) -> sdx.Retriever:
    return sdx.fit(recipe, sdx.read(ROWS, items=ITEMS, quiet=True), **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk; tests only read it."""
    file = tmp_path_factory.mktemp("saved") / "model.sdx"
    fitted().save(file)
    return file


def refusal(tmp_path: Path, raw: bytes) -> str:
    """What load says of a file that holds these bytes."""
    file = tmp_path / "hostile.sdx"
    file.write_bytes(raw)
    with pytest.raises(ArtifactError) as caught:
        sdx.load(file)
    assert str(file) in str(caught.value) or "Upgrade" in str(caught.value)
    return str(caught.value)


# what is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["item_cf", "popular"])
def test_a_loaded_model_recommends_what_the_saved_one_did(recipe: str, tmp_path: Path) -> None:
    model = fitted(recipe)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    users = ["ann", "bob", "cat", "dan"]
    wanted = model.recommend(users, 4, exclude_seen=False, columns=["price", "tags"])
    assert again.recommend(users, 4, exclude_seen=False, columns=["price", "tags"]).equals(
        wanted.table
    )
    assert again.card == model.card
    assert (again.recipe, again.options) == (model.recipe, model.options)
    assert again.users == model.users
    assert again.items == model.items


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint64(), pa.string(), pa.binary(), pa.uuid()])
def test_keys_come_back_in_the_type_they_went_in(kind: pa.DataType, tmp_path: Path) -> None:
    raw = [f"{i:016d}".encode() for i in range(3)]
    keys = (
        pa.array(raw, kind) if kind in (pa.binary(), pa.uuid()) else pa.array(range(3)).cast(kind)
    )
    log = sdx.read(pa.table({"user": keys, "item": keys.take(pa.array([1, 2, 0]))}), quiet=True)
    sdx.fit("popular", log).save(tmp_path / "m.sdx")
    found = sdx.load(tmp_path / "m.sdx").recommend(keys, 1)
    assert found["user"].type == kind
    assert found["item"].type == kind
    assert found["user"].combine_chunks() == keys


def test_the_same_model_has_the_same_bytes_however_often_it_is_saved(
    path: Path, tmp_path: Path
) -> None:
    fitted().save(tmp_path / "b.sdx")
    sdx.load(path).save(tmp_path / "c.sdx")
    assert (
        path.read_bytes() == (tmp_path / "b.sdx").read_bytes() == (tmp_path / "c.sdx").read_bytes()
    )


def test_the_file_is_an_uncompressed_zip_of_json_safetensors_and_arrow(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert tuple(e.filename for e in archive.infolist()) == MEMBERS
        assert {e.compress_type for e in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {e.date_time for e in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    items = pa.ipc.open_file(hostile.members(path)["items.arrow"]).read_all()
    assert items.to_pylist()[0] == {"key": "ham", "price": 4, "tags": None}


def test_the_manifest_reads_as_a_model_card(parts: sdx.Split, tmp_path: Path) -> None:
    model = sdx.fit("item_cf", parts.train, parts.valid, neighbours=np.int64(7))
    odd = {"nan": float("nan"), "numpy": np.float32(0.5)}
    model.card = model.card.measured("odd", odd)  # type: ignore[arg-type]
    model.save(tmp_path / "m.sdx")
    raw = hostile.members(tmp_path / "m.sdx")["manifest.json"]
    card = json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (card["format"], card["version"]) == ("softdex", 1)
    assert (card["recipe"], card["options"]["neighbours"]) == ("item_cf", 7)
    assert card["data"] == parts.train.sha256
    assert card["card"]["name"] == "leave_last"
    assert card["card"]["sha256"] == parts.card.sha256
    assert card["metrics"]["valid"]["recall@10"] == model.card.metrics["valid"]["recall@10"]
    assert card["metrics"]["odd"] == {"nan": None, "numpy": 0.5}
    assert set(card["softdex"]) == {"softdex", "python", "torch", "numpy", "scipy", "pyarrow"}
    assert (card["users"], card["items"]) == (300, 120)
    assert card["tensors"]["item_counts"] == ["int64", 120]


def test_what_a_model_was_told_cannot_overwrite_what_it_is(tmp_path: Path) -> None:
    model = fitted()
    notes = {"recipe": "other", "format": "other", "note": "kept"}
    model.card = replace(model.card, notes=notes)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert again.recipe == "item_cf"
    assert again.card.notes == {"note": "kept"}


def test_item_columns_of_exotic_types_are_kept_in_plain_ones(tmp_path: Path) -> None:
    keys = ["ham", "jam", "pie", "tea"]
    model = fitted()
    columns = pa.table(
        {
            "view": pa.array(keys).cast(pa.string_view()),
            "category": pa.array(keys).dictionary_encode(),
            "pair": pa.array([[1, 2]] * 4, pa.list_(pa.int64(), 2)),
            "key": [1, 2, 3, 4],
            "map": pa.array([{"a": 1}] * 4, pa.map_(pa.string(), pa.int64())),
        }
    )
    known = Known(model.users, model.items, model.seen, model.item_counts, columns)
    parts = Parts(model.encoder, model.index)
    wide = sdx.Retriever(Card(model.recipe), parts, known)
    wide.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx").item_table
    assert again.equals(wide.item_table)
    assert again.column_names == ["view", "category", "pair", "key"]
    assert again["category"].to_pylist() == keys
    assert again["pair"].type == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({1: (np.int32(2), None)}, {"1": [2, None]}),
        ([float("inf"), float("nan"), 0.5], [None, None, 0.5]),
        (np.arange(3), [0, 1, 2]),
        (Path("a/b"), "a/b"),
        (True, True),
    ],
)
def test_plain_values_are_what_json_holds(value: object, wanted: object) -> None:
    assert plain(value) == wanted


# written whole or not at all ---------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_saving_makes_the_folders_that_are_missing(tmp_path: Path) -> None:
    fitted().save(tmp_path / "a" / "b" / "m.sdx")
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["m.sdx"]


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    fitted().save(tmp_path / "m.sdx")
    assert (tmp_path / "m.sdx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_full_disk_is_one_error_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.sdx"
    fitted("popular").save(file)
    old = file.read_bytes()
    with (
        hostile.small_disk(1000),
        pytest.raises(ArtifactError, match=r"cannot write .*m.sdx \(File too"),
    ):
        fitted().save(file)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"cannot write .*m.sdx \(No space left on"):
        fitted().save(file)
    with pytest.raises(ArtifactError, match="No space left"):
        fitted().recommend_all(tmp_path / "recs.csv")
    assert file.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["m.sdx"]


def test_a_place_that_cannot_be_written_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArtifactError, match="cannot write"):
        fitted().save(tmp_path / "file" / "m.sdx")
    with pytest.raises(ArtifactError, match="it is a folder or a device"):
        fitted().save(tmp_path / "folder")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ArtifactError, match=r"cannot write .*m.sdx \(Permission denied\)"):
        fitted().save(tmp_path / "m.sdx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_device_is_never_replaced_by_a_file() -> None:
    with pytest.raises(ArtifactError, match="it is a folder or a device"):
        fitted().recommend_all("/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted(file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_synced_does_not_spoil_a_saved_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.files.sync_folder", full)
    fitted().save(tmp_path / "m.sdx")
    assert sdx.load(tmp_path / "m.sdx").recipe == "item_cf"


# damaged and foreign files -----------------------------------------------------------------------


def test_a_file_cut_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    raw = path.read_bytes()
    for percent in range(1, 100):
        refusal(tmp_path, raw[: len(raw) * percent // 100])
    assert "truncated" in refusal(tmp_path, raw[:-1])


def test_a_flipped_bit_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    raw = path.read_bytes()
    draw = random.Random(0)
    ends = [*range(100), *range(len(raw) - 400, len(raw))]
    for place in [*ends, *draw.sample(range(len(raw)), 400)]:
        flipped = bytearray(raw)
        flipped[place] ^= 1 << draw.randrange(8)
        refusal(tmp_path, bytes(flipped))


def test_bytes_after_the_end_are_refused(path: Path, tmp_path: Path) -> None:
    assert "no seal at its end" in refusal(tmp_path, path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a softdex artifact"),
        (b"P", "not a softdex artifact"),
        (b"PK", "no seal"),
        (b"user,item\na,b\n", "not a softdex artifact"),
        (b"PAR1" + b"\0" * 100, "not a softdex artifact"),
        (hostile.packed([("a.txt", b"hello")], seal=False), "no seal"),
        (hostile.packed([("a.txt", b"hello")]), "expected the members"),
        (hostile.sealed(b"PK" + hostile.SEAL + b"0" * 64), "not a zip"),
    ],
)
def test_a_foreign_file_is_refused_by_name(raw: bytes, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, raw)


def test_what_is_no_file_is_refused(tmp_path: Path, path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ArtifactError, match=r"no file .*gone.sdx"):
        sdx.load(tmp_path / "gone.sdx")
    with pytest.raises(ArtifactError, match=r"no file .*model.sdx"):
        sdx.load(tmp_path)
    with pytest.raises(ArtifactError, match=r"cannot read .*File name too long"):
        sdx.load(tmp_path / ("x" * 300))
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ArtifactError, match=r"cannot read .*No space left on device"):
        sdx.load(path)


def test_a_folder_is_loaded_by_the_model_in_it(path: Path) -> None:
    assert sdx.load(path.parent).recipe == "item_cf"


# hostile files: changed, and sealed again --------------------------------------------------------


def test_a_resealed_file_that_is_not_changed_is_loaded(path: Path, tmp_path: Path) -> None:
    (tmp_path / "m.sdx").write_bytes(hostile.changed(path))
    assert len(sdx.load(tmp_path / "m.sdx").users) == 4


def test_a_newer_format_asks_for_an_upgrade(path: Path, tmp_path: Path) -> None:
    said = refusal(tmp_path, hostile.with_manifest(path, version=2))
    assert "format version 2, this softdex reads up to 1. Upgrade softdex" in said


WRONG: list[Any] = [None, True, -1, 0, 5, 1.0, 2**70, "x", [], [[]], {"a": 1}, ...]
FINE = {  # entries that describe and decide nothing may be missing, or say something else
    "recipe": ["x"], "options": [{"a": 1}], "data": ["x", ...], "softdex": [{"a": 1}],
    "card": [None, {"a": 1}, ...], "metrics": [{"a": 1}, ...], "version": [5, 2**70],
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "format", "version", "recipe", "options", "encoder", "scorer", "softdex", "tensors",
        "users", "items", "data", "card", "metrics",
    ],
)  # fmt: skip
def test_a_manifest_entry_of_the_wrong_type_is_refused(
    name: str, path: Path, tmp_path: Path
) -> None:
    for value in WRONG:
        if not any(value is fine or value == fine for fine in FINE.get(name, [])):
            said = refusal(tmp_path, hostile.with_manifest(path, **{name: value}))
            assert "damaged" in said or "foreign manifest" in said or "unknown" in said, value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "JSONDecodeError"),
        (b"[]", "foreign manifest"),
        (b"\xff\xfe\x00", "damaged"),
        (b"[" * 100_000, "RecursionError"),
        (
            b'{"format": "softdex", "version": 1, "options": ' + b"[" * 900 + b"]" * 900 + b"}",
            "Rec",
        ),
        (b'{"a": ' + b"9" * 100_000 + b"}", "digits"),
    ],
)
def test_a_manifest_that_is_no_record_is_refused(
    raw: bytes, words: str, path: Path, tmp_path: Path
) -> None:
    assert words in refusal(tmp_path, hostile.changed(path, manifest=raw))


@pytest.mark.parametrize("kinds", [{"encoder": "tower"}, {"scorer": "eval"}, {"encoder": "dot"}])
def test_parts_that_are_not_known_ask_for_an_upgrade(
    kinds: dict[str, str], path: Path, tmp_path: Path
) -> None:
    (role, name) = next(iter(kinds.items()))
    said = refusal(tmp_path, hostile.with_manifest(path, **kinds))
    assert f"unknown {role} {name!r}. Upgrade softdex" in said


@pytest.mark.parametrize("kinds", [{"encoder": "anyone"}, {"scorer": "constant"}])
def test_parts_that_do_not_belong_to_the_tensors_are_refused(
    kinds: dict[str, str], path: Path, tmp_path: Path
) -> None:
    assert "tensor" in refusal(tmp_path, hostile.with_manifest(path, **kinds))


@pytest.mark.parametrize("bias", [None, torch.arange(4.0)])
def test_a_model_of_vectors_is_kept_too(bias: torch.Tensor | None, tmp_path: Path) -> None:
    counted = fitted()
    vectors, items = torch.eye(4), torch.arange(16.0).reshape(4, 4)
    known = Known(counted.users, counted.items, counted.seen, counted.item_counts)
    parts = parts_from(Users(vectors), Dot(items, bias))
    model = sdx.Retriever(Card("vectors"), parts, known)
    model.save(tmp_path / "m.sdx")
    found = sdx.load(tmp_path / "m.sdx").recommend(["ann", "dan"], 4, exclude_seen=False)
    assert found.equals(model.recommend(["ann", "dan"], 4, exclude_seen=False).table)
    assert found["score"].to_pylist()[0] == 12.0 + (0 if bias is None else 3)
    for other in ({"encoder__vectors.weight": torch.ones(3, 4)}, {"scorer__items.weight": None}):
        assert "tensor" in refusal(tmp_path, hostile.with_tensors(tmp_path / "m.sdx", **other))
    narrow = {"encoder__vectors.weight": torch.ones(4, 3)}
    said = refusal(tmp_path, hostile.with_tensors(tmp_path / "m.sdx", **narrow))
    assert "tensor scorer.items.weight: expected ('torch.float32', 4, 3)" in said


def test_an_encoder_and_a_scorer_that_do_not_understand_each_other_are_refused(
    tmp_path: Path,
) -> None:
    fitted("popular").save(tmp_path / "p.sdx")
    raw = hostile.with_tensors(
        tmp_path / "p.sdx", scorer__weight=None, scorer__fallback=torch.full((4,), -1.0)
    )
    (tmp_path / "q.sdx").write_bytes(raw)
    assert "damaged" in refusal(
        tmp_path, hostile.with_manifest(tmp_path / "q.sdx", scorer="sparse")
    )


def _rearranged(path: Path) -> dict[str, bytes]:
    first, *rest = hostile.members(path).items()
    return {
        "a member twice": hostile.packed([first, *rest, first]),
        "a member too many": hostile.packed([first, *rest, ("extra", b"")]),
        "a member too few": hostile.packed(rest),
        "another order": hostile.packed([*rest, first]),
        "a name that escapes": hostile.packed([("../../evil.json", first[1]), *rest]),
        "an absolute name": hostile.packed([("/etc/evil.json", first[1]), *rest]),
        "deflated": hostile.packed([first, *rest], zipfile.ZIP_DEFLATED),
        "lzma": hostile.packed([first, *rest], zipfile.ZIP_LZMA),
    }


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("a member twice", "expected the members"),
        ("a member too many", "expected the members"),
        ("a member too few", "expected the members"),
        ("another order", "expected the members"),
        ("a name that escapes", "expected the members"),
        ("an absolute name", "expected the members"),
        ("deflated", "is compressed"),
        ("lzma", "is compressed"),
    ],
)
def test_other_members_are_refused(how: str, words: str, path: Path, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, _rearranged(path)[how])
    assert [p.name for p in tmp_path.iterdir()] == ["hostile.sdx"]


def test_a_member_that_claims_more_bytes_than_the_file_has_is_refused(
    path: Path, tmp_path: Path
) -> None:
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\x01\x02")
    raw[entry + 20 : entry + 28] = (0x7FFFFFFF).to_bytes(4, "little") * 2
    assert "claims 2147483647 bytes" in refusal(tmp_path, hostile.sealed(bytes(raw)))


INTS, LONGS = torch.int32, torch.int64


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"encoder__indptr": torch.tensor([0, 1, 3, 5, 9])}, "point outside"),
        ({"encoder__indptr": torch.tensor([0, 5, 3, 5, 8])}, "point outside"),
        ({"encoder__indptr": torch.tensor([0, -5, 3, 5, 8])}, "point outside"),
        ({"encoder__indptr": torch.tensor([1, 1, 3, 5, 8])}, "point outside"),
        ({"encoder__indptr": torch.tensor([0, 2**63 - 1, -(2**63), 5, 8])}, "point outside"),
        ({"encoder__indptr": torch.tensor([0, 8])}, "point outside"),
        ({"encoder__indptr": torch.tensor([0.0, 1, 3, 5, 8])}, "tensor encoder.indptr"),
        ({"encoder__indices": torch.full((8,), 4, dtype=INTS)}, "point outside"),
        ({"encoder__indices": torch.full((8,), -1, dtype=INTS)}, "point outside"),
        ({"encoder__indices": torch.full((8,), 2**31 - 1, dtype=INTS)}, "point outside"),
        ({"encoder__indices": torch.zeros(8, dtype=LONGS)}, "tensor encoder.indices"),
        (
            {"encoder__values": torch.ones(9)},
            "tensor encoder.values: expected ('torch.float32', 8)",
        ),
        ({"encoder__values": torch.full((8,), float("nan"))}, "not finite"),
        ({"encoder__values": torch.ones(8, dtype=torch.float64)}, "tensor encoder.values"),
        ({"scorer__fallback": torch.tensor([-1.0, float("nan"), -1, -1])}, "not finite"),
        ({"scorer__fallback": torch.tensor([-1.0, float("-inf"), -1, -1])}, "not finite"),
        ({"scorer__fallback": torch.ones(1)}, "tensor scorer.fallback"),
        ({"scorer__fallback": torch.ones(4, 1)}, "tensor scorer.fallback"),
        ({"scorer__fallback": torch.ones(4, dtype=torch.bfloat16)}, "tensor scorer.fallback"),
        ({"scorer__fallback": torch.ones(4, dtype=torch.complex64)}, "tensor scorer.fallback"),
        ({"seen__indptr": torch.tensor([0, 2, 5, 7, 8])}, "point outside"),
        ({"seen__indptr": torch.empty(0, dtype=LONGS)}, "point outside"),
        ({"seen__indptr": torch.tensor([0, 2, 5, 9])}, "point outside"),
        ({"seen__ids": torch.full((9,), 4, dtype=INTS)}, "point outside"),
        ({"seen__ids": torch.zeros(9, dtype=LONGS)}, "tensor seen.ids"),
        ({"item_counts": torch.tensor([1, 2, 3])}, "tensor item_counts"),
        ({"item_counts": torch.tensor([1, 2, 3, -1])}, "numbers below 0"),
        ({"item_counts": torch.ones(4, dtype=torch.bool)}, "tensor item_counts"),
        ({"item_counts": torch.tensor(4)}, "tensor item_counts"),
        ({"item_counts": torch.empty(0, 2**40, dtype=LONGS)}, "tensor item_counts"),
        ({"item_counts": None}, "tensor item_counts"),
        ({"evil": torch.ones(1)}, "tensors evil belong to nothing"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_they_are_used(
    tensors: dict[str, torch.Tensor], words: str, path: Path, tmp_path: Path
) -> None:
    assert words in refusal(tmp_path, hostile.with_tensors(path, **tensors))


def test_tensors_that_the_manifest_does_not_describe_are_refused(
    path: Path, tmp_path: Path
) -> None:
    absurd = {"item_counts": ["int64", 2**62]}
    assert "does not describe" in refusal(tmp_path, hostile.with_manifest(path, tensors=absurd))
    assert "does not describe" in refusal(tmp_path, hostile.with_manifest(path, users=10**15))
    header = b'{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}'
    raw = len(header).to_bytes(8, "little") + header
    assert "damaged" in refusal(tmp_path, hostile.changed(path, tensors=raw))


def _views(kind: pa.DataType) -> pa.Array:
    return pa.array(["a", "b", "c", "d"]).cast(kind)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["b", "a", "c", "d"], "sorted, unique"),
        (["a", "a", "c", "d"], "sorted, unique"),
        (["a", "b", "c", None], "sorted, unique"),
        ([1.0, 2.0, 3.0, float("nan")], "sorted, unique"),
        (["a", "b", "c"], "damaged"),
        ([{"a": 1}] * 4, "column types"),
        ([[1], [2], [3], [4]], "column types"),
        (_views(pa.string_view()), "column types"),
        (_views(pa.string()).dictionary_encode(), "dictionaries"),
        (pa.array([b""] * 4, pa.binary(0)), "column types"),
        (pa.nulls(4), "sorted, unique"),
        (pa.Array.from_buffers(pa.null(), 2**31 - 1, [None]), "point outside"),
    ],
)
@pytest.mark.parametrize("member", ["users", "items"])
def test_keys_that_are_not_sorted_and_unique_are_refused(
    member: str, keys: Any, words: str, path: Path, tmp_path: Path
) -> None:
    said = refusal(tmp_path, hostile.with_table(path, member, pa.table({"key": keys})))
    assert words in said or (member == "items" and "tensor " in said)


HUGE = 2**30


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(list("abca")).dictionary_encode(), "dictionaries"),
        (_views(pa.string_view()), "column types"),
        (pa.array([[1]] * 4, pa.list_view(pa.int64())), "column types"),
        (pa.array([{}] * 4, pa.struct([])), "column types"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([4], pa.int32()), pa.array([1])), "types"),
        (
            pa.ListArray.from_arrays(pa.array([0, HUGE, HUGE, HUGE, HUGE], pa.int32()),
                                     pa.nulls(HUGE)),
            "column types",
        ),
    ],
    ids=["dictionary", "view", "list view", "empty struct", "runs", "lists of nothing"],
)  # fmt: skip
def test_item_columns_that_could_unfold_are_refused(
    column: pa.Array, words: str, path: Path, tmp_path: Path
) -> None:
    items = pa.ipc.open_file(hostile.members(path)["items.arrow"]).read_all()
    raw = hostile.with_table(path, "items", items.append_column("evil", column))
    assert words in refusal(tmp_path, raw)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_inflated(
    compression: str, path: Path, tmp_path: Path
) -> None:
    items = pa.ipc.open_file(hostile.members(path)["items.arrow"]).read_all()
    bomb = items.append_column("bomb", pa.array(["x" * 1_000_000] * 4))
    raw = hostile.with_table(path, "items", bomb, compression=compression)
    assert "an Arrow member is compressed" in refusal(tmp_path, raw)


@pytest.mark.parametrize(
    "names",
    [["kee", "price", "tags"], ["key", "price", "price"], ["price", "key", "tags"]],
)
def test_other_columns_are_refused(names: list[str], path: Path, tmp_path: Path) -> None:
    items = pa.ipc.open_file(hostile.members(path)["items.arrow"]).read_all()
    raw = hostile.with_table(path, "items", items.rename_columns(names))
    assert "unexpected columns" in refusal(tmp_path, raw)


@pytest.mark.parametrize("raw", [b"", b"ARROW1\0\0", b"x" * 100, b"ARROW1\0\0" + b"\xff" * 100])
def test_a_member_that_is_not_arrow_is_refused(raw: bytes, path: Path, tmp_path: Path) -> None:
    assert "damaged" in refusal(tmp_path, hostile.changed(path, users=raw))


# files of long ago -------------------------------------------------------------------------------


def _lists(table: sdx.Recommendations, found: str = "item") -> list[tuple[Any, ...]]:
    rows = table.to_pylist()
    return [tuple(v for k, v in row.items() if k != "score") for row in rows]


def test_item_cf_of_format_1_is_read_for_ever() -> None:
    model = sdx.load(DATA / "format-1-item_cf.sdx")
    assert repr(model) == "Retriever(item_cf, 4 users, 4 items)"
    found = model.recommend(["ann", "bob"], 3, columns=["price", "tags"])
    assert _lists(found) == [
        ("ann", 1, "pie", None, ["sweet"]),
        ("ann", 2, "ham", 4, None),
        ("bob", 1, "ham", 4, None),
    ]
    assert found["score"].to_pylist() == pytest.approx([0.71238792, 0.30778611, 0.30778611])
    assert _lists(model.recommend("dan", where={"tags": "red"})) == [("dan", 1, "jam")]
    near = model.similar("tea", 2)
    assert _lists(near) == [("tea", 1, "jam"), ("tea", 2, "pie")]
    assert near["score"].to_pylist() == pytest.approx([0.42371282, 0.42371282])
    assert model.options == {"neighbours": 200, "user_power": 0.5, "asymmetry": 0.6, "shrink": 0.0}


def test_popular_of_format_1_is_read_for_ever() -> None:
    model = sdx.load(DATA / "format-1-popular.sdx")
    found = model.recommend("cat", 4, exclude_seen=False, columns="price")
    assert _lists(found) == [
        ("cat", 1, "tea", 1), ("cat", 2, "jam", 2), ("cat", 3, "pie", None), ("cat", 4, "ham", 4),
    ]  # fmt: skip
    assert found["score"].to_pylist() == [4.0, 2.0, 2.0, 1.0]
