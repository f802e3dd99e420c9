"""An exported page shows the same as the server, from a disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import softdex as sdx
from browsing import Open, barriers, names, settled
from softdex.cli.app import app


@pytest.fixture(scope="module")
def copy(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("copy") / "page"
    given = ["export", str(folder / "solved"), str(folder / "counted"), "--page", str(place)]
    done = CliRunner().invoke(app, [*given, "--users", "16"])
    assert done.exit_code == 0, done.output
    return f"file://{place}/index.html"


def test_a_copy_shows_what_the_server_shows(copy: str, opened: Open, look: Open) -> None:
    page = settled(opened(copy))
    address = page.evaluate("location.hash")
    live = look(address)
    for each in (page, live):
        each.wait_for_selector("section.missed")
        settled(each)
        each.locator("table.ranked button.row").nth(1).click()
        each.wait_for_selector("text=Because of")
    for what in ("table.ranked", ".history .rows", ".missed"):
        assert names(page, what) == names(live, what)
    assert (
        page.locator(".because").inner_text().split("\n")[0]
        == (live.locator(".because").inner_text().split("\n")[0])
    )
    assert barriers(page) == []


def test_the_views_of_a_copy_work_and_say_what_it_has_not(copy: str, opened: Open) -> None:
    page = settled(opened(copy, "#/compare"))
    page.wait_for_selector("text=Paired bootstrap")
    page.wait_for_selector(".slope li")
    page.click("a:text-is('recall@20')")
    page.wait_for_selector("text=Users where they differ most, by recall@20")
    page.goto(f"{copy}#/users?kind=hard")
    settled(page).locator("tbody a").first.click()
    page.wait_for_selector("table.ranked")
    page.locator("table.ranked button.row").first.click()
    page.click("text=similar items")
    settled(page).wait_for_selector("table.ranked")
    page.fill("#search", "the")
    page.wait_for_selector("#search-found li")
    page.goto(f"{copy}#/lists?user=nobody")
    page.wait_for_selector("text=This user is not in the copy")
    assert page.locator("nav.tabs a:text-is('Server')").count() == 0


@pytest.mark.parametrize(
    ("view", "there"),
    [
        ("breakdown?by=popularity", "main tbody .bar"),
        ("breakdown?by=category&metric=recall@10", "main tbody .bar"),
        ("popularity?k=50", "rect.fill"),
        ("effort", "figure.chart circle.dot"),
        ("map", ".sky canvas"),
        ("model", "h2:text-is('Card')"),
    ],
)
def test_what_is_measured_is_in_the_copy(view: str, there: str, copy: str, opened: Open) -> None:
    page = settled(opened(copy, f"#/{view}"))
    page.wait_for_selector(there)
    assert page.locator("main .note.bad").count() == 0


def test_a_folder_with_files_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    given = ["export", str(folder / "counted"), "--page", str(tmp_path)]
    done = CliRunner().invoke(app, given)
    assert isinstance(done.exception, sdx.SoftdexError)
    assert "is not empty" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
