"""The other views, the box that finds, and what stands around them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

import softdex as sdx
from browsing import Open, names, settled, until
from softdex import plan


def results(folder: Path) -> tuple[sdx.Result, sdx.Result]:
    found = []
    for name in ("solved", "counted"):
        model = sdx.load(folder / name)
        test = plan.tested(model, plan.read_config(folder / name / "config.toml"), folder)
        found.append(model.evaluate(test, k=(10, 20, 50, 100)))
    return found[0], found[1]


# compare -----------------------------------------------------------------------------------------


def test_two_lists_stand_side_by_side_with_what_they_share(look: Open, folder: Path) -> None:
    page = look("#/compare?user=u010&k=10")
    page.wait_for_selector(".slope")
    page.wait_for_selector(".slopes .small:has-text('held out')")
    settled(page)
    sides = page.locator(".slopes section")
    lists = [side.locator(".slope .cut").all_inner_texts() for side in sides.all()]
    assert [len(each) for each in lists] == [10, 10]
    both = set(lists[0]) & set(lists[1])
    assert f"{len(both)} of 10 items are in both lists" in page.locator(".pairing").inner_text()
    assert page.locator(".slopes path").count() == len(both)
    only = [name for name in lists[0] if name not in both]
    marked = page.locator(".slopes section").first.locator("li", has_text="only here")
    assert marked.locator(".cut").all_inner_texts() == only


def test_the_paired_difference_is_that_of_the_bootstrap(look: Open, folder: Path) -> None:
    page = look("#/compare?user=u010")
    page.wait_for_selector("text=Paired bootstrap")
    one, other = results(folder)
    gap = next(row for row in one.compare(other) if row["metric"] == "ndcg@20")
    row = page.locator("tr", has_text="ndcg@20").first.locator("td").all_inner_texts()
    assert row[1:3] == [f"{one['ndcg@20']:.4f}", f"{other['ndcg@20']:.4f}"]
    assert row[3].strip().lstrip("+") == f"{gap['difference']:.4f}"
    assert row[4] == f"{gap['p']:.3f}"
    values = one.per_user["ndcg@20"] - other.per_user["ndcg@20"]
    text = page.locator("p.lead", has_text="Paired bootstrap").inner_text()
    assert f"solved is better for {int((values > 0).sum())}" in text
    best = one.user_keys.take(one.users[[int(np.argmax(values))]]).to_pylist()[0]
    first = page.locator(".cards.two > div").first.locator("tbody tr").first
    assert first.locator("a").inner_text() in {
        str(key) for key in one.user_keys.take(one.users[values == values.max()]).to_pylist()
    }
    assert best is not None
    first.locator("a").click()
    page.wait_for_selector("text=items are in both lists")


# similar -----------------------------------------------------------------------------------------


def test_similar_items_are_walked_by_clicking_and_the_walk_leads_back(
    look: Open, folder: Path
) -> None:
    model = sdx.load(folder / "solved")
    assert model.item_table is not None
    keys, titles = model.items.all().to_pylist(), model.item_table["title"].to_pylist()
    titled = dict(zip(keys, titles, strict=True))
    page = settled(look(f"#/similar?item={keys[0]}&k=5"))
    near = model.similar([keys[0]], k=5)["similar"].to_pylist()
    assert names(page) == [titled[key] for key in near]
    page.locator("table.ranked a.to").nth(1).click()
    page.wait_for_selector(f"h1:text-is({json.dumps(titled[near[1]])})")
    assert names(settled(page)) == [
        titled[key] for key in model.similar([near[1]], k=5)["similar"].to_pylist()
    ]
    page.locator(".walk a").click()
    page.wait_for_selector(f"h1:text-is({json.dumps(titled[keys[0]])})")
    page.click("text=Add to the history")
    page.wait_for_selector("text=added")


# users, server -----------------------------------------------------------------------------------


def test_users_are_listed_by_their_metric_and_lead_to_their_lists(look: Open, folder: Path) -> None:
    one, _ = results(folder)
    page = look("#/users?kind=easy")
    page.wait_for_selector("tbody tr")
    best = float(page.locator("tbody tr .value").first.inner_text())
    assert best == round(float(one.per_user["ndcg@20"].max()), 3)
    page.click("text=Fewest events")
    until(page, "location.hash.includes('cold')")
    settled(page).locator("tbody a").first.click()
    page.wait_for_selector(".sides")


def test_the_server_shows_its_models_and_what_it_was_asked(look: Open) -> None:
    page = look("#/server")
    page.wait_for_selector("td:has-text('/v1/models')")
    assert page.locator("tbody tr", has_text="solved").count()
    page.wait_for_selector("polyline", state="attached")


# the box that finds ------------------------------------------------------------------------------


def test_the_box_finds_users_and_items_by_key_and_text_and_keys_choose(
    look: Open, folder: Path
) -> None:
    page = settled(look())
    page.keyboard.press("/")
    page.keyboard.type("u01")
    page.wait_for_selector("#search-found li[aria-selected=true]:has-text('u010')")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#search-found li[aria-selected=true]:has-text('u011')")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text-is('u011')")
    titles = sdx.synthetic.titles(150)
    page.fill("#search", titles[7].lower())
    page.wait_for_selector(f"#search-found li:has-text({json.dumps(titles[7])})")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"h1:text-is({json.dumps(titles[7])})")
    words = titles[7].split()
    page.fill("#search", f"{words[-1]} {words[-2]}")  # in another order
    page.wait_for_selector(f"#search-found li:has-text({json.dumps(titles[7])})")
    page.fill("#search", "zzzz")
    page.wait_for_selector("text=Nothing found")
    page.keyboard.press("Escape")


def test_pictures_of_items_are_drawn(opened: Open, folder: Path, tmp_path: Path) -> None:
    colours = {"i000": (200, 30, 30), "i001": (30, 30, 200)}
    for key, colour in colours.items():
        Image.new("RGB", (20, 30), colour).save(tmp_path / f"{key}.png")
    with sdx.look(folder / "solved", browser=False, pictures=tmp_path) as serving:
        page = opened(serving.url, "#/lists?add=i000&add=i001&add=i002")
        page.wait_for_selector(".history canvas")
        assert page.locator(".history canvas").count() == 2
        middle = "each => [...each.getContext('2d').getImageData(30, 40, 1, 1).data]"
        for key, colour in colours.items():
            row = page.locator(f".history li:has(:text-is('{key}'))")
            page.wait_for_timeout(300)
            assert row.locator("canvas").evaluate(middle) == [*colour, 255]


# around ------------------------------------------------------------------------------------------


def test_the_theme_is_switched_and_stays(look: Open) -> None:
    page = settled(look())
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate(paper) != light
    page.reload()
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(paper) != light


def test_a_server_with_tokens_is_asked_with_one_that_stays_in_the_tab(
    opened: Open, folder: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read open-sesame-0123456789\n")
    with sdx.serve(folder / "solved", port=0, tokens=tokens, max_wait=60) as serving:
        page = opened(serving.url, quiet=False)  # refusals are written to the console
        page.fill("#token", "wrong")
        page.click("text=Use it")
        page.wait_for_selector("text=The token is not known")
        page.fill("#token", "open-sesame-0123456789")
        page.click("text=Use it")
        settled(page).wait_for_selector("table.ranked")
        assert page.evaluate("localStorage.length") == 0
        page.reload()
        page.wait_for_selector("table.ranked")


def test_a_model_that_is_not_served_and_a_view_that_is_not_there_are_said(look: Open) -> None:
    page = look("#/lists?model=nobody")
    page.wait_for_selector("text=No model nobody is served")
    page.click("text=Show the first one")
    page.wait_for_selector("table.ranked")
    settled(look("#/nowhere")).wait_for_selector("text=There is no view nowhere")
