"""The views of a study: what is drawn is what the server measured, and can be read and walked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import softdex as sdx
from browsing import Open, barriers, settled, until
from serving import Client
from softdex.cli import run
from softdex.serve.start import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

TREE: dict[str, Any] = {
    "dim": 4, "epochs": 1, "leaves": "random", "beam": 6, "sampling": "tree", "device": "cpu",
}  # fmt: skip
DRAWN: dict[str, Any] = {
    "dim": 8, "epochs": 3, "index": "imi_popularity", "codewords": 4, "negatives": 20,
    "device": "cpu",
}  # fmt: skip
VIEWS = {
    "breakdown": "#/breakdown?by=category&group=c001&other=drawn",
    "popularity": "#/popularity?other=drawn",
    "effort": "#/effort?user=u010&model=drawn",
    "sampler": "#/sampler?user=u010&model=drawn",
    "tree": "#/inside?user=u010&model=treed",
    "cells": "#/inside?user=u010&model=drawn",
    "map": "#/map?user=u010",
    "model": "#/model?other=drawn",
}
SCREENS = [("wide", "light"), ("wide", "dark"), ("phone", "light")]


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Path]:
    """Run folders of four models on one split: solved, counted, by draws, and by a tree."""
    source = {"source": str(folder / "log.parquet"), "items": str(folder / "items.parquet")}
    for name, recipe, options in (("drawn", "ssm", DRAWN), ("treed", "dtr", TREE)):
        out = folder / name
        if not out.exists():
            plan = {"recipe": recipe, "out": str(out), "options": options, "data": dict(source)}
            plan |= {"split": {"name": "per_user", "order": "time"}, "evaluate": {"k": [10, 20]}}
            run.fit(plan)
    return {name: folder / name for name in ("solved", "counted", "drawn", "treed")}


@pytest.fixture(scope="module")
def served(models: dict[str, Path]) -> Iterator[Serving]:
    with sdx.look(models, browser=False) as found:
        yield found


@pytest.fixture
def see(opened: Open, served: Serving) -> Open:
    return lambda address, **how: opened(served.url, address, **how)


@pytest.fixture
def asked(served: Serving) -> Iterator[Any]:
    """Return a function that asks the server until it is computed."""
    client = Client(served.url)

    def ask(path: str, body: Any = None) -> Any:
        while (found := client.post(path, body) if body else client.get(path)).status == 202:
            pass
        assert found.status == 200, found.body
        return found.json

    yield ask
    client.close()


def drawn(page: Page) -> Page:
    """Wait until the view is there, with everything that it asked for."""
    page.wait_for_selector("h1")
    settled(page)
    until(page, "![...document.querySelectorAll('[role=status]')].some((e) => e.innerText)")
    return settled(page)


def numbers(page: Page, title: str) -> list[list[str]]:
    """Return the rows of the table behind a chart."""
    chart = page.locator("figure.chart", has_text=title)
    chart.locator("summary").click()
    rows = chart.locator("tbody tr").all()
    texts = [row.locator("td").all_inner_texts() for row in rows]
    return [[text.replace("\xa0", " ") for text in row] for row in texts]


@pytest.mark.parametrize(("size", "scheme"), SCREENS, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_keeps_nobody_out_and_fits_the_screen(
    view: str, size: str, scheme: str, see: Open
) -> None:
    page = drawn(see(VIEWS[view], size=size, scheme=scheme))
    assert barriers(page) == []
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("h1").count() == 1
    assert len(page.locator("p.lead").first.inner_text()) > 60


def test_popularity_shows_coverage_and_shares_of_both_models(see: Open, asked: Any) -> None:
    page = drawn(see("#/popularity?other=drawn&k=10"))
    page.wait_for_selector("th:has-text('drawn')")
    for at, name in enumerate(("solved", "drawn")):
        own = asked(f"/v1/study/exposure?k=10&model={name}")
        rows = page.locator("table.figures tbody tr").all()
        shown = {row.locator("th").inner_text().split("\n")[0]: row for row in rows}
        cells = {n: row.locator("td").nth(at + 1).inner_text().replace("\xa0", " ")
                 for n, row in shown.items()}  # fmt: skip
        assert cells["Coverage"] == f"{100 * own['listed'] / own['items']:.1f} %"
        assert cells["Gini"] == f"{own['gini']['places']:.3f}"
        assert cells["Half of the places"] == str(own["half"])
    tenths = numbers(page, "Share of the places")
    assert len(tenths) == 10
    assert page.locator("figure.chart").first.locator("rect.fill").count() == 30
    page.click("nav[aria-label='Lists of'] a:text-is('50')")
    page.wait_for_selector("text=lists of 50")
    assert "k=50" in page.evaluate("location.hash")
    page.locator(".pair tbody a").first.click()
    page.wait_for_selector("table.ranked")
    assert "#/similar" in page.evaluate("location.hash")


def test_a_group_of_a_breakdown_leads_to_its_users_and_they_to_their_lists(
    see: Open, asked: Any
) -> None:
    page = drawn(see("#/breakdown"))
    page.click("text=category of the item")
    page.wait_for_selector("th:text-is('category')")
    drawn(page)
    own = asked("/v1/study/breakdown?by=category&column=category")
    rows = [row.inner_text().split("\t") for row in page.locator("main tbody tr").all()]
    assert [row[0].strip() for row in rows] == ["all", *(each["name"] for each in own["groups"])]
    for row, each in zip(rows, [own["whole"], *own["groups"]], strict=True):
        assert float(row[-1]) == pytest.approx(each["value"], abs=0.00051)
    bar = page.locator("main tbody tr").nth(1).locator(".bar")
    low, high = own["groups"][0]["low"], own["groups"][0]["high"]
    assert bar.get_attribute("aria-label").endswith(f"from {low:.3f} to {high:.3f}")
    page.locator("main tbody tr").nth(1).locator("a").click()
    page.wait_for_selector("section[aria-label^='Users of'] tbody tr")
    name = own["groups"][0]["name"]
    users = asked(f"/v1/study/breakdown/users?by=category&group={name}&column=category&limit=15")
    first = page.locator("section[aria-label^='Users of'] tbody a").first
    assert first.inner_text() == users["rows"][0]["user"]
    first.click()
    page.wait_for_selector(f"h1:text-is('{users['rows'][0]['user']}')")
    page.go_back()
    page.wait_for_selector("section[aria-label^='Users of'] tbody tr")


def test_the_slider_of_effort_moves_the_list_and_the_address(see: Open, asked: Any) -> None:
    page = drawn(see("#/effort?user=u010&model=drawn&k=10"))
    own = asked("/v1/study/effort?k=10&model=drawn")
    present = next(each for each in own["points"] if each["effort"] == own["present"])
    lead = page.locator("p", has_text="The present setting").inner_text().replace("\xa0", " ")
    assert f"finds {100 * present['recall']:.1f} % of the exact list" in lead
    shown = numbers(page, "Index loss")
    assert {row[1] for row in shown} == {f"{100 * each['recall']:.1f} %" for each in own["points"]}
    page.focus("#effort")
    page.keyboard.press("Home")
    until(page, f"location.hash.includes('effort={own['points'][0]['effort']:g}')")
    drawn(page)
    least = asked(
        "/v1/study/effort",
        {"user": "u010", "k": 10, "effort": own["points"][0]["effort"], "model": "drawn"},
    )
    section = page.locator("section[aria-label='The list of the user']")
    keys = section.locator("ol[aria-label=List] .mono").all_inner_texts()
    assert keys == [str(each["item"]) for each in least["items"]]
    missed = len(least["lost"])
    assert (f"{missed} of 10 items" if missed else "Nothing") in section.inner_text()
    page.keyboard.press("End")
    page.wait_for_selector("h2:has-text('an exact search')")
    drawn(page)
    assert "Nothing of the exact list is missed" in section.inner_text()
    assert section.locator("text=not in the exact list").count() == 0


def test_a_model_that_scores_everything_shows_an_index_that_could_serve_it(see: Open) -> None:
    page = drawn(see("#/effort?user=u010"))
    assert "solved scores all 150 items" in page.locator("main").inner_text()
    drawn(page).goto(page.url.replace("effort?", "effort?model=counted&"))
    page.reload()
    page.wait_for_selector("text=no index but the exact one")


def test_the_sampler_shows_divergences_and_draws_again(see: Open, asked: Any) -> None:
    page = drawn(see("#/sampler?user=u010&model=drawn"))
    held = asked("/v1/study/users/u010?model=drawn")["ask"]
    who = {"user": "u010", "model": "drawn"}
    who |= {"history": held["history"]} if "history" in held else {}
    own = asked("/v1/study/sampler", who)
    table = page.locator("table", has=page.locator("text=Effective draws of")).first
    for each, row in zip(own["proposals"], table.locator("tbody tr").all(), strict=True):
        assert row.locator("td").nth(1).inner_text().strip() == f"{each['kl']:.3f}"
    assert "trains this model" in table.locator("tr.chosen").inner_text()
    ranks = numbers(page, "Probability per item")
    assert len(ranks) == len(own["ranks"])
    before = page.locator("table.draws tbody").inner_text()
    page.click("text=Draw again")
    until(page, "location.hash.includes('seed=2')")
    drawn(page)
    assert page.locator("table.draws tbody").inner_text() != before
    again = asked(
        "/v1/study/sampler/draws", who | {"proposal": "imi_popularity", "n": 100, "seed": 2}
    )
    first = page.locator("table.draws tbody tr").first.locator("td").all_inner_texts()
    logs = [f"{again['draws'][0][name]:.2f}" for name in ("log_q", "log_p")]
    assert first[1:3] == [each.replace("-", "−") for each in logs]
    page.click("a.pick:has-text('uniform')")
    page.wait_for_selector("h2:text-is('Draws from uniform')")


def test_a_chart_is_read_by_the_arrow_keys(see: Open) -> None:
    page = drawn(see("#/sampler?user=u010&model=drawn"))
    chart = page.locator("figure.chart").first
    chart.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert chart.locator(".read b").first.inner_text() == "item 1"
    page.keyboard.press("End")
    assert re.match(r"items? [\d,]+( to 150)?", chart.locator(".read b").first.inner_text())
    assert "softmax" in chart.locator(".read").inner_text()


def test_the_beam_of_a_tree_is_drawn_and_a_path_stands_out(see: Open, asked: Any) -> None:
    page = drawn(see("#/inside?user=u010&model=treed&k=10"))
    held = asked("/v1/study/users/u010?model=treed")["ask"]
    own = asked(
        "/v1/study/inside",
        {"user": "u010", "k": 10, "model": "treed"}
        | {name: held[name] for name in held if name == "history"},
    )
    texts = page.locator("svg.beam").text_content()
    for level in own["levels"]:
        assert f"{level['scored']} of {level['size']} scored" in texts
    boxes = sum(node["kind"] == "path" for level in own["levels"] for node in level["nodes"])
    assert page.locator("svg.beam g.node.path").count() == boxes
    page.select_option(".with select", "1")
    assert page.locator("svg.beam g.node.lit").count() == len(own["levels"])
    page.locator("svg.beam g.node.path").first.hover()
    assert "rank" in page.locator(".note-of").inner_text()


def test_cells_show_what_a_search_opens(see: Open) -> None:
    page = drawn(see("#/inside?user=u010&model=drawn"))
    first = page.locator("p", has_text="The search looks at").inner_text()
    page.select_option("label:has-text('Items looked at') select", "80")
    until(page, "location.hash.includes('effort=80')")
    drawn(page)
    assert page.locator("p", has_text="The search looks at").inner_text() != first
    page.locator(".cells[role=img]").focus()
    page.keyboard.press("ArrowRight")
    assert "of the softmax" in page.locator(".heat .read").inner_text()
    assert page.evaluate(INKED, ".cells canvas") > 100


INKED = """(of) => {
  const canvas = document.querySelector(of);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.filter((each, i) => i % 4 === 3 && each > 0).length;
}"""


def test_the_map_shows_the_list_and_zooms_by_keys(see: Open) -> None:
    page = drawn(see("#/map?user=u010&k=10"))
    assert page.locator(".sky g.in").count() == 10
    assert page.evaluate(INKED, ".sky canvas") > 100
    place = page.locator(".sky g.in circle").first
    before = place.get_attribute("cx")
    page.locator(".sky canvas").focus()
    page.keyboard.press("+")
    assert place.get_attribute("cx") != before
    page.keyboard.press("0")
    assert place.get_attribute("cx") == before
    page.locator(".spots button").first.focus()
    title = page.locator(".spots .cut").first.inner_text()
    assert page.locator(".sky .name").text_content() == title
    page.keyboard.press("Enter")
    page.wait_for_selector("table.ranked")
    assert "#/similar" in page.evaluate("location.hash")


def test_the_model_shows_its_epochs_and_its_card(
    see: Open, models: dict[str, Path], asked: Any
) -> None:
    page = drawn(see("#/model?model=drawn"))
    lines = (models["drawn"] / "log.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    shown = numbers(page, "Loss")
    assert [row[0] for row in shown] == [f"epoch {each['epoch']}" for each in records]
    text = page.locator("main").inner_text()
    assert "From log.jsonl of the run folder" in text
    card = asked("/v1/models/drawn")
    for name in ("codewords", "negatives"):
        assert re.search(rf"{name}\s+{card['options'][name]}", text)
    assert f"{card['metrics']['test']['ndcg@20']:.4f}" in text
    page.goto(page.url.replace("model=drawn", "model=counted"))
    page.reload()
    page.wait_for_selector("text=no records of epochs")
