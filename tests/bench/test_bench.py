"""No benchmark rots: each runs when tiny, each command on a page is accepted, each has a row."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import softdex as sdx

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("[!_]*.py"))
QUICK = ("tree_regret",)  # the others are slow
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(`|python )bench/(\w+)\.py([^`]*)")
FOUND = {found for page in PAGES for found in NAMED.findall(page.read_text())}
COMMANDS = sorted({(script, words) for before, script, words in FOUND if before != "`" or words})
EXTRAS = re.compile(r"No module named '(faiss|implicit|matplotlib)")
MACHINES = ("two cores", "one H200", "two cores or one H200")


def parser_of(script: str, patch: pytest.MonkeyPatch) -> Any:
    patch.syspath_prepend(BENCH)
    return importlib.import_module(script).PARSER


@pytest.mark.parametrize(
    "script", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS]
)
def test_the_script_runs_tiny_and_says_what_it_found(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / f"{script}.py"), "--tiny"],
        env=os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if missing := EXTRAS.search(done.stderr):
        pytest.skip(f"{missing[1]} is not installed")
    if "no Chromium" in done.stderr or "playwright is not here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    for line in lines:
        if not line.startswith("{"):
            assert Path(line.split()[-1]).is_file(), f"this names no file: {line}"
            continue
        found = json.loads(line)
        if "file" in found:
            found |= json.loads(Path(found["file"]).read_text().splitlines()[-1])
        else:
            assert found["protocol"]
        assert found["tiny"] is True
        assert found.keys() >= {"benchmark", "versions", "machine"}


def test_items_that_nobody_has_are_no_items_of_the_protocol_of_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, position = np.divmod(np.arange(30 * 30), 30)
    log = pa.table({"user": user, "item": (7 * user + position) % 40, "position": position})
    pq.write_table(log, tmp_path / "films.parquet")
    items = pa.table({"item": np.arange(50), "title": [f"film {i}" for i in range(50)]})
    pq.write_table(items, tmp_path / "films.items.parquet")
    parser_of("quality", monkeypatch)
    quality = sys.modules["quality"]
    monkeypatch.setattr(quality, "need", lambda name: tmp_path / name)
    train = quality.split("dtr-films").train
    assert train.num_items == len(train.item_table) == 40


def graph_split(patch: pytest.MonkeyPatch) -> tuple[Any, sdx.Split]:
    parser_of("link_prediction", patch)
    links = sys.modules["link_prediction"]
    rng = np.random.default_rng(0)
    members = sp.csr_matrix((rng.random((200, 60)) < 0.2).astype(np.float32))
    graph = links.linked(members, 8, 3, 4)
    return graph, links.divided(graph)


def test_a_graph_has_both_directions_of_a_link_and_no_link_of_a_node_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, _ = graph_split(monkeypatch)
    assert (graph != graph.T).nnz == 0
    assert not graph.diagonal().any()
    assert np.diff(graph.indptr).min() >= 4


def test_a_link_is_in_one_part_with_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, (train, valid, test) = graph_split(monkeypatch)
    assert valid is not None
    parts = [train.csr(), valid.csr(), test.csr()]
    for part in parts:
        assert part.nnz
        assert (part != part.T).nnz == 0
    assert (sum(parts) != graph).nnz == 0  # and no link is in two
    assert train.user_counts.min() > 0


def test_a_node_is_not_asked_for_itself_nor_for_known_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, (train, valid, test) = graph_split(monkeypatch)
    assert valid is not None
    own, known = sp.eye_array(train.num_users), train.csr()
    for part, masked in ((valid, known + own), (test, known + valid.csr() + own)):
        assert (part.users == np.arange(train.num_users)).all()
        assert (part.masked.csr(train.num_items) != masked).nnz == 0


def picture_of(patch: pytest.MonkeyPatch, folder: Path, lines: list[dict[str, Any]], x: str) -> Any:
    pytest.importorskip("matplotlib")
    parser = parser_of("curves", patch)
    (folder / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = folder / "curves.png"
    sys.modules["curves"].main(parser.parse([str(folder / "runs.jsonl"), str(out), x]))
    return out


def line_of(recipe: str, history: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    figures = {"metrics": {"ndcg@20": 0.1}, "history": history}
    return {"benchmark": "quality ml-1m", "recipe": recipe, "options": options, **figures}


def test_a_curve_is_named_by_what_the_runs_of_its_recipe_differ_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser_of("curves", monkeypatch)
    named = sys.modules["curves"].named
    lines = [
        line_of("ssm", [], index="uniform", lr=0.1, seed=0, negatives=5),
        line_of("ssm", [], index="imi_pop", lr=0.1, seed=1, negatives=9),
        line_of("rg2", [], alpha=0.5),
    ]
    found = [named(line, lines, "negatives", None) for line in lines]
    assert found == ["ssm, index=uniform", "ssm, index=imi_pop", "rg2"]
    assert named(lines[0], lines, "epoch", ["lr"]) == "ssm, lr=0.1"


def test_a_picture_by_seconds_needs_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"epoch": 1, "metric": 0.2, "trained": 0.5}
    lines = [line_of("rg2", [record, record | {"epoch": 2, "trained": 1.0}])]
    assert picture_of(monkeypatch, tmp_path, lines, "x=seconds").stat().st_size > 1000
    lines += [line_of("ssm", [{"epoch": 1, "metric": 0.2}])]
    assert picture_of(monkeypatch, tmp_path, lines, "x=epoch").stat().st_size > 1000
    with pytest.raises(sdx.DataError, match="ssm has no seconds"):
        picture_of(monkeypatch, tmp_path, lines, "x=seconds")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_wrong_option_ends_in_one_line_and_exit_code_2(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_of(script, monkeypatch).parse(["--no-such-option"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bench/{script}.py: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_says_what_is_measured_in_how_many_minutes_on_which_machine(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_of(script, monkeypatch).parse(["--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    text = (BENCH / f"{script}.py").read_text()
    assert re.match(r'"""(.+)\n', text)[1].removesuffix('"""') in said  # type: ignore[index]
    assert "--tiny" in said
    assert "Minutes: " in said


@pytest.mark.parametrize(("script", "words"), COMMANDS, ids=lambda text: text.strip())
def test_a_command_on_a_page_names_a_script_and_options_that_it_takes(
    script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = parser_of(script, monkeypatch)
    parser.parse(given(words, parser.own))


def given(words: str, own: dict[str, Any] | None) -> list[str]:
    """The words of a command; `...` stands for further ones, and `name=...` for the default."""
    given = [word for word in shlex.split(words) if word != "..."]
    if own is None:
        return given
    pairs = dict(word.partition("=")[::2] for word in given if "=" in word)
    defaults = own | sdx.recipes.options(pairs.get("recipe", own["recipe"]))
    return [
        word.replace("...", json.dumps(defaults[word.partition("=")[0]]))
        if word.endswith("=...")
        else word
        for word in given
    ]


def test_pages_name_commands_and_no_script_that_is_gone() -> None:
    assert len(COMMANDS) > 40
    assert {script for _, script, _ in FOUND} <= set(SCRIPTS)


def test_the_readme_of_the_benchmarks_has_one_row_per_script() -> None:
    rows = re.findall(r"^\| `(\w+)\.py` \|(.+)\|$", (BENCH / "README.md").read_text(), re.M)
    assert [name for name, _ in rows] == SCRIPTS
    for name, row in rows:
        measures, minutes, machine, page = (cell.strip() for cell in row.split("|"))
        assert measures
        assert re.match(r"\d", minutes), name
        assert machine in MACHINES, name
        shown = re.search(r"\((.+)\)", page)
        assert not shown or f"bench/{name}.py" in (BENCH / shown[1]).read_text(), (
            f"{shown[1]} names no command of {name}.py"
        )
