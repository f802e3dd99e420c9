"""Towers of features: a table's place is taken, and new items are served by what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import softdex as sdx
from marks import slow
from softdex.encode.features.columns import learn_columns
from softdex.encode.features.tower import Tower, tower
from softdex.encode.table import Table
from softdex.solve.gradient.rowwise import RowAdam

DIM = 6
SMALL: dict[str, Any] = {"dim": 16, "lr": 0.02, "device": "cpu"}
TABLE = pa.table(
    {
        "genre": ["a", "b", "a", None, "c"],
        "tags": pa.array([["x", "y"], ["y"], [], ["z", "x"], None], pa.list_(pa.string())),
        "price": [1.5, 2.5, None, 7.25, 3.5],
    }
)


def made(*, own: bool = True, dropout: float = 0.0, table: pa.Table = TABLE) -> Tower:
    columns = learn_columns(table, ["genre", "tags", "price"])
    counts = np.ones(table.num_rows, np.int64)
    generator = torch.Generator().manual_seed(0)
    return tower(
        table, columns, DIM, scale=1.0, generator=generator, counts=counts, own=own,
        dropout=dropout,
    )  # fmt: skip


def by_hand(of: Tower) -> Tensor:
    """Every row's vector, said in the plainest way."""
    rows = []
    for i in range(len(of)):
        vector = of.numbers[i] @ of.numeric
        for token, weight in zip(of.ids[i].tolist(), of.weights[i].tolist(), strict=True):
            if token >= 0:
                vector = vector + weight * of.tokens.weight[token]
        rows.append(vector if of.own is None else vector + of.own.weight[i])
    return torch.stack(rows)


@pytest.mark.parametrize("own", [True, False])
def test_a_tower_answers_like_a_table_of_its_vectors(own: bool) -> None:
    ours = made(own=own).eval()
    table = Table(by_hand(ours).detach()).eval()
    query = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[0, 3], [4, 4], [1, 2]])
    weight = torch.tensor([[0.5, 0.5], [1.0, 0.25], [1.0, 0.0]])
    assert torch.allclose(ours(ids), table(ids), atol=1e-6)
    assert torch.allclose(ours(slice(1, 4)), table(slice(1, 4)), atol=1e-6)
    assert torch.allclose(ours.all(), table.all(), atol=1e-6)
    assert torch.allclose(ours.bag(ids, weight), table.bag(ids, weight), atol=1e-6)
    assert torch.allclose(ours.dots(query, ids), table.dots(query, ids), atol=1e-5)
    padded = torch.tensor([[0, -1], [-1, -1], [1, 2]])
    assert torch.allclose(ours.bag(padded, weight), table.bag(padded, weight), atol=1e-6)


