"""The listed faults fit the code as it is."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = sorted((ROOT / "tools" / "mutants").glob("*.toml"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_what_a_listed_fault_replaces_stands_once_in_its_file(path: Path) -> None:
    faults = tomllib.loads(path.read_text()).get("fault", [])
    texts = {row["file"]: (ROOT / "src/softdex" / row["file"]).read_text() for row in faults}
    assert [row for row in faults if texts[row["file"]].count(row["old"]) != 1] == []


def test_faults_that_change_nothing_are_among_those_that_the_syntax_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    faults = importlib.import_module("faults")
    same = faults.written("")[1]
    files = {file for file, _ in same}
    every = {(f.file, f"{f.function}: {f.words}") for file in files for f in faults.of_file(file)}
    assert same - every == set()
