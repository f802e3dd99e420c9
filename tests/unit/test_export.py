"""Export to faiss: the same lists as the model's own, or one clear error and no file."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.cli import app as cli

faiss = pytest.importorskip("faiss", reason="faiss is not here: pip install softdex[ann]")

FAST: dict[str, Any] = {"dim": 8, "epochs": 2, "device": "cpu"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cosine with a prior": ("ssm", {"negatives": 50}),
    "cosine without": ("ssm", {"negatives": 50, "prior": 0.0}),
    "dot with a bias": ("bce", {"score": "dot_bias"}),
    "closed form": ("ials", {}),
    "history": ("ssm", {"negatives": 50, "encoder": "history"}),
    "mix": ("ssm", {"negatives": 50, "encoder": "mix"}),
    "vae": ("fastvae", {"hidden": 8, "latent": 4, "codewords": 4}),
}
READS = ["closed form", "history", "mix", "vae"]
WITH_OFFSETS = ["cosine with a prior", "dot with a bias", "history", "mix"]


@pytest.fixture(scope="module")
def models(log: sdx.Interactions) -> dict[str, sdx.Retriever]:
    """A model of each kind; tests do not change them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTDEX_QUIET", "1")
        fitted = {n: sdx.fit(name, log, **(FAST | o)) for n, (name, o) in MODELS.items()}
        fitted["vae"].build_index("flat")
    return fitted


@pytest.fixture
def model(log: sdx.Interactions) -> sdx.Retriever:
    """One that a test may change."""
    return sdx.fit("rg2", log, **FAST)


def served(path: Path, queries: np.ndarray, k: int) -> tuple[list[list[Any]], np.ndarray]:
    """What somebody without softdex finds: keys and scores."""
    keys = pq.read_table(f"{path}.keys.parquet")["item"].to_pylist()
    scores, rows = faiss.read_index(str(path)).search(queries, k)
    return [[None if row < 0 else keys[row] for row in found] for found in rows], scores


def expected(recs: sdx.Recommendations, k: int) -> tuple[list[list[Any]], np.ndarray]:
    items = np.array(recs["item"].to_pylist(), object).reshape(-1, k)
    return items.tolist(), recs["score"].to_numpy().reshape(-1, k)


def card(path: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(pq.read_schema(f"{path}.keys.parquet").metadata[b"softdex"])
    return known


# the same lists ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_a_flat_index_finds_what_the_model_recommends(
    models: dict[str, sdx.Retriever], kind: str, tmp_path: Path
) -> None:
    model, users = models[kind], models[kind].users.all()
    assert model.export_faiss(tmp_path / "items.faiss") == len(model.items)
    queries = model.query_vectors(users)
    found, scores = served(tmp_path / "items.faiss", queries, 10)
    wanted, exact = expected(model.recommend(users, 10, exclude_seen=False), 10)
    assert found == wanted
    assert scores == pytest.approx(exact, abs=1e-4)
    assert queries.dtype == np.float32


@pytest.mark.parametrize("kind", READS)
def test_histories_of_strangers_find_what_the_model_recommends(
    models: dict[str, sdx.Retriever], kind: str, tmp_path: Path
) -> None:
    model, history = models[kind], [["i003", "i009", "i050"], ["i017"]]
    model.export_faiss(tmp_path / "items.faiss")
    found, scores = served(tmp_path / "items.faiss", model.query_vectors(history=history), 7)
    wanted, exact = expected(model.recommend(history=history, k=7, exclude_seen=False), 7)
    assert found == wanted
    assert scores == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_what_items_score_for_everybody_is_one_more_coordinate(
    models: dict[str, sdx.Retriever], kind: str, tmp_path: Path
) -> None:
    model, more = models[kind], kind in WITH_OFFSETS
    model.export_faiss(tmp_path / "items.faiss")
    dim = model.index.scorer.items.dim + more
    queries = model.query_vectors(["u001", "u002"])
    assert queries.shape == (2, dim)
    assert (queries[:, -1] == 1).all() == more
    assert faiss.read_index(str(tmp_path / "items.faiss")).d == dim
    assert card(tmp_path / "items.faiss") == {
        "recipe": MODELS[kind][0], "metric": "inner product", "dim": dim,
        "offset_appended": more, "items": len(model.items), "factory": "Flat",
    }  # fmt: skip


