"""Which items may come back: by key, by column, by expression."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from softdex.data.arrow import plain_table, plain_type
from softdex.data.keys import as_list, factorize
from softdex.errors import DataError, SoftdexError
from softdex.model.filter import check_columns
from softdex.model.rules import Rules
from softdex.model.wanted import wanted as wanted_lists

NAMES = ["ham", "jam", "pie", "tea"]
KEYS, _ = factorize(pa.array(NAMES))
TABLE = plain_table(
    pa.table(
        {
            "price": [4, 2, None, 1],
            "tags": [None, ["sweet", "red"], ["sweet"], ["hot", None]],
            "kind": pa.array(["meat", "spread", "cake", "drink"]).dictionary_encode(),
            "view": pa.array(["a", "b", "a", None]).cast(pa.string_view()),
            "pair": pa.array([None, [1, 2], [2, 3], [1, 5]], pa.list_(pa.int64(), 2)),
            "fresh": [True, False, None, True],
            "weight": [0.5, 2.0, float("nan"), None],
            "since": [dt.date(2020, 1, day) for day in (1, 2, 3, 4)],
            "maker": [{"name": "x"}] * 4,
            "empty": pa.nulls(4),
        }
    )
)


def names(**given: Any) -> list[str]:
    """The items that may come back."""
    mask = mask_of(TABLE, **given)
    good = [True] * len(NAMES) if mask is None else mask.tolist()
    return [name for name, may in zip(NAMES, good, strict=True) if may]


def mask_of(table: pa.Table | None, **given: Any) -> torch.Tensor | None:
    model: Any = SimpleNamespace(items=KEYS, item_table=table)
    return wanted_lists(model, "f", 1, None, Rules(**given), None).mask


def test_everything_may_come_back_when_nothing_is_asked() -> None:
    assert mask_of(TABLE) is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"allow": []}, []),
        ({"allow": ["tea", "ham"]}, ["ham", "tea"]),
        ({"allow": "tea"}, ["tea"]),
        ({"allow": np.array(["tea", "tea"])}, ["tea"]),
        ({"allow": (key for key in ("tea", "jam"))}, ["jam", "tea"]),
        ({"deny": []}, NAMES),
        ({"deny": ["tea"]}, ["ham", "jam", "pie"]),
        ({"allow": ["tea", "ham"], "deny": "tea"}, ["ham"]),
        ({"allow": ["tea", "ham"], "where": {"price": 1}}, ["tea"]),
    ],
)
def test_keys_allow_and_deny(given: dict[str, Any], wanted: list[str]) -> None:
    assert names(**given) == wanted


def test_unknown_keys_are_ignored_but_not_where_all_that_is_allowed_is_unknown() -> None:
    assert names(allow=["jam", "teaa"]) == ["jam"]
    assert names(deny=["jam", "teaa"]) == ["ham", "pie", "tea"]
    assert names(deny=["teaa"]) == NAMES
    with pytest.raises(DataError, match=r"f: 1 unknown item in allow .'teaa'.*'tea'"):
        names(allow=["teaa"])


@pytest.mark.parametrize("keys", [[10**30], np.array("tea")])
def test_keys_in_no_list_are_one_error(keys: Any) -> None:
    with pytest.raises(SoftdexError, match="expected items in allow as a list of keys"):
        names(allow=keys)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({}, NAMES),
        ({"price": 2}, ["jam"]),
        ({"price": "2"}, ["jam"]),
        ({"price": np.int64(2)}, ["jam"]),
        ({"price": pa.scalar(2)}, ["jam"]),
        ({"price": 2.0}, ["jam"]),
        ({"price": [1, 4]}, ["ham", "tea"]),
        ({"price": {1, 4}}, ["ham", "tea"]),
        ({"price": np.array([1, 4])}, ["ham", "tea"]),
        ({"price": pa.array([1, 4])}, ["ham", "tea"]),
        ({"price": range(1, 3)}, ["jam", "tea"]),
        ({"price": None}, ["pie"]),
        ({"price": [None, 1]}, ["pie", "tea"]),
        ({"price": []}, []),
        ({"tags": "sweet"}, ["jam", "pie"]),
        ({"tags": ["red", "hot"]}, ["jam", "tea"]),
        ({"tags": "cold"}, []),
        ({"kind": "cake"}, ["pie"]),
        ({"view": "a"}, ["ham", "pie"]),
        ({"pair": 1}, ["jam", "tea"]),
        ({"fresh": True}, ["ham", "tea"]),
        ({"fresh": "false"}, ["jam"]),
        ({"weight": 2}, ["jam"]),
        ({"weight": float("nan")}, ["pie"]),
        ({"since": dt.date(2020, 1, 2)}, ["jam"]),
        ({"since": "2020-01-03"}, ["pie"]),
        ({"empty": None}, NAMES),
        ({"tags": "sweet", "price": 2}, ["jam"]),
    ],
)
def test_columns_match_values_lists_and_members_of_lists(
    where: dict[str, Any], wanted: list[str]
) -> None:
    assert names(where=where) == wanted


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (pc.field("price") > 1, ["ham", "jam"]),
        ((pc.field("price") > 1) & (pc.field("kind") == "meat"), ["ham"]),
        (pc.field("price").is_null(), ["pie"]),
        (pc.field("kind").isin(["cake", "drink"]), ["pie", "tea"]),
        (pc.scalar(True), NAMES),
        (pc.scalar(False), []),
    ],
)
def test_expressions_match_where_they_are_true(where: pc.Expression, wanted: list[str]) -> None:
    assert names(where=where) == wanted


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"prise": 2}, "no item column 'prise'. Did you mean 'price'?"),
        ({5: 2}, "no item column 5"),
        ({"price": "cheap"}, r"where=\{'price': \['cheap'\]\}: the column holds int64"),
        ({"price": 1.5}, "the column holds int64"),
        ({"price": 10**30}, "the column holds int64"),
        ({"price": [[1]]}, "the column holds int64"),
        ({"maker": {"name": "x"}}, "the column holds struct"),
        ({"empty": 1}, "the column holds null"),
        (pc.field("prise") > 1, r"does not fit the item columns \(No match .*prise"),
        (pc.field("price") + 1, "it is int64, not true or false"),
        (pc.field("price") == "x", "does not fit the item columns"),
        ([("price", 2)], "expected where={column: value, ...}"),
        ("price", "expected where={column: value, ...}"),
        (5, "expected where={column: value, ...}"),
    ],
)
def test_conditions_that_do_not_fit_are_one_clear_error(where: Any, words: str) -> None:
    with pytest.raises(SoftdexError, match=words):
        names(where=where)


def test_conditions_need_an_item_table() -> None:
    with pytest.raises(SoftdexError, match=r"where= needs item columns\. Read the log"):
        mask_of(None, where={"price": 1})


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["price", "tags"], ["price", "tags"]),
        (["price", "price"], ["price"]),
        ("price", ["price"]),
        ((), []),
        (None, []),
    ],
)
def test_columns_are_asked_for_once_each(asked: Any, wanted: list[str]) -> None:
    assert check_columns(TABLE, asked, "f") == wanted


@pytest.mark.parametrize(
    ("table", "asked", "words"),
    [
        (TABLE, ["prise"], "no item column 'prise'. Did you mean 'price'?"),
        (TABLE, 5, "no item column 5"),
        (TABLE, [["price"]], "no item column"),
        (None, ["price"], "no item column 'price'. None are known here."),
        (pa.table({"score": [1]}), ["score"], "'score' would hide the column of that name"),
    ],
)
def test_columns_that_are_not_there_are_refused(table: Any, asked: Any, words: str) -> None:
    with pytest.raises(SoftdexError, match=words):
        check_columns(table, asked, "f")


@pytest.mark.parametrize("one", ["a", b"a", 7, 7.5, np.int64(7), pa.scalar("a"), None, dt.date.min])
def test_one_key_becomes_a_list_of_one(one: Any) -> None:
    assert as_list(one) == [one]


def test_lists_of_keys_stay_and_generators_can_be_read_twice() -> None:
    for keys in (["a"], np.array(["a"]), pa.array(["a"]), pd.Series(["a"]), pl.Series(["a"])):
        assert as_list(keys) is keys
    keys = as_list(iter("ab"))
    assert list(keys) == list(keys) == ["a", "b"]


def test_a_polars_table_is_kept_in_types_that_can_be_searched() -> None:
    frame = pl.DataFrame(
        {
            "name": ["a"],
            "kind": pl.Series(["x"], dtype=pl.Categorical),
            "tags": [["hot"]],
            "pair": pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)),
            "maker": [{"name": "y"}],
        }
    )
    table = plain_table(pa.table(frame))
    assert table.to_pylist() == [
        {"name": "a", "kind": "x", "tags": ["hot"], "pair": [1, 2], "maker": {"name": "y"}}
    ]
    assert all(plain_type(field.type) == field.type for field in table.schema)


@pytest.mark.usefixtures("loud")
def test_a_column_that_cannot_be_kept_is_left_out_and_said(capsys: Any) -> None:
    table = pa.table({"a": [1], "b": pa.array([{"k": 1}], pa.map_(pa.string(), pa.int64()))})
    assert plain_table(table).column_names == ["a"]
    assert "item column b is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.struct([]),
        pa.struct([("a", pa.list_(pa.null()))]),
        pa.binary(0),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int64())]),
    ],
)
def test_types_without_bytes_of_their_own_have_no_plain_form(kind: pa.DataType) -> None:
    assert plain_type(kind) is None
