"""A report that was mailed opens from its file: nothing runs or is loaded, all can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

import softdex as sdx
from browsing import Open, barriers, until

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>" + "k" * 200
SCREENS = [("wide", "light"), ("wide", "dark"), ("phone", "light"), ("phone", "dark")]


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of trained recipes, the best possible, and eight hostile names."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    log = sdx.read(folder / "log.parquet", items=folder / "items.parquet", quiet=True)
    recipes = {"popular": {}, "item_cf": {}, "rg2": {"dim": 8, "epochs": 3}}
    found = sdx.compare(log, recipes, k=(5, 20), quiet=True)
    also = {f"{EVIL} {i}": found.results[name] for i, name in enumerate([*recipes] * 3)}
    ceiling = found.results["rg2"]
    found.report(path, title=EVIL, lead=EVIL, also=also, ceiling=ceiling, command=EVIL)
    return path


@pytest.mark.parametrize(("size", "scheme"), SCREENS, ids=map("-".join, SCREENS))
def test_a_report_keeps_nobody_out_and_fits_the_screen(
    size: str, scheme: str, report: Path, opened: Open
) -> None:
    page = opened(f"file://{report.parent}", report.name, size=size, scheme=scheme)
    assert page.locator("main section").count() == 8
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert barriers(page) == []
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    page.click("nav a[href='#users']")
    until(page, "document.querySelector('#users').getBoundingClientRect().top < innerHeight")


def test_what_is_folded_is_left_out_on_paper_and_no_row_is_cut_off(
    report: Path, opened: Open
) -> None:
    page = opened(f"file://{report.parent}", report.name)
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.locator("summary:visible").count() == 0
    wide = "document.querySelector('.board').getBoundingClientRect().width"
    assert page.evaluate(f"{wide} <= document.querySelector('main').scrollWidth")
