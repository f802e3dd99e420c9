"""What the views of the page show: each number against plain loops over a small world."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch

import softdex as sdx
from serving import Answer, Client
from softdex.data.describe import gini
from softdex.index.contract import Filter
from softdex.index.imi.index import Imi
from softdex.index.tree.tree import Tree
from softdex.model.asking import query_of, who
from softdex.serve.endpoints import ENDPOINTS
from softdex.serve.problems import Problem
from softdex.serve.study import Study, some
from softdex.serve.view_words import Breakdown, GroupUsers
from softdex.serve.views import (
    breakdown,
    effort,
    exposure,
    inside,
    layout,
    sampler,
    training,
)

K = 10


@pytest.fixture(scope="module")
def world() -> sdx.synthetic.World:
    return sdx.synthetic.world(users=150, items=80, seed=5, events=18, strength=1.5)


@pytest.fixture(scope="module")
def split(world: sdx.synthetic.World) -> sdx.Split:
    """A split of a log with a column of categories, some items of which have two."""
    log = world.interactions()
    table = world.item_table()
    first, more = table["category"].to_pylist(), table["subcategory"].to_pylist()
    both = [[a, b] if i % 3 else [a] for i, (a, b) in enumerate(zip(first, more, strict=True))]
    items = pa.table({"item": log.items.all(), "genre": both})
    log = sdx.read(log.to_arrow(), items=items, quiet=True)
    return sdx.split.per_user(log, (0.7, 0.1, 0.2), order="time")


@pytest.fixture(scope="module")
def solved(split: sdx.Split) -> Study:
    return Study(sdx.fit("rg2", split.train, dim=6), None, split.test)


@pytest.fixture(scope="module")
def drawn(split: sdx.Split) -> Study:
    """A model that is trained with a multi-index and serves by it, at an effort that loses."""
    model = sdx.fit(
        "ssm", split.train, dim=6, epochs=3, index="imi_popularity", codewords=4, negatives=20,
        device="cpu",
    )  # fmt: skip
    index: Any = model.index
    model.index = Imi(model.index.scorer, **(index.state() | {"effort": torch.tensor(12.0)}))
    return Study(model, None, split.test)


@pytest.fixture(scope="module")
def treed(split: sdx.Split) -> Study:
    model = sdx.fit(
        "dtr", split.train, dim=4, epochs=1, leaves="random", beam=6, sampling="tree", device="cpu"
    )
    return Study(model, None, split.test)


def user_of(study: Study, row: int) -> np.ndarray:
    """The user of a row of the holdout as `evaluate` asks: closed forms fold later events in."""
    user, past = study.holdout.users[row], study.holdout.history[row]
    anew = study.model.encoder.history_first and len(past) > len(study.model.seen[int(user)])
    return np.array([-1 if anew else user])


def lists_of(study: Study, k: int) -> list[list[int]]:
    """The list of each user of the holdout with targets, one search per user."""
    held, model = study.holdout, study.model
    found = []
    for row in np.flatnonzero(held.targets.lengths):
        at = np.array([row])
        ids = model.search(user_of(study, int(row)), held.history.take(at), k, held.masked.take(at))
        found.append([i for i in ids[0].tolist() if i >= 0])
    return found


def targets_of(study: Study) -> list[list[int]]:
    held = study.holdout
    return [list(dict.fromkeys(held.targets[int(r)])) for r in np.flatnonzero(held.targets.lengths)]


# popularity --------------------------------------------------------------------------------------


def test_exposure_counts_what_loops_count(solved: Study) -> None:
    found, lists = exposure.exposure(solved, K, ""), lists_of(solved, K)
    counts = Counter(item for each in lists for item in each)
    items, events = len(solved.model.items), solved.model.item_counts.tolist()
    places = [counts[i] for i in range(items)]
    assert (found["lists"], found["places"], found["items"]) == (len(lists), sum(places), items)
    assert found["listed"] == len(counts)
    for name, values in (("places", places), ("events", events)):
        gaps = sum(abs(a - b) for a in values for b in values)
        assert found["gini"][name] == pytest.approx(gaps / (2 * items * sum(values)))
        rising = np.cumsum([0, *sorted(values)])
        curve = [rising[j * items // 100] / sum(values) for j in range(101)]
        assert found["curve"][name] == pytest.approx(curve, abs=1e-6)
    most, need = sorted(places, reverse=True), 0
    while sum(most[:need]) < sum(places) / 2:
        need += 1
    assert found["half"] == need


def test_the_tail_is_the_items_of_the_last_third_of_the_events(solved: Study) -> None:
    found, counts = exposure.exposure(solved, K, ""), solved.model.item_counts
    order, seen = np.argsort(-counts, kind="stable").tolist(), 0
    tail = []
    for item in order:
        if seen / counts.sum() >= 2 / 3 and counts[item]:
            tail.append(item)
        seen += counts[item]
    row = next(each for each in found["classes"] if each["name"] == "tail")
    listed = [item for each in lists_of(solved, K) for item in each]
    share = sum(item in set(tail) for item in listed) / len(listed)
    assert (row["items"], row["places"]) == (len(tail), pytest.approx(share))
    assert row["events"] == pytest.approx(counts[tail].sum() / counts.sum())
    for name in ("places", "events"):
        assert sum(each[name] for each in found["classes"]) == pytest.approx(1)
        assert sum(each[name] for each in found["tenths"]) == pytest.approx(1)
    first = found["tenths"][0]
    assert first["low"] >= found["tenths"][1]["high"]
    assert first["places"] == pytest.approx(
        sum(item in order[: first["items"]] for item in listed) / len(listed)
    )


def test_popularity_top_items_and_values_are_what_loops_count(solved: Study) -> None:
    found, lists = exposure.exposure(solved, K, "genre"), lists_of(solved, K)
    model, counts = solved.model, solved.model.item_counts
    listed = [item for each in lists for item in each]
    past = [
        int(item)
        for row in np.flatnonzero(solved.holdout.targets.lengths)
        for item in solved.holdout.history[int(row)]
    ]

    def rank(items: list[int]) -> float:
        return float(np.mean([(counts <= counts[item]).mean() for item in items]))

    assert found["popularity"]["lists"] == pytest.approx(rank(listed))
    assert found["popularity"]["histories"] == pytest.approx(rank(past))
    assert model.item_table is not None
    genres = model.item_table["genre"].to_pylist()
    for row in found["values"]:
        for name, items in (("places", listed), ("histories", past)):
            share = sum(row["value"] in genres[item] for item in items) / len(items)
            assert row[name] == pytest.approx(share), (name, row)
    _, times = Counter(listed).most_common(1)[0]
    assert found["top"][0]["share"] == times / len(lists)
    top = model.items.lookup([found["top"][0]["item"]])[0]
    assert Counter(listed)[top] == times
    assert found["top"][0]["events"] == counts[top]
    assert found["top"][0]["rank"] - 1 <= sum(counts > counts[top]) + sum(counts == counts[top])


def test_without_a_holdout_the_lists_are_what_users_get_and_metrics_are_refused(
    solved: Study,
) -> None:
    study = Study(solved.model, None, None)
    found = exposure.exposure(study, K, "")
    users = np.flatnonzero(solved.model.seen.lengths)
    keys = solved.model.users.take(users)
    own = solved.model.recommend(keys, k=K)["item"].to_pylist()
    assert not found["held_out"]
    assert (found["lists"], found["listed"]) == (len(users), len(set(own)))
    with pytest.raises(Problem, match="not known what was held out"):
        breakdown.breakdown(study, Breakdown())


def test_gini_of_equal_values_is_0_and_of_one_that_has_all_nearly_1() -> None:
    assert gini(np.full(10, 3)) == 0
    assert gini(np.array([0] * 99 + [5])) == pytest.approx(0.99)
    assert gini(np.zeros(4)) == 0


# breakdown ---------------------------------------------------------------------------------------


def per_target(study: Study, k: int) -> list[tuple[int, int, bool]]:
    """(user, held-out item, whether it is in the user's list) of every held-out item."""
    users = study.holdout.users[np.flatnonzero(study.holdout.targets.lengths)].tolist()
    rows = zip(users, targets_of(study), lists_of(study, k), strict=True)
    return [(user, int(t), t in mine) for user, targets, mine in rows for t in targets]


def bootstrapped(rows: list[tuple[int, float]]) -> float:
    """The standard error of a mean over rows of users, who are drawn with replacement."""
    users = sorted({user for user, _ in rows})
    gain = np.array([sum(v for u, v in rows if u == user) for user in users])
    count = np.array([sum(u == user for u, _ in rows) for user in users])
    draw = np.random.default_rng(0).integers(len(users), size=(4000, len(users)))
    return float((gain[draw].sum(1) / count[draw].sum(1)).std())


def test_a_metric_by_history_is_the_mean_of_its_users(solved: Study) -> None:
    found = breakdown.breakdown(solved, Breakdown(by="history", metric="ndcg@10"))
    result = solved.result
    assert found["whole"]["value"] == pytest.approx(result["ndcg@10"])
    error = result.standard_error("ndcg@10")
    assert found["whole"]["high"] - found["whole"]["value"] == pytest.approx(1.96 * error)
    lengths, values = result.history_lengths, result.per_user["ndcg@10"].astype(float)
    assert sum(each["users"] for each in found["groups"]) == len(values)
    for each in found["groups"]:
        low, _, high = each["name"].partition("-")
        mine = (lengths >= int(low.rstrip("+"))) & (lengths <= int(high or 10**9))
        assert (each["users"], each["value"]) == (mine.sum(), pytest.approx(values[mine].mean()))
        if each["users"] > 1:
            error = values[mine].std(ddof=1) / math.sqrt(mine.sum())
            assert each["low"] == pytest.approx(max(0, each["value"] - 1.96 * error))
        else:
            assert each["low"] is None


@pytest.mark.parametrize("by", ["popularity", "category"])
def test_recall_by_groups_of_items_is_the_share_of_them_that_is_found(
    by: str, solved: Study
) -> None:
    found = breakdown.breakdown(solved, Breakdown(by=by, metric="recall@10"))
    rows, model = per_target(solved, 10), solved.model
    assert found["whole"]["value"] == pytest.approx(np.mean([hit for *_, hit in rows]))
    assert model.item_table is not None
    genres = model.item_table["genre"].to_pylist()

    def holds(name: str, item: int) -> bool:
        if by == "category":
            return name in genres[item]
        low, _, high = name.partition("-")
        return int(low.rstrip("+")) <= model.item_counts[item] <= int(high or low)

    for each in found["groups"]:
        mine = [(user, float(hit)) for user, item, hit in rows if holds(each["name"], item)]
        assert each["count"] == len(mine)
        assert each["users"] == len({user for user, _ in mine})
        assert each["value"] == pytest.approx(np.mean([hit for _, hit in mine]))
        assert each["items"] == sum(holds(each["name"], i) for i in range(len(model.items)))
        if each["users"] > 30 and 0.05 < each["value"] < 0.95:
            error = (each["high"] - each["value"]) / 1.96
            assert error == pytest.approx(bootstrapped(mine), rel=0.15)


@pytest.mark.parametrize(("order", "sign"), [("worst", 1), ("best", -1)])
def test_the_users_of_a_group_are_its_own_in_the_order_asked_for(
    order: str, sign: int, solved: Study
) -> None:
    group = breakdown.breakdown(solved, Breakdown(by="category"))["groups"][0]["name"]
    asked = GroupUsers(group=group, by="category", metric="recall@20", order=order, limit=7)
    found = breakdown.group_users(solved, asked)
    model = solved.model
    assert model.item_table is not None
    genres = model.item_table["genre"].to_pylist()
    mine: dict[Any, list[bool]] = {}
    for user, item, hit in per_target(solved, 20):
        if group in genres[item]:
            mine.setdefault(model.users.take(np.array([user]))[0].as_py(), []).append(hit)
    assert found["users"] == len(mine)
    assert len(found["rows"]) == 7
    for row in found["rows"]:
        hits = mine[row["user"]]
        assert (row["value"], row["count"]) == (np.mean(hits), len(hits))
    best = sorted(sign * float(np.mean(hits)) for hits in mine.values())[:7]
    assert [sign * row["value"] for row in found["rows"]] == best
    with pytest.raises(Problem, match="no group"):
        breakdown.group_users(solved, GroupUsers(group="x", by="category"))


# effort ------------------------------------------------------------------------------------------


def exact_of(study: Study, row: int, k: int) -> list[int]:
    """The exact list of a row of the holdout: all items by their score, without masked ones."""
    held, model = study.holdout, study.model
    at = np.array([row])
    query = query_of(model, user_of(study, row), held.history.take(at))
    with torch.inference_mode():
        scores = model.index.score(query, torch.arange(len(model.items)))[0].double()
    scores = scores.clone()
    scores[held.masked[row].astype(np.int64)] = -math.inf
    order = scores.sort(descending=True, stable=True).indices[:k]
    return [int(i) for i in order if scores[i] > -math.inf]


@pytest.mark.parametrize("kind", ["drawn", "treed", "solved"])
def test_recall_by_effort_is_what_searches_find_of_sorted_scores(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "USERS", 25)
    monkeypatch.setattr(effort, "TIMED", 2)
    study: Study = request.getfixturevalue(kind)
    found, held = effort.effort(study, K), study.holdout
    assert (found["index"], found["serves"]) == (
        "tree" if kind == "treed" else "imi",
        kind != "solved",
    )
    assert found["present"] == {"drawn": 12, "treed": 6, "solved": None}[kind]
    rows = some(np.flatnonzero(held.targets.lengths), 25).tolist()
    assert found["users"] == 25
    index = effort.tried(study).index
    exact = [exact_of(study, row, K) for row in rows]
    for point in found["points"]:
        recalls = []
        for row, best in zip(rows, exact, strict=True):
            at = np.array([row])
            query = query_of(study.model, user_of(study, row), held.history.take(at))
            filter = Filter(held.masked.take(at))
            ids = index.search(query, K, filter=filter, effort=point["effort"]).ids[0].tolist()
            recalls.append(len(set(ids) & set(best)) / len(best))
        assert point["recall"] == pytest.approx(np.mean(recalls))
        assert point["ms"] > 0
    assert found["exact"]["recall"] == 1
    assert min(each["recall"] for each in found["points"]) < 1
    held = held.take(np.array(rows))
    own = study.model.evaluate(held, k=K, index="exact")
    assert found["exact"]["ndcg_held"] == pytest.approx(own[f"ndcg@{K}"])
    assert found["exact"]["recall_held"] == pytest.approx(own[f"recall@{K}"])
    if found["serves"]:
        served = study.model.evaluate(held, k=K)
        point = next(each for each in found["points"] if each["effort"] == found["present"])
        assert point["ndcg_held"] == pytest.approx(served[f"ndcg@{K}"])


def test_the_list_at_an_effort_has_exact_ranks_and_what_it_misses(drawn: Study) -> None:
    model = drawn.model
    key = model.users.take(np.array([3]))[0].as_py()
    asked = who(model, "effort", [key], None)
    found = effort.effort_list(drawn, asked, K, 8.0)
    hits = model.index.search(
        query_of(model, asked.rows, asked.history), K, effort=8.0,
        filter=Filter(asked.history),
    )  # fmt: skip
    with torch.inference_mode():
        query = query_of(model, asked.rows, asked.history)
        scores = model.index.score(query, torch.arange(len(model.items)))[0]
    scores = scores.clone()
    scores[asked.history.ids.astype(np.int64)] = -math.inf
    best = scores.sort(descending=True, stable=True).indices[:K].tolist()
    keys = model.items.all().to_pylist()
    assert [row["item"] for row in found["items"]] == [keys[i] for i in hits.ids[0].tolist()]
    assert [row["exact"] for row in found["items"]] == [
        best.index(i) + 1 if i in best else None for i in hits.ids[0].tolist()
    ]
    lost = [i for i in best if i not in hits.ids[0].tolist()]
    assert lost
    assert found["lost"] == [{"item": keys[i], "exact": best.index(i) + 1} for i in lost]
    assert found["recall"] == (K - len(lost)) / K
    assert effort.effort_list(drawn, asked, K, math.inf)["lost"] == []


def test_a_model_without_vectors_and_index_has_no_effort(split: sdx.Split) -> None:
    study = Study(sdx.fit("item_cf", split.train), None, split.test)
    with pytest.raises(Problem, match="no index but the exact one"):
        effort.effort(study, K)
    with pytest.raises(Problem, match="no item vectors"):
        sampler.made(study)


# sampler -----------------------------------------------------------------------------------------


def law_of(study: Study, key: Any, temperature: float) -> tuple[np.ndarray, Any]:
    """log p of every item for a user, from scores and nothing else; and the user."""
    model = study.model
    asked = who(model, "sampler", [key], None)
    with torch.inference_mode():
        query = query_of(model, asked.rows, asked.history)
        scores = model.index.score(query, torch.arange(len(model.items)))[0].double().numpy()
    scores = scores / temperature
    return scores - np.log(np.exp(scores).sum()), asked


def proposals_of(found: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in found["proposals"]}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_divergence_and_effective_draws_are_sums_over_all_items(
    temperature: float, drawn: Study
) -> None:
    logp, asked = law_of(drawn, "u007", temperature)
    found = sampler.sampler(drawn, asked, temperature)
    model, items = drawn.model, len(drawn.model.items)
    counts = model.item_counts.astype(float)
    index: Any = model.index
    popular = (counts + 1) ** 0.5
    with torch.inference_mode():
        query = query_of(model, asked.rows, asked.history)
        query = index.scorer.project(query)[0].double() / temperature
    prior = index.scorer.offsets(slice(None)).double() / temperature

    def by_words(index: Any, logw: torch.Tensor) -> np.ndarray:
        words, cell = index.words.double(), index.cell.long()
        inner = query * (words[0][cell // 4] + words[1][cell % 4])
        return np.exp(inner.sum(1).numpy() + logw.double().numpy())

    weights = {
        "uniform": np.ones(items),
        "popularity": popular,
        "imi_popularity": by_words(index, index.logw),
        "imi_uniform": by_words(sampler.made(drawn).indexes["imi_uniform"], prior),
    }
    shown = proposals_of(found)
    assert shown.keys() == weights.keys()
    assert [name for name, each in shown.items() if each["own"]] == ["imi_popularity"]
    for name, weight in weights.items():
        q, p = weight / weight.sum(), np.exp(logp)
        assert shown[name]["kl"] == pytest.approx((q * np.log(q / p)).sum(), rel=1e-4), name
        assert shown[name]["effective"] == pytest.approx(1 / (p**2 / q).sum(), rel=1e-4), name
    entropy = -(np.exp(logp) * logp).sum()
    assert found["perplexity"] == pytest.approx(math.exp(entropy))


def test_curves_are_means_over_ranges_of_ranks_and_hold_all_of_each_law(drawn: Study) -> None:
    logp, asked = law_of(drawn, "u007", 1.0)
    found = sampler.sampler(drawn, asked, None)
    order = np.argsort(-logp, kind="stable")
    counts = drawn.model.item_counts
    popular = (counts + 1.0) ** 0.5
    popular /= popular.sum()
    assert found["ranks"][0][0] == 1
    assert found["ranks"][-1][1] == len(logp)
    for i, (first, last) in enumerate(found["ranks"]):
        mine = order[first - 1 : last]
        assert found["p"][i] == pytest.approx(np.exp(logp[mine]).mean(), rel=1e-6)
        q = proposals_of(found)["popularity"]["q"][i]
        assert q == pytest.approx(popular[mine].mean(), rel=1e-5)
    sizes = [last - first + 1 for first, last in found["ranks"]]
    for each in found["proposals"]:
        assert np.dot(sizes, each["q"]) == pytest.approx(1, abs=1e-5)


def test_the_proposal_of_a_model_is_its_index_at_the_temperature_it_was_trained_with(
    drawn: Study,
) -> None:
    _, asked = law_of(drawn, "u003", 1.0)
    _, _, laws = sampler._laws(drawn, asked, None)
    query = query_of(drawn.model, asked.rows, asked.history)
    own = drawn.model.index.log_prob(query, torch.arange(len(drawn.model.items)))[0]
    assert torch.allclose(laws["imi_popularity"].float(), own, atol=1e-5)


def test_walks_are_drawn_as_the_tree_says_and_its_leaves_make_the_softmax(treed: Study) -> None:
    logp, asked = law_of(treed, "u007", 1.0)
    tree: Any = treed.model.index
    assert isinstance(tree, Tree)
    query = query_of(treed.model, asked.rows, asked.history)
    every = torch.arange(len(treed.model.items))
    with torch.inference_mode():
        walked = tree.log_prob(query, every)[0]
        assert torch.allclose(sampler.walks(tree, query).float(), walked, atol=1e-5)
    found = sampler.sampler(treed, asked, None)
    q, p = np.exp(walked.double().numpy()), np.exp(logp)
    shown = proposals_of(found)["tree"]
    assert shown["kl"] == pytest.approx((q * np.log(q / p)).sum(), rel=1e-3)
    assert shown["own"]
    assert not found["scales"]


def test_a_closed_form_is_shown_at_the_temperature_that_fits_what_was_held_out(
    solved: Study, split: sdx.Split
) -> None:
    _, asked = law_of(solved, "u003", 1.0)
    found = sampler.sampler(solved, asked, None)
    model = sdx.fit("rg2", split.train, dim=6)
    model.calibrate(split.test, leak="allow")
    assert found["fitted"]
    assert found["temperature"] == pytest.approx(model.temperature)
    assert not any(each["own"] for each in found["proposals"])


@pytest.mark.parametrize("name", ["uniform", "popularity", "imi_popularity", "imi_uniform"])
def test_draws_have_the_probability_of_their_law_and_weights_of_the_softmax(
    name: str, drawn: Study
) -> None:
    logp, asked = law_of(drawn, "u007", 1.0)
    found = sampler.draws(drawn, asked, name, 40, 3, None)
    assert sampler.draws(drawn, asked, name, 40, 3, None) == found
    rows = drawn.model.items.lookup([each["item"] for each in found["draws"]])
    _, _, laws = sampler._laws(drawn, asked, None)
    logq = laws[name].numpy()
    assert [each["log_q"] for each in found["draws"]] == pytest.approx(logq[rows], abs=1e-4)
    assert [each["log_p"] for each in found["draws"]] == pytest.approx(logp[rows], abs=1e-5)
    weight = np.exp(logp[rows] - logq[rows])
    assert [each["weight"] for each in found["draws"]] == pytest.approx(
        weight / weight.sum(), rel=1e-3
    )
    assert found["effective"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum(), rel=1e-3)
    assert found["distinct"] == len(set(rows.tolist()))
    assert found["estimates"][-1][0] == 40
    estimate = found["normaliser"] + math.log(weight.mean())
    assert found["estimates"][-1][1] == pytest.approx(estimate, abs=1e-3)


def test_many_draws_are_worth_what_is_expected_of_them(drawn: Study) -> None:
    _, asked = law_of(drawn, "u007", 1.0)
    found = sampler.draws(drawn, asked, "imi_popularity", 10_000, 1, None)
    assert found["effective"] == pytest.approx(found["expected"], rel=0.05)
    assert found["estimates"][-1][1] == pytest.approx(found["normaliser"], abs=0.05)


# inside ------------------------------------------------------------------------------------------


def test_cells_hold_the_law_the_softmax_and_what_a_search_opens(drawn: Study) -> None:
    logp, asked = law_of(drawn, "u007", 1.0)
    found = inside.inside(drawn, asked, K, None)
    model, index = drawn.model, effort.tried(drawn).index
    query = query_of(model, asked.rows, asked.history)
    every = torch.arange(len(model.items))
    q = index.log_prob(query, every)[0].double().exp().numpy()
    with torch.inference_mode():
        words = index.scorer.project(query)[0] @ index.words.transpose(1, 2)
    order = [(-each).argsort(stable=True).tolist() for each in words]
    cells = {(a, b): order[0].index(a) * 4 + order[1].index(b) for a in range(4) for b in range(4)}
    own = [cells[divmod(int(cell), 4)] for cell in index.cell]
    for name, values in (("mass", q), ("softmax", np.exp(logp)), ("cells", np.ones(len(q)))):
        sums = [sum(v for v, c in zip(values, own, strict=True) if c == cell) for cell in range(16)]
        assert found[name] == pytest.approx(sums, rel=1e-3, abs=1e-12), name
    assert (found["kind"], found["serves"], found["side"], found["effort"]) == ("imi", True, 4, 12)
    seen = set(asked.history.ids.tolist())
    opened = {cell for cell in range(16) if found["opened"][cell]}
    free = sum(own[i] in opened and i not in seen for i in range(len(own)))
    assert 12 <= free < len(own) - len(seen)
    assert found["looked"] == sum(found["opened"]) == sum(cell in opened for cell in own)
    listed = model.index.search(query, K, filter=Filter(asked.history)).ids[0].tolist()
    keys = model.items.all().to_pylist()
    assert found["listed"] == [[keys[i], own[i]] for i in listed]
    assert {cell for _, cell in found["listed"]} <= opened
    assert {key for key, _ in found["history"]} == {keys[i] for i in seen}
    wide = inside.inside(drawn, asked, K, 60.0)
    assert wide["looked"] > found["looked"]


def test_many_codewords_are_shown_in_blocks(drawn: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = law_of(drawn, "u007", 1.0)
    whole = np.array(inside.inside(drawn, asked, K, None)["mass"]).reshape(4, 4)
    monkeypatch.setattr(inside, "SIDE", 2)
    found = inside.inside(drawn, asked, K, None)
    blocks = whole.reshape(2, 2, 2, 2).sum((1, 3)).ravel()
    assert found["side"] == 2
    assert found["mass"] == pytest.approx(blocks, rel=1e-3)


def test_the_beam_is_that_of_the_search_level_by_level(treed: Study) -> None:
    model = treed.model
    asked = who(model, "inside", ["u007"], None)
    found = inside.inside(treed, asked, 5, None)
    own = model.recommend(["u007"], k=5)["item"].to_pylist()
    assert [each["item"] for each in found["items"]] == [str(key) for key in own]
    tree: Any = model.index
    assert [level["size"] for level in found["levels"]] == tree.living
    for level in found["levels"]:
        led = [rank for node in level["nodes"] for rank in node["leads"]]
        assert sorted(led) == [1, 2, 3, 4, 5]
        assert all(0 <= node["x"] <= 1 for node in level["nodes"])
    xs = [node["x"] for node in found["levels"][-1]["nodes"]]
    assert xs == sorted(xs)


# map ---------------------------------------------------------------------------------------------


def test_a_map_keeps_neighbours_together_better_than_a_plane(
    solved: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "AROUND", 15)
    found, model = layout.item_map(solved, "genre"), solved.model
    assert sorted(found["items"]) == sorted(model.items.all().to_pylist())
    assert found["events"] == model.item_counts[model.items.lookup(found["items"])].tolist()
    assert 0 <= min(*found["x"], *found["y"]) <= max(*found["x"], *found["y"]) <= 10_000
    places = np.array([found["x"], found["y"]]).T
    rows: Any = model.index.vectors()
    near = torch.nn.functional.normalize(rows.detach(), dim=1)
    near = (near @ near.T).fill_diagonal_(-2).argsort(1, descending=True)[:, :10].numpy()
    order = model.items.lookup(found["items"])
    at = np.empty((len(order), 2))
    at[order] = places
    hits = []
    for i in range(len(at)):
        far = ((at - at[i]) ** 2).sum(1)
        around = set(np.argsort(far, kind="stable")[:16].tolist()) - {i}
        hits += [j in around for j in near[i].tolist()]
    assert found["kept"] == pytest.approx(np.mean(hits), abs=0.02)
    assert found["kept"] > found["plane"]
    assert model.item_table is not None
    genres = model.item_table["genre"].to_pylist()
    for row, value in zip(order.tolist(), found["value"], strict=True):
        shown = [found["values"].index(g) for g in genres[row] if g in found["values"]]
        assert value == max(shown, default=-1)


def test_a_map_is_always_the_same_and_samples_a_large_catalogue(
    solved: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ROUNDS", 5)
    monkeypatch.setattr(layout, "ANCHORS", 30)
    monkeypatch.setattr(layout, "POINTS", 50)
    studies = [Study(solved.model, None, None) for _ in range(2)]
    one, other = (layout.item_map(each, "") for each in studies)
    assert one == other
    assert len(one["items"]) == len(set(one["items"])) == 50
    popular = np.argsort(-solved.model.item_counts, kind="stable")[:15]
    assert set(studies[0].keys(popular)) <= set(one["items"][:30])
    assert one["of"] == len(solved.model.items)


def test_counts_of_neighbours_make_a_map_too_and_popularity_does_not(
    split: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ROUNDS", 20)
    counted = Study(sdx.fit("item_cf", split.train), None, None)
    found = layout.item_map(counted, "")
    assert found["kept"] > 0.5
    assert found["column"] == "genre"
    with pytest.raises(sdx.errors.SoftdexError, match="knows no similarity"):
        layout.item_map(Study(sdx.fit("popular", split.train), None, None), "")


# training ----------------------------------------------------------------------------------------


def test_training_is_the_log_of_the_run_without_what_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"epoch": 1, "loss": 2.5}\n[1]\nnull\n{"epoch": 2, "lo')
    assert training.records(file) == [{"epoch": 1, "loss": 2.5}]
    assert training.records(tmp_path / "none.jsonl") == []


def test_without_a_run_folder_training_is_what_the_card_says(drawn: Study, solved: Study) -> None:
    found = training.training(drawn)
    assert (found["source"], found["recipe"], found["metric"]) == ("card", "ssm", "ndcg@20")
    assert [each["epoch"] for each in found["records"]] == [1, 2, 3]
    assert {"loss", "kl", "ess"} <= found["records"][0].keys()


# over a connection -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(drawn: Study, solved: Study, split: sdx.Split) -> Iterator[Client]:
    models = {"drawn": drawn.model, "solved": solved.model}
    with sdx.look(models, split.test, browser=False) as serving:
        found = Client(serving.url)
        yield found
        found.close()


def asked(client: Client, path: str, body: Any = None) -> Answer:
    """Ask until it is computed."""
    while True:
        found = client.get(path) if body is None else client.post(path, body)
        if found.status != 202:
            return found
        assert found.json == {"working": True}


CALLS: list[tuple[str, Any]] = [
    ("/v1/study/exposure?k=10", None),
    ("/v1/study/breakdown?by=history", None),
    ("/v1/study/breakdown?by=category&metric=recall@10", None),
    ("/v1/study/breakdown/users?group=30-99&by=popularity", None),
    ("/v1/study/effort?k=5", None),
    ("/v1/study/effort", {"user": "u003", "k": 5, "effort": 8.0}),
    ("/v1/study/effort", {"user": "u003", "exact": True}),
    ("/v1/study/sampler", {"user": "u003"}),
    ("/v1/study/sampler/draws", {"user": "u003", "proposal": "uniform", "n": 5}),
    ("/v1/study/inside", {"user": "u003", "k": 5}),
    ("/v1/study/map?", None),
    ("/v1/study/training?", None),
]


@pytest.mark.parametrize("model", ["drawn", "solved"])
@pytest.mark.parametrize(("path", "body"), CALLS, ids=str)
def test_an_answer_names_its_model_and_has_the_fields_of_its_type(
    path: str, body: Any, model: str, client: Client
) -> None:
    if body is None:
        found = asked(client, f"{path}&model={model}")
    else:
        found = asked(client, path, {**body, "model": model})
    assert (found.status, found.json["model"]) == (200, model)
    assert found.json["seal"] == found.headers["x-model-seal"]
    method, at = "GET" if body is None else "POST", path.partition("?")[0]
    [endpoint] = [each for each in ENDPOINTS if (each.method, each.path) == (method, at)]
    read = msgspec.convert(found.json, endpoint.answer)
    assert found.json.keys() == msgspec.to_builtins(read).keys()


def test_an_answer_is_what_the_view_of_that_model_and_user_computes(
    client: Client, drawn: Study, solved: Study
) -> None:
    for name, study in (("drawn", drawn), ("solved", solved)):
        found = asked(client, f"/v1/study/exposure?k=10&model={name}").json
        assert found["listed"] == exposure.exposure(study, 10, "")["listed"]
        found = asked(client, f"/v1/study/breakdown?metric=ndcg@10&model={name}").json
        own = breakdown.breakdown(study, Breakdown(metric="ndcg@10"))
        assert found["groups"] == own["groups"]
        for user in ("u003", "u007"):
            _, who_ = law_of(study, user, 1.0)
            found = asked(client, "/v1/study/sampler", {"user": user, "model": name}).json
            own = sampler.sampler(study, who_, None)
            assert found["perplexity"] == pytest.approx(own["perplexity"])


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/study/exposure?k=0", None, 422, "k"),
        ("/v1/study/exposure?column=colour", None, 422, "no item column"),
        ("/v1/study/breakdown?metric=ndcg@7", None, 422, "no 'ndcg@7'"),
        ("/v1/study/breakdown?by=popularity&metric=ndcg@10", None, 422, "recall only"),
        ("/v1/study/breakdown/users?group=9", None, 422, "no group '9'"),
        ("/v1/study/effort?k=x", None, 422, "k"),
        ("/v1/study/effort", {"k": 3}, 422, "user"),
        ("/v1/study/effort", {"user": "nobody"}, 404, "nobody"),
        ("/v1/study/effort", {"user": "u003", "effort": 0}, 422, "effort"),
        ("/v1/study/sampler", {"user": "u003", "temperature": 0}, 422, "temperature"),
        ("/v1/study/sampler/draws", {"user": "u003", "proposal": "dice"}, 422, "no proposal"),
        ("/v1/study/sampler/draws", {"user": "u003", "proposal": "uniform", "n": 10**6}, 422, "n"),
        ("/v1/study/training?model=none", None, 404, "none"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_with_its_reason(
    path: str, body: Any, status: int, says: str, client: Client
) -> None:
    found = asked(client, path, body)
    assert found.status == status
    assert says in found.json["detail"]


def test_a_swapped_model_has_a_study_of_its_own(split: sdx.Split, tmp_path: Path) -> None:
    file = tmp_path / "a.sdx"
    sdx.fit("rg2", split.train, dim=2).save(file)
    tokens = tmp_path / "tokens"
    tokens.write_text("admin admin-token-0123456789\n")
    with sdx.serve(file, port=0, tokens=tokens, max_wait=60) as serving:
        client = Client(serving.url, Authorization="Bearer admin-token-0123456789")
        old = asked(client, "/v1/study/exposure?k=10").json
        sdx.fit("popular", split.train).save(file)
        assert client.post("/v1/models/a/reload", {}).status == 200
        new = asked(client, "/v1/study/exposure?k=10").json
        client.close()
    assert new["seal"] != old["seal"]
    assert new["listed"] < old["listed"]
