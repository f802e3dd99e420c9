"""The page of claims: no cell is empty, and what it names and quotes exists."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest

from composition.test_composition import CASES
from softdex.recipes import catalogue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "claims.md").read_text()
LINKS = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", PAGE, re.MULTILINE))
FIGURE = re.compile(r"(?<![\w.])\d*\.\d+(?!\.?\d)")
SAMPLED = {"dtr uniform": "U", "dtr tree": "T", "dtr tree path": "T-RL", "dtr tree child": "child"}


def rows(first: str) -> list[list[str]]:
    """The rows of all tables whose first column has this name."""
    found, inside = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and set(line) - set("|-"):
            found.append(cells)
    return found


METHODS, CLAIMS, PAIRS = rows("method"), rows("claim"), rows("pair")


def parsed(cell: str) -> list[tuple[str, dict[str, str]]]:
    """The recipes of a cell with their options, written `recipe name=value`."""
    words = [code.split() for code in re.findall(r"`([^`]+)`", cell)]
    return [
        (name, dict(word.split("=", 1) for word in more))
        for name, *more in words
        if "/" not in name
    ]


@pytest.mark.parametrize("cells", METHODS + CLAIMS, ids=lambda cells: cells[0][:40])
def test_no_cell_is_empty(cells: list[str]) -> None:
    assert len(cells) == 6
    assert all(cells)


@pytest.mark.parametrize("cells", METHODS, ids=lambda cells: cells[0][:40])
def test_the_recipe_and_the_row_of_the_composition_suite_exist(cells: list[str]) -> None:
    method, _, recipe, oracle, composed, _ = cells
    for name, options in parsed(recipe):
        assert options.keys() <= catalogue.options(name).keys(), method
    assert parsed(recipe) or recipe.startswith("not built: ") or "not built as" in recipe
    assert "::" in oracle or oracle == "not built"
    assert parsed(composed) or composed == "not built"
    for name, options in parsed(composed):
        defaults = catalogue.options(name)
        assert any(
            all(str((defaults | case.options)[n]) == value for n, value in options.items())
            for case in CASES
            if case.recipe == name
        ), f"{method}: no row {name} {options}"


def test_every_recipe_of_a_paper_is_on_the_page() -> None:
    named = {name for cells in METHODS for name, _ in parsed(cells[2])}
    assert named == set(catalogue.methods()) - {"popular"}


def test_every_verdict_is_one_of_four() -> None:
    assert {cells[2] for cells in CLAIMS} == {"holds", "ties", "fails", "not tried"}


@cache
def sections(page: str) -> dict[str, str]:
    """The text under each title of a page, by the title's anchor."""
    text = (ROOT / "docs" / page).read_text()
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)[1:]
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in parts[::2]]
    return dict(zip(anchors, parts[1::2], strict=True))


def test_every_section_that_the_page_points_to_exists() -> None:
    assert set(re.findall(r"\[([^\]]+)\](?![(:])", PAGE)) == LINKS.keys()
    for link in LINKS.values():
        page, anchor = link.split("#")
        assert anchor in sections(page), link


@pytest.mark.parametrize("cells", CLAIMS, ids=lambda cells: cells[0][:40])
def test_every_figure_of_a_claim_stands_in_a_section_that_it_points_to(cells: list[str]) -> None:
    links = [LINKS[name].split("#") for name in re.findall(r"\[([^\]]+)\]", cells[5])]
    known = {figure for page, at in links for figure in FIGURE.findall(sections(page)[at])}
    if "[folds]" in cells[5]:
        known |= {f"{abs(float(x)):.3f}"[1:] for row in PAIRS for x in row[1:3]}
    here = re.sub(r"`[^`]+`", "", cells[3])
    assert set(FIGURE.findall(here)) <= known


@cache
def by_fold() -> dict[str, dict[str, float]]:
    """F@20 per method and fold of amazon-beauty."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    lines = (ROOT / "bench" / "results" / "dtr-folds.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        given = dict(word.split("=") for word in line["command"].split()[2:])
        name = " ".join(given[n] for n in ("recipe", "sampling", "rectify") if n in given)
        found[SAMPLED.get(name, name)][given["fold"]] = line["metrics"]["f@20"]
    return found


@pytest.mark.parametrize("cells", PAIRS, ids=lambda cells: cells[0])
def test_the_differences_over_the_folds_are_those_of_the_runs(cells: list[str]) -> None:
    one, other = (by_fold()[name] for name in cells[0].split(" - "))
    less = [one[fold] - other[fold] for fold in one]
    wanted = mean(less), stdev(less) / len(less) ** 0.5, sum(x > 0 for x in less)
    assert [float(cell) for cell in cells[1:]] == pytest.approx(wanted, abs=6e-5)
