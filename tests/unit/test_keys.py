"""Keys: sorted, unique, and found from any container and type."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from softdex.data.arrow import unwrapped
from softdex.data.keys import BISECT_UP_TO, Keys, factorize, find, range_keys, restore
from softdex.errors import DataError, SoftdexError

WORDS = ["b", "a", "c", "a"]
UUIDS = [uuid.UUID(int=i) for i in (3, 1, 2, 1)]


def keys_of(cells: Any, kind: pa.DataType | None = None) -> Keys:
    return factorize(pa.array(cells, kind))[0]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array(WORDS), ["a", "b", "c"]),
        (pa.array([3, -1, 2, -1]), [-1, 2, 3]),
        (pa.array([3, -1, 2, -1], pa.int8()), [-1, 2, 3]),
        (pa.array([10**12, 5, 10**18, 5]), [5, 10**12, 10**18]),
        (pa.array([2**64 - 1, 2**64 - 9, 2**64 - 1], pa.uint64()), [2**64 - 9, 2**64 - 1]),
        (pa.array([3, 1, 2, 1], pa.uint8()), [1, 2, 3]),
        (pa.array([0, 1, 2, 1]), [0, 1, 2]),
        (pa.array([True, False, True]), [False, True]),
        (pa.array(UUIDS), sorted(set(UUIDS))),
        (pa.chunked_array([WORDS[:2], WORDS[2:]]), ["a", "b", "c"]),
        (pa.chunked_array([[3, 1], [], [2, 1]], pa.int64()), [1, 2, 3]),
        (
            pa.chunked_array([pa.array(p).dictionary_encode() for p in ("ba", "ca")]),
            ["a", "b", "c"],
        ),
        (pa.array([], pa.int64()), []),
        (pa.chunked_array([], pa.string()), []),
    ],
)
def test_factorizing_sorts_keys_and_finds_each_cell(column: Any, wanted: list[Any]) -> None:
    keys, rows = factorize(column)
    assert keys.all().to_pylist() == wanted
    assert rows.dtype == np.int32
    assert keys.take(rows).to_pylist() == column.to_pylist()


def test_rows_do_not_depend_on_the_order_of_the_file() -> None:
    assert keys_of(WORDS) == keys_of(WORDS[::-1])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_what_cannot_be_compared_is_refused(kind: pa.DataType) -> None:
    cell: Any = [1] if pa.types.is_list(kind) else {"a": 1}
    with pytest.raises(DataError, match=r"users that can be compared .*Cast the column"):
        factorize(pa.array([cell], kind), "user")


@pytest.mark.parametrize("times", [1, BISECT_UP_TO], ids=["few", "many"])
@pytest.mark.parametrize(
    ("keys", "asked", "wanted"),
    [
        (keys_of(WORDS), ["c", "zz", "a", None, ""], [2, -1, 0, -1, -1]),
        (keys_of([3, 1, 2]), [2, 9, None, 3], [1, -1, -1, 2]),
        (keys_of([3, 1, 2]), ["2", "x", "02", " 2", "0x2"], [1, -1, -1, -1, -1]),
        (keys_of([3, 1, 2]), [2.0, 2.5, float("nan")], [1, -1, -1]),
        (keys_of([3, 1, 2]), [2, "x"], [1, -1]),
        (keys_of([3, 1, 2], pa.int8()), [2, 1000], [1, -1]),
        (keys_of([2**64 - 1, 5], pa.uint64()), [2**64 - 1, 7], [1, -1]),
        (keys_of(["17", "x"]), [17, 18], [0, -1]),
        (keys_of(UUIDS), [UUIDS[0], uuid.UUID(int=9)], [2, -1]),
        (keys_of(UUIDS), [str(UUIDS[0]), "nonsense", None], [2, -1, -1]),
        (keys_of([str(u) for u in UUIDS]), [UUIDS[0], uuid.UUID(int=9)], [2, -1]),
        (keys_of([True, False]), [True, False], [1, 0]),
        (keys_of([Decimal("1.5"), Decimal("2.5")]), [Decimal("2.5"), Decimal("9.75")], [1, -1]),
        (keys_of([b"a", b"b"]), [b"b", b"c"], [1, -1]),
    ],
)
def test_lookup_finds_what_is_there(
    keys: Keys, asked: list[Any], wanted: list[int], times: int
) -> None:
    """Few keys are found by bisection, many by a hash table; both must agree."""
    assert keys.lookup(asked * times).tolist() == wanted * times


@pytest.mark.parametrize(
    "asked",
    [
        ["c", "a"],
        ("c", "a"),
        iter(["c", "a"]),
        np.array(["c", "a"]),
        pa.array(["c", "a"]),
        pa.chunked_array([["c"], ["a"]]),
        pa.array(["c", "a"], pa.large_string()),
        pa.array(["c", "a"], pa.string_view()),
        pa.array(["c", "a"]).dictionary_encode(),
        pd.Series(["c", "a"]),
        pd.Series(["c", "a"], dtype="category"),
        pl.Series(["c", "a"]),
        pl.Series(["c", "a"], dtype=pl.Categorical),
    ],
    ids=lambda asked: f"{type(asked).__module__}.{type(asked).__name__}",
)
def test_keys_may_be_asked_for_in_any_container(asked: Any) -> None:
    assert keys_of(WORDS).lookup(asked).tolist() == [2, 0]


MANY = {
    "numbers": [n * n * (-1) ** n for n in range(2000)],
    "text": [f"{'äöü'[n % 3]}{n * n}" for n in range(2000)],
}


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("asked", [1, BISECT_UP_TO, 200, 1500])
def test_a_python_list_an_array_and_a_hash_table_find_the_same_rows(kind: str, asked: int) -> None:
    """Half of the keys are known; the first, the last and what lies beyond them are asked for."""
    every = sorted(MANY[kind])
    keys, draw = keys_of(every[::2]), np.random.default_rng(asked)
    wanted = [every[i] for i in draw.choice(len(every), asked)]
    wanted[: min(asked, 4)] = [every[0], every[-2], every[-1], every[1]][:asked]
    rows = {key: row for row, key in enumerate(every[::2])}
    expected = [rows.get(key, -1) for key in wanted]
    assert find(keys, wanted, "here", "keys", known=False).tolist() == expected
    assert keys.lookup(pa.array(wanted)).tolist() == expected
    assert keys.lookup(pa.array(wanted * 10)).tolist() == expected * 10


def test_few_keys_are_checked_like_many() -> None:
    with pytest.raises(SoftdexError, match="not valid Unicode"):
        find(keys_of(WORDS), ["a", "\ud800"], "here", "keys", known=False)
    with pytest.raises(DataError, match="1 unknown key"):
        find(keys_of([1, 2]), [2**63], "here", "keys")
    assert find(keys_of([1, 2]), [2, -(2**63)], "here", "keys", known=False).tolist() == [1, -1]


def test_one_string_is_not_a_list_of_letters() -> None:
    with pytest.raises(DataError, match=r"expected a list of keys, got 'abc'\. Write \['abc'\]"):
        keys_of(WORDS).lookup("abc")


def test_nothing_is_found_among_no_keys() -> None:
    assert range_keys(0).lookup([1]).tolist() == [-1]
    assert range_keys(3).lookup([]).tolist() == []


@pytest.mark.parametrize(
    ("keys", "asked", "words"),
    [
        (keys_of(["tea", "jam"]), ["tee"], "1 unknown item ('tee'). Did you mean 'tea'?"),
        (keys_of(["tea", "jam"]), ["q"] * 7, "7 unknown items ('q', 'q', 'q', 'q', 'q', ...)"),
        (keys_of([5, 9]), [7], "1 unknown item (7). Known keys run from 5 to 9."),
        (keys_of(UUIDS), ["x"], f"Known keys run from {UUIDS[1]} to {UUIDS[0]}."),
        (range_keys(0), [7], "None are known here."),
    ],
)
def test_an_unknown_key_is_an_error_with_a_hint(keys: Keys, asked: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        keys.rows(asked, "here", "items")
    assert str(caught.value).startswith("here: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("keys", [keys_of(WORDS), keys_of(UUIDS), range_keys(5), keys_of([1.5])])
def test_keys_are_restored_from_what_they_give_out(keys: Keys) -> None:
    again = restore(pa.chunked_array([keys.all()]))
    assert again == keys
    assert again.sha256 == keys.sha256


@pytest.mark.parametrize("cells", [["b", "a"], ["a", "a"], ["a", None]])
def test_unsorted_repeated_or_missing_keys_are_not_restored(cells: list[Any]) -> None:
    with pytest.raises(DataError, match="sorted, unique keys without nulls"):
        restore(pa.chunked_array([cells]))


def test_keys_are_equal_when_values_and_types_are() -> None:
    assert keys_of([1, 2]) == Keys(pa.array([1, 2]), pa.int64())
    assert keys_of([1, 2]) != keys_of([1, 2], pa.int32())
    assert keys_of([1, 2]) != keys_of([1, 3])
    assert keys_of([1, 2]) != [1, 2]


def test_the_hash_tells_keys_apart() -> None:
    several = [
        keys_of(["ab", "c"]),
        keys_of(["a", "bc"]),
        keys_of(["abc"]),
        keys_of([b"ab", b"c"]),
        keys_of([1, 2]),
        keys_of([1, 2], pa.int32()),
        keys_of([1, 3]),
        keys_of([1.0, 2.0]),
        keys_of([True, False]),
        keys_of([Decimal("1.5")]),
        keys_of([Decimal("2.5")]),
        keys_of(UUIDS),
        keys_of([1, 0], pa.bool8()),
        range_keys(0),
    ]
    assert len({keys.sha256 for keys in several}) == len(several)


def test_the_hash_does_not_see_how_an_array_is_laid_out() -> None:
    """A slice and its copy are the same keys; the value is the same on every machine."""
    sliced = Keys(pa.array(["x", "a", "b"])[1:], pa.string())
    assert sliced.sha256 == keys_of(["a", "b"]).sha256
    assert range_keys(3).sha256[:16] == "84bf2c6aa6ecf05c"


def test_unwrapping_strips_dictionaries_views_and_extension_types() -> None:
    words = pa.array(["a", None, "a"])
    views = pa.DictionaryArray.from_arrays([0, None, 0], pa.array(["a"], pa.string_view()))
    for column in (words, words.dictionary_encode(), words.cast(pa.string_view()), views):
        assert unwrapped(column).to_pylist() == ["a", None, "a"]
    assert unwrapped(pa.array(UUIDS)).to_pylist() == [u.bytes for u in UUIDS]
