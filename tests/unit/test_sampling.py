"""Lists drawn from the softmax: exact probabilities, unbiased propensities, words of requests."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import softdex as sdx
from softdex.cli.app import app
from softdex.encode.history import Mixed
from softdex.errors import SoftdexError
from softdex.index.contract import Filter
from softdex.index.gumbel import Drawn, draw, exponential, streams_of
from softdex.model.asking import query_of, who
from softdex.model.card import Card
from softdex.model.parts import known_from, parts_from
from softdex.score.product import Cosine, Dot

LOGITS = [1.2, 0.3, -0.4, 0.0, -1.5]
MANY = 20_000
USERS, ITEMS = 40, 60


def lists_of(
    scores: list[float], k: int, many: int, temperature: float = 1.0, seed: int = 0
) -> Drawn:
    """So many lists from the same scores, in blocks of three items."""
    given = torch.tensor(scores).expand(many, -1)
    parts = torch.arange(len(scores)).split(3)
    blocks = ((ids, given[:, ids].clone()) for ids in parts)
    return draw(blocks, k, temperature, streams_of(seed, torch.arange(many)))


def steps(scores: list[float], order: tuple[int, ...], temperature: float) -> list[float]:
    """Log-probability of each item of a list given those before it, by a plain loop."""
    weight = [math.exp(s / temperature) for s in scores]
    left, found = set(range(len(scores))), []
    for item in order:
        found.append(math.log(weight[item] / sum(weight[i] for i in left)))
        left.remove(item)
    return found


# the law ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_lists_are_drawn_as_often_as_plackett_luce_says(k: int, temperature: float) -> None:
    """Pearson's statistic over all lists; 4 standard deviations above its mean are allowed."""
    found = Counter(map(tuple, lists_of(LOGITS, k, MANY, temperature).ids.tolist()))
    misfit, lists = 0.0, list(permutations(range(len(LOGITS)), k))
    for order in lists:
        expected = MANY * math.exp(sum(steps(LOGITS, order, temperature)))
        misfit += (found[order] - expected) ** 2 / expected
    free = len(lists) - 1
    assert misfit < free + 4 * math.sqrt(2 * free) + 4
    assert sum(found.values()) == MANY


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_log_probability_is_that_of_the_item_given_those_above(
    temperature: float, k: int
) -> None:
    found = lists_of(LOGITS, k, 50, temperature)
    for ids, log_prob in zip(found.ids.tolist(), found.log_prob.tolist(), strict=True):
        assert log_prob == pytest.approx(steps(LOGITS, tuple(ids), temperature), abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_sums_weighted_by_propensities_are_unbiased(k: int) -> None:
    """Of 1, of each item alone and of an arbitrary function, within 4.5 standard errors."""
    found = lists_of(LOGITS, k, MANY, seed=1)
    each = torch.eye(len(LOGITS), dtype=torch.float64)
    functions = torch.cat([each, torch.ones(1, 5), torch.tensor([[3.0, -1.0, 4.0, 1.0, -5.0]])])
    sums = (functions[:, found.ids] / found.propensity).sum(2)
    error = sums.std(1) / math.sqrt(MANY)
    assert ((sums.mean(1) - functions.sum(1)).abs() < 4.5 * error + 1e-9).all()


def test_the_propensity_is_the_chance_to_exceed_the_next_perturbed_score() -> None:
    many, k = 30, 2
    found = lists_of(LOGITS, k, many)
    noise = exponential(streams_of(0, torch.arange(many)), torch.arange(len(LOGITS)))
    kappa = (
        (torch.tensor(LOGITS).double() - noise.log()).sort(1, descending=True).values[:, k:][:, :1]
    )
    expected = 1 - torch.exp(-torch.exp(torch.tensor(LOGITS).double()[found.ids] - kappa))
    torch.testing.assert_close(found.propensity, expected, atol=1e-6, rtol=1e-6)


def test_where_all_items_fit_into_the_list_each_is_certain() -> None:
    found = lists_of([*LOGITS, -math.inf], 8, 20)
    assert (found.ids >= 0).sum(1).tolist() == [5] * 20
    assert (found.propensity[:, :5] == 1).all()
    assert found.log_prob[:, 4] == pytest.approx(np.zeros(20))
    assert (found.ids[:, 5:] == -1).all()
    assert not found.log_prob.isnan().any()


def test_nearly_certain_items_leave_the_others_their_probabilities() -> None:
    """The mass that is left is summed, not what remains of 1."""
    found = lists_of([60.0, 0.0, 0.0], 3, 5)
    assert found.ids[:, 0].tolist() == [0] * 5
    assert found.log_prob[:, 1].tolist() == pytest.approx([math.log(0.5)] * 5)


def test_noise_is_exponential_and_independent_of_places_and_items() -> None:
    noise = exponential(streams_of(5, torch.arange(300)), torch.arange(300))
    share = (-noise).exp().flatten().sort().values
    even = (torch.arange(len(share)) + 0.5) / len(share)
    assert float((share - even).abs().max()) < 1.95 / math.sqrt(len(share))  # Kolmogorov, 0.1 %
    across = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))[0, 1]
    along = torch.corrcoef(torch.stack([noise[:, 1:].flatten(), noise[:, :-1].flatten()]))[0, 1]
    assert max(abs(float(across)), abs(float(along))) < 4 / 300


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """The same lists; scores of other batches may differ in their last bits."""
    assert found.column_names == expected.column_names
    for name, column in zip(found.column_names, found.columns, strict=True):
        if pa.types.is_floating(column.type):
            assert column.to_numpy() == pytest.approx(expected[name].to_numpy(), rel=1e-4, abs=1e-6)
        else:
            assert column.to_pylist() == expected[name].to_pylist()


