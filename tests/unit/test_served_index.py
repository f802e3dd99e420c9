"""The index a model is served from: built, tuned, edited, saved, and refused when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softdex as sdx
from softdex.index.flat import Flat
from softdex.index.imi.index import Imi
from softdex.model import artifact
from softdex.model.kinds import INDEXES


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    return sdx.synthetic.world(users=300, items=400, seed=0).interactions()


@pytest.fixture
def model(log: sdx.Interactions) -> sdx.Retriever:
    return sdx.fit("rg2", log, dim=16)


def lists(model: sdx.Retriever, k: int = 10) -> dict[str, Any]:
    return model.recommend(model.users.all().to_pylist()[:50], k=k).to_pydict()


def test_a_model_is_served_from_a_multi_index_with_the_recall_asked_for(
    model: sdx.Retriever,
) -> None:
    exact = lists(model)
    model.build_index("imi", recall=0.9, k=10)
    assert isinstance(model.index, Imi)
    pairs = [set(zip(found["user"], found["item"], strict=True)) for found in (exact, lists(model))]
    assert len(pairs[0] & pairs[1]) > 0.8 * len(pairs[0])
    model.build_index("flat")
    assert isinstance(model.index, Flat)
    assert lists(model) == exact


def test_building_an_index_prints_recall_by_effort(
    model: sdx.Retriever, capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    model.build_index("imi", recall=0.9, k=10)
    said = capsys.readouterr().err
    assert "effort" in said
    assert "recall@10" in said


def test_removed_items_never_come_back_not_even_after_loading_or_from_another_index(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    gone = list(dict.fromkeys(lists(model, 5)["item"]))[:20]
    model.remove_items(gone)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert again.removed == 20
    for served in (model, again):
        assert not set(lists(served, 50)["item"]) & set(gone)
        alike = served.similar(served.items.all().to_pylist()[:20], k=30).to_pydict()
        assert not set(alike["similar"]) & set(gone)
        someone = served.recommend(["nobody"], k=400, unknown="popular").to_pydict()
        assert not set(someone["item"]) & set(gone)
    again.build_index("imi", recall=0.9)
    assert not set(lists(again, 50)["item"]) & set(gone)
    again.restore_items(gone)
    assert set(lists(again, 50)["item"]) & set(gone)


@pytest.mark.parametrize(("call", "words"), [
    (lambda m: m.remove_items(["no such item"]), "remove_items: 1 unknown item"),
    (lambda m: m.build_index("tree"), "build_index: unknown index 'tree'"),
    (lambda m: m.build_index("imi", recall=1.5), "recall above 0 and up to 1, got 1.5"),
    (lambda m: m.remove_items(m.items.all().to_pylist()), "no item would be left"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_and_nothing_changes(
    model: sdx.Retriever, call: Any, words: str
) -> None:
    before = lists(model)
    with pytest.raises(sdx.SoftdexError, match=words):
        call(model)
    assert lists(model) == before


def test_a_model_that_counts_has_nothing_to_put_in_cells(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match="item_cf has no item vectors"):
        sdx.fit("item_cf", log).build_index("imi")


def far_cell(tensors: dict[str, Tensor]) -> None:
    tensors["index.cell"][3] = 10**6


def negative_cell(tensors: dict[str, Tensor]) -> None:
    tensors["index.cell"][3] = -1


def nobody(tensors: dict[str, Tensor]) -> None:
    tensors["index.alive"][:] = False


def strange_stage(tensors: dict[str, Tensor]) -> None:
    tensors["index.last"] = torch.tensor(7)


def no_effort(tensors: dict[str, Tensor]) -> None:
    tensors["index.effort"] = torch.tensor(float("nan"), dtype=torch.float64)


def short(tensors: dict[str, Tensor]) -> None:
    tensors["index.logw"] = tensors["index.logw"][:-1]


def missing(tensors: dict[str, Tensor]) -> None:
    del tensors["index.words"]


@pytest.mark.parametrize(
    "spoil", [far_cell, negative_cell, nobody, strange_stage, no_effort, short, missing]
)
def test_a_file_with_an_index_that_cannot_be_is_refused(
    model: sdx.Retriever, tmp_path: Path, spoil: Any
) -> None:
    model.build_index("imi", recall=0.9)
    path = tmp_path / "m.sdx"
    model.save(path)
    contents = artifact.read(path)
    spoil(contents.tensors)
    artifact.write(path, contents)
    with pytest.raises(sdx.ArtifactError, match="is damaged"):
        sdx.load(path)


DOUBLE = torch.float64
HOSTILE = {
    "uniform": [{"alive": torch.zeros(400, dtype=torch.bool)}, {"alive": torch.ones(400)}],
    "popularity": [
        {"counts": torch.full((400,), -1)},
        {"counts": torch.ones(399, dtype=torch.int64)},
        {"smooth": torch.tensor(0.0, dtype=DOUBLE)},
        {"power": torch.tensor(float("inf"), dtype=DOUBLE)},
        {"alive": torch.zeros(400, dtype=torch.bool)},
    ],
    "kernel": [
        {"block": torch.tensor(0)},
        {"block": torch.tensor(-(2**63))},
        {"block": torch.tensor(2**62)},
        {"gram": torch.zeros(1, 1)},
        {"alpha": torch.tensor(-1.0, dtype=DOUBLE)},
    ],
}


@pytest.mark.parametrize(("kind", "changed"), [(k, c) for k, all_ in HOSTILE.items() for c in all_])
def test_a_file_with_a_proposal_that_cannot_be_is_refused(
    model: sdx.Retriever, tmp_path: Path, kind: str, changed: dict[str, Tensor]
) -> None:
    counts = torch.from_numpy(model.item_counts.astype(np.int64))
    more = {"counts": counts} if kind == "popularity" else {}
    model.index = INDEXES[kind](model.index.scorer, **more).delete(torch.tensor([3]))
    path = tmp_path / "m.sdx"
    model.save(path)
    contents = artifact.read(path)
    contents.tensors.update({f"index.{name}": tensor for name, tensor in changed.items()})
    artifact.write(path, contents)
    with pytest.raises(sdx.ArtifactError, match="is damaged"):
        sdx.load(path)


def test_a_file_from_before_there_were_indexes_is_served_flat(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    path = tmp_path / "m.sdx"
    model.save(path)
    contents = artifact.read(path)
    del contents.manifest["index"]
    artifact.write(path, contents)
    again = sdx.load(path)
    assert isinstance(again.index, Flat)
    assert np.array_equal(lists(again)["item"], lists(model)["item"])
