"""The picture of a beam search: true to the search, in order, and safe with any name."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import softdex as sdx
from softdex import drawing
from softdex.data.keys import factorize
from softdex.data.ragged import Ragged
from softdex.encode.history import Recent
from softdex.errors import SoftdexError
from softdex.explain import draw as module
from softdex.explain import look as explain_look
from softdex.explain import page as explain_page
from softdex.explain.draw import explain
from softdex.explain.look import Look, look
from softdex.explain.names import Names
from softdex.explain.near import draw_near, near
from softdex.index.contract import Filter
from softdex.index.tree import build as tree_build
from softdex.index.tree.tree import Tree
from softdex.model.card import Card
from softdex.model.parts import Known, parts_from
from softdex.model.retriever import Retriever
from softdex.score.din import random_din, windows_of

COLOURS = ("red", "red", "green", "blue")
HOSTILE = [
    "</title><script>alert('1')</script>",
    "千と千尋の神隠し " * 20,
    "مملكة السماء & البحر",
    'a "quoted" & <b>bold</b>\nname\x00',
    "🎬" * 40,
    "",
    "W" * 300,
]


def made(
    items: int = 60,
    beam: int = 4,
    arity: int = 2,
    *,
    had: int = 6,
    product: bool = False,
    table: dict[str, Any] | None = None,
) -> Retriever:
    """A tree model with random weights: users a and b, of whom b had nothing; items i00 ..."""
    shape = tree_build.shape_for(items, arity, beam)
    rows, generator = sum(shape.level_sizes), torch.Generator().manual_seed(items)
    scorer = random_din(rows, 4, windows_of(5), scale=1.0, generator=generator)
    order = tree_build.random(items, seed=1)
    tree = Tree(
        scorer,
        torch.from_numpy(tree_build.item_of(order, shape)),
        torch.ones(items, dtype=torch.bool),
        torch.tensor(arity),
        torch.tensor(shape.depth),
        torch.tensor(float(beam), dtype=torch.float64),
        torch.tensor(product),
    )
    users, _ = factorize(pa.array(["a", "b"]))
    keys, _ = factorize(pa.array([f"i{i:02d}" for i in range(items)]))
    past = np.random.default_rng(0).permutation(items)[:had].astype(np.int32)
    counts = np.arange(items)[::-1] + 1  # i00 is the most popular
    seen, columns = Ragged(np.array([0, had, had]), past), table and pa.table(table)
    parts = parts_from(Recent(torch.tensor(5)), scorer, tree)
    return Retriever(Card("dtr"), parts, Known(users, keys, seen, counts, columns))


def films(items: int) -> dict[str, Any]:
    return {
        "title": [f"Film {i}" for i in range(items)],
        "genres": [[COLOURS[i % 4], "all"] for i in range(items)],
        "year": [2000 + i % 9 for i in range(items)],
    }


class Page(HTMLParser):
    """Tags, text and boxes of a page whose tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.titles: list[str] = []
        self.svg: dict[str, str | None] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        self.tags.append(tag)
        self.open += [tag] * (tag != "meta")
        if ("class", "tree") in attrs:
            self.svg = dict(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            (self.titles if self.open[-1] == "title" else self.words).append(data)


def kinds(view: Look, *wanted: str) -> list[set[int]]:
    """The nodes of these kinds, level by level."""
    return [{node.number for node in row.nodes if node.kind in wanted} for row in view.rows]


def ancestors(model: Retriever, items: Sequence[int], level: int) -> set[int]:
    assert isinstance(model.index, Tree)
    return {int(model.index.slot_of[i]) // model.index.width(level) for i in items}


# it is true to the search ------------------------------------------------------------------------


@pytest.mark.parametrize("product", [False, True])
def test_the_list_is_what_recommend_gives_with_ranks_of_the_exact_search(product: bool) -> None:
    model = made(product=product, table=films(60))
    view = look(model, "a", k=7)
    wanted = model.recommend("a", 7)
    assert view.table["item"].to_pylist() == wanted["item"].to_pylist()
    assert view.table["score"].to_pylist() == pytest.approx(wanted["score"].to_pylist())
    model.index.effort = math.inf
    exact = model.recommend("a", 60)["item"].to_pylist()
    assert view.table["exact"].to_pylist() == [
        exact.index(item) + 1 for item in view.table["item"].to_pylist()
    ]
    assert view.lost is not None
    found = set(view.table["item"].to_pylist())
    assert [item.key for item in view.lost] == [key for key in exact[:7] if key not in found]
    assert ("score" in view.facts) == product


def test_a_history_stands_in_the_place_of_a_user() -> None:
    model = made()
    past = ["i03", "i30"]
    wanted = model.recommend(history=[past], k=5)
    view = look(model, history=past, k=5)
    assert view.table["item"].to_pylist() == wanted["item"].to_pylist()
    assert view.history == past
    assert view.who == "a history"


def test_paths_are_the_ancestors_of_the_list_and_every_node_hangs_on_its_parent() -> None:
    model = made(200, beam=6)
    view = look(model, "a", k=9)
    rows = [int(i) for i in model.items.lookup(view.table["item"].to_pylist())]
    for row, paths in zip(view.rows, kinds(view, "path"), strict=True):
        assert paths == ancestors(model, rows, row.beam.level)
        for node in row.nodes:
            under = {
                r
                for r, i in enumerate(rows, 1)
                if ancestors(model, [i], row.beam.level) == {node.number}
            }
            assert set(node.leads) == under
    for above, below in zip(view.rows, view.rows[1:], strict=False):
        drawn = {node.number for node in above.nodes}
        assert {node.parent for node in below.nodes} <= drawn


def test_what_was_kept_and_cut_and_scored_is_what_the_beam_did() -> None:
    model = made(200, beam=6)
    tree = model.index
    assert isinstance(tree, Tree)
    view, kept = look(model, "a", k=3), None
    total = 0
    for row in view.rows:
        level, size = row.beam.level, tree.sizes[row.beam.level - 1]
        start = tree.starts[level - 1]
        alive = {n for n in range(size) if bool(tree.full[start + n])}
        candidates = alive if kept is None else {n for n in alive if n // tree.arity in kept}
        assert row.beam.scored == len(candidates)
        total += row.beam.scored
        assert set(row.beam.nodes.tolist()) <= candidates
        kept = set(row.beam.nodes[: row.beam.kept].tolist())
        assert row.beam.kept == (6 if level < tree.depth else 3)
        for node in row.nodes:
            assert (node.number in kept) == (node.kind in ("path", "trail", "kept"))
            assert row.beam.nodes[node.rank - 1] == node.number
            assert 0 <= node.shade <= 1
    assert view.facts["nodes scored"].startswith(f"{total:,} of {sum(tree.living):,} ")


def test_a_lost_item_is_followed_to_the_node_with_which_it_was_cut() -> None:
    model = made(300, beam=2)
    view = look(model, "a", k=8)
    assert view.lost
    for item in view.lost:
        assert item.end is not None
        row = model.items.lookup([item.key])[0]
        for drawn in view.rows[: item.end.level]:
            (number,) = ancestors(model, [row], drawn.beam.level)
            rank = drawn.beam.nodes.tolist().index(number) + 1
            cut = drawn.beam.level == item.end.level
            assert (rank > drawn.beam.kept) == cut
        assert (rank, drawn.beam.kept) == (item.end.rank, item.end.kept)
        assert number in kinds(view, "lost")[item.end.level - 1]
    page = explain(model, "a", k=8)
    assert f"has {len(view.lost)} other" in page
    assert "<path class='lost'" in page


def test_a_search_that_loses_nothing_says_so_and_too_many_items_are_not_all_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "finds the same list" in explain(made(60, beam=60), "a")
    monkeypatch.setattr(explain_look, "EXACT", 59)
    monkeypatch.setattr(module, "EXACT", 59)
    view = look(made(), "a")
    assert view.lost is None
    assert "exact" not in view.table.column_names
    page = explain(made(), "a")
    assert "more than 59 items" in page
    assert "exact rank" not in page


def test_items_that_were_removed_are_neither_found_nor_counted() -> None:
    model = made(table=films(60))
    gone = look(model, "a", k=4).table["item"].to_pylist()
    model.remove_items(gone)
    page = Page(explain(model, "a", k=4))
    titles = {f"Film {int(key[1:])}" for key in gone}
    assert not titles & set(re.findall(r"Film \d+", " ".join(page.titles)))


# names -------------------------------------------------------------------------------------------


def test_a_node_is_named_by_the_category_that_sets_it_apart() -> None:
    model = made(table=films(60))
    tree, names = model.index, Names(model, np.array([0]), None)
    assert isinstance(tree, Tree)
    assert (names.title, names.category) == ("title", "genres")
    for number in range(tree.sizes[0]):
        width = tree.width(1)
        ids = [int(i) for i in tree.item_of[number * width : (number + 1) * width] if i >= 0]
        name, detail, note = names.node(tree, 1, number)
        share = {c: np.mean([COLOURS[i % 4] == c for i in ids]) for c in COLOURS}
        overall = {"red": 0.5, "green": 0.25, "blue": 0.25}
        apart = {c: p * math.log(p / overall[c]) for c, p in share.items() if p}
        assert apart.get(name, 0.0) == max(*apart.values(), 0.0)  # "all" is everywhere: 0
        assert detail == f"{100 * share.get(name, 1.0):.0f} % of {len(ids)}"
        popular = " · ".join(f"Film {i}" for i in sorted(ids)[:3])
        assert f"most popular: {popular}\n" in note


def test_without_categories_a_node_is_named_by_its_most_popular_item() -> None:
    model = made()
    tree, names = model.index, Names(model, np.array([0]), None)
    assert isinstance(tree, Tree)
    name, detail, _ = names.node(tree, 1, 0)
    below = [int(i) for i in tree.item_of[: tree.width(1)] if i >= 0]
    assert (name, detail) == (f"i{min(below):02d}", f"{len(below)} items")
    assert "its most popular item" in explain(model, "a")
    assert look(model, "a").table.column_names == ["rank", "item", "score", "exact"]


@pytest.mark.parametrize(
    ("columns", "title", "category", "shown"),
    [
        (None, "title", "genres", ["genres"]),
        ("year", "title", "year", ["year"]),
        (["genres", "year"], "title", "genres", ["genres", "year"]),
        (["note"], "note", "genres", ["genres"]),
        (["vector"], "title", "genres", ["genres", "vector"]),
    ],
)
def test_columns_take_the_parts_they_fit(
    columns: Any, title: str, category: str, shown: list[str]
) -> None:
    more = {"note": [f"n{i}" for i in range(60)], "vector": [[0.5, float(i)] for i in range(60)]}
    model = made(table=films(60) | more)
    names = Names(model, np.array([0]), columns)
    assert (names.title, names.category, names.shown) == (title, category, shown)
    assert Page(explain(model, "a", columns=columns)).svg


def test_a_few_items_with_a_column_of_categories_are_not_titled_by_it() -> None:
    model = made(5, had=1, table={"Category": ["x", "y", "z", "u", None]})
    names = Names(model, np.array([0]), None)
    assert (names.title, names.category) == (None, "Category")
    assert Page(explain(model, "a")).svg


def test_a_category_that_an_item_has_twice_counts_once() -> None:
    table = {"genres": [["x", "x"], None, [], [None, "y"]] * 15}
    names = Names(made(table=table), np.array([0]), None)
    assert dict(zip(names.labels, names.overall.tolist(), strict=True)) == {"x": 0.25, "y": 0.25}


def test_any_title_is_escaped_cut_and_whole_in_its_tooltip() -> None:
    model = made(42, had=8, table={"title": HOSTILE * 6, "genres": [[t] for t in HOSTILE * 6]})
    text = explain(model, "a", k=34)
    page = Page(text)
    assert "script" not in page.tags
    assert "<script" not in text
    assert "<b>bold" not in text
    assert "\x00" not in text
    long = "W" * 300
    assert any(long in title for title in page.titles)
    start, end = map(page.words.index, ("The way down the tree", "The list"))
    assert long not in "".join(page.words[start:end])


# layout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "beam", "arity", "k", "had"),
    [
        (60, 4, 2, 1, 6),
        (400, 60, 2, 50, 6),
        (400, 20, 3, 80, 6),
        (9, 150, 2, 5, 6),  # a tree of one level
        (9, 150, 2, 50, 8),  # one item is left
        (2, 1, 2, 2, 1),
        (3000, 1, 2, 5, 6),  # twelve levels
        (400, 5, 16, 10, 6),
        (400, 2, 2, 50, 30),  # the beam widens so that there are k items
    ],
)
def test_nodes_keep_their_order_and_distance_and_stay_inside(
    items: int, beam: int, arity: int, k: int, had: int
) -> None:
    model = made(items, beam, arity, had=had, table=films(items))
    view = look(model, "a", k=k)
    assert len(view.items) == min(k, items - had)
    for row, xs in zip(view.rows, module.places(view.rows), strict=True):
        numbers = [node.number for node in row.nodes]
        assert numbers == sorted(set(numbers))
        box = explain_page.box_width(module._boxes(row))
        space = np.array([box if node.kind == "path" else explain_page.DOT for node in row.nodes])
        space = space * min(1, explain_page.AREA / space.sum())
        assert (np.diff(xs) >= (space[1:] + space[:-1]) / 2 - 1e-6).all()
        assert (xs - space / 2 >= explain_page.LEFT - 1e-6).all()
        assert (xs + space / 2 <= explain_page.WIDTH + 1e-6).all()
        assert (
            len(row.nodes)
            <= explain_look.PATHS + 2 * explain_look.LOST + explain_look.KEPT + explain_look.CUT
        )
    page = Page(module.draw(view))
    assert page.svg["viewbox"].startswith("0 0 1200 ")  # type: ignore[union-attr]
    assert page.tags.count("rect") > 0


def test_places_that_fit_are_left_alone_and_others_move_no_further_than_they_must() -> None:
    space = np.array([10.0, 10.0, 10.0])
    wanted = np.array([300.0, 400.0, 500.0])
    np.testing.assert_allclose(module._apart(wanted, space), wanted)
    same = np.full(3, 400.0)
    np.testing.assert_allclose(module._apart(same, space), [390, 400, 410])
    outside = module._apart(np.full(3, 1e9), space)
    np.testing.assert_allclose(outside[-1] + 5, explain_page.LEFT + explain_page.AREA)


def test_a_row_says_how_many_nodes_are_not_drawn() -> None:
    view = look(made(2000, beam=100), "a", k=2)
    page = Page(module.draw(view))
    row = view.rows[1]
    kept = sum(node.kind in ("path", "trail", "kept") for node in row.nodes)
    cut = len(row.nodes) - kept
    more = f"… and {100 - kept} more kept, {len(row.beam.nodes) - 100 - cut} more cut"
    assert more in page.words


@pytest.mark.parametrize("text", [*HOSTILE, "one", "several short words in a row", "e\u0301" * 50])
def test_lines_hold_the_text_and_say_where_it_was_cut(text: str) -> None:
    for most, room in ((1, 60.0), (3, 60.0), (2, 1.0), (1, 2000.0)):
        lines = drawing.lines(text, most, room)
        assert 1 <= len(lines) <= most
        whole = "".join(lines).replace(" ", "")
        plain = text.replace(" ", "")
        assert whole == plain or (whole.endswith("…") and plain.startswith(whole[:-1]))


def test_the_page_is_whole_and_has_all_its_parts() -> None:
    model = made(200, beam=6, table=films(200))
    page = Page(explain(model, "a", k=5))
    words = " ".join(page.words)
    parts = ["A beam search for user a", "History", "The way down the tree", "The list", "#1"]
    for part in [*parts, "What the beam lost", "the best 6 per level", "dtr", "Level 1", "Items"]:
        assert part in words
    assert any("rank 1 of" in title and "items below" in title for title in page.titles)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)


# around an item ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arity", [2, 3, 6, 40])
def test_the_items_around_one_are_those_under_the_same_node_the_nearest_first(arity: int) -> None:
    model = made(200, beam=4, arity=arity, table=films(200))
    tree = model.index
    assert isinstance(tree, Tree)
    view = near(model, "i07")
    width = max([w for w in (tree.width(j) for j in range(1, tree.depth)) if w <= 32] or [arity])
    slot = tree.slot_of.numpy()
    beside = np.flatnonzero(slot // width == slot[7] // width)
    found = model.items.rows(view.table["item"].to_pylist(), "", "")
    assert sorted(found.tolist()) == beside.tolist()
    ups = view.table["levels_up"].to_pylist()
    assert ups == sorted(ups)
    assert [slot[i] // arity**up for i, up in zip(found, ups, strict=True)] == [
        slot[7] // arity**up for up in ups
    ]
    assert all(
        slot[i] // arity ** (up - 1) != slot[7] // arity ** (up - 1)
        for i, up in zip(found, ups, strict=True)
        if up
    )
    assert sum(branch.way for branch in view.branches) == round(math.log(width, arity)) + 1


def test_the_page_around_an_item_names_every_leaf_and_is_safe_with_any_title() -> None:
    table = films(60) | {"title": [HOSTILE[i % len(HOSTILE)] or "x" for i in range(60)]}
    view = near(made(60, table=table), "i09")
    text = draw_near(view)
    page = Page(text)
    words = "".join(page.words)
    for title in view.table["title"].to_pylist():
        assert title[:20] in words
    assert page.tags.count("circle") == len(view.branches)
    assert text.count("circle class='way'") == sum(branch.way for branch in view.branches)
    assert text.count("class='bold'") == 1
    assert not {"script", "img", "link", "iframe"} & set(page.tags)


def test_columns_of_the_item_table_never_stand_for_what_is_told_of_the_tree() -> None:
    table = films(60) | {"item": ["c"] * 60, "levels_up": [9] * 60}
    view = near(made(60, table=table), "i09", ["item", "levels_up", "year"])
    assert view.table.column_names == ["levels_up", "item", "title", "year"]
    assert view.table.slice(0, 1).to_pylist()[0]["item"] == "i09"
    assert view.table["levels_up"].to_pylist()[0] == 0


def test_a_removed_item_and_a_tree_of_one_level_have_nothing_around_an_item() -> None:
    model = made()
    model.remove_items(["i07"])
    with pytest.raises(SoftdexError, match="explain: item 'i07' was removed"):
        near(model, "i07")
    assert "i07" not in near(model, "i08").table["item"].to_pylist()
    with pytest.raises(SoftdexError, match="one level"):
        near(made(10, beam=10), "i07")
    with pytest.raises(SoftdexError, match="unknown item "):
        near(model, "i007")


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "expected either user or history"),
        ({"user": "a", "history": ["i00"]}, "expected either user or history"),
        ({"user": "aa"}, r"1 unknown user \('aa'\). Did you mean 'a'"),
        ({"user": ["a", "b"]}, "expected one user, got 2"),
        ({"user": "b"}, "user 'b' has no event in training"),
        ({"history": []}, "expected at least one item in history"),
        ({"history": ["i1"]}, "1 unknown item in history"),
        ({"user": "a", "k": 0}, "expected k > 0, got 0"),
        ({"user": "a", "k": 1.5}, "expected k as a whole number, got 1.5"),
        ({"user": "a", "columns": "titel"}, "no item column 'titel'. Did you mean 'title'"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(SoftdexError, match=f"^explain: {words}"):
        explain(made(table=films(60)), **arguments)


def test_a_user_who_had_everything_and_a_model_without_a_tree_are_refused(
    model: sdx.Retriever,
) -> None:
    with pytest.raises(SoftdexError, match="explain: no item is left to recommend"):
        explain(made(6, had=6), "a")
    with pytest.raises(SoftdexError, match="item_cf has no tree to draw"):
        explain(model, "u001")


def test_the_search_keeps_the_rules_of_recommend() -> None:
    model = made(60, table=films(60))
    some = [f"i{i:02}" for i in range(0, 60, 3)]
    rules: dict[str, Any] = {"allow": some, "deny": some[:4]}
    wanted = model.recommend("a", 5, **rules)["item"].to_pylist()
    assert look(model, "a", k=5, **rules).table["item"].to_pylist() == wanted
    assert set(wanted) <= set(some[4:])
    with pytest.raises(SoftdexError, match="explain: expected deny as item keys, the same for all"):
        look(model, "a", deny={"a": ["i01"]})


def test_the_exact_search_and_the_beam_agree_where_the_beam_holds_everything() -> None:
    model = made(50, beam=50)
    tree = model.index
    assert isinstance(tree, Tree)
    query = model.encoder(np.array([-1]), model.seen.take(np.array([0])))
    hits = tree.search(query, 10, filter=Filter(model.seen.take(np.array([0]))))
    view = look(model, "a")
    assert view.table["item"].to_pylist() == model.items.take(hits.ids[0].numpy()).to_pylist()
    assert view.table["exact"].to_pylist() == list(range(1, 11))
