"""Items that come and go after a tree was learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import softdex as sdx
from softdex.errors import DataError
from softdex.index.tree.tree import Tree
from softdex.model.grow_tree import deeper

KINDS, USERS = 6, 20
OPTIONS: dict[str, Any] = {
    "leaves": "category", "category": "kind", "dim": 8, "beam": 10, "negatives": 10,
    "max_history": 8, "epochs": 4, "batch_size": 256, "lr": 0.01, "device": "cpu",
}  # fmt: skip


def part(log: sdx.Interactions, which: np.ndarray) -> sdx.Interactions:
    assert log.time is not None
    return replace(log, user=log.user[which], item=log.item[which], time=log.time[which]).compact()


@pytest.fixture(scope="module")
def logs() -> tuple[sdx.Interactions, sdx.Interactions]:
    """Events of most items, and of some that come later; users like the kind of an item."""
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(240), 20)
    item = draw.integers(0, 20, len(user)) * KINDS + (user + (draw.random(len(user)) < 0.1)) % KINDS
    rows = [(f"u{u:03}", f"i{i:03}", t) for t, (u, i) in enumerate(zip(user, item, strict=True))]
    log = sdx.read(rows, quiet=True)
    kinds = [f"k{int(key[1:]) % KINDS}" for key in log.items.all().to_pylist()]
    log = replace(log, item_table=pa.table({"kind": kinds}))
    late = np.isin(log.item, draw.permutation(log.num_items)[:12])
    return part(log, ~late), part(log, late)


@pytest.fixture(scope="module")
def trained(logs: tuple[sdx.Interactions, sdx.Interactions]) -> sdx.Retriever:
    return sdx.fit("dtr", logs[0], **OPTIONS)


@pytest.fixture
def model(trained: sdx.Retriever, tmp_path: Path) -> sdx.Retriever:
    trained.save(tmp_path / "m.sdx")
    return sdx.load(tmp_path / "m.sdx")


def tree_in(model: sdx.Retriever) -> Tree:
    assert isinstance(model.index, Tree)
    return model.index


def scores(model: sdx.Retriever, keys: Any) -> torch.Tensor:
    users = np.arange(USERS)
    with torch.no_grad():
        query = model.encoder(users, model.seen.take(users))
        return tree_in(model).score(query, torch.from_numpy(model.items.lookup(keys)))


def test_new_items_of_a_log_are_found_by_those_who_would_like_them(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]
) -> None:
    warm, late = logs
    model.add_items(late)
    assert len(model.items) == warm.num_items + late.num_items
    new = late.items.all()
    user = np.array([int(key[1:]) % KINDS for key in model.users.all().to_pylist()[:USERS]])
    item = np.array([int(key[1:]) % KINDS for key in new.to_pylist()])
    same, each = user[:, None] == item, scores(model, new).numpy()
    assert each[same].mean() > each[~same].mean() + each.std()


def test_the_old_ones_score_what_they_did(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions], tmp_path: Path
) -> None:
    keys = logs[0].items.all()
    seen, before = model.seen, scores(model, keys)
    model.add_items(logs[1])
    place = model.items.lookup(keys)
    model.seen = replace(seen, ids=place[seen.ids].astype(seen.ids.dtype))  # histories as before
    assert torch.allclose(scores(model, keys), before, atol=1e-6)
    model.save(tmp_path / "grown.sdx")
    again = sdx.load(tmp_path / "grown.sdx")
    assert torch.equal(tree_in(again).item_of, tree_in(model).item_of)


def test_a_tree_that_is_full_gets_one_more_level_and_scores_the_same(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]
) -> None:
    tree, users = tree_in(model), np.arange(USERS)
    with torch.no_grad():
        query = model.encoder(users, model.seen.take(users))
    grown = deeper(tree)
    assert grown.depth == tree.depth + 1
    assert len(grown.item_of) == 2 * len(tree.item_of)
    ids = torch.arange(tree.num_items)
    assert torch.allclose(grown.score(query, ids), tree.score(query, ids), atol=1e-6)
    free = int((tree.item_of < 0).sum())
    assert free < logs[1].num_items  # so that this needs it
    model.add_items(logs[1])
    assert tree_in(model).depth == tree.depth + 1


def test_new_items_of_a_table_lie_among_their_own_kind(model: sdx.Retriever) -> None:
    new = pa.table({"item": [f"j{i}" for i in range(12)], "kind": [f"k{i % 6}" for i in range(12)]})
    model.add_items(new)
    tree = tree_in(model)
    assert model.item_table is not None
    kinds = model.item_table["kind"].to_pylist()
    rows = model.items.lookup(new["item"].combine_chunks())
    alike = []
    for row, kind in zip(rows.tolist(), new["kind"].to_pylist(), strict=True):
        width = tree.width(tree.depth - 2)
        node = int(tree.slot_of[row]) // width
        beside = [
            kinds[i]
            for i in range(tree.num_items)
            if i not in rows and int(tree.slot_of[i]) // width == node
        ]
        alike.append(beside.count(kind) / max(1, len(beside)))
    assert np.mean(alike) > 0.6


def exchanged(model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]) -> list[str]:
    """Let some items go and the late ones come; who is gone."""
    gone: list[str] = logs[0].items.all().to_pylist()[:30]
    model.remove_items(gone)
    model.add_items(logs[1])
    return gone


def test_the_leaves_of_what_is_gone_are_given_to_what_comes(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]
) -> None:
    depth = tree_in(model).depth
    gone = exchanged(model, logs)
    assert tree_in(model).depth == depth
    users = logs[0].users.all().to_pylist()[:40]
    assert not set(gone) & set(model.recommend(users=users, k=60)["item"].to_pylist())


def test_what_lost_its_leaf_gets_another_when_it_comes_back(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]
) -> None:
    model.restore_items(exchanged(model, logs))
    tree = tree_in(model)
    assert (tree.slot_of >= 0).all()
    assert sorted(tree.item_of[tree.item_of >= 0].tolist()) == list(range(len(model.items)))


def test_a_model_without_a_tree_still_scores_every_item(
    logs: tuple[sdx.Interactions, sdx.Interactions],
) -> None:
    given = {n: v for n, v in OPTIONS.items() if n not in ("leaves", "category", "beam")}
    model = sdx.fit("din", logs[0], **(given | {"epochs": 1}))
    model.add_items(logs[1])
    assert tree_in(model).depth == 1
    assert model.recommend(users=["u001"], k=5).num_rows == 5


def test_drift_is_noted_and_said(
    model: sdx.Retriever,
    logs: tuple[sdx.Interactions, sdx.Interactions],
    loud: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.remove_items(logs[0].items.all().to_pylist()[:5])
    assert model.drift == pytest.approx(5 / logs[0].num_items, abs=1e-4)
    assert "fit it again" not in capsys.readouterr().err
    model.remove_items(logs[0].items.all().to_pylist()[:30])
    assert "28% of the tree's items have come or gone" in capsys.readouterr().err


def test_what_cannot_be_placed_is_refused_and_nothing_changes(
    model: sdx.Retriever, logs: tuple[sdx.Interactions, sdx.Interactions]
) -> None:
    before = tree_in(model).item_of.clone()
    with pytest.raises(DataError, match=r"none of the model's item columns \(kind\)"):
        model.add_items(pa.table({"item": ["j"], "colour": ["red"]}))
    model.add_items(pa.table({"item": [logs[0].items.all()[0].as_py()], "kind": ["k1"]}))  # known
    model.item_table = None
    with pytest.raises(DataError, match="has no item columns"):
        model.add_items(pa.table({"item": ["j"], "kind": ["k1"]}))
    assert torch.equal(tree_in(model).item_of, before)
