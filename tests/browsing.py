"""What tests in a browser share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parent / "browser" / "vendor" / "axe.min.js"
Open = Callable[..., Any]


def barriers(page: Page) -> list[str]:
    """Return what keeps people with disabilities out: serious and critical findings of axe."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: Any = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:300]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def settled(page: Page) -> Page:
    """Wait until everything that was asked for is on the screen."""
    page.wait_for_selector("main")
    until(page, "!document.querySelector('[aria-busy=true]')")
    return page


def until(page: Page, true: str, seconds: float = 20) -> None:
    """Wait until an expression is true; the page's policy keeps Playwright from waiting itself."""
    end = time.monotonic() + seconds
    while not page.evaluate(true):
        assert time.monotonic() < end, f"never: {true}"
        page.wait_for_timeout(20)


def names(page: Page, where: str = "table.ranked") -> list[str]:
    """Return the titles of the items in a list."""
    return page.locator(f"{where} .name").all_inner_texts()