def test_queries_do_not_depend_on_how_many_are_made_at_a_time(
    models: dict[str, sdx.Retriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["history"]
    at_once = model.query_vectors(model.users.all())
    monkeypatch.setattr("softdex.model.asking.BATCH", 7)
    assert model.query_vectors(model.users.all()) == pytest.approx(at_once, abs=1e-6)
    assert model.query_vectors([]).shape == (0, at_once.shape[1])


def test_an_index_without_removed_items_maps_no_ids(model: sdx.Retriever, tmp_path: Path) -> None:
    model.export_faiss(tmp_path / "items.faiss")
    assert isinstance(faiss.read_index(str(tmp_path / "items.faiss")), faiss.IndexFlat)
    keys = pq.read_table(tmp_path / "items.faiss.keys.parquet")
    assert keys["row"].to_pylist() == list(range(len(model.items)))
    assert keys["item"].to_pylist() == model.items.all().to_pylist()


def test_keys_keep_their_type(tmp_path: Path) -> None:
    keys = [uuid.UUID(int=i) for i in range(20)]
    raw = pa.array([k.bytes for k in keys] * 5, pa.uuid())
    log = sdx.read({"user": np.arange(100) % 9, "item": raw}, quiet=True)
    model = sdx.fit("rg2", log, **FAST)
    model.remove_items(raw[:1])
    model.export_faiss(tmp_path / "items.faiss")
    column = pq.read_table(tmp_path / "items.faiss.keys.parquet")["item"]
    assert column.to_pylist() == [None, *keys[1:]]


def test_a_model_that_was_saved_and_loaded_writes_the_same_files(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    model.save(tmp_path / "m.sdx")
    model.export_faiss(tmp_path / "a")
    sdx.load(tmp_path / "m.sdx").export_faiss(tmp_path / "b")
    for end in ("", ".keys.parquet"):
        one, other = (tmp_path / f"{name}{end}" for name in "ab")
        assert one.read_bytes() == other.read_bytes()


# removed items -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "IDMap2,Flat", "HNSW8"])
@pytest.mark.parametrize("index", ["flat", "imi"])
def test_removed_items_are_not_found_and_the_others_keep_their_rows(
    model: sdx.Retriever, tmp_path: Path, index: str, factory: str
) -> None:
    gone = ["i000", "i005", "i119"]
    model.build_index(index, recall=1.0)
    model.remove_items(gone)
    path = tmp_path / "items.faiss"
    assert model.export_faiss(path, factory) == len(model.items) - 3
    read = faiss.read_index(str(path))
    assert isinstance(read, faiss.IndexIDMap)
    assert not {0, 5, 119} & set(faiss.vector_to_array(read.id_map).tolist())
    keys = pq.read_table(f"{path}.keys.parquet")["item"]
    assert keys.null_count == 3
    assert not set(gone) & set(keys.to_pylist())
    if factory.endswith("Flat") and "IVF" not in factory:
        found, _ = served(path, model.query_vectors(["u001", "u007"]), 20)
        model.build_index("flat")
        recs = model.recommend(["u001", "u007"], 20, exclude_seen=False)
        assert found == expected(recs, 20)[0]


def test_where_the_index_holds_fewer_than_asked_there_is_no_row(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    model.remove_items(model.items.all()[4:])
    model.export_faiss(tmp_path / "items.faiss")
    found, _ = served(tmp_path / "items.faiss", model.query_vectors("u001"), 6)
    assert sorted(found[0][:4]) == ["i000", "i001", "i002", "i003"]
    assert found[0][4:] == [None, None]


# other kinds of index ----------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["IVF4,Flat", "HNSW16", "SQ8", "IDMap,Flat", "IVF3,Flat,RFlat"])
def test_any_factory_is_trained_and_holds_every_item(
    models: dict[str, sdx.Retriever], tmp_path: Path, factory: str
) -> None:
    model = models["cosine with a prior"]
    model.export_faiss(tmp_path / "items.faiss", factory)
    index = faiss.read_index(str(tmp_path / "items.faiss"))
    assert (index.is_trained, index.ntotal) == (True, len(model.items))
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert card(tmp_path / "items.faiss")["factory"] == factory


def test_cells_that_are_all_opened_find_what_flat_finds(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    model.remove_items("i003")
    queries = model.query_vectors(model.users.all())
    model.export_faiss(tmp_path / "flat")
    model.export_faiss(tmp_path / "cells", "IVF4,Flat")
    cells = faiss.read_index(str(tmp_path / "cells"))
    faiss.extract_index_ivf(cells).nprobe = 4
    wanted = faiss.read_index(str(tmp_path / "flat")).search(queries, 10)[1]
    assert (cells.search(queries, 10)[1] == wanted).all()


# what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("factory", "words"), [
    ("rubbish", r"'rubbish' of 120 vectors of 8 numbers \(could not parse index string rubbish\)"),
    ("", "could not parse"),
    ("IVF1024,Flat", r"training points \(120\) should be at least as large .* \(1024\)"),
    ("PQ3", r"should be a multiple of the number of subquantizers \(M\)"),
    ("LSH", "METRIC_L2"),
    ("PCA4,IDMap,Flat", "Choose another factory; 'Flat' takes any"),
    ("IVF99999999999,Flat", "cannot build"),
    *((f, "sizes above 0") for f in ("IVF0,Flat", "HNSW0", "HNSW1", "NSG1", "PQ4x0", "RR00,Flat")),
    *((f, "expected factory as faiss writes it") for f in (None, 5, b"Flat", ["Flat"])),
])  # fmt: skip
def test_a_factory_that_faiss_cannot_build_is_refused_and_nothing_is_written(
    model: sdx.Retriever, tmp_path: Path, factory: Any, words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"export_faiss: .*{words}"):
        model.export_faiss(tmp_path / "items.faiss", factory)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["item_cf", "popular"])
def test_a_model_that_counts_has_no_vectors_to_export(
    log: sdx.Interactions, tmp_path: Path, recipe: str
) -> None:
    model = sdx.fit(recipe, log)
    said = f"expected a model with item vectors, {recipe} has none. Fit one that has, such as rg2"
    with pytest.raises(sdx.SoftdexError, match=f"export_faiss: {said}"):
        model.export_faiss(tmp_path / "items.faiss")
    with pytest.raises(sdx.SoftdexError, match=f"query_vectors: {said}"):
        model.query_vectors("u001")
    assert list(tmp_path.iterdir()) == []


def test_without_faiss_the_error_says_what_to_install(
    model: sdx.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(sdx.SoftdexError, match=r"export_faiss: .* pip install softdex\[ann\]"):
        model.export_faiss(tmp_path / "items.faiss")
    assert list(tmp_path.iterdir()) == []
    assert len(model.query_vectors("u001")) == 1


@pytest.mark.parametrize(("kind", "asked", "words"), [
    ("closed form", {}, "expected users, or history="),
    ("closed form", {"users": ["nobody"]}, r"1 unknown user \('nobody'\)"),
    ("closed form", {"history": ["i003"]}, "one list per user"),
    ("closed form", {"history": [["no such item"]]}, "1 unknown item in history"),
    ("closed form", {"history": [["i003"], []]}, "history 1 is empty"),
    ("closed form", {"users": ["u001"], "history": []}, "one history per user, got 0 for 1 user"),
    ("dot with a bias", {"history": [["i003"]]}, "cannot read a history"),
])  # fmt: skip
def test_queries_of_nobody_are_refused(
    models: dict[str, sdx.Retriever], kind: str, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"query_vectors: .*{words}"):
        models[kind].query_vectors(**asked)


@pytest.mark.parametrize("taken", ["items.faiss", "items.faiss.keys.parquet"])
def test_a_folder_in_the_place_of_a_file_is_refused_and_no_file_is_left(
    model: sdx.Retriever, tmp_path: Path, taken: str
) -> None:
    (tmp_path / taken).mkdir()
    with pytest.raises(sdx.SoftdexError, match=f"cannot write .*{taken} .it is a folder"):
        model.export_faiss(tmp_path / "items.faiss")
    assert [p.name for p in tmp_path.iterdir()] == [taken]


@pytest.mark.parametrize("broken", ["faiss.write_index", "pyarrow.parquet.write_table"])
def test_a_failure_on_the_way_leaves_the_old_pair(
    model: sdx.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "items.faiss"

    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    model.export_faiss(path)
    old = files()
    model.remove_items("i003")
    monkeypatch.setattr(broken, fails)
    with pytest.raises(sdx.ArtifactError, match=r"cannot write .*No space left on device"):
        model.export_faiss(path)
    assert files() == old


# the command line --------------------------------------------------------------------------------


def softdex(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["softdex", *map(str, words)])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_command_writes_what_the_method_writes(
    model: sdx.Retriever,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.save(tmp_path / "m.sdx")
    model.export_faiss(tmp_path / "a", "IVF4,Flat")
    words = ("export", tmp_path / "m.sdx", "--faiss", tmp_path / "b", "--factory", "IVF4,Flat")
    assert softdex(monkeypatch, *words) == 0
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'b'} (120 items) and ")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert softdex(monkeypatch, *words, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(tmp_path / "b"), "keys": str(tmp_path / "b.keys.parquet"), "items": 120,
    }  # fmt: skip


@pytest.mark.parametrize(("words", "said"), [
    (["m.sdx"], "expected --faiss FILE or --page FOLDER, one of them"),
    (["gone", "--faiss", "x"], "load: no file gone"),
    (["m.sdx", "--faiss", "x", "--factory", "rubbish"], "could not parse index string rubbish"),
    (["counts.sdx", "--faiss", "x"], "expected a model with item vectors, popular has none"),
    (["m.sdx", "--faiss", "."], "cannot write . (it is a folder or a device)"),
    (["m.sdx", "--faiss", "m.sdx/x"], "cannot write m.sdx/x"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(
    log: sdx.Interactions,
    model: sdx.Retriever,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    model.save("m.sdx")
    sdx.fit("popular", log).save("counts.sdx")
    assert softdex(monkeypatch, "export", *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in " ".join(printed.err.split())
    assert "Traceback" not in printed.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["counts.sdx", "m.sdx"]