# requests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    made = sdx.synthetic.world(users=USERS, items=ITEMS, seed=0, events=8).interactions()
    colours = [["red", "green", "blue"][i % 3] for i in range(made.num_items)]
    return replace(made, item_table=pa.table({"colour": colours}))


def flat(log: sdx.Interactions) -> sdx.Retriever:
    return with_vectors(log, lambda items: Dot(items, torch.linspace(-1, 1, len(items))))


def cosine(log: sdx.Interactions) -> sdx.Retriever:
    return with_vectors(log, lambda items: Cosine(items, torch.tensor(0.4)))


def imi(log: sdx.Interactions) -> sdx.Retriever:
    model = flat(log)
    model.build_index("imi", codewords=4, k=5)
    model.index = model.index._with(effort=20.0)
    return model


def tree(log: sdx.Interactions) -> sdx.Retriever:
    small = {"max_instances": 64, "epochs": 1, "dim": 4, "max_history": 5, "leaves": "random"}
    model = sdx.fit("tdm", log, device="cpu", quiet=True, **small)
    model.index = model.index.with_beam(20.0)
    return model


def with_vectors(log: sdx.Interactions, scorer: Any) -> sdx.Retriever:
    """An encoder that reads histories, over random vectors."""
    draw = torch.Generator().manual_seed(0)
    items = scorer(torch.randn(log.num_items, 4, generator=draw))
    share = torch.tensor(0.5), torch.tensor(20)
    users = torch.randn(log.num_users, 4, generator=draw)
    mixed = Mixed(users, *share, items=items.items)
    return sdx.Retriever(Card("drawn"), parts_from(mixed, items), known_from(log))


KINDS = {"flat": flat, "cosine": cosine, "imi": imi, "tree": tree}


@pytest.fixture(scope="module")
def models(log: sdx.Interactions) -> dict[str, sdx.Retriever]:
    return {kind: make(log) for kind, make in KINDS.items()}


@pytest.fixture(scope="module")
def model(models: dict[str, sdx.Retriever]) -> sdx.Retriever:
    return models["flat"]


