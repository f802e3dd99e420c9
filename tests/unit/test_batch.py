"""Batches: shards of all users, and a callable from tables of users to tables of lists."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.data.ragged import Ragged
from softdex.distributed import batch
from softdex.distributed.batch import Recommend
from softdex.errors import DataError, SoftdexError


@pytest.fixture(scope="module")
def place(model: sdx.Retriever, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `near` of item_cf in a file."""
    path = tmp_path_factory.mktemp("batch") / "near.sdx"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def users(model: sdx.Retriever) -> pa.Table:
    """Every user, in a table with another column."""
    return pa.table({"weight": np.ones(len(model.users)), "user": model.users.all()})


def whole(model: sdx.Retriever, path: Path, **options: Any) -> pa.Table:
    model.recommend_all(path, **options)
    return pq.read_table(path)


def cut(table: pa.Table, size: int) -> list[pa.Table]:
    return [table.slice(start, size) for start in range(0, len(table), size)]


# shards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"k": 3}, {"k": 2, "mode": "sample", "seed": 5}])
def test_shards_one_after_another_are_the_whole(
    model: sdx.Retriever, tmp_path: Path, options: dict[str, Any]
) -> None:
    expected = whole(model, tmp_path / "all.parquet", **options)
    parts = [whole(model, tmp_path / "p.parquet", shard=(i, 3), **options) for i in range(3)]
    assert all(part.num_rows for part in parts)
    assert pa.concat_tables(parts).combine_chunks().equals(expected.combine_chunks())


def test_shards_of_some_users_keep_their_rules_and_may_be_empty(
    model: sdx.Retriever, tmp_path: Path, loud: None, capfd: pytest.CaptureFixture[str]
) -> None:
    users, items = (keys.take(np.array([5, 0])).to_pylist() for keys in (model.users, model.items))
    options: dict[str, Any] = {
        "users": users, "allow": [[items[0]], [items[1]]], "exclude_seen": False,
    }  # fmt: skip
    parts = [whole(model, tmp_path / "p.csv.parquet", shard=(i, 3), **options) for i in range(3)]
    found = [(row["user"], row["item"]) for part in parts for row in part.to_pylist()]
    assert found == list(zip(users, items, strict=True))
    assert [len(part) for part in parts] == [0, 1, 1]
    assert parts[0].schema == parts[1].schema
    assert "shard 0 of 3 holds no user" in capfd.readouterr().err


@pytest.mark.parametrize("shard", [(3, 3), (-1, 3), (0, 0), (1,), (0.0, 2), (True, 2), "0/2", 1])
def test_what_is_no_shard_is_refused(model: sdx.Retriever, tmp_path: Path, shard: Any) -> None:
    with pytest.raises(SoftdexError, match=r"recommend_all: expected a shard i of n as \(i, n\)"):
        model.recommend_all(tmp_path / "a.csv", shard=shard)
    assert not list(tmp_path.iterdir())


# tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"k": 4}, {"k": 3, "mode": "sample", "seed": 2}])
def test_lists_are_those_of_recommend_all_however_users_are_divided(
    model: sdx.Retriever, place: Path, users: pa.Table, tmp_path: Path, options: dict[str, Any]
) -> None:
    expected = whole(model, tmp_path / "all.parquet", **options)
    ask = Recommend(place, **options)
    assert ask(users).equals(expected)
    parts = [ask(part) for part in cut(users, 7)]
    assert pa.concat_tables(parts).equals(expected)
    records = [r for part in cut(users, 9) for r in part.to_batches()]
    assert pa.Table.from_batches(list(ask.batches(records))).equals(expected)
    assert ask(users.slice(0, 0)).schema == ask.schema() == expected.schema


def test_rules_and_columns_reach_every_table(place: Path, users: pa.Table) -> None:
    model = sdx.load(place)
    some, first = users.slice(3, 4), model.items.take(np.arange(6)).to_pylist()
    keys = some["user"].to_pylist()
    options: dict[str, Any] = {
        "allow": {keys[0]: first[:3], keys[2]: first}, "deny": first[:1], "exclude_seen": False,
    }  # fmt: skip
    found = Recommend(place, 5, **options)(some)
    assert found.equals(model.recommend(keys, 5, **options).table)
    assert set(found["user"].to_pylist()) == {keys[0], keys[2]}


