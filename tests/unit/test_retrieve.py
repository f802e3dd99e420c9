"""Recommendations by key and by history: the right items, the right table, or one clear error."""

from __future__ import annotations

import copy
import pickle
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.errors import DataError, SoftdexError
from softdex.model import answer
from softdex.model.asking import batch_size

ROWS = [
    ("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam"), ("bob", "pie"),
    ("cat", "pie"), ("cat", "tea"), ("dan", "ham"), ("dan", "tea"),
]  # fmt: skip
ITEMS = pa.table(
    {
        "item": ["tea", "jam", "pie", "ham"],
        "price": [1, 2, None, 4],
        "tags": [["hot"], ["sweet", "red"], ["sweet"], None],
        "score": [9, 9, 9, 9],
    }
)


@pytest.fixture(scope="module")
def counts() -> sdx.Retriever:
    """tea 4, jam 2, pie 2, ham 1, the same for everybody."""
    return sdx.fit("popular", sdx.read(ROWS, items=ITEMS, quiet=True))


@pytest.fixture(scope="module")
def near() -> sdx.Retriever:
    return sdx.fit("item_cf", sdx.read(ROWS, items=ITEMS, quiet=True))


@pytest.fixture(scope="module")
def numbered() -> sdx.Retriever:
    """Users 1, 2, 17 and items 10, 20, 30, as integers."""
    rows = [(1, 10), (1, 20), (2, 10), (17, 20), (17, 10), (2, 30)]
    return sdx.fit("popular", sdx.read(rows, quiet=True))


def items(table: sdx.Recommendations) -> list[Any]:
    return table["item"].to_pylist()


def brute_force(
    model: sdx.Retriever, history: list[int], k: int, seen: set[int]
) -> list[tuple[str, float]]:
    """Sum the neighbour lists of a history; unnamed items after, by popularity; ties by row."""
    lists = model.encoder.matrix.toarray()
    total = lists[sorted(set(history))].sum(0) if history else np.zeros(len(lists))
    score = np.where(total > 0, total, model.index.scorer.fallback.numpy())
    order = [i for i in np.lexsort((np.arange(len(score)), -score)) if i not in seen]
    names = model.items.all().to_pylist()
    return [(names[i], float(score[i])) for i in order[:k]]


# by key and by history ---------------------------------------------------------------------------


def test_recommendations_are_those_of_a_plain_loop(model: sdx.Retriever) -> None:
    users = np.arange(0, len(model.users), 7)
    found = model.recommend(model.users.take(users), 12)
    wanted = []
    for name, row in zip(model.users.take(users).to_pylist(), users, strict=True):
        history = model.seen[row].tolist()
        lists = brute_force(model, history, 12, set(history))
        wanted += [(name, rank, item, score) for rank, (item, score) in enumerate(lists, 1)]
    assert found.column_names == ["user", "rank", "item", "score"]
    got = list(zip(*(found[c].to_pylist() for c in found.column_names), strict=True))
    assert [g[:3] for g in got] == [w[:3] for w in wanted]
    assert [g[3] for g in got] == pytest.approx([w[3] for w in wanted], rel=1e-5)


def test_a_history_gives_what_the_user_who_has_it_gets(model: sdx.Retriever) -> None:
    names = model.users.all().to_pylist()[:5]
    past = [model.items.take(model.seen[row]).to_pylist() for row in range(5)]
    by_key, by_history = model.recommend(names, 9), model.recommend(history=past, k=9)
    assert by_history["user"].to_pylist() == [row for row in range(5) for _ in range(9)]
    assert by_history.drop(["user"]).equals(by_key.drop(["user"]))


def test_a_history_takes_the_place_of_what_is_stored(near: sdx.Retriever) -> None:
    found = near.recommend(["ann", "new"], 9, history=[["ham"], ["tea", "jam", "pie"]])
    assert found["user"].to_pylist() == ["ann"] * 3 + ["new"]
    assert items(found) == ["tea", "jam", "pie", "ham"]


def test_what_was_seen_stays_out_unless_it_may_return(counts: sdx.Retriever) -> None:
    assert items(counts.recommend("bob")) == ["ham"]
    assert items(counts.recommend("bob", exclude_seen=False)) == ["tea", "jam", "pie", "ham"]
    assert items(counts.recommend(history=[["tea", "tea"]], exclude_seen=False))[0] == "tea"
    assert items(counts.recommend(history=[["tea", "tea"]])) == ["jam", "pie", "ham"]


