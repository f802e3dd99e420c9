"""Pictures of pages for the documentation: every view of `softdex look`, a report of `compare` and
the search of a tree, of models of a synthetic world.

python tools/screenshots.py [NAME ...]      writes docs/img/look-VIEW-SCREEN.png, report-SCREEN.png,
                                            explain.png

Chromium is that of the distribution, or the one that CHROMIUM names; Inter is used if it is there.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import softdex as sdx
from softdex.cli import run
from softdex.explain.draw import explain

IMAGES = Path(__file__).parents[1] / "docs" / "img"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FONT = ":root { --sans: Inter, system-ui, sans-serif; }"
SIZES = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 780)}
KINDS = (
    "Drama", "Comedy", "Mystery", "Documentary", "Adventure", "Romance", "Animation", "Thriller",
    "History", "Music", "Fantasy", "Western", "War",
)  # fmt: skip
USERS, ITEMS = 800, 700
RECIPES: dict[str, dict[str, Any]] = {
    "rg2": {"dim": 32},
    "fastvae": {"dim": 32, "negatives": 100, "epochs": 15},
    "dtr": {"beam": 30, "arity": 4, "negatives": 5, "max_history": 5, "epochs": 2},
}
COMPARED = {"popular": {}, "item_cf": {}, "bir": {"dim": 32, "epochs": 8}, **RECIPES}
MOST = 100_000  # bytes of a picture


class View(NamedTuple):
    """A picture to take: an address, and what is done there first."""

    address: str
    act: Callable[[Page], Any] = lambda page: None


def busy(page: Page) -> None:
    """Let the server have something to show."""
    page.evaluate(
        """async () => {
          for (let i = 0; i < 240; i += 1) {
            const body = JSON.stringify({user: `u${String(i % 700).padStart(3, "0")}`});
            const how = {method: "POST", headers: {"Content-Type": "application/json"}, body};
            const more = 1 + Math.round(4 + 4 * Math.sin(i / 25));
            await Promise.all(Array.from({length: more}, () => fetch("v1/recommend", how)));
            await new Promise((done) => setTimeout(done, 60));
          }
        }"""
    )


def why(page: Page) -> None:
    """Ask why the third item is in the list."""
    page.wait_for_selector("section.missed")
    page.locator("table.ranked button.row").nth(2).click()
    page.wait_for_selector("text=Because of")


def waits(selector: str) -> Callable[[Page], Any]:
    """Wait for what is computed first."""
    return lambda page: page.wait_for_selector(selector, timeout=120_000)


VIEWS = {
    "lists": View("#/lists?user={user}&columns=kind&columns=year", why),
    "compare": View("#/compare?user={user}", waits("text=Paired")),
    "similar": View("#/similar?item=i042&walk=i007&walk=i311&columns=kind&columns=year"),
    "users": View("#/users?kind=hard", waits("tbody tr")),
    "breakdown": View("#/breakdown?by=category&other=fastvae", waits("th:has-text('fastvae')")),
    "popularity": View("#/popularity?other=fastvae", waits("th:has-text('fastvae')")),
    "effort": View("#/effort?user={user}&model=dtr", waits("section[aria-label^='The list']")),
    "sampler": View("#/sampler?user={user}&model=fastvae", waits("table.draws")),
    "tree": View("#/inside?user={user}&model=dtr&k=10", waits("svg.beam")),
    "cells": View("#/inside?user={user}&model=fastvae&k=10&effort=80", waits(".cells .in")),
    "map": View("#/map?user={user}", waits(".sky g.in")),
    "model": View("#/model?model=fastvae", waits("figure.chart polyline")),
    "server": View("#/server", busy),
}


def world(folder: Path) -> sdx.synthetic.World:
    """Write a log whose items have titles, kinds and years."""
    made = sdx.synthetic.world(users=USERS, items=ITEMS, seed=5, events=45, strength=1.6)
    log, draw = made.interactions(), np.random.default_rng(0)
    category = made.category(np.arange(ITEMS))
    items = pa.table(
        {
            "item": log.items.all(),
            "title": sdx.synthetic.titles(ITEMS),
            "kind": [KINDS[each % len(KINDS)] for each in category],
            "year": draw.integers(1951, 2025, ITEMS),
        }
    )
    pq.write_table(log.to_arrow(), folder / "log.parquet")
    pq.write_table(items, folder / "items.parquet")
    return made


def trained(folder: Path) -> dict[str, Path]:
    """Train models on the log; return their run folders."""
    for name, options in RECIPES.items():
        data = {"source": str(folder / "log.parquet"), "items": str(folder / "items.parquet")}
        split = {"name": "per_user", "order": "time"}
        plan = {"recipe": name, "out": str(folder / name), "data": data, "split": split}
        run.fit(plan | {"options": options})
    return {name: folder / name for name in RECIPES}


def somebody(url: str) -> str:
    """A user with a good list, but not one of the best."""
    while True:
        with urlopen(f"{url}/v1/study/users?kind=easy&limit=300") as answer:
            if answer.status == 200:
                rows = json.load(answer)["rows"]
                good = [row for row in rows if 0.25 < row["value"] < 0.6]
                return str(max(good, key=lambda row: row["events"])["user"])
        time.sleep(0.2)


@contextmanager
def opened(browser: Browser, screen: str, address: str) -> Iterator[Page]:
    """Open an address on a screen."""
    width, height = SIZES[screen]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if screen == "dark" else "light",
        device_scale_factor=2 if screen == "phone" else 1,
        bypass_csp=True,
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("main")
    page.add_style_tag(content=FONT)
    yield page
    context.close()


def picture(png: bytes, name: str) -> None:
    """Write a picture in few colours."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        out = io.BytesIO()
        few = whole.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
        if out.tell() < MOST:
            break
    (IMAGES / f"{name}.png").write_bytes(out.getvalue())
    print(f"{name}.png {out.tell():,}")


