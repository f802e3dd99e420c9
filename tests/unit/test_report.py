"""The report: one page that loads nothing, whose every figure is that of a loop, and that is safe
with any name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from softdex.data.describe import gini
from softdex.evaluate.report import Study, build
from softdex.evaluate.report.answer import answer, sentence
from softdex.evaluate.report.curves import curves, kept_epoch
from softdex.evaluate.report.duels import duels
from softdex.evaluate.report.front import LEAST, Dot, front, pareto
from softdex.evaluate.report.groups import groups
from softdex.evaluate.report.shelves import shelf, shelves
from softdex.evaluate.report.users import picks, users

EVIL = ["<img src=x onerror=alert(1)>", "k" * 200, "'\"><svg onload=alert(1)>", "\u202ea\x00\nb"]
EVIL += ["</td></tr></table></section></main><h1>x", "</title></style><script>alert(1)</script>"]
METRIC = "ndcg@20"


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: dict[str, list[str]] = {}
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))
        for name, value in attrs:
            self.values.setdefault(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if "style" in self.open else f" {data}"


def rows_of(html: str, table: int = 0) -> list[list[str]]:
    """The cells of a table as text."""
    found = re.findall(r"<table.*?</table>", html, re.DOTALL)[table]
    return [
        [" ".join(Page(cell).words.split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in re.findall(r"<tr>.*?</tr>", found, re.DOTALL)
    ]


@pytest.fixture(scope="module")
def models(parts: sdx.Split) -> dict[str, sdx.Retriever]:
    return {n: sdx.fit(n, parts.train) for n in ("popular", "item_cf")}


@pytest.fixture(scope="module")
def results(parts: sdx.Split, models: Mapping[str, sdx.Retriever]) -> dict[str, sdx.Result]:
    return {n: m.evaluate(parts.test, (5, 20)) for n, m in models.items()}


@pytest.fixture(scope="module")
def study(parts: sdx.Split, results: dict[str, sdx.Result], world: sdx.synthetic.World) -> Study:
    best = world.evaluate(parts.test, (5, 20))
    history = [{"loss": 9.0 - i, "metric": m} for i, m in enumerate([0.1, 0.3, 0.2])]
    return Study(
        results, METRIC, chosen="item_cf", ceiling=best, split=parts,
        seconds={"popular": 0.5, "item_cf": 20.0}, memory={"item_cf": 700_000_000},
        training={"item_cf": history}, facts={"Run": {"command": "softdex compare", "none": None}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(study: Study) -> str:
    return build("Title", "Lead", study)


def shifted(result: sdx.Result, by: float, noise: float = 0.0) -> sdx.Result:
    """The result with every user's NDCG moved."""
    values = result.per_user[METRIC] + by
    values = values + noise * np.random.default_rng(0).standard_normal(len(values))
    means = {**result.means, METRIC: float(values.mean())}
    return replace(result, means=means, per_user={**result.per_user, METRIC: values})


# the page ----------------------------------------------------------------------------------------


def test_the_report_is_one_well_formed_page_that_loads_and_runs_nothing(
    page: str, study: Study
) -> None:
    assert page == build("Title", "Lead", study)
    read = Page(page)
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert all(link.startswith("#") for link in read.values["href"])
    assert not any(name.startswith("on") for name in read.values)
    assert "src" not in read.values
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_links_lead_to_the_sections_that_there_are_in_the_order_of_the_page(
    page: str, study: Study
) -> None:
    names = ["answer", "duels", "front", "groups", "lists", "users", "training", "protocol"]
    assert re.findall(r"<section id='(\w+)'", page) == names
    assert re.findall(r"href='#(\w+)'", page) == names
    few = build("T", "", Study(study.results, METRIC))
    assert re.findall(r"href='#(\w+)'", few) == ["answer", "duels", "groups", "lists", "protocol"]