def test_filters_narrow_the_list_together(counts: sdx.Retriever) -> None:
    user = {"users": "dan", "exclude_seen": False}
    assert items(counts.recommend(**user, allow=["ham", "jam", "pie"], deny="pie")) == [
        "jam",
        "ham",
    ]
    assert items(counts.recommend(**user, where={"tags": "sweet"}, allow=["pie"])) == ["pie"]
    assert items(counts.recommend(**user, where=pc.field("price") >= 2)) == ["jam", "ham"]
    assert items(counts.recommend("dan", where={"tags": "hot"})) == []
    assert items(counts.recommend(**user, allow=[])) == []


def test_item_columns_come_along(counts: sdx.Retriever) -> None:
    found = counts.recommend("cat", columns=["tags", "price"])
    assert found.column_names == ["user", "rank", "item", "score", "tags", "price"]
    assert found.drop(["user", "rank"]).to_pylist() == [
        {"item": "jam", "score": 2.0, "tags": ["sweet", "red"], "price": 2},
        {"item": "ham", "score": 1.0, "tags": None, "price": 4},
    ]
    assert counts.recommend("cat", columns="price").column_names[-1] == "price"


def test_the_answer_does_not_depend_on_how_much_memory_there_is(
    model: sdx.Retriever, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = model.recommend(model.users.all(), 8)
    monkeypatch.setattr("softdex.model.asking.BATCH", 7)
    assert model.recommend(model.users.all(), 8, max_memory="1MiB").combine_chunks() == (
        wanted.combine_chunks()
    )
    assert model.recommend_all(tmp_path / "a.parquet", 8, max_memory=2**20) == len(wanted)
    assert pq.read_table(tmp_path / "a.parquet").equals(wanted.table)
    keys = model.items.all()
    near = model.similar(keys, 3)
    monkeypatch.setattr("softdex.model.asking.BATCH", 1000)
    assert near.combine_chunks() == model.similar(keys, 3).combine_chunks()


def test_long_lists_are_searched_for_fewer_users_at_a_time(counts: sdx.Retriever) -> None:
    assert batch_size(counts.encoder, 2**20, 10) == 1024
    assert batch_size(counts.encoder, 2**20, 10_000) == 3
    assert batch_size(counts.encoder, 2**20, 10**9) == 1


# users and histories of every kind ---------------------------------------------------------------


@pytest.mark.parametrize(
    "users",
    [
        "ann", b"ann", ["ann"], ("ann",), np.array(["ann"]), np.str_("ann"), pd.Series(["ann"]),
        pd.Index(["ann"]), pl.Series(["ann"]), pa.array(["ann"]), pa.scalar("ann"), {"ann"},
        pa.chunked_array([["ann"], []], pa.large_string()), pa.array(["ann"]).dictionary_encode(),
    ],
    ids=lambda u: type(u).__name__,
)  # fmt: skip
def test_users_are_given_as_one_key_or_any_list_of_keys(near: sdx.Retriever, users: Any) -> None:
    found = near.recommend(users, 2)
    assert found["user"].to_pylist() == ["ann", "ann"]
    assert items(found) == ["pie", "ham"]


def test_users_may_come_from_a_generator(near: sdx.Retriever) -> None:
    assert len(near.recommend((u for u in ["ann", "bob"]), 1)) == 2
    assert len(near.recommend((u for u in ["ann", "eve"]), 1, unknown="popular")) == 2


@pytest.mark.parametrize("key", [17, "17", 17.0, np.int64(17), ["17"], pa.array([17], pa.int8())])
def test_integer_keys_are_found_however_they_are_written(numbered: sdx.Retriever, key: Any) -> None:
    found = numbered.recommend(key)
    assert found["user"].to_pylist() == [17]
    assert items(found) == [30]


def test_uuid_users_are_found_and_come_back_as_uuids() -> None:
    keys = [uuid.UUID(int=i) for i in (1, 2)]
    raw = pa.array([k.bytes for k in keys], pa.uuid())
    model = sdx.fit("popular", sdx.read({"user": raw, "item": ["a", "b"]}, quiet=True))
    found = model.recommend(raw, 1)
    assert found["user"].to_pylist() == keys
    assert items(found) == ["b", "a"]


@pytest.mark.parametrize("asked", [{"users": []}, {"history": []}, {"users": [], "history": []}])
def test_nobody_gets_an_empty_table_with_its_columns(
    near: sdx.Retriever, asked: dict[str, Any]
) -> None:
    found = near.recommend(**asked, columns="price")
    assert found.column_names == ["user", "rank", "item", "score", "price"]
    assert len(found) == 0


def test_an_empty_history_gets_what_is_popular(near: sdx.Retriever) -> None:
    found = near.recommend(history=[[]], k=2)
    assert items(found) == ["tea", "jam"]
    assert found["user"].to_pylist() == [0, 0]


@pytest.mark.parametrize(
    "history",
    [
        [["tea"]], [("tea",)], [{"tea"}], np.array([["tea"]]), pa.array([["tea"]]),
        pd.Series([["tea"]]), pl.Series([["tea"]]), (h for h in [["tea"]]), [iter(["tea"])],
    ],
    ids=lambda h: type(h).__name__,
)  # fmt: skip
def test_histories_are_any_list_of_lists(near: sdx.Retriever, history: Any) -> None:
    assert items(near.recommend(history=history, k=2)) == ["jam", "pie"]


@pytest.mark.parametrize("history", ["tea", ["tea"], [b"tea"], 5, [5], [None], {"ann": ["tea"]}])
def test_a_history_that_is_no_list_of_lists_is_refused(near: sdx.Retriever, history: Any) -> None:
    with pytest.raises(SoftdexError, match=r"expected history=\[\[item, ...\], ...\]"):
        near.recommend(history=history)


def test_items_in_a_history_that_are_not_known_are_refused_or_skipped(near: sdx.Retriever) -> None:
    with pytest.raises(DataError, match=r"1 unknown item in history .'teaa'.*'tea'"):
        near.recommend(history=[["teaa", "jam"]])
    for rule in ("skip", "popular"):
        found = near.recommend(history=[["teaa", "jam"], ["zzz"]], k=1, unknown=rule)
        assert items(found) == ["tea", "tea"]


# users that are not known ------------------------------------------------------------------------


def test_an_unknown_user_is_an_error_that_names_the_nearest(near: sdx.Retriever) -> None:
    with pytest.raises(DataError, match=r"1 unknown user \('catt'\). Did you mean 'cat'\?"):
        near.recommend(["ann", "catt"])


def test_unknown_users_are_skipped_or_get_what_is_popular(near: sdx.Retriever) -> None:
    users = ["eve", "ann", "zed"]
    assert near.recommend(users, 1, unknown="skip")["user"].to_pylist() == ["ann"]
    assert len(near.recommend(["eve"], unknown="skip")) == 0
    found = near.recommend(users, 2, unknown="popular")
    assert found["user"].to_pylist() == ["eve", "eve", "ann", "ann", "zed", "zed"]
    assert items(found) == ["tea", "jam", "pie", "ham", "tea", "jam"]
    assert found["score"].to_pylist()[:2] == [4.0, 2.0]
    assert items(near.recommend("eve", 2, unknown="popular", deny="tea")) == ["jam", "pie"]


def test_unknown_users_keep_the_type_of_the_known_ones_where_they_can(
    numbered: sdx.Retriever,
) -> None:
    whole = numbered.recommend([1, 999], 1, unknown="popular")
    assert (whole["user"].type, whole["user"].to_pylist()) == (pa.int64(), [1, 999])
    mixed = numbered.recommend(["1", "eve"], 1, unknown="popular")
    assert (mixed["user"].type, mixed["user"].to_pylist()) == (pa.string(), ["1", "eve"])
    told = numbered.recommend([999], 1, history=[[10]])
    assert (told["user"].type, told["user"].to_pylist()) == (pa.int64(), [999])


@pytest.mark.parametrize(
    "users",
    [
        None, [None], [["ann"]], [("ann",)], [{"a": 1}], {"id": 1}, ["ann", [1]], [float("nan")],
        pd.DataFrame({"u": ["ann"]}), pa.array(["ann", None]), pl.Series([["ann"]]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("unknown", ["error", "popular", "skip"])
def test_nulls_lists_and_records_are_no_users_whatever_becomes_of_unknown_ones(
    near: sdx.Retriever, users: Any, unknown: str
) -> None:
    with pytest.raises(SoftdexError, match=r"recommend: expected users(,| as keys .*, got)"):
        near.recommend(users, unknown=unknown)


def test_other_values_are_unknown_users(near: sdx.Retriever) -> None:
    for key in (5.5, object()):
        with pytest.raises(DataError, match="recommend: 1 unknown user "):
            near.recommend(key)


@pytest.mark.parametrize(
    "users", [np.array([["ann"]]), [10**30], 10**30, ["\udc80"], np.array(["\udc80"])]
)
def test_users_in_no_list_are_one_error(near: sdx.Retriever, users: Any) -> None:
    with pytest.raises(SoftdexError, match="expected users as a list of keys, got"):
        near.recommend(users)


def test_users_and_histories_must_be_as_many(near: sdx.Retriever) -> None:
    with pytest.raises(SoftdexError, match="expected one history per user, got 2 for 1 user"):
        near.recommend("ann", history=[["tea"], ["jam"]])
    with pytest.raises(SoftdexError, match="one history per user, got 0 for 1 user"):
        near.recommend("nobody", history=[])


# arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [5, 1000, 10**18, np.int32(7)])
def test_k_beyond_the_catalogue_gives_every_item(counts: sdx.Retriever, k: int) -> None:
    assert items(counts.recommend("cat", k)) == ["jam", "ham"]
    assert len(counts.recommend(["ann", "cat"], k, exclude_seen=False)) == 8


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", None, True, [3]])
def test_k_that_is_no_length_is_refused_everywhere(
    near: sdx.Retriever, parts: sdx.Split, model: sdx.Retriever, k: Any, tmp_path: Path
) -> None:
    calls = {
        "recommend": lambda: near.recommend("ann", k),
        "recommend_all": lambda: near.recommend_all(tmp_path / "x.parquet", k),
        "similar": lambda: near.similar("tea", k),
        "search": lambda: near.search(np.array([0]), near.seen.take(np.array([0])), k),
        "evaluate": lambda: model.evaluate(parts.test, [k]),
    }
    for where, call in calls.items():
        with pytest.raises(SoftdexError, match=f"{where}: expected k as a whole number of at"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_other_arguments_are_checked_by_name(counts: sdx.Retriever) -> None:
    with pytest.raises(SoftdexError, match=r"unknown rule for unknown users 'skp'.*'skip'"):
        counts.recommend("ann", unknown="skp")
    with pytest.raises(SoftdexError, match=r"recommend: no item column 'prise'.*'price'"):
        counts.recommend("ann", columns=["prise"])
    with pytest.raises(SoftdexError, match=r"similar: no item column 'prise'.*'price'"):
        counts.similar("tea", where={"prise": 1})
    with pytest.raises(SoftdexError, match="'score' would hide the column of that name"):
        counts.recommend("ann", columns=["score"])
    with pytest.raises(SoftdexError, match="expected a size such as '2GB', got 'lots'"):
        counts.recommend("ann", max_memory="lots")


def test_evaluate_refuses_what_is_not_its_holdout(
    model: sdx.Retriever, near: sdx.Retriever, parts: sdx.Split
) -> None:
    with pytest.raises(DataError, match="evaluate: expected a holdout, got a log"):
        model.evaluate(parts.train)
    with pytest.raises(DataError, match="the holdout is of another log"):
        near.evaluate(parts.test)
    with pytest.raises(SoftdexError, match="expected k of at most 1,000, got 1,000,000,000"):
        model.evaluate(parts.test, [10, 10**9])
    assert set(model.evaluate(parts.test, np.array([5])).cutoffs) == {5}
    assert model.evaluate(parts.test, 200)["recall@200"] == 1.0


def test_weights_that_blow_up_the_scores_are_refused_at_once(parts: sdx.Split) -> None:
    weight = np.full(len(parts.train), 1e38, np.float32)
    with pytest.raises(SoftdexError, match=r"the weights sum to .*, more than a float32 holds"):
        replace(parts.train, weight=weight)


def test_a_holdout_without_a_target_is_no_reason_not_to_fit() -> None:
    log = sdx.read([("a", "x", 1), ("a", "y", 2), ("b", "x", 1), ("b", "z", 2)], quiet=True)
    parts = sdx.split.leave_last(log)
    assert len(parts.valid.targets.ids) == 0
    assert sdx.fit("popular", parts.train, parts.valid).card.metrics == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"neighbours": "abc"}, "item_cf: expected neighbours as a whole number, got 'abc'"),
        ({"neighbours": 2.5}, "expected neighbours as a whole number, got 2.5"),
        ({"neighbours": None}, "expected neighbours as a whole number, got None"),
        ({"neighbours": True}, "expected neighbours as a whole number, got True"),
        ({"neighbours": -1}, "expected neighbours > 0"),
        ({"shrink": float("nan")}, "expected shrink as a number, got nan"),
        ({"neigbours": 3}, "unknown option 'neigbours'. Did you mean 'neighbours'?"),
    ],
)
def test_options_of_a_recipe_are_checked_by_name_and_type(
    parts: sdx.Split, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SoftdexError) as caught:
        sdx.fit("item_cf", parts.train, **options)
    assert words in str(caught.value)


# everybody, and items like others ----------------------------------------------------------------


def test_everybody_goes_into_one_parquet_file(counts: sdx.Retriever, tmp_path: Path) -> None:
    path = tmp_path / "new" / "all.parquet"
    assert counts.recommend_all(path, 1, columns="tags", where={"tags": "sweet"}) == 3
    assert pq.read_table(path).to_pylist() == [
        {"user": "ann", "rank": 1, "item": "pie", "score": 2.0, "tags": ["sweet"]},
        {"user": "cat", "rank": 1, "item": "jam", "score": 2.0, "tags": ["sweet", "red"]},
        {"user": "dan", "rank": 1, "item": "jam", "score": 2.0, "tags": ["sweet", "red"]},
    ]
    assert pd.read_parquet(path)["item"].tolist() == ["pie", "jam", "jam"]
    assert [p.name for p in path.parent.iterdir()] == ["all.parquet"]


def test_nothing_to_recommend_is_an_empty_file_with_its_columns(
    counts: sdx.Retriever, tmp_path: Path
) -> None:
    assert counts.recommend_all(tmp_path / "none.parquet", allow=[]) == 0
    assert pq.read_table(tmp_path / "none.parquet").column_names == [
        "user",
        "rank",
        "item",
        "score",
    ]


def test_a_failure_on_the_way_leaves_the_old_file(
    near: sdx.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.recommend_all(tmp_path / "a.parquet", 1)
    old = (tmp_path / "a.parquet").read_bytes()
    monkeypatch.setattr("softdex.model.asking.BATCH", 2)
    search, calls = answer.search, []

    def fails_later(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise MemoryError
        return search(*given)

    monkeypatch.setattr(answer, "search", fails_later)
    with pytest.raises(MemoryError):
        near.recommend_all(tmp_path / "a.parquet", 2)
    assert (tmp_path / "a.parquet").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_similar_items_are_the_rows_of_the_neighbour_matrix(model: sdx.Retriever) -> None:
    found = model.similar(["i005", "i017"], 5)
    assert found.column_names == ["item", "rank", "similar", "score"]
    wanted = [
        name
        for row in (5, 17)
        for name, _ in brute_force(model, [row], 5, {row})
    ]  # fmt: skip
    assert found["similar"].to_pylist() == wanted
    assert items(found) == ["i005"] * 5 + ["i017"] * 5


def test_similar_takes_filters_columns_and_one_key(near: sdx.Retriever) -> None:
    found = near.similar("tea", where={"tags": "sweet"}, deny="jam", columns="price")
    assert found.drop(["score"]).to_pylist() == [
        {"item": "tea", "rank": 1, "similar": "pie", "price": None}
    ]
    assert len(near.similar([])) == 0


def test_similar_refuses_what_it_does_not_know(near: sdx.Retriever, counts: sdx.Retriever) -> None:
    with pytest.raises(DataError, match=r"similar: 1 unknown item .'teaa'.*'tea'"):
        near.similar("teaa")
    with pytest.raises(
        DataError, match=r"similar: expected items as keys .text or numbers., got None"
    ):
        near.similar(None)
    with pytest.raises(SoftdexError, match=r"knows no similarity of items. Try item_cf"):
        counts.similar("tea")


# the table ---------------------------------------------------------------------------------------


def test_the_table_goes_where_arrow_goes(counts: sdx.Retriever) -> None:
    found = counts.recommend(["ann", "cat"], 1)
    wanted = {"user": ["ann", "cat"], "rank": [1, 1], "item": ["pie", "jam"], "score": [2.0, 2.0]}
    assert pa.table(found).to_pydict() == wanted
    assert pd.DataFrame.from_arrow(found).to_dict("list") == wanted
    assert pl.DataFrame(found).to_dict(as_series=False) == wanted
    assert found.to_pandas()["item"].tolist() == ["pie", "jam"]
    assert len(found) == found.num_rows == 2
    assert "user: string" in repr(found)


def test_the_table_can_be_copied_and_sent_to_another_process(counts: sdx.Retriever) -> None:
    found = counts.recommend("ann", 1)
    for other in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other.equals(found.table)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = found.nonsense


def test_the_table_prints_in_a_notebook_with_its_text_escaped() -> None:
    rows = [(f"<u{i}>", f"i{i}") for i in range(60)]
    model = sdx.fit("popular", sdx.read(rows, quiet=True))
    html = model.recommend(model.users.all(), 1)._repr_html_()
    assert html.count("<tr>") == 51
    assert "<td>&lt;u0&gt;</td>" in html
    assert "<u0>" not in html
    assert "<p>60 rows, 50 shown</p>" in html
    assert "shown" not in model.recommend("<u1>", 1)._repr_html_()


def test_a_model_says_what_it_is(near: sdx.Retriever) -> None:
    assert repr(near) == "Retriever(item_cf, 4 users, 4 items)"
