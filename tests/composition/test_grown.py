"""Models that grow: users and items that are added or removed, other indexes, earlier models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softdex as sdx
from composition.models import (
    GROWING,
    MODELS,
    TREE,
    VAE,
    Key,
    fitted,
    keys,
    lists_of,
    past,
    scores_of,
)
from composition.proposals import cells_of
from composition.suite import SMALL, tiny
from softdex.index.imi.index import Imi
from softdex.index.tree.tree import Tree

LATE = [("u3", "z"), ("u1", "z"), ("u2", "a"), ("u5", "i25"), ("u3", "i25"), ("u6", "z")]
"""Events of new items whose keys lie at either end and in the middle of the known ones."""


@pytest.mark.parametrize("name", GROWING)
def test_added_items_leave_scores_histories_counts_and_columns_to_their_keys(name: str) -> None:
    model = fitted(name)
    users, items = keys(model)
    before, seen = scores_of(model, users, items), past(model)
    count = dict(zip(items, model.item_counts.tolist(), strict=True))
    assert model.item_table is not None
    price = dict(zip(items, model.item_table["price"].to_pylist(), strict=True))
    told = {"history": [["i3", "i5"], ["i9"]], "exclude_seen": False}
    reads = model.encoder.reads_history and not model.encoder.history_first  # a sum over all items
    asked = model.score(items=items, **told)["score"].to_pylist() if reads else []
    model.add_items(sdx.read(LATE, quiet=True))
    found = past(model)
    for user, mine in seen.items():
        late = [item for u, item in LATE if u == user]
        assert found[user][: len(mine)] == mine
        assert sorted(found[user][len(mine) :]) == sorted(late)
    every = model.items.all().to_pylist()
    assert every == sorted([*items, "z", "a", "i25"])
    for item, n, cost in zip(
        every, model.item_counts.tolist(), model.item_table["price"].to_pylist(), strict=True
    ):
        assert n == count.get(item, sum(i == item for _, i in LATE))
        assert cost == price.get(item)
    model.seen = _as_before(model, seen)  # what users have met since changes their queries
    assert scores_of(model, users, items) == pytest.approx(before, abs=1e-5)
    if reads:
        assert model.score(items=items, **told)["score"].to_pylist() == pytest.approx(
            asked, abs=1e-5
        )


def _as_before(model: sdx.Retriever, seen: dict[Key, list[Key]]) -> Any:
    pairs = [(u, i) for u, mine in seen.items() for i in mine]
    items, users = model.items.all().to_pylist(), model.users.all().to_pylist()
    rows = [[items.index(i) for u, i in pairs if u == user] for user in users]
    ends = np.cumsum([0, *map(len, rows)])
    return type(model.seen)(ends, np.array([i for row in rows for i in row], np.int32))


@pytest.mark.parametrize("name", ["ials", "rg2", "ssm", "histories"])
def test_a_new_item_comes_to_those_who_met_its_twin(name: str) -> None:
    """A twin of a known item, by its events, is scored near it, and nearer than other new ones."""
    recipe, options = MODELS[name]
    log = tiny(weights=False)
    longer = options | {"epochs": 12} | ({"steps": 0} if name in ("ials", "rg2") else {})
    model = sdx.fit(recipe, log, quiet=True, **longer)
    users, _ = keys(model)
    rows = log.to_arrow().to_pylist()
    twins = {"i2": "i2x", "i7": "b", "i4": "zz"}
    order = [(r["user"], twins[r["item"]]) for r in reversed(rows) if r["item"] in twins]
    model.add_items(sdx.read(order, quiet=True))
    scores = scores_of(model, users, [*twins, *twins.values()])

    def spread(a: Key, b: Key) -> float:
        return sum((scores[u, a] - scores[u, b]) ** 2 for u in users)

    for item, twin in twins.items():
        others = [other for other in twins.values() if other != twin]
        if name == "ials":  # items were solved for last, by the same equations
            assert spread(item, twin) < 1e-6
        assert spread(item, twin) < min(spread(item, other) for other in others)


def ials_row(model: sdx.Retriever, weights: dict[Key, float]) -> Tensor:
    """The vector of a user with these confidences: their normal equations, by a loop."""
    o, q = model.options, model.index.scorer.items.weight.double()
    items, dim = model.items.all().to_pylist(), q.shape[1]
    matrix, right = torch.zeros(dim, dim, dtype=torch.float64), torch.zeros(dim).double()
    for n, item in enumerate(items):
        c = weights.get(item, 0.0)
        matrix += (o["alpha"] + c) * torch.outer(q[n], q[n])
        right += c * q[n]
    total = o["alpha"] * len(items) + sum(weights.values())
    matrix += o["lam"] * total ** o["nu"] * torch.eye(dim, dtype=torch.float64)
    return torch.linalg.solve(matrix, right)


def test_added_users_have_the_vectors_of_their_own_events_and_weights() -> None:
    options = {"dim": 3, "epochs": 3, "alpha": 0.3, "steps": 0, "device": "cpu"}
    model = sdx.fit("ials", tiny(), quiet=True, **options)
    before = dict(zip(*(model.users.all().to_pylist(), past(model).values()), strict=True))
    counts = dict(zip(model.items.all().to_pylist(), model.item_counts.tolist(), strict=True))
    new = {"z": {"i3": 2.0, "i1": 0.5}, "a": {"i7": 1.0, "i2": 4.0, "i3": 1.0}, "u25": {"i9": 3.0}}
    rows = [
        (user, item, n, w) for user, each in new.items() for n, (item, w) in enumerate(each.items())
    ]
    user, item, time, weight = (list(column) for column in zip(*rows, strict=True))
    table = {"user": user, "item": item, "time": time, "weight": weight}
    model.add_users(sdx.read(table, quiet=True))
    users = model.users.all().to_pylist()
    assert users == sorted([*before, *new])
    assert past(model) == before | {u: list(each) for u, each in new.items()}
    for n, name in enumerate(users):
        if name in new:
            found = model.encoder.vectors.weight[n].double()
            assert torch.allclose(found, ials_row(model, new[name]), atol=1e-4), name
    for key, n in zip(model.items.all().to_pylist(), model.item_counts.tolist(), strict=True):
        assert n == counts[key] + sum(key in each for each in new.values())


@pytest.mark.parametrize("recipe", ["ssm", "fastvae"])
def test_new_items_lie_in_the_cell_of_their_vectors(recipe: str) -> None:
    more = {"hidden": 5, "latent": 3} if recipe == "fastvae" else {"index": "imi_uniform"}
    model = sdx.fit(recipe, tiny(), quiet=True, **SMALL | more | {"codewords": 3, "lr": 0.2})
    assert isinstance(model.index, Imi)
    model.add_items(sdx.read(LATE, quiet=True))
    state, scorer = model.index.state(), model.index.scorer
    points = scorer.vectors(slice(0, len(model.items))).double()
    wanted = cells_of(points, state["words"].double()).tolist()
    for key in ("z", "a", "i25"):
        n = model.items.all().to_pylist().index(key)
        assert state["cell"][n] == wanted[n], key


def test_a_pair_counts_once_in_the_new_items_of_an_autoencoder() -> None:
    rows = [("u1", "i3", 1), ("u2", "i3", 1), ("u2", "i5", 2), ("u3", "i5", 1), ("u3", "i7", 2)]
    late = sdx.read([("u1", "z"), ("u3", "z")], quiet=True)
    found = []
    for events in (rows, [*rows, ("u3", "i7", 3), ("u3", "i7", 4)]):
        model = sdx.fit("mult_vae", sdx.read(events, quiet=True), quiet=True, **VAE)
        other = sdx.fit("mult_vae", sdx.read(rows, quiet=True), quiet=True, **VAE)
        model.encoder, model.index = other.encoder, other.index  # of the same numbers
        model.add_items(late)
        found.append(model.index.scorer.items.weight)
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.parametrize("name", ["own vectors and histories", "histories"])
def test_a_known_user_without_events_is_served_by_the_history_alone(name: str) -> None:
    log = tiny(weights=False)
    kept = log.user != 3
    assert log.time is not None
    log = replace(log, user=log.user[kept], item=log.item[kept], time=log.time[kept])
    model = fitted(name, log)
    assert past(model)["u3"] == []
    told = {"history": [["i3", "i5"]], "exclude_seen": False}
    found = model.score(["u3"], ["i1", "i9"], **told)["score"].to_pylist()
    wanted = model.score(items=["i1", "i9"], **told)["score"].to_pylist()
    assert found == pytest.approx(wanted, abs=1e-6)


TREES = SMALL | TREE | {"room": 1.0, "lr": 0.2, "epochs": 4}


def leaf_of(model: sdx.Retriever, key: Key) -> int:
    assert isinstance(model.index, Tree)
    return int(model.index.slot_of[model.items.all().to_pylist().index(key)])


def test_a_new_leaf_has_the_mean_vector_of_the_nearest_leaves_with_items() -> None:
    model = sdx.fit("dtr", tiny(), quiet=True, **TREES)
    tree = model.index
    assert isinstance(tree, Tree)
    leaves = tree.scorer.nodes.weight[tree.starts[-1] :].clone()
    taken = [n for n, item in enumerate(tree.item_of.tolist()) if item >= 0]
    model.add_items(sdx.read([("u3", "z"), ("u5", "z")], quiet=True))
    slot, width = leaf_of(model, "z"), 1
    assert len(leaves) == len(model.index.item_of), "there was no room"
    assert slot not in taken
    near: list[int] = []
    while not near:
        width *= tree.arity
        near = [n for n in taken if n // width == slot // width]
    found = model.index.scorer.nodes.weight[tree.starts[-1] + slot]
    assert torch.allclose(found, leaves[near].mean(0), atol=1e-6)


def test_new_items_are_seated_each_by_the_histories_of_its_own_users() -> None:
    plain = sdx.fit("dtr", tiny(), quiet=True, **TREES)
    users, _ = keys(plain)
    alone = {}
    for user in users:
        model = sdx.fit("dtr", tiny(), quiet=True, **TREES)
        model.add_items(sdx.read([(user, "z")], quiet=True))
        alone[user] = leaf_of(model, "z")
    first = users[0]
    second = next(u for u in users if alone[u] != alone[first])
    plain.add_items(sdx.read([(first, "z"), (second, "a")], quiet=True))
    assert (leaf_of(plain, "z"), leaf_of(plain, "a")) == (alone[first], alone[second])


def test_a_start_gives_vectors_by_key() -> None:
    start = sdx.fit("ssm", tiny(), quiet=True, **SMALL | {"lr": 0.3})
    rows = [
        (f"{'a' if n % 3 else 'u'}{n % 7}", f"{'b' if n % 2 else 'i'}{n % 5}") for n in range(40)
    ]
    model = sdx.fit(
        "ssm", sdx.read(rows, quiet=True), start=start, quiet=True, **SMALL | {"lr": 1e-12}
    )
    for of in ("users", "items"):
        tables = [
            dict(zip(getattr(m, of).all().to_pylist(), t.weight, strict=True))
            for m in (start, model)
            for t in [m.encoder.vectors if of == "users" else m.index.scorer.items]
        ]
        shared = tables[0].keys() & tables[1].keys()
        assert len(shared) > 2
        for key in shared:
            assert torch.allclose(tables[0][key], tables[1][key], atol=1e-6), key


def test_an_index_has_the_least_effort_that_finds_the_recall() -> None:
    rng = np.random.default_rng(0)
    rows = [(f"u{u:02}", f"i{i:03}") for u in range(40) for i in rng.choice(300, 12, replace=False)]
    model = sdx.fit("ssm", sdx.read(rows, quiet=True), quiet=True, **SMALL | {"batch_size": 128})
    scorer, k = model.index.scorer, 10
    query = model.encoder(np.arange(40), model.seen)
    exact = model.index.search(query, k, effort=math.inf).ids
    model.build_index("imi", recall=0.6, k=k, codewords=8)
    assert model.index.scorer is scorer

    def recall(effort: float) -> float:
        found = model.index.search(query, k, effort=effort).ids
        return (
            sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True))
            / 400
        )

    effort = model.index.effort
    assert effort < 300
    assert recall(effort) >= 0.6
    assert effort == pytest.approx(k) or recall(effort / math.sqrt(2)) < 0.6


@pytest.mark.parametrize("kind", ["imi", "flat"])
def test_removed_items_stay_away_in_another_index_and_recall_is_as_asked(kind: str) -> None:
    model = fitted("ssm")
    users, items = keys(model)
    model.remove_items(["i3", "i8"])
    exact = lists_of(model.recommend(users, k=4))
    model.build_index(kind, recall=1.0, k=4, codewords=3)
    found = lists_of(model.recommend(users, k=4))
    assert {i for mine in found.values() for i in mine}.isdisjoint({"i3", "i8"})
    hits = sum(len(set(found[u]) & set(exact[u])) for u in users)
    assert hits == sum(map(len, exact.values()))
    model.restore_items(["i3"])
    assert scores_of(model, users, items).keys() == {(u, i) for u in users for i in items}
