"""The files of the page: all there, none of them changed, none that asks elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from softdex.serve.explorer import FILES, FOLDER, MEDIA

ROOT = Path(__file__).parents[2]
OWN = sorted(name for name in FILES if not name.startswith("vendor/"))
SCRIPTS = [name for name in OWN if name.endswith(".js")]


@pytest.mark.parametrize("folder", [FOLDER / "vendor", ROOT / "tests" / "browser" / "vendor"])
def test_files_of_other_projects_are_unchanged(folder: Path) -> None:
    lines = (folder / "SHA256SUMS.txt").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    there = {path.name for path in folder.iterdir()} - {"SHA256SUMS.txt", "README.txt"}
    assert sums.keys() == there
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_every_file_has_a_media_type() -> None:
    assert {Path(name).suffix for name in FILES} <= MEDIA.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_what_is_there_and_sets_no_markup(name: str) -> None:
    text = re.sub(r"^\s*//.*", "", FILES[name].read_text(), flags=re.MULTILINE)
    for module in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', text):
        assert (FILES[name].parent / module).resolve() in {p.resolve() for p in FILES.values()}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", text)
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_loaded_from_elsewhere_or_against_the_policy(name: str) -> None:
    text = FILES[name].read_text()
    assert not re.search(r"(https?:)?//\w+\.\w+", text.replace("http://www.w3.org", ""))
    if name.endswith(".html"):
        assert not re.search(r"<style|style=|<script>|\son\w+=", text)
