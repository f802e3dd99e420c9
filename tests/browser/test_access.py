"""Every view works without a mouse, on dark screens and phones, and for those who listen."""

from __future__ import annotations

import pytest

from browsing import Open, barriers, settled, until

VIEWS = {
    "lists": "#/lists?user=u010&columns=category&columns=subcategory",
    "why": "#/lists?user=u010&why=i010&add=i010",
    "sample": "#/lists?user=u010&mode=sample&seed=1&where=category:c001",
    "compare": "#/compare?user=u010",
    "similar": "#/similar?item=i010&walk=i011",
    "users": "#/users?kind=hard",
    "server": "#/server",
}
SCREENS = [("wide", "light"), ("wide", "dark"), ("phone", "light")]


@pytest.mark.parametrize(("size", "scheme"), SCREENS, ids="-".join)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_keeps_nobody_out_and_fits_the_screen(
    view: str, size: str, scheme: str, look: Open
) -> None:
    page = settled(look(VIEWS[view], size=size, scheme=scheme))
    page.wait_for_timeout(300)
    settled(page)
    assert barriers(page) == []
    until(page, "document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_open_boxes_and_dialogs_keep_nobody_out(size: str, look: Open) -> None:
    page = settled(look("#/lists?user=u010", size=size))
    page.fill("#search", "u0")
    page.wait_for_selector("#search-found li")
    assert barriers(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    assert barriers(page) == []


def test_the_whole_way_to_an_answer_needs_no_mouse(look: Open) -> None:
    page = settled(look("#/lists?user=u010"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('table button.row')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("tr.because")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