@pytest.mark.parametrize("way", ["rows", "bag", "dots", "all"])
def test_what_is_looked_up_learns_and_nothing_else(way: str) -> None:
    """One step of each optimiser is that of plain vectors by autograd."""
    ours = made().train()
    query = torch.randn(2, DIM, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[0, 3], [0, -1]])
    weight = torch.tensor([[0.5, 0.25], [1.0, 1.0]])
    tokens, own = ours.tokens.weight.clone(), ours.own.weight.clone()  # type: ignore[union-attr]

    def loss(of: Any) -> Tensor:
        if way == "rows":
            return (of(ids[:, 0]) * query).sum()  # type: ignore[no-any-return]
        if way == "bag":
            return (of.bag(ids, weight) * query).sum()  # type: ignore[no-any-return]
        if way == "dots":
            return (of.dots(query, ids) * weight * (ids >= 0)).sum()  # type: ignore[no-any-return]
        return (of.all() @ query.T).square().sum()  # type: ignore[no-any-return]

    leaves = [tokens.requires_grad_(), own.requires_grad_()]
    plain = ours.numbers @ ours.numeric.detach() + own
    for place in range(ours.ids.shape[1]):
        real = (ours.ids[:, place] >= 0).unsqueeze(1)
        plain = plain + real * ours.weights[:, place, None] * tokens[ours.ids[:, place]]

    class Plain:
        def __call__(self, at: Tensor) -> Tensor:
            return plain[at]

        def bag(self, at: Tensor, weight: Tensor) -> Tensor:
            return (plain[at] * (weight * (at >= 0)).unsqueeze(2)).sum(1)

        def dots(self, query: Tensor, at: Tensor) -> Tensor:
            return torch.einsum("bd,bnd->bn", query, plain[at])

        def all(self) -> Tensor:
            return plain

    expected = torch.autograd.grad(loss(Plain()), leaves)
    loss(ours).backward()
    for table, grad in zip((ours.tokens, ours.own), expected, strict=True):
        before = table.weight.clone()  # type: ignore[union-attr]
        RowAdam(table, 1.0).step()  # type: ignore[arg-type]
        moved = before - table.weight  # type: ignore[union-attr]
        touched = grad.abs().sum(1) > 0
        assert torch.allclose(moved[touched].sign(), grad[touched].sign(), atol=1e-3)
        assert torch.allclose(moved[touched].abs()[grad[touched].abs() > 1e-4], torch.ones(()))
        assert way == "all" or (moved[~touched] == 0).all()


def test_a_row_without_its_own_vector_is_what_a_new_row_with_its_features_would_be() -> None:
    ours = made(dropout=0.5).train()
    own = ours.own.weight  # type: ignore[union-attr]
    alone = ours.of(TABLE)
    generator, left_out = torch.Generator().manual_seed(0), torch.zeros(5)
    for _ in range(400):
        ours.shuffle(generator)
        with torch.no_grad():
            found = ours(torch.arange(5))
            assert torch.equal(found, ours.all())
        for i in range(5):
            is_alone = bool(torch.allclose(found[i], alone[i], atol=1e-6))
            assert is_alone or torch.allclose(found[i], alone[i] + own[i], atol=1e-6)
            left_out[i] += is_alone
    assert ((left_out / 400 - 0.5).abs() < 0.1).all()
    assert torch.allclose(ours.eval()(torch.arange(5)), alone + own, atol=1e-6)


# recipes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def catalogue() -> pa.Table:
    """Forty items of four groups; the last of each group nobody has had."""
    return pa.table(
        {
            "item": list(range(40)),
            "group": [f"g{i // 10}" for i in range(40)],
            "tags": pa.array([[f"t{i // 10}", "all"] for i in range(40)], pa.list_(pa.string())),
        }
    )


@pytest.fixture(scope="module")
def log(catalogue: pa.Table) -> sdx.Interactions:
    draw = np.random.default_rng(0)
    events = [
        (u, 10 * (u % 4) + int(i), t)
        for u in range(120)
        for t, i in enumerate(draw.choice(9, draw.integers(4, 8), replace=False))
    ]
    table = pa.table(dict(zip(("user", "item", "time"), zip(*events, strict=True), strict=True)))
    return sdx.read(table, items=catalogue, quiet=True).compact()


RECIPES: list[tuple[str, dict[str, Any]]] = [
    ("ssm", {"epochs": 30, "encoder": "mix"}),
    ("softmax", {"epochs": 30, "score": "dot", "encoder": "history"}),
    ("bir", {"epochs": 20, "encoder": "mix"}),
    ("sasrec", {"epochs": 20, "hidden": 32, "heads": 2, "layers": 1}),
    ("youtube_dnn", {"epochs": 20, "negatives": 20}),
]


