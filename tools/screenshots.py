"""Pictures of every view of the page for the documentation, of models of a synthetic world.

python tools/screenshots.py [VIEW ...]      writes docs/img/look-VIEW-SCREEN.png

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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import softdex as sdx
from softdex.cli import run

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FONT = ":root { --sans: Inter, system-ui, sans-serif; }"
SIZES = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 780)}
KINDS = (
    "Drama", "Comedy", "Mystery", "Documentary", "Adventure", "Romance", "Animation", "Thriller",
    "History", "Music", "Fantasy", "Western", "War",
)  # fmt: skip
MOST = 150_000  # bytes of a picture


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


VIEWS = {
    "lists": View("#/lists?user={user}&columns=kind&columns=year", why),
    "compare": View("#/compare?user={user}", lambda page: page.wait_for_selector("text=Paired")),
    "similar": View("#/similar?item=i042&walk=i007&walk=i311&columns=kind&columns=year"),
    "users": View("#/users?kind=hard"),
    "server": View("#/server", busy),
}


def world(folder: Path) -> dict[str, Path]:
    """Train models on a log with titles, kinds and years; return their run folders."""
    made = sdx.synthetic.world(users=800, items=700, seed=5, events=45, strength=1.6)
    log, draw = made.interactions(), np.random.default_rng(0)
    category = made.category(np.arange(700))
    items = pa.table(
        {
            "item": log.items.all(),
            "title": sdx.synthetic.titles(700),
            "kind": [KINDS[each % len(KINDS)] for each in category],
            "year": draw.integers(1951, 2025, 700),
        }
    )
    pq.write_table(log.to_arrow(), folder / "log.parquet")
    pq.write_table(items, folder / "items.parquet")
    found = {}
    for name, options in (("rg2", {"dim": 32}), ("fastvae", {"dim": 32, "epochs": 15})):
        data = {"source": str(folder / "log.parquet"), "items": str(folder / "items.parquet")}
        split = {"name": "per_user", "order": "time"}
        plan = {"recipe": name, "out": str(folder / name), "data": data, "split": split}
        run.fit(plan | {"options": options})
        found[name] = folder / name
    return found


def somebody(url: str) -> str:
    """A user with a good list, but not one of the best."""
    while True:
        with urlopen(f"{url}/v1/study/users?kind=easy&limit=300") as answer:
            if answer.status == 200:
                rows = json.load(answer)["rows"]
                good = [row for row in rows if 0.25 < row["value"] < 0.6]
                return str(max(good, key=lambda row: row["events"])["user"])
        time.sleep(0.2)


def picture(page: Page, path: Path) -> None:
    """Write what is on the screen in few colours."""
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    for colours in (256, 128, 64, 32):
        out = io.BytesIO()
        few = whole.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
        if out.tell() < MOST:
            break
    path.write_bytes(out.getvalue())
    print(path, out.tell())


def main(names: list[str]) -> None:
    """Take the pictures of some views, or of all."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        models = world(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        with sdx.look(models, browser=False) as serving:
            user = somebody(serving.url)
            for name in names or VIEWS:
                for screen, (width, height) in SIZES.items():
                    context = browser.new_context(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if screen == "dark" else "light",
                        device_scale_factor=2 if screen == "phone" else 1,
                        bypass_csp=True,
                    )
                    page = context.new_page()
                    page.goto(f"{serving.url}/{VIEWS[name].address.format(user=user)}")
                    page.wait_for_selector("main")
                    page.add_style_tag(content=FONT)
                    VIEWS[name].act(page)
                    page.wait_for_function("!document.querySelector('[aria-busy=true]')")
                    page.wait_for_timeout(500)
                    picture(page, ROOT / "docs" / "img" / f"look-{name}-{screen}.png")
                    context.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
