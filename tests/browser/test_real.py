"""The page of a model of real data, with titles and genres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import softdex as sdx
from browsing import Open, barriers, names, settled
from softdex.serve.start import Serving

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def films(data: Path) -> Iterator[Serving]:
    log = sdx.read(data / "ml-1m.parquet", items=data / "ml-1m.items.parquet", quiet=True)
    train, _, test = sdx.split.per_user(log, order="time")
    models = {"solved": sdx.fit("rg2", train), "counted": sdx.fit("item_cf", train)}
    with sdx.look(models, test, browser=False) as found:
        yield found


def test_every_view_of_films_is_whole(films: Serving, opened: Open) -> None:
    page = settled(opened(films.url, "#/lists?user=3675&columns=genres"))
    page.wait_for_selector("section.missed li")
    assert len(names(settled(page))) == 20
    page.locator("table.ranked button.row").first.click()
    page.wait_for_selector("text=Because of")
    assert barriers(page) == []
    page.fill("#search", "matrix the")
    page.wait_for_selector("#search-found li:has-text('Matrix, The (1999)')")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text-is('Matrix, The (1999)')")
    assert "Terminator 2: Judgment Day (1991)" in names(settled(page))
    page = opened(films.url, "#/compare?user=3675")
    page.wait_for_selector("text=Paired bootstrap", timeout=120_000)
    assert barriers(page) == []
    for view in ("users", "server"):
        assert barriers(settled(opened(films.url, f"#/{view}"))) == []