@pytest.mark.parametrize("number", [1, 2])
def test_results_alone_make_a_report(study: Study, number: int) -> None:
    some = dict(list(study.results.items())[:number])
    words = Page(build("T", "", Study(some, METRIC))).words
    assert f"{study.results['popular'][METRIC]:.4f}" in words
    assert ("There is nothing to compare it with." in words) == (number == 1)


def test_hostile_names_leave_the_same_tags_as_harmless_ones() -> None:
    pages = {}
    for hostile in (True, False):

        def called(what: str, i: int, hostile: bool = hostile) -> str:
            return f"{EVIL[i % len(EVIL)]} {what}{i}" if hostile else f"{what}{i}"

        rng = np.random.default_rng(0)
        cells = [(u, i, t) for u in range(60) for t, i in enumerate(rng.permutation(30)[:9])]
        log = pa.table({
            "user": [f"{u:03d}{called('u', u)}" for u, _, _ in cells],
            "item": [f"{i:03d}{called('i', i)}" for _, i, _ in cells],
            "time": [t for _, _, t in cells],
        })  # fmt: skip
        title, genre = called("title", 0), called("genre", 2)
        table = pa.table({
            "item": [f"{i:03d}{called('i', i)}" for i in range(30)],
            title: [called("t", i) for i in range(30)],
            genre: [[called("g", i % 4)] for i in range(30)],
        })  # fmt: skip
        split = sdx.split.leave_last(sdx.read(log, items=table, quiet=True))
        result = sdx.fit("item_cf", split.train).evaluate(split.test, (5, 20))
        other = sdx.fit("popular", split.train).evaluate(split.test, (5, 20))
        names = [called("m", i) for i in range(6)]
        study = Study(
            {n: result if i % 2 else other for i, n in enumerate(names)}, METRIC, chosen=names[1],
            seconds=dict.fromkeys(names[:4], 2.0), ends={names[0]: called("end", 1)},
            training={names[1]: [{"loss": 1.0, "metric": 0.1, "kl": 1.0}]}, split=split,
            extra={names[0]: {called("x", 1): called("y", 2)}}, missing={called("z", 3): "lost"},
            columns=[title, genre], facts={called("f", 0): {called("f", 1): called("f", 2)}},
        )  # fmt: skip
        pages[hostile] = build(called("h", 5), called("l", 0), study)
    evil, tame = Page(pages[True]), Page(pages[False])
    assert evil.tags == tame.tags
    assert "alert(1)" in evil.words
    assert "\x00" not in pages[True]
    assert len(tame.tags) > 500


# the answer --------------------------------------------------------------------------------------


def test_the_answer_says_who_is_best_by_how_much_and_how_surely(study: Study) -> None:
    words = " ".join(Page(sentence(study)).words.split())
    first, second = (study.results[n][METRIC] for n in ("item_cf", "popular"))
    gap, margin = study.pairs.difference[0, 1], study.pairs.margin[0, 1]
    assert gap == pytest.approx(first - second)
    assert words.startswith(f"item_cf is the best of 2 on {METRIC}: {first:.4f} , {gap:.4f} above")
    assert f"popular (95 % {gap - margin:.4f} to {gap + margin:.4f})" in words
    assert study.ceiling is not None
    assert f"{100 * first / study.ceiling[METRIC]:.0f} % of the best possible" in words
    assert "Validation had chosen item_cf , too." in words


def test_models_that_cannot_be_told_apart_are_named(study: Study) -> None:
    best = study.results["item_cf"]
    every = {**study.results, "twin": shifted(best, -1e-6, 0.01), "low": shifted(best, -0.2, 0.01)}
    found = Study(every, METRIC, chosen="low")
    assert found.names == ("item_cf", "twin", "popular", "low")
    words = " ".join(Page(sentence(found)).words.split())
    assert "cannot be told apart from twin on these 288 users; it is" in words
    assert "above popular (95 %" in words
    assert re.search(r"Validation had chosen low , 0\.\d+ below, and can be told apart\.", words)
    alike = Study(dict.fromkeys("abcd", best), METRIC)
    assert "cannot be told apart from any of the others" in Page(sentence(alike)).words


