"""Users and items that come after training: solved for as in training, or refused as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import softdex as sdx
from marks import slow
from softdex.data.keys import Keys
from softdex.encode.table import Table
from softdex.solve.closed.als import Sweeps
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import shared_by_users

SMALL: dict[str, Any] = {"dim": 8, "epochs": 3, "device": "cpu"}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "ials": ("ials", {"alpha": 0.2, "lam": 0.02}),
    "rg2": ("rg2", {}),
    "rgx": ("rgx", {}),
    "rgx printed": ("rgx", {"beta": 0.5, "interaction": "frobenius"}),
    "l2": ("rg2", {"reg": "l2"}),
}


def weights_of(log: sdx.Interactions) -> np.ndarray:
    return (np.arange(len(log)) % 4 + 1).astype(np.float32) / 2


@pytest.fixture(scope="module")
def whole() -> sdx.Interactions:
    world = sdx.synthetic.world(users=150, items=80, seed=4, events=12, strength=2.0)
    return world.interactions()


@pytest.fixture(scope="module")
def old(whole: sdx.Interactions) -> sdx.Interactions:
    """What the models are trained on: some of the users, some of the items."""
    return whole.select((whole.user % 4 > 0) & (whole.item % 5 > 0)).compact()


@pytest.fixture(scope="module")
def new_users(whole: sdx.Interactions) -> sdx.Interactions:
    return whole.select((whole.user % 4 == 0) & (whole.item % 5 > 0)).compact()


@pytest.fixture(scope="module")
def new_items(whole: sdx.Interactions) -> sdx.Interactions:
    return whole.select((whole.user % 4 > 0) & (whole.item % 5 == 0)).compact()


def fit(loss: str, log: sdx.Interactions, **more: Any) -> sdx.Retriever:
    name, options = LOSSES[loss]
    return sdx.fit(name, log, **(SMALL | options | more))


def vectors(model: sdx.Retriever) -> tuple[Tensor, Tensor]:
    return model.encoder.vectors.weight, model.index.scorer.items.weight  # type: ignore


def folding(model: sdx.Retriever) -> FoldIn:
    assert isinstance(model.encoder, FoldIn)
    return model.encoder


def half_sweep(model: sdx.Retriever, log: sdx.Interactions, side: str) -> Tensor:
    """What an exact half of a sweep makes of the trained vectors of the other side."""
    users, items = (Table(t.clone()) for t in vectors(model))
    run = Sweeps(users, items, *log.confidences, folding(model).loss, 0)
    if side == "users":
        run.solve_users()
        return users.weight
    run.solve_items()
    return items.weight


def row(model: sdx.Retriever, user: str) -> int:
    return int(model.users.lookup([user])[0])


def lists(model: sdx.Retriever, users: list[Any], **more: Any) -> list[tuple[Any, ...]]:
    table = model.recommend(users, k=6, **more)
    return list(
        zip(*(table[n].to_pylist() for n in ("user", "item")), table["score"].to_pylist(),
            strict=True)
    )  # fmt: skip


def same_lists(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    """The same items for everybody, with the same scores but for rounding."""
    return [x[-2] for x in one] == [x[-2] for x in other] and np.allclose(
        [x[-1] for x in one], [x[-1] for x in other], atol=1e-5
    )


def snapshot(model: sdx.Retriever, path: Path) -> bytes:
    model.save(path)
    return path.read_bytes()


# fold-in is a half sweep -------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_fold_in_of_training_users_is_an_exact_half_sweep(
    old: sdx.Interactions, loss: str, weighted: bool
) -> None:
    log = replace(old, weight=weights_of(old)) if weighted else old
    model = fit(loss, log)
    found = folding(model).new_users(log.confidences[0])
    assert torch.allclose(found, half_sweep(model, log, "users"), atol=1e-5)
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "rgx"])
def test_fold_in_of_training_items_is_an_exact_half_sweep(old: sdx.Interactions, loss: str) -> None:
    """Those of exact RGx are coupled: there, new items come to what the sum of the old leaves."""
    model = fit(loss, old)
    found = folding(model).new_items(old.confidences[1])
    assert torch.allclose(found, half_sweep(model, old, "items"), atol=1e-5)


def test_fold_in_of_an_item_into_exact_rgx_is_its_half_step_at_convergence(
    old: sdx.Interactions,
) -> None:
    model = fit("rgx", old, epochs=60, steps=0)
    found = folding(model).new_items(old.confidences[1])
    assert torch.allclose(found, vectors(model)[1], atol=1e-3)


def test_fold_in_follows_the_items(old: sdx.Interactions) -> None:
    """What was computed for other items is not used, though these lie in the same memory."""
    encoder, matrix = folding(fit("rg2", old)), old.confidences[0]

    def is_fresh() -> bool:
        fresh = FoldIn(encoder.vectors.weight, encoder.total, encoder.terms, encoder.items)
        return torch.equal(encoder.new_users(matrix), fresh.new_users(matrix))

    memory = np.empty(encoder.items.weight.shape, np.float32)
    for seed in range(3):
        memory[:] = np.random.default_rng(seed).normal(size=memory.shape)
        encoder.items.weight = torch.from_numpy(memory)
        assert is_fresh()
        encoder.items.weight.mul_(0.5)  # as the best epoch is restored
        assert is_fresh()
        encoder.items.weight = torch.from_numpy(memory)
        assert is_fresh()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_history_alone_is_answered_like_a_user_who_was_added(
    old: sdx.Interactions, new_users: sdx.Interactions, loss: str
) -> None:
    model = fit(loss, old)
    keys = new_users.users.values.to_pylist()
    histories = [new_users.items.take(new_users.histories[u]).to_pylist() for u in range(len(keys))]
    table = model.recommend(history=histories, k=6)
    strangers = list(zip(table["item"].to_pylist(), table["score"].to_pylist(), strict=True))
    model.add_users(new_users)
    assert same_lists(strangers, lists(model, keys))
    assert same_lists(lists(model, keys, history=histories), lists(model, keys))


def test_a_history_stands_in_the_place_of_the_vector_of_a_known_user(
    old: sdx.Interactions,
) -> None:
    model = fit("rg2", old)
    first, other = model.users.values.to_pylist()[:2]
    history = model.items.take(model.seen[1]).to_pylist()
    given = lists(model, [first], history=[history])
    assert [x[0] for x in given] == [first] * 6
    alone = model.recommend(history=[history], k=6)
    assert [x[1] for x in given] == alone["item"].to_pylist()
    assert not same_lists(given, lists(model, [first]))
    assert not {x[1] for x in given} & set(history)
    assert other != first


def test_an_item_that_is_in_a_history_twice_counts_once(old: sdx.Interactions) -> None:
    model = fit("ials", old)
    a, b = model.items.values.to_pylist()[:2]
    once, twice = (model.recommend(history=[h], k=5).table for h in ([a, b], [b, a, a, b]))
    assert once == twice


# users -------------------------------------------------------------------------------------------


def test_added_users_have_their_places_and_nobody_else_changes(
    old: sdx.Interactions, new_users: sdx.Interactions
) -> None:
    model = fit("rg2", old)
    before = {key: lists(model, [key]) for key in model.users.values.to_pylist()}
    counts, items = model.item_counts.copy(), vectors(model)[1].clone()
    model.add_users(new_users)
    keys = model.users.values.to_pylist()
    assert keys == sorted(keys)
    assert len(keys) == old.num_users + new_users.num_users
    assert len(model.seen) == len(vectors(model)[0]) == len(folding(model).total) == len(keys)
    assert {key: lists(model, [key]) for key in before} == before
    assert torch.equal(vectors(model)[1], items)
    for at, key in enumerate(new_users.users.values.to_pylist()):
        had = new_users.items.take(new_users.histories[at]).to_pylist()
        assert model.items.take(model.seen[row(model, key)]).to_pylist() == had
        assert not set(had) & {x[1] for x in lists(model, [key])}
        assert folding(model).total[row(model, key)] == len(set(had))
    met = model.items.lookup(new_users.items.all())[new_users.item]
    assert (model.item_counts == counts + np.bincount(met, minlength=len(counts))).all()
    assert model.added == {"users": new_users.num_users}


def test_users_can_be_added_little_by_little(
    old: sdx.Interactions, new_users: sdx.Interactions, tmp_path: Path
) -> None:
    at_once, step_by_step = fit("rg2", old), fit("rg2", old)
    at_once.add_users(new_users)
    for part in (new_users.user % 2 == 0, new_users.user % 2 == 1):
        step_by_step.add_users(new_users.select(part))
    assert snapshot(at_once, tmp_path / "a") == snapshot(step_by_step, tmp_path / "b")


def test_the_order_of_a_log_is_that_of_its_times(
    old: sdx.Interactions, new_users: sdx.Interactions, tmp_path: Path
) -> None:
    shuffled = new_users.select(np.random.default_rng(0).permutation(len(new_users)))
    one, other = fit("rg2", old), fit("rg2", old)
    one.add_users(new_users)
    other.add_users(shuffled)
    assert snapshot(one, tmp_path / "a") == snapshot(other, tmp_path / "b")


def test_weights_of_new_events_are_confidences(
    old: sdx.Interactions, new_users: sdx.Interactions
) -> None:
    """As in training: an event of weight 2 is that event twice, and without weights a 1."""
    weighted = replace(new_users, weight=np.full(len(new_users), 2.0, np.float32))
    twice = new_users.select(np.repeat(np.arange(len(new_users)), 2))
    doubled = replace(twice, weight=np.ones(len(twice), np.float32))
    found = []
    for log in (new_users, twice, weighted, doubled):
        model = fit("ials", old)
        model.add_users(log)
        rows = model.users.lookup(new_users.users.all())
        found.append((vectors(model)[0][rows], folding(model).total[rows]))
    once, again, two, sums = found
    for mine, theirs in ((once, again), (two, sums)):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    assert torch.equal(2 * once[1], two[1])
    assert (once[0] - two[0]).abs().max() > 1e-3


# items -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_added_items_have_their_places_and_can_be_recommended(
    old: sdx.Interactions, new_items: sdx.Interactions, loss: str
) -> None:
    model = fit(loss, old)
    users, counts = vectors(model)[0].clone(), dict(zip(
        model.items.values.to_pylist(), model.item_counts.tolist(), strict=True
    ))  # fmt: skip
    scores = {x[:2]: x[2] for x in lists(model, model.users.values.to_pylist())}
    model.add_items(new_items)
    keys = model.items.values.to_pylist()
    assert keys == sorted(keys)
    assert len(keys) == old.num_items + new_items.num_items == len(model.item_counts)
    assert torch.equal(vectors(model)[0], users)
    new = dict(zip(new_items.items.values.to_pylist(), new_items.item_counts, strict=True))
    found = dict(zip(keys, model.item_counts.tolist(), strict=True))
    assert found == counts | {k: int(v) for k, v in new.items()}
    after = model.recommend(model.users.values.to_pylist(), k=len(keys))
    pairs = zip(after["user"].to_pylist(), after["item"].to_pylist(), strict=True)
    again = dict(zip(pairs, after["score"].to_pylist(), strict=True))
    assert all(again[pair] == pytest.approx(score, abs=1e-5) for pair, score in scores.items())
    had = set(zip(new_items.users.take(new_items.user).to_pylist(),
                  new_items.items.take(new_items.item).to_pylist(), strict=True))  # fmt: skip
    assert not had & set(again)
    top = model.recommend(model.users.values.to_pylist(), k=6)["item"].to_pylist()
    assert set(top) & set(new)
    assert model.added == {"items": new_items.num_items}


def test_new_items_are_ranked_for_those_who_are_like_those_who_had_them(
    old: sdx.Interactions, new_items: sdx.Interactions
) -> None:
    """Scores of who had an item are above those of who had not, for most items."""
    model = fit("rg2", old)
    model.add_items(new_items)
    users, items = vectors(model)
    scores = (users @ items.T).numpy()
    had = np.zeros(scores.shape, bool)
    had[model.users.lookup(new_items.users.all())[new_items.user],
        model.items.lookup(new_items.items.all())[new_items.item]] = True  # fmt: skip
    rows = model.items.lookup(new_items.items.all())
    better = [scores[had[:, r], r].mean() > scores[~had[:, r], r].mean() for r in rows]
    assert np.mean(better) > 0.9


def test_columns_of_new_items_are_taken_over_or_left_empty(
    old: sdx.Interactions, new_items: sdx.Interactions, whole: sdx.Interactions
) -> None:
    assert whole.item_table is not None
    wanted = dict(zip(whole.items.values.to_pylist(), whole.item_table["category"].to_pylist(),
                      strict=True))  # fmt: skip
    model = fit("rg2", old)
    model.add_items(new_items)
    assert model.item_table is not None
    keys = model.items.values.to_pylist()
    assert dict(zip(keys, model.item_table["category"].to_pylist(), strict=True)) == {
        key: wanted[key] for key in keys
    }
    bare = fit("rg2", old)
    some = new_items.item_table.drop_columns(["category"])  # type: ignore[union-attr]
    bare.add_items(replace(new_items, item_table=some.append_column("more", some.column(0))))
    assert bare.item_table is not None
    assert bare.item_table.column_names == model.item_table.column_names
    empty = bare.item_table["category"].is_null().to_pylist()
    assert [k for k, e in zip(keys, empty, strict=True) if e] == sorted(
        new_items.items.values.to_pylist()
    )
    assert bare.item_table["subcategory"] == model.item_table["subcategory"]
    none = fit("rg2", old)
    none.add_items(replace(new_items, item_table=None))
    assert none.item_table is not None
    assert none.item_table["subcategory"].null_count == new_items.num_items
    category = wanted[keys[0]]
    listed = none.recommend(model.users.values.to_pylist(), where={"category": category})
    assert {wanted[k] for k in listed["item"].to_pylist()} == {category}


def test_columns_may_come_in_another_type_that_fits(
    old: sdx.Interactions, new_items: sdx.Interactions, tmp_path: Path
) -> None:
    assert new_items.item_table is not None
    coded = pa.table({
        name: new_items.item_table[name].dictionary_encode()
        for name in new_items.item_table.column_names
    })  # fmt: skip
    plain, other = fit("rg2", old), fit("rg2", old)
    plain.add_items(new_items)
    other.add_items(replace(new_items, item_table=coded))
    assert snapshot(plain, tmp_path / "a") == snapshot(other, tmp_path / "b")


def test_a_model_without_columns_stays_without(
    old: sdx.Interactions, new_items: sdx.Interactions
) -> None:
    model = fit("rg2", replace(old, item_table=None))
    model.add_items(new_items)
    assert model.item_table is None


def test_many_new_items_leave_what_users_of_rgx_share_positive(old: sdx.Interactions) -> None:
    """The interaction is shared among all the items there are, or it would outweigh the rest."""
    model = fit("rgx", old, alpha=0.3)
    for copy in range(3):
        names = [f"{copy} {key}" for key in old.items.values.to_pylist()]
        model.add_items(replace(old, items=Keys(pa.array(names), pa.string()), item_table=None))
    gram = shared_by_users(folding(model).loss, vectors(model)[1]).gram.double()
    assert torch.linalg.eigvalsh(gram).min() > 0


# both, and files ---------------------------------------------------------------------------------


def test_a_grown_model_is_saved_and_loaded_as_it_is(
    old: sdx.Interactions, new_users: sdx.Interactions, new_items: sdx.Interactions, tmp_path: Path
) -> None:
    model = fit("rgx", old)
    model.add_users(new_users)
    model.add_items(new_items)
    first = snapshot(model, tmp_path / "a.sdx")
    again = sdx.load(tmp_path / "a.sdx")
    assert snapshot(again, tmp_path / "b.sdx") == first
    keys = model.users.values.to_pylist()
    assert lists(again, keys) == lists(model, keys)
    assert again.added == {"users": new_users.num_users, "items": new_items.num_items}
    late = again.users.values.to_pylist()[0]
    log = sdx.read([(f"{late}x", key) for key in again.items.values.to_pylist()[:4]])
    again.add_users(log)  # and it grows on
    assert again.added["users"] == new_users.num_users + 1
    assert len(lists(again, [f"{late}x"])) == 6


@pytest.mark.parametrize("kind", ["numbers", "words of numbers"])
def test_keys_of_any_kind_find_their_places(kind: str) -> None:
    """Numbers stay numbers, though the new log has them as text."""
    draw = np.random.default_rng(0)
    rows = {(int(u), int(i)) for u, i in draw.integers(0, (60, 40), (600, 2))}
    write: Any = int if kind == "numbers" else str
    train = [(10 * u, 3 * i) for u, i in rows if u % 3 and i % 4]
    users = [(write(10 * u), write(3 * i)) for u, i in rows if not u % 3 and i % 4]
    items = [(write(10 * u), write(3 * i)) for u, i in rows if u % 3 and not i % 4]
    model = fit("rg2", sdx.read(train))
    model.add_users(sdx.read(users))
    model.add_items(sdx.read(items))
    assert model.users.values.to_pylist() == sorted({10 * u for u, _ in rows})
    assert model.items.values.to_pylist() == sorted({3 * i for _, i in rows})
    for user in (30, 30, 0):
        had = {i for u, i in rows if 10 * u == user and i % 4}
        assert not {x[1] // 3 for x in lists(model, [user])} & had


# refused -----------------------------------------------------------------------------------------


def test_what_cannot_be_added_is_named_and_changes_nothing(
    old: sdx.Interactions,
    new_users: sdx.Interactions,
    new_items: sdx.Interactions,
    whole: sdx.Interactions,
    tmp_path: Path,
) -> None:
    model = fit("rg2", old)
    before = snapshot(model, tmp_path / "before")
    known_user, known_item = old.users.values[0].as_py(), old.items.values[0].as_py()
    unknown = next(k for k in whole.items.values.to_pylist() if k in set(
        new_items.items.values.to_pylist()
    ))  # fmt: skip
    bad_table = pa.table({"category": pa.array([[1]] * new_items.num_items)})
    cases: list[tuple[Callable[[Any], None], Any, str]] = [
        (model.add_users, old, f"add_users: '{known_user}', .* in the model already"),
        (model.add_items, old, f"add_items: '{known_item}', .* in the model already"),
        (model.add_users, whole, f"add_users: '{known_user}', .* in the model already"),
        (model.add_users, sdx.read([("zoe", unknown)]), f"1 unknown item \\('{unknown}'"),
        (model.add_items, sdx.read([("zoe", "thing")]), "1 unknown user \\('zoe'"),
        (model.add_users, old.select(np.zeros(0, int)), "add_users: the log is empty"),
        (model.add_items, old.select(np.zeros(0, int)), "add_items: the log is empty"),
        (model.add_users, [("a", "b")], "add_users: expected a log, got list"),
        (model.add_items, None, "add_items: expected a log, got NoneType"),
        (model.add_items, replace(new_items, item_table=bad_table), "item column 'category' as"),
    ]
    for call, log, words in cases:
        with pytest.raises(sdx.DataError, match=words):
            call(log)
        assert snapshot(model, tmp_path / "after") == before


def test_keys_that_do_not_fit_among_those_of_the_model_are_refused(tmp_path: Path) -> None:
    model = fit("rg2", sdx.read([(u, i) for u in range(6) for i in range(8) if (u + i) % 3]))
    before = snapshot(model, tmp_path / "before")
    with pytest.raises(sdx.DataError, match="keys do not fit among keys of type int64"):
        model.add_users(sdx.read([("zoe", 1)]))
    with pytest.raises(sdx.DataError, match="keys do not fit among keys of type int64"):
        model.add_items(sdx.read([(1, "thing")]))
    assert snapshot(model, tmp_path / "after") == before


@pytest.mark.parametrize(("name", "options"), [
    ("popular", {}),
    ("ssm", {"dim": 4, "epochs": 1, "device": "cpu"}),
    ("ssm", {"dim": 4, "epochs": 1, "device": "cpu", "encoder": "history"}),
])  # fmt: skip
def test_only_models_of_closed_forms_take_in_users(
    old: sdx.Interactions, new_users: sdx.Interactions, name: str, options: dict[str, Any]
) -> None:
    model = sdx.fit(name, old, **options)
    advice = "history=" if model.encoder.reads_history else "Fit again with start="
    with pytest.raises(sdx.SoftdexError, match=f"add_users: {name} has no closed form.*{advice}"):
        model.add_users(new_users)


def test_models_without_item_vectors_take_in_no_items(
    old: sdx.Interactions, new_items: sdx.Interactions
) -> None:
    with pytest.raises(sdx.SoftdexError, match="add_items: item_cf has no item vectors"):
        sdx.fit("item_cf", old).add_items(new_items)


NEWCOMERS = [
    ("softmax", {"score": "dot_bias"}),
    ("ssm", {"score": "cosine", "encoder": "history"}),
    ("fastvae", {"hidden": 16, "latent": 8, "codewords": 4}),
    *slow(
        ("softmax", {"score": "dot"}),
        ("ssm", {"score": "cosine", "prior": 0.0, "encoder": "mix"}),
        ("mult_vae", {"hidden": 16, "latent": 8}),
    ),
]


@pytest.mark.parametrize(("name", "options"), NEWCOMERS)
def test_items_added_to_a_trained_model_are_found_by_those_who_would_have_them(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    """Two halves of users with items of their own; of each, one item is not in training."""
    draw = np.random.default_rng(0)
    events = [(u, 20 * (u % 2) + i) for u in range(200) for i in draw.choice(20, 8, replace=False)]
    late = [(u, i) for u, i in events if i in (3, 23)]
    log = sdx.read([pair for pair in events if pair not in set(late)])
    model = sdx.fit(name, log, dim=16, epochs=15, lr=0.02, device="cpu", **options)
    askers = [u for u in range(200) if (u, 3 + 20 * (u % 2)) not in set(late)]
    model.add_items(sdx.read(late))
    found = model.recommend(askers, k=12).to_pydict()
    pairs = set(zip(found["user"], found["item"], strict=True))
    own = sum((u, 3 + 20 * (u % 2)) in pairs for u in askers)
    other = sum((u, 23 - 20 * (u % 2)) in pairs for u in askers)
    assert own > 0.6 * len(askers)
    assert other < 0.2 * len(askers)
    model.save(tmp_path / "grown.sdx")
    again = sdx.load(tmp_path / "grown.sdx")
    assert again.recommend(askers, k=12).to_pydict() == model.recommend(askers, k=12).to_pydict()
    assert again.added == {"items": 2}


@pytest.mark.parametrize("name", ["ssm", "mult_vae"])
def test_weights_that_are_all_alike_do_not_change_what_an_added_item_is(name: str) -> None:
    draw = np.random.default_rng(0)
    events = [(u, int(i)) for u in range(80) for i in draw.choice(15, 5, replace=False)]
    options = {"dim": 8, "epochs": 5, "device": "cpu"}
    found = []
    for weight in (1.0, 50.0):
        old, new = (
            sdx.read([(u, i, 0, weight) for u, i in events if (i == 3) == late], weight=3)
            for late in (False, True)
        )
        model = sdx.fit(name, old, **options)
        model.add_items(new)
        found.append(model.index.scorer.items.weight[model.items.rows([3], "t", "t")[0]])
    assert torch.allclose(found[0], found[1], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", ["ssm", "mult_vae"])
def test_an_item_can_be_added_to_a_model_of_one_item(name: str) -> None:
    model = sdx.fit(name, sdx.read([(u, "only") for u in range(20)]), epochs=2, device="cpu")
    model.add_items(sdx.read([(3, "new"), (4, "new")]))
    found = model.recommend([7], k=2, exclude_seen=False).to_pydict()
    assert set(found["item"]) == {"only", "new"}
