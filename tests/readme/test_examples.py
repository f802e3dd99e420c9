"""Every code block of README and docs and every example in a docstring runs as it stands."""

from __future__ import annotations

import contextlib
import doctest
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from marks import slow
from shell import Shell
from softdex.cli.demo import WORLD, write_world

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LIVE = ROOT / "docs" / "live.md"
ENGINES = {"ray": "ray", "spark": "pyspark"}  # the pages of engines, and what they import
APART = [LIVE, *(ROOT / "docs" / f"{name}.md" for name in ("batches", *ENGINES))]
LONGEST = [ROOT / "docs" / f"{name}.md" for name in ("closed-form", "in-batch", "trees")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = [path for path in sorted((ROOT / "src").rglob("*.py")) if ">>> " in path.read_text()]


def demo(folder: Path, size: int) -> None:
    """Write what `softdex demo` writes, of a world with fewer users, items and events."""
    (folder / "demo").mkdir()
    world = sdx.synthetic.world(users=size, items=size, seed=0, events=15, **WORLD)
    log = world.interactions()
    catalogue = world.item_table().add_column(0, "item", log.items.all())
    for name, table in (("clicks", log.to_arrow()), ("items", catalogue)):
        pq.write_table(with_long_keys(table), folder / "demo" / f"{name}.parquet")


def with_long_keys(table: pa.Table) -> pa.Table:
    """Write keys with four digits, as the pages do: a small world has three."""
    for name in {"user", "item"} & set(table.column_names):
        keys = pc.replace_substring(table[name], name[0], name[0] + "0")
        table = table.set_column(table.column_names.index(name), name, keys)
    return table


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page not in [*APART, *LONGEST]), *slow(*LONGEST)],
    ids=lambda page: page.name,
)
def test_every_block_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo(tmp_path, 150)
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool = False) -> list[Any]:
    """Run the blocks of a page, Python in a process `apart`; return what its servers answered."""
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.closing(Shell(monkeypatch)) as shell:
        for kind, code in BLOCK.findall(page.read_text()):
            if kind == "python" and apart:
                words = [sys.executable, "-c", code]
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr[-2000:]
            elif kind == "python":
                exec(compile(code, f"{page.name}", "exec"), names)
            elif kind == "bash":
                for line in code.splitlines():
                    shell.run(line)
            elif kind == "toml":
                name = code.splitlines()[0].removeprefix("# ")
                assert name.endswith(".toml"), f"{page.name}: a TOML block starts with its name"
                Path(name).write_text(code)
            else:
                assert kind == "text", f"{page.name}: a block of kind {kind!r} is run by nothing"
        return shell.answers


@pytest.mark.parametrize("page", ["batches", *slow(*ENGINES)])
def test_the_parts_of_the_page_are_the_lists_of_everybody(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in ENGINES and find_spec(ENGINES[page]) is None:
        pytest.skip(f"{ENGINES[page]} is not installed: pip install softdex[batch]")
    if page == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt-get install default-jre-headless")
    demo(tmp_path, 150)
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / f"{page}.md", monkeypatch, apart=page in ENGINES)
    sdx.load("runs/first").recommend_all("whole.parquet", k=20)
    order = [("user", "ascending"), ("rank", "ascending")]
    whole = pq.read_table("whole.parquet")
    for found in ["lists", *Path().glob("lists.parquet")]:
        assert pq.read_table(found).sort_by(order).equals(whole.sort_by(order))


def test_a_day_of_a_server_changes_lists_where_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo(tmp_path, 400)
    monkeypatch.chdir(tmp_path)
    found = run_page(LIVE, monkeypatch)
    lists = [[each["item"] for each in a["items"]] for a in found if "items" in a]
    before, after, refitted, back = lists
    posted = "i0242"
    assert posted in before
    assert posted not in after
    assert posted not in refitted
    assert refitted != after
    assert back == after
    models = [answer["seal"] for answer in found if "items" in answer]
    assert models[0] == models[1] == models[3] != models[2]


@pytest.mark.parametrize(
    ("page", "users"), [("closed-form", 1000), *slow(("sequences", 2000), ("trees", 2000))]
)
def test_the_first_example_of_the_page_is_above_popular_on_the_world_of_the_demo(
    page: str, users: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_world(Path("demo"), users, items=1200, seed=0)
    blocks = BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())
    names: dict[str, Any] = {}
    exec(next(code for kind, code in blocks if kind == "python"), names)
    models = (names["model"], sdx.fit("popular", names["train"]))
    own, popular = (model.evaluate(names["test"], k=20)["ndcg@20"] for model in models)
    assert own > popular + 0.01


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "src" / "softdex"))
)
def test_every_example_in_the_docstrings_of_the_module_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = path.relative_to(ROOT / "src").with_suffix("").parts
    found = doctest.testmod(import_module(".".join(names).removesuffix(".__init__")))
    assert found.failed == 0, "standard output shows the examples that fail"
    assert found.attempted == path.read_text().count(">>> "), "doctest does not find some examples"