def test_the_table_has_the_best_on_top_whatever_the_order_of_results(study: Study) -> None:
    rows = rows_of(answer(study))
    assert [row[0] for row in rows[1:]] == ["item_cf chosen", "popular", "best possible"]
    head = rows[0]
    assert head[1:4] == [f"{METRIC} bar: 95 % interval", "share of the best", "recall@20"]
    for name, row in zip(("item_cf", "popular"), rows[1:], strict=False):
        result = study.results[name]
        error = result.standard_error(METRIC)
        assert row[1] == f"{result[METRIC]:.4f} ±{error:.4f}"
        assert row[2] == f"{result[METRIC] / study.ceiling[METRIC]:.0%}"  # type: ignore[index]
        assert row[3] == f"{result['recall@20']:.4f}"
    assert "hit@20" not in head  # one target per user: it equals recall
    assert [row[-2] for row in rows[1:]] == ["20.0", "0.50", ""]
    assert [row[-1] for row in rows[1:]] == ["700", "", ""]


def test_bars_and_their_intervals_are_to_scale(study: Study) -> None:
    html = answer(study)
    fills = [float(x) for x in re.findall(r"<i style='width:([\d.]+)%'", html)]
    whiskers = re.findall(r"<u style='left:([\d.]+)%;width:([\d.]+)%'", html)
    every = [study.results["item_cf"], study.results["popular"], study.ceiling]
    assert None not in every
    highest = max(r[METRIC] + 1.96 * r.standard_error(METRIC) for r in every if r is not None)
    for fill, (low, wide), result in zip(fills, whiskers, every, strict=True):
        assert result is not None
        error = 196 * result.standard_error(METRIC) / highest
        assert fill == pytest.approx(100 * result[METRIC] / highest, abs=0.06)
        assert float(low) == pytest.approx(fill - error, abs=0.11)
        assert float(wide) == pytest.approx(2 * error, abs=0.11)
    assert re.findall(r"class='(bar[a-z ]*)'", html) == ["bar", "bar quiet", "bar quiet"]


def test_warnings_of_results_and_trainings_are_listed_once(study: Study) -> None:
    noted = {n: replace(r, notes=("one warning",)) for n, r in study.results.items()}
    ends, missing = {"item_cf": "stopped by the budget"}, {"ssm": "failed"}
    words = Page(answer(replace(study, results=noted, ends=ends, missing=missing))).words
    assert words.count("one warning") == 1
    assert " item_cf : stopped by the budget ssm : failed " in " ".join(words.split())


# the sections ------------------------------------------------------------------------------------


def test_the_matrix_says_who_beats_whom(study: Study) -> None:
    best = study.results["item_cf"]
    every = {**study.results, "twin": shifted(best, -1e-6, 0.01)}
    found = Study(every, METRIC)
    rows = rows_of(duels(found))
    assert [row[0] for row in rows[1:]] == ["item_cf 1", "twin 2", "popular 3"]
    signs = [[cell[:1] for cell in row[1:4]] for row in rows[1:]]
    assert signs == [["", "=", "▲"], ["=", "", "▲"], ["▼", "▼", ""]]
    assert [row[4:] for row in rows[1:]] == [["1", "1", "0"], ["1", "1", "0"], ["0", "0", "2"]]
    gap = found.pairs.difference[0, 2]
    assert rows[1][3] == f"▲ +{gap:.4f}".replace("0.", ".")
    assert "all 3 pairs at once" in duels(found)
    many = Study({f"m{i}": shifted(best, -i / 10, 0.01) for i in range(9)}, METRIC)
    assert rows_of(duels(many))[1][1:4] == ["", "▲", "▲"]
    assert duels(Study({"a": best}, METRIC)) == ""


