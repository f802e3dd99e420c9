"""Cards and changes: what a model says of itself, in memory and in its file."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import hostile
import softdex as sdx
from softdex.model.card import ENTRIES, Card

CHANGES = {"temperature", "added", "removed", "drift"}


@pytest.fixture
def saved(parts: sdx.Split, tmp_path: Path) -> Path:
    sdx.fit("ials", parts.train, dim=4, epochs=1, device="cpu").save(tmp_path / "m.sdx")
    return tmp_path / "m.sdx"


def manifest(path: Path) -> dict[str, Any]:
    return json.loads(hostile.members(path)["manifest.json"])


def test_a_result_makes_a_new_card() -> None:
    card = Card("popular", metrics={"valid": {"recall@20": 0.1}})
    new = card.measured("test", {"recall@20": 0.2})
    assert new.metrics == {"valid": {"recall@20": 0.1}, "test": {"recall@20": 0.2}}
    assert card.metrics == {"valid": {"recall@20": 0.1}}
    assert new.measured("test", {}).metrics["test"] == {}
    with pytest.raises(FrozenInstanceError):
        card.recipe = "other"  # type: ignore[misc]


def test_what_is_not_known_is_no_entry() -> None:
    assert set(Card("popular").entries()) == {"recipe", "options", "card", "metrics"}
    words, origins = ["trained in file order"], [{"data": "sha"}]
    full = Card("popular", {}, "sha", {}, {}, {"history": []}, True, "", words, origins, {})
    assert set(full.entries()) == set(ENTRIES)


def test_a_model_that_did_not_change_has_no_entry_of_changes(saved: Path) -> None:
    assert not CHANGES & manifest(saved).keys()
    model = sdx.load(saved)
    assert (model.temperature, model.added, model.removed, model.drift) == (1.0, {}, 0, 0.0)


def test_changes_are_saved_and_gone_once_they_are_undone(saved: Path) -> None:
    model = sdx.load(saved)
    model.remove_items(["i001", "i002"])
    model.temperature = 2.5
    model.save(saved)
    assert {n: v for n, v in manifest(saved).items() if n in CHANGES} == {
        "removed": 2,
        "temperature": 2.5,
    }
    again = sdx.load(saved)
    assert (again.removed, again.temperature) == (2, 2.5)
    again.restore_items(["i001", "i002"])
    again.save(saved)
    assert "removed" not in manifest(saved)


@pytest.mark.parametrize(
    "entry",
    [
        {"added": 3}, {"added": {"items": "3"}}, {"added": {"users": True}}, {"removed": 1.5},
        {"removed": None}, {"drift": "0.1"}, {"refitted": 1}, {"training": []}, {"metrics": 0},
        {"selected": None}, {"warnings": "no time"}, {"events": 3}, {"events": {"until": 3}},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_whose_card_or_changes_make_no_sense_is_refused(
    saved: Path, entry: dict[str, Any]
) -> None:
    saved.write_bytes(hostile.with_manifest(saved, **entry))
    with pytest.raises(sdx.ArtifactError, match=r"damaged .*the manifest's '\w+' is"):
        sdx.load(saved)
