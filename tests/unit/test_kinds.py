"""Your own encoder, scorer and index: registered, saved, loaded, and refused where they must be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import softdex as sdx
from laws import BATCH, ITEMS, ON_A_CASE, ON_AN_INDEX, Case, check
from own_parts import Distance, FrontHeavy, LastItem, registered
from softdex.encode.table import Users
from softdex.index.flat import Flat
from softdex.model.kinds import KINDS, kind_of
from softdex.score.product import Dot


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    with registered():
        yield


@pytest.fixture
def model(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("rg2", parts.train, dim=8)


def lists(model: sdx.Retriever) -> dict[str, Any]:
    users = model.users.take(np.arange(20)).to_pylist()
    found: dict[str, Any] = model.recommend(users, 5).to_pydict()
    return found


def with_own(model: sdx.Retriever, what: str) -> None:
    if what == "encoder":
        model.encoder = LastItem(torch.tensor(0.5), model.index.scorer.items)
    elif what == "scorer":
        model.index = Flat(Distance(model.index.scorer.items.weight))
        model.encoder = Users(model.encoder.vectors.weight)
    else:
        model.index = FrontHeavy(model.index.scorer)


OWN = {"encoder": LastItem, "scorer": Distance, "index": FrontHeavy}


@pytest.mark.parametrize("what", OWN)
def test_a_model_with_your_own_part_is_saved_and_loaded_once_it_is_registered(
    model: sdx.Retriever, what: str, tmp_path: Path
) -> None:
    assert sdx.register(OWN[what]) is OWN[what]
    with_own(model, what)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    part = {"encoder": again.encoder, "scorer": again.index.scorer, "index": again.index}[what]
    assert type(part) is OWN[what]
    assert lists(again) == lists(model)


@pytest.mark.parametrize("what", OWN)
def test_a_part_that_is_not_registered_is_refused_at_save(
    model: sdx.Retriever, what: str, tmp_path: Path
) -> None:
    with_own(model, what)
    words = rf"save: own_parts.{OWN[what].__name__} is not registered.*softdex.register\("
    with pytest.raises(sdx.SoftdexError, match=words):
        model.save(tmp_path / "m.sdx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", OWN)
def test_a_file_with_a_part_that_is_not_registered_here_says_what_to_do(
    model: sdx.Retriever, what: str, tmp_path: Path
) -> None:
    sdx.register(OWN[what], "renamed")
    with_own(model, what)
    model.save(tmp_path / "m.sdx")
    del KINDS[what]["renamed"]
    words = f"unknown {what} 'renamed'.*import the module that defines it and call softdex.register"
    with pytest.raises(sdx.ArtifactError, match=words):
        sdx.load(tmp_path / "m.sdx")


def test_users_and_items_are_added_to_a_model_with_your_own_index(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    sdx.register(FrontHeavy)
    model.index = FrontHeavy(model.index.scorer)
    someone = model.users.take(np.arange(3)).to_pylist()
    model.add_items(sdx.read([(user, "a new one") for user in someone]))
    assert isinstance(model.index, FrontHeavy)
    assert model.index.num_items == len(model.items)
    model.remove_items(["a new one"])
    model.save(tmp_path / "m.sdx")
    assert "a new one" not in lists(sdx.load(tmp_path / "m.sdx"))["item"]


def test_the_index_of_the_docs_keeps_the_laws() -> None:
    def make(seed: int, order: torch.Tensor) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(seed)
        items = torch.randn(ITEMS, 4, generator=generator)
        return FrontHeavy(Dot(items[order])), torch.randn(BATCH, 4, generator=generator)

    case = Case("front heavy", make, lambda index, state: FrontHeavy(index.scorer, **state), True)
    for law in [*ON_AN_INDEX, *(law for law in ON_A_CASE if law not in ("relabel", "remade"))]:
        check(case, law, seed=0)


def without(name: str) -> Any:
    """The index, less a member."""
    members = {n: m for n, m in vars(FrontHeavy).items() if n not in (name, "__dict__")}
    return type("FrontHeavy", (), members)


def changed(cls: Any, **members: Any) -> Any:
    return type(cls.__name__, (cls,), members)


class Bare(nn.Module):
    reads_history = True


@pytest.mark.parametrize(("cls", "words"), [
    (without("delete"), "FrontHeavy has no delete, which every index has"),
    (without("check"), "FrontHeavy has no check, which"),
    (Bare, "Bare has no tensors, reads_items, answers_strangers, history_first, check, over"),
    (changed(FrontHeavy, searches="no"), "FrontHeavy.searches: expected True or False, got 'no'"),
    (changed(FrontHeavy, tensors=["alive"]), r"FrontHeavy.tensors: expected \{name: \(torch dtype"),
    (changed(FrontHeavy, tensors={"alive": "I"}), "FrontHeavy.tensors: expected"),
    (changed(FrontHeavy, sample=3), "FrontHeavy: expected methods sample"),
    (changed(FrontHeavy, tensors={"living": (torch.bool, "I")}), "got an unexpected .*'living'"),
    (changed(LastItem, answers_strangers=True), "has no similar, which answers_strangers = True"),
    (changed(LastItem, history_first=True), "LastItem has no with_users, new_items, which history"),
    (changed(Distance, is_product=True), "Distance has no version, project, vectors, offsets, dir"),
    (changed(LastItem, reads_items=False), "LastItem: its constructor .*'items'"),
    (changed(LastItem, tensors={}), "LastItem: its constructor .*'factor'"),
    (without("log_prob"), r"expected a class that has one of reads_history \(encoder\)"),
    (torch.tensor, "expected a class that has one of"),
    (FrontHeavy(Dot(torch.ones(2, 2))), "expected a class that has one of"),
    (type("Plain", (), dict(vars(Distance))), "Plain: expected a torch.nn.Module"),
])  # fmt: skip
def test_a_class_that_breaks_its_contract_is_refused_at_once(cls: Any, words: str) -> None:
    with pytest.raises(sdx.SoftdexError, match=words):
        sdx.register(cls)


def test_names_are_taken_only_once() -> None:
    with pytest.raises(sdx.SoftdexError, match=r"the index 'imi' is softdex.index.imi.index.Imi"):
        sdx.register(FrontHeavy, "imi")
    with pytest.raises(sdx.SoftdexError, match="a name of letters and digits, got 'a/b'"):
        sdx.register(FrontHeavy, "a/b")
    sdx.register(FrontHeavy)
    sdx.register(FrontHeavy)
    with pytest.raises(sdx.SoftdexError, match="is registered as 'frontheavy' already"):
        sdx.register(FrontHeavy, "renamed")
    assert kind_of(FrontHeavy(Dot(torch.ones(3, 2)))) == "frontheavy"


def test_a_class_that_is_defined_again_takes_the_place_of_the_old_one() -> None:
    """As in a notebook, where a cell is run twice."""
    sdx.register(FrontHeavy)
    again = type("FrontHeavy", (), dict(vars(FrontHeavy)))
    sdx.register(again)
    assert KINDS["index"]["frontheavy"] is again


def test_register_is_a_decorator() -> None:
    @sdx.register
    class Renamed(LastItem):
        pass

    assert KINDS["encoder"]["renamed"] is Renamed


def test_tensors_that_are_not_as_the_class_says_are_refused_at_save(
    model: sdx.Retriever, tmp_path: Path
) -> None:
    sdx.register(LastItem)
    model.encoder = LastItem(torch.tensor(0.5, dtype=torch.float64), model.index.scorer.items)
    with pytest.raises(sdx.SoftdexError, match=r"save: tensor encoder.factor: expected.*LastItem"):
        model.save(tmp_path / "m.sdx")


@pytest.mark.parametrize("kind", ["uniform", "popularity", "kernel"])
def test_an_index_that_only_draws_is_saved_too(
    model: sdx.Retriever, kind: str, tmp_path: Path
) -> None:
    counts = torch.from_numpy(model.item_counts.astype(np.int64))
    more = {"popularity": {"counts": counts}}.get(kind, {})
    model.index = KINDS["index"][kind](model.index.scorer, **more).delete(torch.tensor([3]))
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert type(again.index) is KINDS["index"][kind]
    assert torch.equal(again.index.alive, model.index.alive)
    assert lists(again) == lists(model)