@pytest.mark.parametrize(
    ("name", "options"), RECIPES, ids=lambda o: o if isinstance(o, str) else ""
)
@pytest.mark.parametrize("ids", ["add", *slow("drop")])
def test_items_nobody_has_had_come_to_those_who_like_their_kind(
    log: sdx.Interactions, catalogue: pa.Table, name: str, options: dict[str, Any], ids: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    model = sdx.fit(name, log, features=["group", "tags"], ids=ids, **(SMALL | options))
    assert isinstance(model.index.scorer.items, Table)
    model.save(tmp_path / "m.sdx")
    for served in (model, sdx.load(tmp_path / "m.sdx")):
        new = catalogue.filter(pa.array([i % 10 == 9 for i in range(40)]))
        served.add_items(new)
        history = [[10 * g, 10 * g + 1, 10 * g + 2] for g in range(4)]
        found = served.recommend(history=history, k=1, allow=[9, 19, 29, 39]).to_pydict()
        assert found["item"] == [9, 19, 29, 39]


def test_items_of_the_table_without_events_are_served_by_their_columns(
    log: sdx.Interactions, catalogue: pa.Table
) -> None:
    whole = sdx.read(log.to_arrow(), items=catalogue, quiet=True)
    assert (whole.item_counts[9::10] == 0).all()
    options = SMALL | {"epochs": 15, "encoder": "mix", "ids": "drop"}
    model = sdx.fit("ssm", whole, features=["group", "tags"], **options)
    history = [[10 * g, 10 * g + 1, 10 * g + 2] for g in range(4)]
    found = model.recommend(history=history, k=1, allow=[9, 19, 29, 39]).to_pydict()
    assert found["item"] == [9, 19, 29, 39]


def test_vectors_of_items_are_features_and_serve_new_items(
    log: sdx.Interactions, catalogue: pa.Table, tmp_path: Path
) -> None:
    """A random direction per group, and noise: what an image or text model would say of items."""
    draw = np.random.default_rng(1)
    centre = draw.normal(size=(4, 16))[np.arange(40) // 10]
    known = catalogue.append_column(
        "image", pa.array((centre + 0.3 * draw.normal(size=(40, 16))).tolist())
    ).select(["item", "image"])
    whole = sdx.read(log.to_arrow(), items=known, quiet=True).compact()
    options = SMALL | {"epochs": 15, "encoder": "mix", "ids": "drop"}
    model = sdx.fit("ssm", whole, features="all", **options)
    model.save(tmp_path / "m.sdx")
    for served in (model, sdx.load(tmp_path / "m.sdx")):
        served.add_items(known.filter(pa.array([i % 10 == 9 for i in range(40)])))
        history = [[10 * g, 10 * g + 1, 10 * g + 2] for g in range(4)]
        found = served.recommend(history=history, k=1, allow=[9, 19, 29, 39]).to_pydict()
        assert found["item"] == [9, 19, 29, 39]


def test_a_new_item_can_be_part_of_a_history(log: sdx.Interactions) -> None:
    options = SMALL | {"epochs": 20, "hidden": 32, "heads": 2, "layers": 1}
    model = sdx.fit("sasrec", log, features="all", **options)
    model.add_items(pa.table({"item": [99], "group": ["g2"]}))
    found = model.recommend(history=[[99]], k=5).to_pydict()
    assert sum(i // 10 == 2 for i in found["item"]) >= 4


def test_a_killed_run_goes_on_to_the_very_same_model(
    log: sdx.Interactions, killed: Callable[..., sdx.Retriever]
) -> None:
    """Which items are without a vector of their own comes from the run's own generator."""
    options = SMALL | {"epochs": 4, "features": "all", "id_dropout": 0.3, "batch_size": 64}
    whole, again = sdx.fit("ssm", log, **options), killed("ssm", log, after=25, **options)
    assert torch.equal(again.index.scorer.items.weight, whole.index.scorer.items.weight)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"features": ["grup"]}, "group"),
        ({"ids": "drop"}, "features="),
        ({"features": "all", "ids": "maybe"}, "drop"),
        ({"features": "all", "id_dropout": 1.0}, "id_dropout"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_options_that_make_no_sense_are_refused(
    log: sdx.Interactions, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=said):
        sdx.fit("ssm", log, **options)


def test_a_log_without_a_table_of_items_has_no_features(log: sdx.Interactions) -> None:
    bare = sdx.read(log.to_arrow(), quiet=True)
    with pytest.raises(sdx.SoftdexError, match="items="):
        sdx.fit("ssm", bare, features="all")


def test_an_earlier_model_and_features_do_not_go_together(log: sdx.Interactions) -> None:
    start = sdx.fit("ssm", log, epochs=1, **SMALL)
    with pytest.raises(sdx.SoftdexError, match="start="):
        sdx.fit("ssm", log, start=start, features="all", epochs=1, **SMALL)


def test_tables_of_new_items_are_refused_where_they_make_no_sense(
    log: sdx.Interactions, catalogue: pa.Table
) -> None:
    plain = sdx.fit("ssm", log, epochs=1, **SMALL)
    with pytest.raises(sdx.SoftdexError, match="features="):
        plain.add_items(catalogue)
    model = sdx.fit("ssm", log, features="all", epochs=1, **SMALL)
    model.add_items(catalogue)
    assert len(model.items) == len(catalogue), "what is known is skipped"
    twice = pa.table({"item": [77, 77], "group": ["g1", "g2"]})
    with pytest.raises(sdx.SoftdexError, match="more than once"):
        model.add_items(twice)
    with pytest.raises(sdx.SoftdexError, match="no item column"):
        model.add_items(pa.table({"group": ["g1"]}))


def test_a_value_that_no_training_reaches_says_nothing(log: sdx.Interactions) -> None:
    model = sdx.fit("ssm", log, features=["group"], ids="drop", epochs=2, **SMALL)
    assert model.tower is not None
    unknown = model.tower.of(pa.table({"group": ["never seen", None]}))
    assert (unknown == 0).all()


# users -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "encoder"), [("ssm", "user"), ("bir", "mix")])
def test_users_nobody_has_seen_get_what_their_kind_likes(
    log: sdx.Interactions, name: str, encoder: str, tmp_path: Path
) -> None:
    people = pa.table({"user": list(range(120)), "city": [f"c{u % 4}" for u in range(120)]})
    known = sdx.read(log.to_arrow(), users=people, quiet=True)
    options = SMALL | {"epochs": 30, "encoder": encoder, "user_features": ["city"]}
    model = sdx.fit(name, known, **options)
    assert isinstance(model.encoder.vectors, Table)  # type: ignore[union-attr]
    model.save(tmp_path / "m.sdx")
    for served in (model, sdx.load(tmp_path / "m.sdx")):
        served.add_users(pa.table({"user": [500, 501, 502, 503], "city": ["c0", "c1", "c2", "c3"]}))
        found = served.recommend([500, 501, 502, 503], k=5).to_pydict()
        own = [i // 10 == u - 500 for u, i in zip(found["user"], found["item"], strict=True)]
        assert np.mean(own) > 0.9
        old = served.recommend([0, 1], k=3, exclude_seen=False).to_pydict()
        assert [i // 10 for i in old["item"]] == [0] * 3 + [1] * 3


def test_validation_measures_users_as_they_will_be_served(log: sdx.Interactions) -> None:
    people = pa.table({"user": list(range(120)), "city": [f"c{u % 4}" for u in range(120)]})
    known = sdx.read(log.to_arrow(), users=people, quiet=True)
    train, valid, _ = sdx.split.by_user(known, seed=0)
    options = SMALL | {"epochs": 3, "user_features": ["city"], "patience": 0}
    model = sdx.fit("ssm", train, valid=valid, **options)
    best = max(r["metric"] for r in model.card.training["history"])
    assert model.evaluate(valid, 20)["ndcg@20"] == pytest.approx(best, abs=1e-5)


def test_user_features_need_a_table_of_users(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match="users="):
        sdx.fit("ssm", log, user_features="all")
    model = sdx.fit("ssm", log, epochs=1, **SMALL)
    with pytest.raises(sdx.SoftdexError, match="add_users"):
        model.add_users(pa.table({"user": [999]}))
