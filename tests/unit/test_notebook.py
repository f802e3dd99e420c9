"""Notebook: what objects show there is small, escaped, and needs nothing from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from softdex import notebook

EVIL = "<img src=x onerror=alert(1)>\"'&" + "k" * 200
TAGS = {"div", "style", "strong", "table", "tr", "th", "td", "p", "br"}


class Tags(HTMLParser):
    """Collects tags, attributes and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: Any) -> Tags:
    """What a notebook shows of a value, checked for what it must not have."""
    page = value._repr_html_()
    found = Tags(page)
    assert set(found.tags) <= TAGS
    assert found.attributes <= {("class", "softdex"), ("class", "n")}
    assert found.tags.count("table") == page.count("</table>")
    assert "http" not in page
    assert "url(" not in page
    assert len(page) < 120_000
    return found


@pytest.fixture(scope="module")
def hostile() -> sdx.Interactions:
    """A log whose keys and columns are HTML."""
    names = [f"{EVIL}{i}" for i in range(30)]
    rows = [(names[i], names[(i + j) % 30], j) for i in range(30) for j in range(4)]
    items = pa.table({"item": names, EVIL: names})
    columns = pa.table(dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True)))
    return sdx.read(columns, items=items, quiet=True)


def test_hostile_keys_and_columns_are_text_in_everything(hostile: sdx.Interactions) -> None:
    split = sdx.split.leave_last(hostile)

    def own(train: sdx.Interactions) -> Any:
        return sdx.recipes.make("popular", train, {})

    own.__name__ = EVIL
    model = sdx.fit(own, split.train, valid=split.valid)
    tuned = sdx.tune("item_cf", split.train, split.valid, settings=2)
    lists = model.recommend(model.users.all(), k=5, columns=[EVIL])
    others = (split, model.evaluate(split.test, k=5), model, tuned, lists)
    compared = sdx.compare(split, [own, "item_cf"], k=5)
    for value in (hostile, *others, compared, model.explain(split.train.users.values[0].as_py(),
                                                            lists["item"][0].as_py())):  # fmt: skip
        found = shown(value)
    assert any(text.startswith("<img src=x") for text in shown(lists).texts)
    assert "img" not in found.tags


def test_a_log_shows_its_size_its_time_and_its_first_events(log: sdx.Interactions) -> None:
    texts = shown(log).texts
    assert repr(log) in texts
    assert f"{len(log):,} rows, 5 shown" in texts
    first = log.select(np.arange(5)).to_arrow()
    for name in ("user", "item", "time"):
        for value in first[name].to_pylist():
            assert str(value) in texts
    assert "category, subcategory" in texts


def test_a_log_is_shown_without_a_look_at_all_of_it(
    log: sdx.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdx.Interactions, "csr", lambda *_: pytest.fail("it counted pairs"))
    monkeypatch.setattr(sdx.Interactions, "describe", lambda *_: pytest.fail("it described"))
    shown(log)
    shown(log.select(np.zeros(0, int)))


def test_a_split_shows_its_parts_and_its_card(parts: sdx.Split) -> None:
    texts = shown(parts).texts
    assert f"leave_last split {parts.card.sha256[:8]}" in texts
    assert texts[texts.index("train") :][:3] == ["train", "300", f"{len(parts.train):,}"]
    assert texts[texts.index("test") :][:3] == ["test", "288", "288"]
    assert parts.valid is not None
    assert texts[texts.index("valid") :][:3] == ["valid", "268", "268"]


def test_a_result_shows_every_metric_and_its_notes(parts: sdx.Split) -> None:
    result = sdx.fit("popular", parts.train).evaluate(parts.test, k=(5, 20))
    texts = shown(result).texts
    for name in result:
        assert result.shown(name) in texts
    assert "@5" in texts


def test_a_model_shows_what_is_not_default_its_epochs_and_how_good_it_is(
    parts: sdx.Split,
) -> None:
    model = sdx.fit("rg2", parts.train, valid=parts.valid, dim=4, epochs=3)
    texts = shown(model).texts
    assert repr(model) in texts
    assert texts[texts.index("options") + 1] == "dim 4, epochs 3"
    assert texts[texts.index("epochs") + 1].startswith("3, best ")
    assert texts[texts.index("ndcg@20") + 1] == f"{model.card.metrics['valid']['ndcg@20']:.4f}"
    assert "defaults" in shown(sdx.fit("popular", parts.train)).texts


def test_wide_and_long_tables_are_cut_and_say_so() -> None:
    rows = [[f"{i} {j}" for j in range(30)] for i in range(70)]
    found = Tags(notebook.table([f"c{j}" for j in range(30)], rows))
    assert found.tags.count("td") == 50 * 20
    assert "70 rows, 50 shown" in found.texts
    assert "30 columns, 20 shown" in found.texts
    assert Tags(notebook.title("x" * 999)).texts == ["x" * 199 + "…"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.1235"), (0.0, "0.0000"), (1.5e-5, "1.5e-05"), (1234567, "1234567"), (None, "")],
)
def test_numbers_are_short_and_keys_stay_as_they_are(value: Any, text: str) -> None:
    assert "".join(Tags(notebook.table(["a"], [[value]])).texts[1:]) == text