def test_histories_in_a_column_replace_stored_ones(model: sdx.Retriever, place: Path) -> None:
    past = [model.items.take(model.seen[row]).to_pylist() for row in (0, 1)]
    given = pa.table({"who": [7, 8, 9], "past": [past[0], past[1], None]})
    for kind in (pa.list_(pa.string()), pa.large_list(pa.large_string())):
        table = given.set_column(1, "past", given["past"].cast(kind))
        found = Recommend(place, 3, user="who", history="past")(table)
        assert found["user"].to_pylist() == [7] * 3 + [8] * 3 + [9] * 3
        known = model.recommend(model.users.take(np.arange(2)), 3)["item"]
        assert found["item"].to_pylist()[:6] == known.to_pylist()
        popular = np.argsort(-model.item_counts, kind="stable")[:3]
        assert found["item"].to_pylist()[6:] == model.items.take(popular).to_pylist()
    assert found.schema == Recommend(place, user="who", history="past").schema(pa.int64())


def test_arrow_lists_are_the_lists_of_python(model: sdx.Retriever) -> None:
    past = [model.items.take(np.array(rows)).to_pylist() for rows in ([0, 4], [2])]
    column = pa.chunked_array([[past[1]], past, [[]]])
    found = model.recommend(history=column.slice(1), k=3, unknown="popular")
    assert found.table.equals(model.recommend(history=[*past, []], k=3, unknown="popular").table)


def test_users_come_back_in_the_type_that_they_were_given_in(place: Path) -> None:
    model = sdx.load(place)
    known = model.users.take(np.arange(2)).to_pylist()
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        given = pa.table({"user": pa.array([known[0], "nobody", known[1]]).cast(kind)})
        found = Recommend(place, 1)(given)
        assert found.schema.field("user").type == kind
        assert found["user"].to_pylist() == [known[0], "nobody", known[1]]
        assert Recommend(place, 1, unknown="skip")(given)["user"].to_pylist() == known


def test_draws_of_an_unknown_user_are_their_own_in_every_table(place: Path) -> None:
    names = [f"new {i}" for i in range(40)]
    ask = Recommend(place, 3, mode="sample")
    assert ask.seed is not None
    together = ask(pa.table({"user": names}))
    alone = [ask(pa.table({"user": [name]})) for name in names]
    assert pa.concat_tables(alone).select([0, 2]).equals(together.select([0, 2]))
    assert len({tuple(table["item"].to_pylist()) for table in alone}) > 10


# processes ---------------------------------------------------------------------------------------


def test_it_travels_as_a_path_and_options(
    place: Path, users: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    ask = Recommend(place.name, 2, threads=None, where=None, columns=())
    sent = pickle.dumps(ask)
    assert len(sent) < 1000
    monkeypatch.chdir("/")
    assert pickle.loads(sent)(users).equals(ask(users))


def test_a_process_loads_a_model_once_and_a_new_file_anew(
    model: sdx.Retriever, tmp_path: Path, users: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    monkeypatch.setattr(batch, "load", lambda path: loads.append(path) or sdx.load(path))
    path = tmp_path / "model.sdx"
    model.save(path)
    for _ in range(3):
        Recommend(tmp_path)(users)
    assert loads == [str(tmp_path)]
    rows = [("ann", "tea"), ("bob", "jam")]
    sdx.fit("popular", sdx.read(rows, quiet=True)).save(path)
    assert Recommend(tmp_path)(pa.table({"user": ["ann"]}))["item"].to_pylist() == ["jam"]
    assert len(loads) == 2


def test_mistakes_name_what_is_wrong(model: sdx.Retriever, place: Path, tmp_path: Path) -> None:
    table = pa.table({"user": ["u1"], "n": [1]})
    cases: list[tuple[Any, str]] = [
        (lambda: Recommend(model), "expected the path of a saved model, got Retriever"),
        (lambda: Recommend(place, 0), "expected k as a whole number"),
        (lambda: Recommend(place, max_memory="2 apples"), "expected a size such as '2GB'"),
        (lambda: Recommend(place)(pa.table({"n": [1]})), "has no user column among n"),
        (lambda: Recommend(place, user="usr")(table), "no column 'usr'. Did you mean 'user'?"),
        (lambda: Recommend(place, history="past")(table), "no column 'past'"),
        (lambda: Recommend(place, history="n")(table), "expected history="),
        (lambda: Recommend(place, unknown="error")(table), "Recommend: 1 unknown user"),
        (lambda: Recommend(tmp_path / "no.sdx")(table), "no.sdx"),
    ]
    for call, words in cases:
        with pytest.raises((SoftdexError, DataError)) as caught:
            call()
        assert words in str(caught.value)


def test_a_ragged_column_keeps_nulls_as_empty(model: sdx.Retriever) -> None:
    from softdex.model.asking import histories_of

    cells = model.items.take(np.arange(3)).to_pylist()
    found = histories_of(model.items, "x", pa.array([None, cells, []]), "error")
    assert found == Ragged(np.array([0, 0, 3, 3]), np.arange(3, dtype=np.int32))