@pytest.mark.parametrize("seed", range(5))
def test_the_front_holds_the_models_that_none_beats_on_both(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dots = [
        Dot(str(i), float(s), float(v), 0.0, i)
        for i, (s, v) in enumerate(rng.integers(1, 9, (12, 2)))
    ]

    def beaten(one: Dot) -> bool:
        return any(
            o.seconds <= one.seconds and o.value >= one.value
            and (o.seconds, o.value) != (one.seconds, one.value)
            for o in dots
        )  # fmt: skip

    wanted = {(d.seconds, d.value) for d in dots if not beaten(d)}
    found = pareto(dots)
    assert {(d.seconds, d.value) for d in found} == wanted
    assert len(found) == len(wanted)
    assert [d.seconds for d in found] == sorted(d.seconds for d in found)


def test_the_plane_has_a_logarithmic_axis_of_seconds_and_labels_that_do_not_meet(
    study: Study,
) -> None:
    best = study.results["item_cf"]
    every = {f"model {i}": shifted(best, -i / 200) for i in range(15)}
    seconds = {name: 10.0 ** (i % 4) for i, name in enumerate(every)} | {"model 0": 0.0}
    html = front(Study(every, METRIC, seconds=seconds))
    roomy = re.findall(r"<svg.*?</svg>", html)[0]
    dots = re.findall(r"<title>\d+\. (model \d+):.*?cx='([\d.]+)' cy='([\d.]+)'", roomy)
    x = {name: float(at) for name, at, _ in dots}
    assert len(x) == 15
    steps = [x["model 5"] - x["model 4"], x["model 6"] - x["model 5"], x["model 7"] - x["model 6"]]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)
    assert x["model 4"] - x["model 0"] == pytest.approx(-math.log10(LEAST) * steps[0], abs=0.2)
    places = re.findall(r"<text x='([\d.]+)' y='([\d.]+)' class='label", roomy)
    spots = [(float(a), float(b)) for a, b in places]
    assert len(spots) >= 10
    for i, (a, b) in enumerate(spots):
        assert all(abs(a - c) > 9 or abs(b - d) >= 12 for c, d in spots[i + 1 :])
    assert "model 0</bdi></b> (less than 0.01 s)" in html


def test_models_that_were_not_trained_here_are_named_beside_the_plane(study: Study) -> None:
    html = front(replace(study, results={**study.results, "mine": study.results["popular"]}))
    assert "Not trained here: mine ." in " ".join(Page(html).words.split())
    assert front(replace(study, seconds={"popular": 1.0})) == ""


def test_the_first_five_and_popular_are_shown_and_the_others_folded(study: Study) -> None:
    best = study.results["item_cf"]
    every = {f"m{i}": shifted(best, -i / 1000) for i in range(1, 9)} | study.results
    found = replace(study, results=every)
    assert found.few == ["item_cf", "m1", "m2", "m3", "m4", "popular"]
    for html in (groups(found), users(found), shelves(found)):
        assert html.count("<summary>4 further models</summary>") >= 1
        folded = re.findall(r"<details>.*?</details>", html, re.DOTALL)
        assert all("m5" in each and "popular<" not in each for each in folded)


def test_a_single_model_is_not_folded_away(study: Study) -> None:
    best = study.results["item_cf"]
    every = {f"m{i}": shifted(best, -i / 1000) for i in range(1, 9)} | study.results
    names = replace(study, results=every).names
    for number in (7, 8):
        few = replace(
            study, results={name: every[name] for name in (*names[: number - 1], "popular")}
        )
        assert len(few.rest) == (0 if number == 7 else 2)


