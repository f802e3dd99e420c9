"""Keys, titles and names of columns that are HTML, very long or odd: nothing runs or breaks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from browsing import Open, barriers, names, settled, until
from softdex.serve.start import Serving

ODD = [
    "<img src=x onerror=alert(1)>", "\"><script>alert('2')</script>", "'; alert(3); '", "W" * 200,
    "a b&c=d#e?f%2F/g", "javascript:alert(4)", "\u202eevil\u202c", "${alert(5)}", "{{7*7}}",
    "é\u0301ß𝔘", "line one line two", "__proto__", "constructor", "w" * 40 + " " + "v" * 160,
]  # fmt: skip
COLUMNS = ["<b onmouseover=alert(6)>kind</b>", "C" * 200, "a:b"]


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    draw = np.random.default_rng(0)
    users = [f"{odd}{n}" for n in range(4) for odd in ODD]
    items = [*ODD, *(f"i{n:03d}" for n in range(60))]
    rows = {
        "user": [u for u in users for _ in range(8)],
        "item": [items[i] for _ in users for i in draw.choice(len(items), 8, replace=False)],
    }
    table = {
        "item": items,
        "title": [f"{item} {ODD[n % len(ODD)]}" for n, item in enumerate(items)],
    }
    table |= {name: [ODD[n % len(ODD)] for n in range(len(items))] for name in COLUMNS}
    log = sdx.read(pa.table(rows), items=pa.table(table), time=False, quiet=True)
    train, _, test = sdx.split.per_user(log, (0.7, 0.3), order="random", seed=0)
    models = {"one": sdx.fit("rg2", train, dim=4), "<i>two</i>": sdx.fit("item_cf", train)}
    with sdx.look(models, test, browser=False) as found:
        yield found


@pytest.mark.parametrize("odd", range(len(ODD)))
def test_a_hostile_user_and_item_are_text(odd: int, served: Serving, opened: Open) -> None:
    size = "phone" if odd in (0, 3) else "wide"
    user = f"{ODD[odd]}0"
    columns = "".join(f"&columns={quote(name)}" for name in COLUMNS)
    where = f"&where={quote(f'{COLUMNS[0]}:{ODD[odd]}', safe='')}" if odd % 2 else ""
    for view in (
        f"#/lists?user={quote(user, safe='')}{columns}{where}&why={quote(ODD[odd], safe='')}",
        f"#/compare?user={quote(user, safe='')}{columns}",
        f"#/similar?item={quote(ODD[odd], safe='')}&walk={quote(ODD[0], safe='')}{columns}",
    ):
        page = settled(opened(served.url, view, size=size))
        page.wait_for_timeout(200)
        settled(page)
        assert page.locator("h1").count() == 1
        if "similar" not in view:
            assert page.locator("h1").evaluate("each => each.textContent") == user
        assert names(page, "main") or page.locator(".slope .cut").count()
        assert (
            page.locator("main script, main img, main b[onmouseover], main i:empty[id]").count()
            == 0
        )
        until(page, "document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", ["wide", "phone"])
@pytest.mark.parametrize(
    "view",
    [
        "breakdown?by=category&group={odd}",
        "popularity",
        "effort",
        "sampler",
        "inside",
        "map",
        "model",
    ],
)
def test_what_is_measured_of_hostile_names_is_text(
    view: str, size: str, served: Serving, opened: Open
) -> None:
    user, other = quote(f"{ODD[0]}0", safe=""), quote("<i>two</i>", safe="")
    named = view.format(odd=quote(ODD[0], safe=""))
    more = f"{'&' if '?' in view else '?'}user={user}&other={other}&column={quote(COLUMNS[0])}"
    page = settled(opened(served.url, f"#/{named}{more}", size=size))
    until(page, "![...document.querySelectorAll('[role=status]')].some((e) => e.innerText)")
    settled(page)
    assert page.locator("h1").count() == 1
    assert page.locator("main .note.bad").count() == 0
    assert page.locator("main script, main img, main b[onmouseover]").count() == 0
    until(page, "document.documentElement.scrollWidth <= innerWidth")


def test_hostile_keys_are_found_and_open(served: Serving, opened: Open) -> None:
    page = settled(opened(served.url))
    for odd in ODD[:4]:
        page.fill("#search", odd[:20])
        page.wait_for_selector("#search-found li[aria-selected=true]")
        assert page.locator("#search-found li").first.inner_text()
        until(page, "document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Enter")
    settled(page)
    assert barriers(page) == []
    settled(opened(served.url, "#/users")).wait_for_selector("tbody tr")
    settled(opened(served.url, "#/server")).wait_for_selector("tbody tr")


@pytest.mark.parametrize(
    "address",
    ["#", "#/", "#/lists?", "#/%", "#/lists?k=x&temperature=1e999&mode=sample&seed=-1&user=%00",
     "#/lists?user=u&where=nothing&columns=no&model=", "#/compare?other=nobody",
     "#/similar?item=" + "x" * 3000],
)  # fmt: skip
def test_an_odd_address_is_an_answer_or_one_sentence(
    address: str, served: Serving, opened: Open
) -> None:
    page = settled(opened(served.url, address, quiet=False))  # unknown keys are refused
    page.wait_for_selector("main :is(h1, .note, .empty)")
