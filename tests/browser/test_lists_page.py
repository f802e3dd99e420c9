"""Lists on the page: whose, what was held out, why, what if; the model says what must be there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import softdex as sdx
from browsing import Open, names, settled, until
from softdex import plan


class Known(NamedTuple):
    """What the page must show of the model `solved`."""

    model: sdx.Retriever
    test: sdx.Holdout
    titles: dict[Any, str]

    def history(self, user: str) -> list[Any]:
        """The history that is measured: with the events of the validation part."""
        row = self.model.users.lookup([user])
        at = np.flatnonzero(self.test.users == row[0])
        return self.model.items.take(self.test.history.take(at).ids).to_pylist()

    def targets(self, user: str) -> list[Any]:
        row = self.model.users.lookup([user])
        at = np.flatnonzero(self.test.users == row[0])
        return self.model.items.take(self.test.targets.take(at).ids).to_pylist()

    def named(self, keys: Any) -> list[str]:
        return [self.titles[key] for key in keys]

    def list(self, history: list[Any], user: str | None = None, **how: Any) -> list[str]:
        who = [] if user is None else [[user]]
        return self.named(self.model.recommend(*who, history=[history], **how)["item"].to_pylist())


@pytest.fixture(scope="module")
def known(folder: Path) -> Known:
    model = sdx.load(folder / "solved")
    test = plan.tested(model, plan.read_config(folder / "solved" / "config.toml"), folder)
    assert model.item_table is not None
    titles = model.item_table["title"].to_pylist()
    return Known(model, test, dict(zip(model.items.all().to_pylist(), titles, strict=True)))


def user_with(known: Known, targets: int) -> str:
    """A user of whom as many items are in the list as out of it, or nearly so."""
    for user in known.model.users.all().to_pylist():
        mine = known.targets(user)
        found = set(known.list(known.history(user), user, k=20)) & set(known.named(mine))
        if len(mine) >= targets and 0 < len(found) < len(mine):
            return str(user)
    raise AssertionError


def test_the_page_opens_on_a_user_with_the_list_of_the_model(look: Open, known: Known) -> None:
    page = settled(look())
    user = page.locator("h1").inner_text()
    page.wait_for_selector("text=held out")
    assert page.evaluate("location.hash") == f"#/lists?user={user}"
    assert names(settled(page)) == known.list(known.history(user), user, k=20)
    history = known.named(reversed(known.history(user)))
    assert names(page, ".history .rows") == history
    assert page.title() == f"Lists · {user} · solved · softdex"


def test_what_was_held_out_is_marked_and_the_rest_of_it_has_its_rank(
    look: Open, known: Known
) -> None:
    user = user_with(known, 3)
    page = look(f"#/lists?user={user}")
    page.wait_for_selector("section.missed li")
    settled(page)
    history, targets = known.history(user), known.targets(user)
    listed = known.list(history, user, k=20)
    marked = page.locator("tr.held .name").all_inner_texts()
    assert marked == [name for name in listed if name in known.named(targets)]
    missed = [key for key in targets if known.titles[key] not in listed]
    ranks = known.model.score([user], [missed], history=[history])
    rows = sorted(zip(ranks["rank"].to_pylist(), known.named(missed), strict=True))
    shown = page.locator(".missed li")
    assert [each.inner_text() for each in shown.locator(".rank").all()] == [str(r) for r, _ in rows]
    assert names(page, ".missed") == [name for _, name in rows]
    metric = page.locator(".who b").inner_text()
    result = known.model.evaluate(known.test, k=20, metrics="ndcg")
    at = list(known.model.users.take(result.users).to_pylist()).index(user)
    assert metric == f"{result.per_user['ndcg@20'][at]:.3f}"


def test_a_click_says_why_and_orders_the_history_by_its_shares(look: Open, known: Known) -> None:
    user = user_with(known, 3)
    page = look(f"#/lists?user={user}")
    page.wait_for_selector("section.missed li")
    third = settled(page).locator("table.ranked tr button.row").nth(2)
    name = third.locator(".name").inner_text()
    third.click()
    page.wait_for_selector("text=Because of")
    item = next(key for key, title in known.titles.items() if title == name)
    why = known.model.explain(user, item, history=known.history(user))
    share = dict(zip(why.table["item"].to_pylist(), why.table["share"].to_pylist(), strict=True))
    best = max(share, key=lambda key: abs(share[key]))
    assert page.locator(".because b").first.inner_text() == known.titles[best]
    assert names(page, ".history .rows")[0] == known.titles[best]
    part = abs(share[best]) / sum(map(abs, share.values()))
    said = page.locator(".history .share .small").first.inner_text().removeprefix("−")
    assert float(said.removesuffix("\u00a0%")) == pytest.approx(100 * part, abs=0.6)
    assert f"What drove {name}" in page.locator(".history h2").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector("h2:text-is('History')")


def test_the_list_follows_items_that_are_added_and_removed(look: Open, known: Known) -> None:
    user = user_with(known, 3)
    page = look(f"#/lists?user={user}")
    page.wait_for_selector("section.missed li")
    history = known.history(user)
    new = next(k for k in known.model.items.all().to_pylist() if k not in history)
    page.fill("#add", known.titles[new])
    page.locator("#add-found li", has_text=known.titles[new]).first.click()
    page.wait_for_selector("text=added")
    assert names(settled(page)) == known.list([*history, new], user, k=20)
    gone = known.titles[history[-1]]
    page.locator(".history li", has_text=gone).get_by_role("button").click()
    page.wait_for_selector(".history li.gone")
    assert names(settled(page)) == known.list([*history[:-1], new], user, k=20)
    changed = page.evaluate("location.hash")
    page.click("text=undo changes")
    page.wait_for_selector(".history li.gone", state="detached")
    assert names(settled(page)) == known.list(history, user, k=20)
    again = settled(look(changed))
    assert names(again) == known.list([*history[:-1], new], user, k=20)


def test_length_filter_and_columns_are_in_the_address_and_in_the_list(
    look: Open, known: Known
) -> None:
    user = user_with(known, 3)
    page = settled(look(f"#/lists?user={user}"))
    page.wait_for_selector("section.missed li")
    page.get_by_label("Length").select_option("5")
    page.get_by_label("Value of category").select_option(index=1)
    page.click("summary:text('Columns')")
    page.get_by_role("checkbox", name="subcategory").check()
    page.wait_for_selector("th:has-text('subcategory')")
    category = page.locator(".chip.on .cut").first.inner_text()
    wanted = known.list(known.history(user), user, k=5, where={"category": [category]})
    assert names(settled(page)) == wanted
    address = page.evaluate("location.hash")
    assert f"k=5&where=category%3A{category}&columns=subcategory" in address
    assert names(settled(look(address))) == wanted
    page.get_by_role("button", name=f"Remove the filter category: {category}").click()
    page.wait_for_selector(".chip.on .cut", state="detached")
    assert names(settled(page)) == known.list(known.history(user), user, k=5)


def test_a_drawn_list_is_that_of_its_seed_and_temperature(look: Open, known: Known) -> None:
    user = user_with(known, 3)
    how = "mode=sample&temperature=2&seed=7&k=5"
    page = look(f"#/lists?user={user}&{how}")
    page.wait_for_selector("text=with seed 7")
    page.wait_for_selector("text=held out")
    drawn = {"mode": "sample", "temperature": 2.0, "seed": 7, "k": 5}
    assert names(settled(page)) == known.list(known.history(user), user, **drawn)
    page.click("text=Draw again")
    page.wait_for_selector("text=with seed 8")
    assert names(settled(page)) == known.list(known.history(user), user, **drawn | {"seed": 8})


def test_a_new_user_is_a_history_alone(look: Open, known: Known) -> None:
    first, second = known.model.items.all().to_pylist()[:2]
    page = settled(look(f"#/lists?add={first}&add={second}"))
    assert page.locator("h1").inner_text() == "A new user"
    assert names(page) == known.list([first, second], k=20)


def test_keys_walk_the_list_and_the_users(look: Open) -> None:
    page = settled(look())
    first = page.locator("h1").inner_text()
    page.keyboard.press("j")
    page.wait_for_selector("tr.chosen")
    page.keyboard.press("j")
    until(page, "document.querySelector('tr.chosen td').innerText == '2'")
    page.keyboard.press("k")
    until(page, "document.querySelector('tr.chosen td').innerText == '1'")
    name = page.locator("tr.chosen .name").inner_text()
    page.keyboard.press("s")
    page.wait_for_selector(f"h1:text-is('{name}')")
    page.go_back()
    page.wait_for_selector(f"h1:text-is('{first}')")
    for key in ("h", "c", "r"):
        before = page.evaluate("location.hash")
        page.keyboard.press(key)
        until(page, f"location.hash != {json.dumps(before)}")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open] h2:text-is('Keys')")
    page.keyboard.press("Escape")


def test_a_hard_user_has_the_worst_list_and_a_cold_one_the_fewest_events(
    look: Open, known: Known
) -> None:
    page = settled(look())
    page.wait_for_selector("text=held out")
    page.get_by_role("button", name="Hard").click()
    page.wait_for_selector(".who b")
    assert page.locator(".who b").inner_text() == "0.000"
    before = page.locator("h1").inner_text()
    page.get_by_role("button", name="Cold").click()
    until(page, f"document.querySelector('h1').innerText != '{before}'")
    user = page.locator("h1").inner_text()
    counts = np.sort(known.model.seen.lengths)
    row = known.model.users.lookup([user])
    assert known.model.seen.lengths[row[0]] <= counts[50]


def test_the_lines_give_what_is_on_the_screen(look: Open, known: Known) -> None:
    user = user_with(known, 3)
    category = next(iter(known.model.item_table["category"].to_pylist()))  # type: ignore[index]
    page = look(f"#/lists?user={user}&k=4&where=category:{category}")
    page.wait_for_selector("section.missed li")
    shown = names(settled(page))
    page.click("text=The same by curl and Python")
    curl, python = page.locator("details.code pre").all_inner_texts()
    done = subprocess.run(
        ["bash", "-c", curl], capture_output=True, text=True, check=True, timeout=20
    )
    assert known.named(each["item"] for each in json.loads(done.stdout)["items"]) == shown
    lines: dict[str, Any] = {}
    head, last = python.rsplit("\n", 1)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(f"{head}\nfound = {last}", lines)
    assert known.named(lines["found"]["item"].to_pylist()) == shown
    assert re.match("import softdex as sdx", python)