@pytest.mark.parametrize("kind", ["flat", "cosine"])
def test_requests_draw_from_the_softmax_over_the_items_allowed(
    models: dict[str, sdx.Retriever], kind: str
) -> None:
    """At the model's temperature, for one item per list of 4,000 requests of the same user."""
    model, user, many = models[kind], "u03", 4000
    allowed = [f"i{i:02}" for i in range(5, 17)]
    best = model.recommend(user, ITEMS, allow=allowed).table
    rows = [allowed.index(item) for item in best["item"].to_pylist()]
    exact = np.full(len(allowed), -np.inf)
    exact[rows] = model.log_prob(user, best["item"])[0].astype(float)
    exact -= np.logaddexp.reduce(exact)
    found = model.recommend([user] * many, 1, mode="sample", seed=0, allow=allowed).table
    assert len(found) == many
    at = np.array([allowed.index(item) for item in found["item"].to_pylist()])
    expected = many * np.exp(exact)
    assert np.all(
        np.abs(np.bincount(at, minlength=len(allowed)) - expected) <= 4.5 * np.sqrt(expected) + 1
    )
    assert found["log_prob"].to_numpy() == pytest.approx(exact[at], abs=1e-5)
    scores = dict(zip(best["item"].to_pylist(), best["score"].to_pylist(), strict=True))
    assert found["score"].to_numpy() == pytest.approx([scores[allowed[i]] for i in at], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_keeps_the_rules(models: dict[str, sdx.Retriever], kind: str) -> None:
    model = models[kind]
    users = model.users.all().to_pylist()[:20]
    deny = {
        user: [f"i{(7 * n + j) % ITEMS:02}" for j in range(1, 9)] for n, user in enumerate(users)
    }
    found = model.recommend(
        users, 6, mode="sample", seed=1, deny=deny, where={"colour": ["red", "blue"]},
        columns="colour",
    )  # fmt: skip
    assert found.table.column_names == [
        "user", "rank", "item", "score", "log_prob", "propensity", "colour",
    ]  # fmt: skip
    seen = {u: set(model.items.take(model.seen[n]).to_pylist()) for n, u in enumerate(users)}
    lists: dict[str, list[str]] = {user: [] for user in users}
    for row in found.to_pylist():
        assert row["colour"] in ("red", "blue")
        assert row["item"] not in seen[row["user"]] | set(deny[row["user"]])
        lists[row["user"]].append(row["item"])
        assert row["rank"] == len(lists[row["user"]])
    assert all(len(set(items)) == 6 for items in lists.values())


@pytest.mark.parametrize("kind", ["imi", "tree"])
def test_an_approximate_index_draws_from_what_its_search_finds(
    models: dict[str, sdx.Retriever], kind: str
) -> None:
    model, users = models[kind], ["u01", "u02", "u03"]
    found = model.recommend(users, 3, mode="sample", seed=1, temperature=3.0)
    assert found.sampling == {
        "seed": 1, "temperature": 3.0, "from": f"the best 20 items of {kind}"
    }  # fmt: skip
    asked = who(model, "recommend", users, None)
    query = query_of(model, asked.rows, asked.history)
    hits = model.index.search(query, 20, filter=Filter(asked.history))
    for n, user in enumerate(users):
        scores = hits.scores[n].double()[hits.ids[n] >= 0] / 3
        mine = [row for row in found.to_pylist() if row["user"] == user]
        keys = model.items.take(hits.ids[n][hits.ids[n] >= 0].numpy()).to_pylist()
        at = [keys.index(row["item"]) for row in mine]
        assert [row["log_prob"] for row in mine] == pytest.approx(
            steps((3 * scores).tolist(), tuple(at), 3.0), abs=1e-5
        )


@pytest.mark.parametrize("kind", ["imi", "tree"])
def test_a_list_longer_than_the_effort_still_leaves_an_item_out(
    models: dict[str, sdx.Retriever], kind: str
) -> None:
    found = models[kind].recommend("u01", 25, mode="sample", seed=0)
    assert len(set(found["item"].to_pylist())) == 25
    assert found["propensity"].to_numpy().max() < 1
    assert found["log_prob"].to_numpy().max() < 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_fixes_lists_whatever_the_memory_and_the_other_users(
    models: dict[str, sdx.Retriever], kind: str, tmp_path: Path
) -> None:
    model = models[kind]
    given: dict[str, Any] = {"mode": "sample", "seed": 7}
    whole = model.recommend(model.users.all(), 5, **given).table
    assert model.recommend(model.users.all(), 5, **given).table == whole
    assert_same(model.recommend(model.users.all(), 5, max_memory=2**20, **given).table, whole)
    first = model.users.all().to_pylist()[:3]
    assert_same(model.recommend(first, 5, **given).table, whole.slice(0, 15))
    short = model.recommend(first, 2, **given).table
    assert short["item"].to_pylist() == [
        i for n in (0, 5, 10) for i in whole["item"].to_pylist()[n : n + 2]
    ]
    other = model.recommend(model.users.all(), 5, mode="sample", seed=8).table
    assert other["item"] != whole["item"]
    assert model.recommend_all(tmp_path / "all.parquet", 5, **given) == len(whole)
    written = pq.read_table(tmp_path / "all.parquet")
    assert written["item"].to_pylist() == whole["item"].to_pylist()
    assert sdx.model.recommendations.Recommendations(written).sampling["seed"] == 7


def test_the_same_user_twice_gets_two_lists_and_no_seed_means_another_one(
    model: sdx.Retriever,
) -> None:
    twice = model.recommend(["u01"] * 2, 5, mode="sample", seed=3)["item"].to_pylist()
    assert twice[:5] != twice[5:]
    one, two = (model.recommend("u01", 20, mode="sample") for _ in range(2))
    assert one.sampling is not None
    assert one["item"] != two["item"]
    again = model.recommend("u01", 20, mode="sample", seed=one.sampling["seed"])
    assert again.table.equals(one.table)
    assert model.recommend("u01").sampling is None


def test_users_who_are_skipped_change_no_other_list(model: sdx.Retriever) -> None:
    given: dict[str, Any] = {"mode": "sample", "seed": 3, "unknown": "skip"}
    alone = model.recommend(["nobody", "u01"], 5, **given).table
    assert_same(alone, model.recommend(["u02", "u01"], 5, **given).table.slice(5))


def test_histories_draw_like_the_users_who_have_them(models: dict[str, sdx.Retriever]) -> None:
    model = models["tree"]
    past = [model.items.take(model.seen[n]).to_pylist() for n in range(3)]
    by_history = model.recommend(history=past, k=4, mode="sample", seed=2).table
    by_user = model.recommend(model.users.all().slice(0, 3), 4, mode="sample", seed=2).table
    assert by_history.drop("user").equals(by_user.drop("user"))


def test_a_low_temperature_gives_the_best_items_and_a_high_one_any(model: sdx.Retriever) -> None:
    users = model.users.all()
    best = model.recommend(users, 3).table
    cold = model.recommend(users, 3, mode="sample", seed=0, temperature=1e-4).table
    assert np.mean(np.array(cold["item"]) == np.array(best["item"])) > 0.95
    assert np.mean(cold["log_prob"].to_numpy() > -1e-3) > 0.95
    hot = model.recommend(users, 3, mode="sample", seed=0, temperature=1e4, exclude_seen=False)
    assert hot["propensity"].to_numpy().max() < 0.5
    assert hot["log_prob"].to_numpy()[::3] == pytest.approx(-np.log(ITEMS), abs=1e-2)


def test_the_temperature_is_that_of_the_model_unless_given(log: sdx.Interactions) -> None:
    model = flat(log)
    model.temperature = 0.3
    found = model.recommend("u01", 4, mode="sample", seed=0)
    assert found.sampling is not None
    assert found.sampling["temperature"] == 0.3
    assert found.table.equals(
        model.recommend("u01", 4, mode="sample", seed=0, temperature=0.3).table
    )


def test_removed_items_are_never_drawn(log: sdx.Interactions) -> None:
    model = flat(log)
    gone = model.items.all().to_pylist()[::2]
    model.remove_items(gone)
    found = model.recommend("u01", ITEMS, mode="sample", seed=0, exclude_seen=False)
    assert sorted(found["item"].to_pylist()) == sorted(
        set(model.items.all().to_pylist()) - set(gone)
    )
    assert found["propensity"].to_pylist() == [1.0] * len(found)


def test_users_without_events_draw_by_the_number_of_events(
    models: dict[str, sdx.Retriever],
) -> None:
    model, many = models["tree"], 4000
    found = model.recommend(
        ["nobody"] * many, 1, mode="sample", seed=0, temperature=2.0, unknown="popular"
    )
    weight = np.sqrt(1.0 + model.item_counts)
    expected = many * weight / weight.sum()
    at = model.items.lookup(found["item"])
    assert np.all(np.abs(np.bincount(at, minlength=ITEMS) - expected) < 4.5 * np.sqrt(expected) + 1)
    assert found["score"].to_numpy().tolist() == model.item_counts[at].tolist()
    assert found["log_prob"].to_numpy() == pytest.approx(
        np.log(weight / weight.sum())[at], abs=1e-5
    )
    mixed = model.recommend(["u01", "nobody"], 3, mode="sample", seed=0, unknown="popular")
    known = model.recommend("u01", 3, mode="sample", seed=0)
    assert_same(mixed.table.slice(0, 3), known.table)


def test_models_that_count_are_drawn_from_by_their_scores(log: sdx.Interactions) -> None:
    for recipe in ("popular", "item_cf"):
        model = sdx.fit(recipe, log, quiet=True)
        best = model.recommend("u01", ITEMS).table
        scores = dict(zip(best["item"].to_pylist(), best["score"].to_pylist(), strict=True))
        found = model.recommend("u01", 3, mode="sample", seed=0, temperature=5.0)
        order = tuple(list(scores).index(item) for item in found["item"].to_pylist())
        expected = steps(list(scores.values()), order, 5.0)
        assert found["log_prob"].to_pylist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("recipe", ["rg2", "fastvae", "sasrec"])
def test_a_gpu_draws_the_same_lists(log: sdx.Interactions, recipe: str) -> None:
    model = sdx.fit(recipe, log, epochs=1, dim=8, device="cpu", quiet=True)
    given: dict[str, Any] = {"mode": "sample", "seed": 1, "unknown": "popular"}
    here = model.recommend([*model.users.all().to_pylist(), "nobody"], 5, **given).table
    for part in (model.encoder, model.index.scorer):
        part.to("cuda")
    model.index = model.index.to("cuda")
    there = model.recommend([*model.users.all().to_pylist(), "nobody"], 5, **given).table
    assert np.mean(np.array(here["item"]) == np.array(there["item"])) > 0.99
    assert there["log_prob"].to_numpy() == pytest.approx(here["log_prob"].to_numpy(), abs=1e-2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "x"}, "recommend: unknown mode 'x'. Known: best, sample."),
        ({"mode": None}, "recommend: unknown mode None"),
        ({"temperature": 2.0}, "recommend: temperature= draws lists. Add mode='sample'."),
        ({"seed": 0}, "recommend: seed= draws lists. Add mode='sample'."),
        ({"mode": "sample", "temperature": 0}, "expected temperature from 0.0001 to 10000, got 0."),
        ({"mode": "sample", "temperature": math.nan}, "expected temperature from .*, got nan."),
        ({"mode": "sample", "temperature": "1"}, "expected temperature from .*, got '1'."),
        ({"mode": "sample", "seed": -1}, r"expected seed as a whole number from 0 .*, got -1\."),
        ({"mode": "sample", "seed": 2**63}, "expected seed as a whole number from 0"),
        ({"mode": "sample", "seed": 1.5}, "expected seed as a whole number from 0 .*, got 1.5."),
        ({"mode": "sample", "at_most": {"colour": 1}}, "lists with at_most= are not drawn"),
    ],
)
def test_arguments_that_draw_nothing_are_refused(
    model: sdx.Retriever, given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SoftdexError, match=words):
        model.recommend("u01", **given)
    with pytest.raises(SoftdexError, match=words.replace("recommend:", "recommend_all:")):
        model.recommend_all(tmp_path / "all.csv", **given)