def test_groups_hold_the_means_of_their_users_and_the_found_share_of_their_targets(
    study: Study, parts: sdx.Split
) -> None:
    html, result = groups(study), study.results["item_cf"]
    by_history = rows_of(html, 0)
    lengths, values = result.history_lengths, result.per_user[METRIC]
    low, high = (int(x) for x in by_history[0][1].split()[0].split("-"))
    mine = (lengths >= low) & (lengths <= high)
    assert by_history[0][1] == f"{low}-{high} {mine.sum()} users"
    assert by_history[1][:2] == ["item_cf", f"{values[mine].mean():.3f}"]
    by_class = rows_of(html, 1)
    assert [cell.split()[0] for cell in by_class[0][1:4]] == ["head", "middle", "tail"]
    by_category = rows_of(html, 2)
    assert [row[0] for row in by_category] == ["model", "item_cf", "popular", "best possible"]
    categories = parts.train.item_table["category"].to_pylist()  # type: ignore[index]
    lists = sdx.fit("item_cf", parts.train).search(
        parts.test.users, parts.test.history, 20, parts.test.masked
    )
    label = by_category[0][1].split()[0]
    asked = [
        (row, t) for row in range(len(parts.test)) for t in parts.test.targets[row]
        if categories[t] == label
    ]  # fmt: skip
    found = sum(t in lists[row] for row, t in asked)
    assert by_category[0][1] == f"{label} {len(asked)} targets"
    assert by_category[1][1] == f"{found / len(asked):.3f}"
    assert groups(replace(study, split=None)).count("<table") == 2


def test_an_item_of_several_categories_counts_in_each_once(study: Study, parts: sdx.Split) -> None:
    genres = [["x", "x", "y"] if i % 2 else ["y"] for i in range(parts.train.num_items)]
    train = replace(parts.train, item_table=pa.table({"genres": genres}))
    html = groups(replace(study, split=sdx.Split(train, parts.valid, parts.test)))
    head = rows_of(html, 2)[0]
    odd = int((parts.test.targets.ids % 2).sum())
    assert head[1:] == [f"y {len(parts.test.targets.ids)} targets", f"x {odd} targets"]


def test_the_best_models_of_each_group_are_marked(study: Study) -> None:
    for table in re.findall(r"<tbody>.*?</tbody>", groups(study)):
        rows = re.findall(r"<tr>.*?</tr>", table)
        cells = [re.findall(r"<td class='(.*?)'><span>(.*?)</span>", row) for row in rows]
        for *models, ceiling in zip(*cells, strict=True):
            best = max(value for _, value in models)
            assert [kind == "lens best" for kind, _ in models] == [v == best for _, v in models]
            assert ceiling[0] == "lens"


def test_shelves_are_those_of_a_loop_over_all_lists(
    study: Study, parts: sdx.Split, models: Mapping[str, sdx.Retriever]
) -> None:
    test, counts = parts.test, parts.train.item_counts
    lists = models["item_cf"].search(test.users, test.history, 20, test.masked)
    shown = [int(i) for row, each in enumerate(lists) if len(test.targets[row]) for i in each]
    result = study.results["item_cf"]
    times = np.bincount(shown, minlength=len(counts))
    np.testing.assert_array_equal(result.item_lists[20], times)
    found = shelf(result.item_lists[20], result.item_counts)
    assert found.coverage == pytest.approx(len(set(shown)) / len(counts))
    assert found.coverage == pytest.approx(result["coverage@20"])
    assert found.events == pytest.approx(np.mean([counts[i] for i in shown]))
    assert found.gini == pytest.approx(gini(times))
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    before = np.cumsum([0, *(counts[i] for i in order)])[:-1]
    tail = {i for i, b in zip(order, before, strict=True) if b >= 2 / 3 * counts.sum()}
    assert found.shares["tail"] == pytest.approx(np.mean([i in tail for i in shown]))
    assert sum(found.shares.values()) == pytest.approx(1.0)
    row = next(r for r in rows_of(shelves(study)) if r[0] == "item_cf")
    assert row[2:4] == [f"{found.shares['tail']:.1%}", f"{found.events:,.0f}"]
    assert row[-1] == f"{found.coverage:.1%}"


