"""Every code block of README and docs runs as it stands, page by page, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softdex.cli.app import app
from softdex.cli.demo import write_world

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text()
README, RESULTS = (ROOT / "README.md").read_text(), (ROOT / "docs" / "results.md").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `softdex demo` writes, without the training (tests/e2e runs that)."""
    folder = tmp_path_factory.mktemp("readme")
    write_world(folder / "demo", users=2000, items=1200, seed=0)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_block_of_the_page_runs(
    page: Path, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").symlink_to(demo / "demo")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for kind, code in BLOCK.findall(page.read_text()):
        if kind == "python":
            exec(compile(code, f"{page.name}", "exec"), names)
        elif kind == "bash":
            for line in code.splitlines():
                run_line(line)
        elif kind == "toml":
            name = code.splitlines()[0].removeprefix("# ")
            assert name.endswith(".toml"), f"{page.name}: a TOML block starts with its file name"
            Path(name).write_text(code)
        else:
            assert kind == "text", f"{page.name}: a block of kind {kind!r} is run by nothing"


def run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "make":
        for target in words[1:]:
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), line
        return
    assert words[0] == "softdex", line
    result = CliRunner().invoke(app, ["-q", *words[1:]])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception}"
    if "--json" in words:
        json.loads(result.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_benchmarks_that_readme_and_results_name_exist() -> None:
    for script in re.findall(r"`(?:python )?(bench/\w+\.py)[ `]", README + RESULTS):
        assert (ROOT / script).exists(), script