def test_columns_of_the_answer_are_not_hidden(log: sdx.Interactions) -> None:
    table = pa.table({"log_prob": np.zeros(log.num_items)})
    model = flat(replace(log, item_table=table))
    assert "log_prob" in model.recommend("u01", columns="log_prob").column_names
    with pytest.raises(SoftdexError, match="'log_prob' would hide the column of that name"):
        model.recommend("u01", columns="log_prob", mode="sample")


def test_the_command_line_draws_the_same_lists(log: sdx.Interactions, tmp_path: Path) -> None:
    model = sdx.fit("rg2", log, dim=4, epochs=1, device="cpu", quiet=True)
    model.save(tmp_path / "m.sdx")
    words = ["--mode", "sample", "--temperature", "0.5", "--seed", "4", "--k", "3"]
    done = CliRunner().invoke(
        app, ["recommend", str(tmp_path / "m.sdx"), "--user", "u01", *words, "--json"]
    )
    given: dict[str, Any] = {"mode": "sample", "temperature": 0.5, "seed": 4}
    expected = model.recommend("u01", 3, **given).to_pylist()
    assert json.loads(done.stdout) == expected
    out = tmp_path / "all.jsonl"
    done = CliRunner().invoke(
        app, ["recommend", str(tmp_path / "m.sdx"), "--all", "--out", str(out), *words]
    )
    assert done.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["item"] for r in rows[:3]] == [
        r["item"] for r in model.recommend(model.users.all(), 3, **given).to_pylist()[:3]
    ]
    done = CliRunner().invoke(
        app, ["recommend", str(tmp_path / "m.sdx"), "--user", "u01", "--mode", "bset"]
    )
    assert isinstance(done.exception, SoftdexError)


def test_a_model_is_worth_by_its_own_draws_what_they_earned(model: sdx.Retriever) -> None:
    """Off-policy weights are 1: both name the same policy, given the items above."""
    recs = model.recommend(model.users.all(), 4, mode="sample", seed=0)
    item, rank = recs["item"].to_pylist(), recs["rank"].to_pylist()
    events = {
        "user": recs["user"],
        "item": recs["item"],
        "above": [item[at - place + 1 : at] for at, place in enumerate(rank)],
        "propensity": np.exp(recs["log_prob"].to_numpy()),
        "reward": np.random.default_rng(0).random(len(item)),
    }
    found = sdx.off_policy(events, model)
    assert found["ips"].value == pytest.approx(found["logged"].value, rel=1e-5)
    assert (found.mean_weight, found.max_weight) == pytest.approx((1, 1), rel=1e-4)
    assert found.unsupported == 0