def test_the_overlap_is_the_mean_share_of_common_items(study: Study) -> None:
    one, other = (study.results[n].lists for n in ("item_cf", "popular"))
    both = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(one, other, strict=True)])
    rows = rows_of(shelves(study), 1)
    assert rows[1] == ["item_cf 1", "", f"{100 * both:.0f}"]
    assert rows[2] == ["popular 2", f"{100 * both:.0f}", ""]
    short = replace(study.results["popular"], lists=np.where(np.arange(10) < 5, other, -1))
    halves = replace(study, results={**study.results, "short": short})
    shared = rows_of(shelves(halves), 1)
    assert shared[2][3] == shared[3][2] == "50"  # of the longer list


# users -------------------------------------------------------------------------------------------


def test_results_keep_the_lists_of_at_most_a_thousand_users_the_same_for_every_model() -> None:
    world = sdx.synthetic.world(users=1500, items=40, seed=1, events=8)
    parts = sdx.split.leave_last(world.interactions())
    every = [sdx.fit(n, parts.train).evaluate(parts.test, 12) for n in ("popular", "item_cf")]
    model = sdx.fit("item_cf", parts.train)
    rows = np.flatnonzero(parts.test.targets.lengths)
    assert len(rows) > 1100
    for result in every:
        np.testing.assert_array_equal(result.sampled, every[0].sampled)
        assert len(np.unique(result.sampled)) == 1000
        assert result.lists.shape == (1000, 10)
    part = parts.test.take(rows[every[1].sampled])
    wanted = model.search(part.users, part.history, 10, part.masked)
    np.testing.assert_array_equal(every[1].lists, wanted)


def test_users_are_shown_with_their_history_targets_and_the_list_of_each_model(
    study: Study, parts: sdx.Split, models: Mapping[str, sdx.Retriever]
) -> None:
    html, test = users(study), parts.test
    articles = re.findall(r"<article.*?</article>", html, re.DOTALL)
    assert len(articles) == 3
    for pick, article in zip(picks(study), articles, strict=True):
        row = np.flatnonzero(test.targets.lengths)[study.best.sampled[pick.place]]
        user = parts.train.users.values[int(test.users[row])].as_py()
        assert f"User <bdi>{user}</bdi>" in article
        keys = parts.train.items.values
        chips = re.findall(r"<li class='chip ([a-z]*)'.*?<bdi>(.*?)</bdi>", article)
        history = [keys[int(i)].as_py() for i in test.history[row]][-12:]
        held = [keys[int(i)].as_py() for i in test.targets[row]]
        assert [key for kind, key in chips if not kind] == history
        assert [key for kind, key in chips if kind == "good"] == held
        shown = rows_of(article)
        assert shown[0] == ["rank", "item_cf", "popular"]
        for column, name in enumerate(shown[0][1:], 1):
            part = test.take(np.array([row]))
            best = models[name].search(part.users, part.history, 10, part.masked)[0]
            listed = [keys[int(i)].as_py() for i in best]
            cells = [each[column] for each in shown[1:]]
            assert [cell.split("held out: ")[-1].split()[0] for cell in cells] == listed
            marked = [cell.startswith("✓") for cell in cells]
            assert marked == [key in held for key in listed]


