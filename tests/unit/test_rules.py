"""Rules of a request: items per user, limits per group, and what is said about an empty answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch

import softdex as sdx
from softdex.errors import DataError, SoftdexError
from softdex.index.imi.search import in_blocks
from softdex.model.asking import query_of
from softdex.model.key_files import items_in, users_in

USERS, ITEMS = 40, 60


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    """Items of three colours, one in seven without; each has up to two tags, or one tag twice."""
    draw = np.random.default_rng(3)
    colours = np.array(["red", "green", "blue"])[draw.integers(0, 3, ITEMS)].tolist()
    table = {
        "item": [f"i{i:02}" for i in range(ITEMS)],
        "colour": [None if i % 7 == 0 else c for i, c in enumerate(colours)],
        "tags": [[f"t{t}" for t in draw.integers(0, 4, draw.integers(3))] for _ in range(ITEMS)],
    }
    pairs = {(i % USERS, i) for i in range(ITEMS)}
    pairs |= set(zip(draw.integers(0, USERS, 300), draw.zipf(1.5, 300) % ITEMS, strict=True))
    rows = sorted((f"u{user:02}", f"i{item:02}") for user, item in pairs)
    return sdx.read(rows, items=table, quiet=True)


def flat(log: sdx.Interactions) -> sdx.Retriever:
    return sdx.fit("rg2", log, dim=4, epochs=2, device="cpu")


def imi(log: sdx.Interactions) -> sdx.Retriever:
    model = flat(log)
    model.build_index("imi", codewords=4, k=5)
    model.index = model.index._with(effort=float(ITEMS - 1))  # opens cells until these are found
    return model


def tree(log: sdx.Interactions) -> sdx.Retriever:
    small = {"max_instances": 64, "epochs": 1, "dim": 4, "max_history": 5, "leaves": "random"}
    model = sdx.fit("tdm", log, device="cpu", **small)
    model.index = model.index.with_beam(1000.0)
    return model


def counting(log: sdx.Interactions) -> sdx.Retriever:
    return sdx.fit("item_cf", log)


KINDS: dict[str, Callable[[sdx.Interactions], sdx.Retriever]] = {
    "flat": flat, "imi": imi, "tree": tree, "counting": counting,
}  # fmt: skip


@pytest.fixture(scope="module", params=list(KINDS))
def model(request: pytest.FixtureRequest, log: sdx.Interactions) -> sdx.Retriever:
    return KINDS[request.param](log)


@pytest.fixture(scope="module")
def counts() -> sdx.Retriever:
    """tea 4, jam 2, pie 2, ham 1, the same for everybody."""
    rows = [
        ("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam"), ("bob", "pie"),
        ("cat", "pie"), ("cat", "tea"), ("dan", "ham"), ("dan", "tea"),
    ]  # fmt: skip
    table = {"item": ["tea", "jam", "pie", "ham"], "kind": ["drink", "sweet", "sweet", "meat"]}
    return sdx.fit("popular", sdx.read(rows, items=table, quiet=True))


def scores(model: sdx.Retriever, users: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        query = query_of(model, users, model.seen.take(users))
        return model.index.score(query, torch.arange(ITEMS)).float().numpy()


def ranked(row: np.ndarray, free: np.ndarray) -> list[int]:
    return [int(i) for i in np.lexsort((np.arange(ITEMS), -row)) if free[i]]


def lists(model: sdx.Retriever, found: Any) -> dict[str, list[int]]:
    rows = {key: i for i, key in enumerate(model.items.all().to_pylist())}
    each: dict[str, list[int]] = {}
    for row in found.to_pylist():
        each.setdefault(row["user"], []).append(rows[row["item"]])
    return each


def keys(model: sdx.Retriever, rows: Any) -> list[str]:
    return model.items.take(np.asarray(rows, np.int64)).to_pylist()


def random_rules(seed: int, users: list[str], share: float) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {user: np.flatnonzero(draw.random(ITEMS) < share) for user in users}


# items per user ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_lists_are_the_best_of_what_each_user_may_get(model: sdx.Retriever, share: float) -> None:
    users = model.users.all().to_pylist()
    only, never = random_rules(1, users, share), random_rules(2, users, 0.3)
    exact = scores(model, np.arange(USERS))
    allow, deny = ({u: keys(model, rows) for u, rows in r.items()} for r in (only, never))
    found = lists(model, model.recommend(users, 6, allow=allow, deny=deny, exclude_seen=False))
    for row, user in enumerate(users):
        free = np.isin(np.arange(ITEMS), np.setdiff1d(only[user], never[user]))
        assert found.get(user, []) == ranked(exact[row], free)[:6], user


def test_a_little_effort_still_fills_the_lists(log: sdx.Interactions) -> None:
    near, small = imi(log), tree(log)
    near.index, small.index = near.index._with(effort=1.0), small.index.with_beam(1.0)
    for model in (near, small):
        users = model.users.all().to_pylist()
        only = random_rules(4, users, 0.2)
        allow = {user: keys(model, rows) for user, rows in only.items()}
        found = lists(model, model.recommend(users, 5, allow=allow))
        for row, user in enumerate(users):
            free = set(only[user].tolist()) - set(model.seen[row].tolist())
            assert set(found.get(user, [])) <= free
            assert len(found.get(user, [])) == min(5, len(free))


def test_a_gpu_s_way_through_the_cells_takes_items_per_user(log: sdx.Interactions) -> None:
    model = imi(log)
    users = np.arange(USERS)
    query = query_of(model, users, model.seen.take(users))
    allow = torch.from_numpy(np.random.default_rng(0).random((USERS, ITEMS)) < 0.2)
    filter = sdx.index.contract.Filter(allow=allow)
    tight = 30 * ITEMS * 4  # some users at a time
    hits = in_blocks(model.index, query, 5, float(ITEMS - 1), filter, tight)
    exact = scores(model, users)
    for b in users:
        best = ranked(exact[b], allow[b].numpy())[:5]
        assert [i for i in hits.ids[b].tolist() if i >= 0] == best


RULES = {"ann": ["tea", "pie"], "bob": ["pie"]}
PAIRS = {"user": ["ann", "bob", "ann"], "item": ["tea", "pie", "pie"]}


@pytest.mark.parametrize(
    "deny",
    [
        RULES, {"ann": ("tea", "pie"), "bob": "pie"}, pa.table(PAIRS), pd.DataFrame(PAIRS),
        pl.DataFrame(PAIRS), pl.LazyFrame(PAIRS),
        pa.table({"uid": PAIRS["user"], "item_id": PAIRS["item"]}),
        [["tea", "pie"], ["pie"], []], [{"tea", "pie"}, ("pie",), []],
        pd.Series([["tea", "pie"], ["pie"], []]),
        pa.array([["tea", "pie"], ["pie"], []]), pl.Series([["tea", "pie"], ["pie"], []]),
        np.array([["tea", "pie"], ["pie", "pie"], ["gone", "gone"]]),
    ],
    ids=lambda d: type(d).__name__,
)  # fmt: skip
def test_items_per_user_come_as_a_mapping_a_table_or_one_list_per_user(
    counts: sdx.Retriever, deny: Any
) -> None:
    found = counts.recommend(["ann", "bob", "dan"], 9, deny=deny, exclude_seen=False).to_pydict()
    each = {
        u: [i for v, i in zip(found["user"], found["item"], strict=True) if v == u]
        for u in found["user"]
    }
    assert each == {
        "ann": ["jam", "ham"],
        "bob": ["tea", "jam", "ham"],
        "dan": ["tea", "jam", "pie", "ham"],
    }


def test_a_table_without_users_holds_for_all(counts: sdx.Retriever) -> None:
    asked = {"users": ["ann", "bob"], "k": 9, "exclude_seen": False}
    listed = counts.recommend(**asked, deny=["tea", "ham"]).to_pydict()
    for table in (
        pd.DataFrame({"item": ["tea", "ham"]}),
        pl.DataFrame({"item_id": ["tea", "ham"]}),
    ):
        assert counts.recommend(**asked, deny=table).to_pydict() == listed


def test_who_is_not_named_is_allowed_nothing_and_denied_nothing(counts: sdx.Retriever) -> None:
    asked = {"users": ["ann", "cat"], "exclude_seen": False, "k": 9}
    assert counts.recommend(**asked, allow={"cat": ["ham"]}).to_pydict()["user"] == ["cat"]
    assert len(counts.recommend(**asked, deny={"dan": ["ham"]})) == 8


def test_rules_hold_for_users_who_are_asked_twice_skipped_or_strangers(
    counts: sdx.Retriever,
) -> None:
    twice = counts.recommend(["ann", "ann"], 1, deny={"ann": ["pie"]})
    assert twice["item"].to_pylist() == ["ham", "ham"]
    skipped = counts.recommend(
        ["zoe", "ann", "cat"], 1, unknown="skip", deny=[["tea"], ["pie"], ["jam"]]
    )
    assert skipped["item"].to_pylist() == ["ham", "ham"]
    deny = {"zoe": ["tea"], "eve": ["tea", "jam"]}
    popular = counts.recommend(["zoe", "eve", "ann"], 1, unknown="popular", deny=deny)
    assert popular["item"].to_pylist() == ["jam", "pie", "pie"]
    told = counts.recommend(history=[["tea"], ["tea"]], k=1, deny={1: ["jam"]})
    assert told["item"].to_pylist() == ["jam", "pie"]


def test_numbers_that_stand_for_histories_are_not_keys_of_users() -> None:
    model = sdx.fit("item_cf", sdx.read([(5, 1), (5, 2), (0, 1), (0, 3)], quiet=True))
    rules = {0: [2]}
    assert model.recommend([5, 0], 9, deny=rules, exclude_seen=False).num_rows == 5
    told = model.recommend(history=[[1], [1]], k=9, deny=rules)
    assert list(zip(told["user"].to_pylist(), told["item"].to_pylist(), strict=True)) == [
        (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"deny": ["tea", ["pie"]]}, "expected deny as item keys, or per user as"),
        ({"deny": [["tea"]]}, "expected one list per user in deny, got 1 lists for 2 users"),
        ({"deny": {"zoe": ["tea"]}}, "1 unknown user in deny ('zoe')"),
        ({"allow": {"ann": ["tee"]}}, "1 unknown item in allow ('tee'). Did you mean 'tea'?"),
        ({"allow": ["tee", "pei"]}, "2 unknown items in allow ('tee', 'pei')"),
        (
            {"deny": pa.table({"user": ["ann"], "thing": ["tea"]})},
            "recommend: expected deny as a table with a column of items, and one of users if it is "
            "per user, got the columns user, thing. Rename them user and item.",
        ),
        (
            {"deny": pd.Series({"bob": ["pie"], "ann": ["tea"]})},
            "Pass deny.to_dict() if the index holds the users, deny.tolist() if the lists are in",
        ),
        ({"deny": {"ann": [None]}}, "expected items in deny as keys (text or numbers), got None"),
        ({"deny": {None: ["tea"]}}, "expected users in deny as keys (text or numbers), got None"),
        ({"deny": [{"id": 1}]}, "expected items in deny as keys (text or numbers), got {'id': 1}"),
        ({"deny": np.ones(4, bool)}, "expected items in deny as keys (text or numbers), got True"),
        ({"deny": {"ann": [True]}}, "expected items in deny as keys (text or numbers), got True"),
        ({"deny": sp.eye(2, 4, format="csr")}, "expected items in deny as keys (text or numbers)"),
        ({"deny": len}, "expected deny as item keys, or per user as {user: [item, ...]}, as a"),
        ({"allow": Path("tea.csv")}, "of users and items or as one list per user; got PosixPath"),
        ({"deny": sdx.read([("ann", "tea")], quiet=True)}, "per user; got Interactions"),
        ({"at_most": 2}, "expected at_most={column: number, ...}, got 2"),
        ({"at_most": {"knd": 2}}, "no item column 'knd'. Did you mean 'kind'?"),
        ({"at_most": {"kind": 0}}, "a whole number of at least 1, got 0"),
        ({"at_most": {"kind": True}}, "a whole number of at least 1, got True"),
    ],
)
def test_rules_that_mean_nothing_are_one_error(
    counts: sdx.Retriever, rules: dict[str, Any], words: str
) -> None:
    with pytest.raises(SoftdexError) as caught:
        counts.recommend(["ann", "bob"], **rules)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_similar_items_take_no_rules_per_user(counts: sdx.Retriever) -> None:
    with pytest.raises(SoftdexError, match="similar: expected deny as item keys, the same for all"):
        counts.similar("tea", deny={"ann": ["pie"]})


def test_items_that_left_the_catalogue_are_left_out_with_a_word(
    counts: sdx.Retriever, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    deny = ["old", "jam", "older", "old"]
    assert counts.recommend("cat", deny=deny)["item"].to_pylist() == ["ham"]
    assert capsys.readouterr().err == (
        "recommend: 2 unknown items in deny ignored ('old', 'older')\n"
    )
    assert counts.recommend("cat", allow=["old", "jam"])["item"].to_pylist() == ["jam"]
    assert capsys.readouterr().err == "recommend: 1 unknown item in allow ignored ('old')\n"


# limits per group --------------------------------------------------------------------------------


def greedy(
    order: list[int], groups: dict[str, list[set[str]]], most: dict[str, int], k: int
) -> list[int]:
    """Walk down a list and pass over items of full groups."""
    held: Counter[tuple[str, str]] = Counter()
    taken: list[int] = []
    for item in order:
        mine = [(name, value) for name in most for value in groups[name][item]]
        if len(taken) < k and all(held[g] < most[g[0]] for g in mine):
            taken.append(item)
            held.update(mine)
    return taken


@pytest.mark.parametrize(
    "most", [{"colour": 1}, {"tags": 1}, {"colour": 2, "tags": 1}, {"tags": 9}]
)
@pytest.mark.parametrize("k", [4, 20])
def test_at_most_so_many_per_group_is_the_greedy_list(
    model: sdx.Retriever, most: dict[str, int], k: int
) -> None:
    users = model.users.all().to_pylist()
    table = model.item_table.to_pydict()
    groups = {
        "colour": [set() if c is None else {c} for c in table["colour"]],
        "tags": [set(tags) for tags in table["tags"]],
    }
    never = random_rules(6, users, 0.2)
    deny = {user: keys(model, rows) for user, rows in never.items()}
    found = lists(model, model.recommend(users, k, at_most=most, deny=deny))
    exact = scores(model, np.arange(USERS))
    for row, user in enumerate(users):
        free = ~np.isin(np.arange(ITEMS), np.append(never[user], model.seen[row]))
        assert found.get(user, []) == greedy(ranked(exact[row], free), groups, most, k), user


def test_limits_hold_in_an_approximate_index_and_lists_are_filled(log: sdx.Interactions) -> None:
    near, small = imi(log), tree(log)
    near.index, small.index = near.index._with(effort=1.0), small.index.with_beam(1.0)
    for model in (near, small):
        found = model.recommend(model.users.all(), 3, at_most={"colour": 1}, columns="colour")
        held = Counter((r["user"], r["colour"]) for r in found.to_pylist() if r["colour"])
        assert set(held.values()) == {1}
        assert len(found) == 3 * USERS


def test_limits_hold_in_similar_items_and_for_strangers(counts: sdx.Retriever, log: Any) -> None:
    found = counts.recommend(["zoe", "ann"], 9, unknown="popular", at_most={"kind": 1})
    assert found["item"].to_pylist() == ["tea", "jam", "ham", "pie", "ham"]
    near = flat(log).similar(log.items.all(), 3, at_most={"colour": 1}, columns="colour")
    held = Counter((r["item"], r["colour"]) for r in near.to_pylist() if r["colour"])
    assert set(held.values()) == {1}
    assert len(near) == 3 * ITEMS


# a subset of users, and files --------------------------------------------------------------------


def test_some_users_go_into_a_file_with_the_words_of_recommend(
    model: sdx.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.model.asking.BATCH", 3)
    users = [*model.users.all().to_pylist()[5:12], "zoe"]
    allow = {user: keys(model, range(40)) for user in users}
    deny = [keys(model, [place, place + 7]) for place in range(len(users))]
    rules = {"k": 4, "allow": allow, "deny": deny, "where": {"colour": ["red", "blue"]},
             "at_most": {"tags": 1}, "unknown": "popular", "columns": "tags"}  # fmt: skip
    wanted = model.recommend(users, **rules)
    path = tmp_path / "some.parquet"
    assert model.recommend_all(path, users=users, **rules) == len(wanted) > 20
    assert pq.read_table(path).equals(wanted.table)
    skipped = model.recommend_all(path, 2, users=users, unknown="skip")
    assert skipped == 14
    with pytest.raises(DataError, match=r"recommend_all: 1 unknown user \('zoe'\)"):
        model.recommend_all(path, users=users, unknown="error")
    with pytest.raises(SoftdexError, match="recommend_all: unknown rule for unknown users 'skp'"):
        model.recommend_all(path, unknown="skp")
    assert pq.read_table(path).num_rows == 14


def read_back(path: Path) -> list[dict[str, Any]]:
    table = pcsv.read_csv(
        path, parse_options=pcsv.ParseOptions(delimiter="\t" if ".tsv" in path.name else ",")
    )
    return table.to_pylist()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "A.CSV.gz", "a.jsonl", "a.jsonl.gz", "a.arrow"])
def test_a_file_holds_what_its_name_says(
    model: sdx.Retriever, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.model.asking.BATCH", 7)
    wanted = model.recommend(model.users.all(), 3, columns=["colour", "tags"])
    path = tmp_path / name
    assert model.recommend_all(path, 3, columns=["colour", "tags"]) == len(wanted)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    rows = wanted.to_pylist()
    if ".json" in name:
        assert pd.read_json(path, lines=True, dtype=False).to_dict("list")["tags"] == [
            r["tags"] for r in rows
        ]
        rows = [{**r, "score": pytest.approx(r["score"])} for r in rows]
        assert pl.read_ndjson(path).to_dicts() == rows
    elif name.endswith(".arrow"):
        assert pa.ipc.open_file(path).read_all().to_pylist() == rows
    else:
        flat = [
            {
                **r,
                "colour": r["colour"] or "",
                "tags": "|".join(r["tags"]),
                "score": pytest.approx(r["score"]),
            }
            for r in rows
        ]
        assert read_back(path.rename(path.with_name(path.name.lower()))) == flat


@pytest.mark.parametrize("name", ["x.json", "x", "x.xlsx", "x.parquet.gz", "x.gz", ".csv"])
def test_other_names_are_refused_before_any_work(
    counts: sdx.Retriever, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.model.answer.everybody", lambda *_: pytest.fail("it asked"))
    with pytest.raises(SoftdexError) as caught:
        counts.recommend_all(tmp_path / name)
    assert str(caught.value) == (
        "recommend_all: expected a file name ending in .parquet, .arrow, .csv, .tsv, .jsonl, "
        f".csv.gz, .tsv.gz or .jsonl.gz, got {name!r}."
    )
    assert list(tmp_path.iterdir()) == []


# what is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"where": {"kind": "sweat"}}, "no item has kind=sweat. Did you mean 'sweet'?"),
        ({"where": {"kind": ["x", "y"]}}, "no item has kind=x, y. Known: drink, meat, sweet."),
        ({"where": {"kind": "meat", "item_of": 1}}, None),
        ({"where": {"kind": "drink"}, "deny": "tea"}, "allow, deny and where together leave none"),
        ({"allow": []}, "allow, deny and where together leave none"),
        ({"allow": {"cat": ["tea"]}}, "allow names no item for these users"),
        ({"allow": ["tea", "jam"]}, "the users have seen every item that is allowed; "
         "exclude_seen=False keeps seen items"),
        ({"users": "zoe", "unknown": "skip"}, "1 unknown user skipped, and none is left"),
    ],
)  # fmt: skip
def test_an_empty_answer_says_why_in_one_line(
    counts: sdx.Retriever, asked: dict[str, Any], reason: str | None, loud: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if reason is None:
        with pytest.raises(SoftdexError, match="no item column 'item_of'"):
            counts.recommend(**({"users": "ann"} | asked))
        return
    assert len(counts.recommend(**({"users": "ann"} | asked))) == 0
    assert capsys.readouterr().err == f"recommend: no recommendation: {reason}\n"


def test_strangers_in_a_file_are_counted(
    counts: sdx.Retriever, tmp_path: Path, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counts.recommend_all(tmp_path / "a.csv", 1, users=["zoe", "ann"]) == 2
    assert "1 of 2 users without events in training: they get the most" in capsys.readouterr().err


# files of keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("a.csv", "user_id\n007\n12\n", ["007", "12"]),
        ("a.txt", "\ufeffann\nbob\n\n", ["ann", "bob"]),
        ("a.csv", '"user"\r\n"ann b"\r\n', ["ann b"]),
        ("a.csv", "name,user\nx,ann\ny,bob\n", ["ann", "bob"]),
    ],
)
def test_users_stand_in_a_column_or_one_per_line(
    tmp_path: Path, name: str, text: str, keys: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(text, newline="")
    found = users_in(path)
    assert (found if isinstance(found, list) else found.to_pylist()) == keys


def test_items_come_with_users_where_a_file_has_a_column_of_users(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["tea"], "price": [1]}), tmp_path / "items.parquet")
    assert items_in(tmp_path / "items.parquet").to_pylist() == ["tea"]
    pq.write_table(pa.table({"item_id": ["tea"], "user_id": ["ann"]}), tmp_path / "both.parquet")
    assert items_in(tmp_path / "both.parquet").to_pydict() == {"user": ["ann"], "item": ["tea"]}
    pq.write_table(pa.table({"price": [1]}), tmp_path / "prices.parquet")
    with pytest.raises(DataError, match="has no user column among price"):
        users_in(tmp_path / "prices.parquet")
