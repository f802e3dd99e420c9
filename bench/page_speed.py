"""Milliseconds in the browser: the first list, a change of the history, a key stroke in the box.

The page of `rg2` on ml-1m, and of a model of a million items with titles; Chromium beside the
server on one machine. Times end when what was asked for is on the screen.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

import softdex as sdx
from _data import log_of, need
from _harness import report, sized
from _options import parser, run
from page_search import titles

ITEMS, USERS, EVENTS, TIMES, CHANGES = sized(
    (1_000_000, 20_000, 2_000_000, 15, 3), (300, 60, 2000, 1, 1)
)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
SHORT = os.environ | {"TMPDIR": "/tmp"}  # Chromium makes a socket there, whose path must be short
WORDS = ("the", "star", "man o", "in the n", "zq", "e")
FIRST = """new MutationObserver((_, watch) => {
  if (!document.querySelector('table.ranked tbody tr')) return;
  watch.disconnect();
  requestAnimationFrame(() => { window.firstList = performance.now(); });
}).observe(document, {childList: true, subtree: true});"""
CHANGE = """async () => {
  const list = () => document.querySelector('table.ranked tbody')?.innerText;
  const before = list(), began = performance.now();
  document.querySelector('.history .rows li:not(.gone) button').click();
  while (list() === before) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""
STROKE = """async (text) => {
  const box = document.getElementById('search'), began = performance.now();
  box.focus();
  box.value = text;
  box.dispatchEvent(new InputEvent('input', {bubbles: true}));
  await new Promise(requestAnimationFrame);
  while (document.querySelector('#search-found[aria-busy=true]')) {
    await new Promise(requestAnimationFrame);
  }
  return performance.now() - began;
}"""

PARSER = parser(__file__, __doc__)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise sdx.DataError("playwright is not here. Run: pip install playwright") from None
    if CHROMIUM is None:
        raise sdx.DataError("no Chromium. Run: apt-get install chromium, or set CHROMIUM")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, env=SHORT)
        yield found
        found.close()


def measure(found: Any, url: str) -> dict[str, list[float]]:
    """Milliseconds until what was asked for is on the screen."""
    times: dict[str, list[float]] = {"first list": [], "history": [], "key stroke": []}
    for _ in range(TIMES):
        page = found.new_page()
        page.add_init_script(FIRST)
        page.goto(url)
        page.wait_for_selector("table.ranked tbody tr")
        page.wait_for_timeout(1000)
        times["first list"].append(page.evaluate("firstList"))
        times["history"] += [page.evaluate(CHANGE) for _ in range(CHANGES)]
        strokes = [word[:n] for word in WORDS for n in range(1, len(word) + 1)]
        times["key stroke"] += [page.evaluate(STROKE, text) for text in strokes]
        page.close()
    return times


def main(given: Namespace) -> None:
    log = sdx.read(need("ml-1m.parquet"), items=need("ml-1m.items.parquet"), quiet=True)
    parts = sdx.split.leave_last(log)
    small = sdx.fit("rg2", parts.train, dim=sized(64, 4), quiet=True)
    draw = np.random.default_rng(2)
    item = (ITEMS * draw.random(EVENTS) ** 3).astype(np.int64)
    many = log_of(draw.integers(0, USERS, EVENTS), item, USERS, ITEMS)
    many = sdx.Interactions(
        many.users, many.items, many.user, many.item, item_table=pa.table({"title": titles(ITEMS)})
    )
    large = sdx.fit("item_cf", many, quiet=True)
    with browser() as found:
        for name, model, test in (("rg2, ml-1m", small, parts.test), ("10^6 items", large, None)):
            with sdx.look(model, test, browser=False) as serving:
                times = measure(found, serving.url)
            figures = {
                what: {
                    "median": round(float(np.median(all_)), 1),
                    "p95": round(float(np.quantile(all_, 0.95)), 1),
                }
                for what, all_ in times.items()
            }
            version = found.version
            report(
                "page_speed",
                f"{name}; {TIMES} visits of Chromium {version}",
                milliseconds=figures,
            )


if __name__ == "__main__":
    run(PARSER, main)