def test_three_users_are_one_whom_all_serve_one_whom_some_do_and_one_whom_none_does(
    study: Study,
) -> None:
    found = picks(study)
    served = {p.kind: sum(bool(h[p.place].any()) for h in study.hits.values()) for p in found}
    assert served == {
        "every model finds something": 2, "some models find something": 1,
        "no model finds anything": 0,
    }  # fmt: skip
    assert sum(p.share for p in found) == pytest.approx(1.0)
    lengths = study.best.history_lengths[study.best.sampled]
    every = [i for i in range(len(lengths)) if all(h[i].any() for h in study.hits.values())]
    assert lengths[found[0].place] == sorted(lengths[every])[len(every) // 2]
    one = Study({"a": study.best}, METRIC, split=study.split)
    assert len({p.place for p in picks(one)}) == 3
    assert {p.kind for p in picks(one)} == {"the model finds something", "the model finds nothing"}


def test_sessions_asked_several_times_are_shown_at_the_question_that_was_drawn() -> None:
    world = sdx.synthetic.world(users=120, items=40, seed=1, events=8)
    parts = sdx.split.next_item(world.interactions())
    result = sdx.fit("item_cf", parts.train).evaluate(parts.test, 10)
    study = Study({"item_cf": result}, "ndcg@10", split=parts)
    for place, row in enumerate(study.asked):
        hit = set(parts.test.targets[row]) & set(result.lists[place])
        assert bool(hit) == (result.per_user["hit@10"][result.sampled[place]] > 0)
    assert "User" in users(study)


@pytest.mark.parametrize("columns", [None, ["shade", "colour"]])
def test_items_are_called_by_the_columns_chosen(
    study: Study, parts: sdx.Split, columns: list[str] | None
) -> None:
    count = parts.train.num_items
    table = pa.table({
        "name": [f"name {i}" for i in range(count)], "shade": [f"shade {i}" for i in range(count)],
        "colour": [("red", "blue")[i % 2] for i in range(count)],
    })  # fmt: skip
    train = replace(parts.train, item_table=table)
    split = sdx.Split(train, parts.valid, parts.test)
    html = users(replace(study, split=split, columns=columns))
    assert ("<bdi>shade " in html, "<bdi>name " in html) == (columns is not None, columns is None)
    assert "<bdi>red</bdi>" in html


# curves ------------------------------------------------------------------------------------------


def test_each_model_has_its_own_axes_and_the_epoch_that_was_kept_is_marked(study: Study) -> None:
    records = {
        "item_cf": [{"loss": 1e3 * (0.9 - m), "metric": m} for m in (0.1, 0.3, 0.2)],
        "popular": [{"loss": v} for v in (0.002, 0.001)],
    }
    html = curves(replace(study, training=records, ends={"item_cf": "stopped"}))
    cards = re.findall(r"<div class='card'>.*?(?=<div class='card'>|$)", html, re.DOTALL)
    assert [">800<" in card for card in cards] == [True, False]
    assert ["0.002" in card for card in cards] == [False, True]
    assert "epoch 2 of 3, stopped" in cards[0]
    assert "epoch 2 of 2" in cards[1]
    for card, number in zip(cards, (3, 2), strict=True):
        for points, x, y in re.findall(
            r"<polyline points='([^']*)' class='series'/><circle class='dot' cx='(.*?)' cy='(.*?)'",
            card,
        ):
            way = [tuple(map(float, point.split(","))) for point in points.split()]
            assert len(way) == number
            assert way[1] == (float(x), float(y))
            assert max(b for _, b in way) - min(b for _, b in way) > 50  # its own scale
            assert all(a < b for (a, _), (b, _) in pairwise(way))
    assert curves(replace(study, training={})) == ""


@pytest.mark.parametrize(
    ("metrics", "kept"), [([0.1, 0.3, 0.3, 0.2], 1), ([0.5], 0), ([None, None], 1)]
)
def test_the_epoch_kept_is_the_first_of_the_best_metric_else_the_last(
    metrics: list[float | None], kept: int
) -> None:
    records = [{"loss": 1.0} | ({} if m is None else {"metric": m}) for m in metrics]
    assert kept_epoch(records) == kept


def test_the_protocol_card_says_how_it_was_made(page: str, parts: sdx.Split) -> None:
    words = Page(page).words
    for each in (parts.card.sha256, parts.card.data_sha256, "leave_last", "softdex compare"):
        assert each in words
    for name, count in parts.card.counts.items():
        assert f" {name} {count:,}" in words
    assert "none" not in re.findall(r"<dt>(.*?)</dt>", page)
