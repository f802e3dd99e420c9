"""The report: complete, self-contained, and safe with any name."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import softdex as sdx
from softdex.evaluate import report


class Page(HTMLParser):
    """Collects tags, links and text, and checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def results(parts: sdx.Split) -> dict[str, sdx.Result]:
    return {
        n: sdx.fit(n, parts.train).evaluate(parts.test, (5, 20)) for n in ("popular", "item_cf")
    }


def test_the_report_is_one_well_formed_page_that_loads_nothing(
    results: dict[str, sdx.Result],
) -> None:
    page = Page(report.build("Title", "Lead", results, best="item_cf"))
    assert page.open == []
    assert page.links == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2


def test_it_shows_every_model_its_figures_and_the_ceiling(
    results: dict[str, sdx.Result], world: sdx.synthetic.World, parts: sdx.Split
) -> None:
    best = world.evaluate(parts.test, (5, 20))
    facts = [("Card", parts.card.json())]
    words = Page(report.build("T", "L", results, best="popular", ceiling=best, facts=facts)).words
    for name, result in [*results.items(), ("best possible", best)]:
        assert name in words
        assert f"{result['recall@20']:.4f}" in words
    assert parts.card.sha256 in words
    assert "paired bootstrap" in words


def test_names_are_escaped(results: dict[str, sdx.Result]) -> None:
    text = report.build("<b>T</b>", "&", {"<script>": results["popular"]}, best="<script>")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_labels_of_lines_that_end_together_are_moved_apart() -> None:
    places = report._spread({"a": 10.0, "b": 11.0, "c": 100.0}, 14)
    assert places == {"a": 10.0, "b": 24.0, "c": 100.0}
