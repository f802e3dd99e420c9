"""A browser, and a server with two models for it; nothing may go wrong unseen in either."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import softdex as sdx
from browsing import Open
from softdex.cli import run
from softdex.serve.start import Serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"wide": (1280, 860), "phone": (390, 844)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium, of the distribution or where CHROMIUM says."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    place = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if place is None:
        pytest.skip("no Chromium: apt-get install chromium, or set CHROMIUM to one")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=place, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders `solved` and `counted` of models on one split of a log with titles."""
    place = tmp_path_factory.mktemp("runs")
    world = sdx.synthetic.world(users=200, items=150, seed=3, events=20, strength=1.5)
    log = world.interactions()
    table = world.item_table().add_column(0, "item", log.items.all())
    table = table.append_column("title", [sdx.synthetic.titles(150)])
    pq.write_table(log.to_arrow(), place / "log.parquet")
    pq.write_table(table, place / "items.parquet")
    data = {"source": str(place / "log.parquet"), "items": str(place / "items.parquet")}
    split = {"name": "per_user", "order": "time"}
    for name, recipe, options in (
        ("solved", "rg2", {"dim": 8}),
        ("counted", "item_cf", {}),
    ):
        plan = {
            "recipe": recipe,
            "out": str(place / name),
            "data": dict(data),
            "split": dict(split),
        }
        run.fit(plan | {"options": options, "evaluate": {"k": [10, 20]}})
    return place


@pytest.fixture(scope="session")
def serving(folder: Path) -> Iterator[Serving]:
    """Both models, served."""
    models = {name: folder / name for name in ("solved", "counted")}
    with sdx.look(models, browser=False) as found:
        yield found


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Open]:
    """Return a function that opens an address: `opened(url, "#/lists", size=, scheme=)`.

    In the end no page may have had an error, written to the console or asked another server.
    """
    wrong: list[str] = []
    contexts = []

    def open_(
        url: str, address: str = "", size: str = "wide", scheme: str = "light", quiet: bool = True
    ) -> Page:
        width, height = SIZES[size]
        root = (url.rpartition("/")[0], "data:") if url.endswith(".html") else url
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(f"{address}: {error}"))
        if quiet:
            page.on("console", lambda said: wrong.append(f"{address}: {said.type} {said.text}"))
        page.on("dialog", lambda dialog: wrong.append(f"{address}: a dialog {dialog.message}"))
        page.on("request", lambda asked: asked.url.startswith(root) or wrong.append(asked.url))
        page.goto(url + ("" if url.endswith(".html") else "/") + address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def look(opened: Open, serving: Serving) -> Open:
    """Return a function that opens an address of the served models: `look("#/lists")`."""
    return lambda address="", **how: opened(serving.url, address, **how)