def views(browser: Browser, models: dict[str, Path], names: list[str]) -> None:
    """Take views of the page, each on every screen."""
    with sdx.look(models, browser=False) as serving:
        user = somebody(serving.url)
        for name in names:
            for screen in SIZES:
                address = VIEWS[name].address.format(user=user)
                with opened(browser, screen, f"{serving.url}/{address}") as page:
                    VIEWS[name].act(page)
                    page.wait_for_function("!document.querySelector('[aria-busy=true]')")
                    page.wait_for_timeout(500)
                    picture(page.screenshot(), f"look-{name}-{screen}")


def report(browser: Browser, made: sdx.synthetic.World, folder: Path) -> None:
    """Take a report of `compare`, from its head on."""
    path = folder / "report.html"
    log = sdx.read(folder / "log.parquet", items=folder / "items.parquet", quiet=True)
    found = sdx.compare(sdx.split.leave_last(log), COMPARED, k=(5, 10, 20), quiet=True)
    best = made.evaluate(found.split.test, (5, 10, 20))
    found.report(path, title="Six recipes on one log", data=log.describe(), ceiling=best)
    for screen in SIZES:
        with opened(browser, screen, path.as_uri()) as page:
            picture(page.screenshot(), f"report-{screen}")
            if screen == "light":
                picture(page.locator("#front").screenshot(), "report-front")


def search(browser: Browser, folder: Path) -> None:
    """Take the search of a tree, as `softdex explain` draws it."""
    path = folder / "explain.html"
    path.write_text(explain(sdx.load(folder / "dtr"), "u017", k=10), encoding="utf-8")
    with opened(browser, "light", path.as_uri()) as page:
        picture(page.locator("svg.tree").screenshot(), "explain")


def main(names: list[str]) -> None:
    """Take the pictures of some pages, or of all."""
    names = names or [*VIEWS, "report", "explain"]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        made, models = world(folder), trained(folder)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        if chosen := [name for name in names if name in VIEWS]:
            views(browser, models, chosen)
        if "report" in names:
            report(browser, made, folder)
        if "explain" in names:
            search(browser, folder)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
