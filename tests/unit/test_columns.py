"""Columns: each rule on a small table, and the laws that hold for all of them."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import json
import math
import re
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softdex.encode.features.columns import Columns, Encoded, columns_from_json, learn_columns
from softdex.encode.features.parts import FAR, Number, Text
from softdex.errors import DataError, SoftdexError

MISSING = 0  # the first token of the first column


def bags(found: Encoded) -> list[dict[int, float]]:
    """Tokens and weights of each row, pads left out."""
    rows = zip(found.ids.tolist(), found.weights.tolist(), strict=True)
    return [{i: w for i, w in zip(*row, strict=True) if i >= 0} for row in rows]


def encode(learnt: Any, given: Any = None, name: str = "x", **options: Any) -> Encoded:
    """One column, learnt from some cells and read from the same or from others."""
    learnt = learnt if isinstance(learnt, pa.Array) else pa.array(learnt)
    given = learnt if given is None else given
    given = given if isinstance(given, pa.Array) else pa.array(given)
    columns = learn_columns(pa.table({"x": learnt}), [name], **options)
    return columns.encode(pa.table({"x": given}))


def kind(cells: Any, name: str = "x") -> str:
    """The kind that a column is taken for."""
    table = pa.table({"x": cells})
    return str(learn_columns(table, [name]).json()["columns"][0]["kind"])


def assert_same(one: Encoded, other: Encoded) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def bucket(word: str, hashed: int = 4096) -> int:
    return 1 + zlib.crc32(word.encode()) % hashed


# categories --------------------------------------------------------------------------------------


def test_a_category_has_a_token_for_each_value_in_sorted_order() -> None:
    found = encode(["b", "a", "c", "a"])
    assert found.ids.tolist() == [[2], [1], [3], [1]]
    assert found.weights.tolist() == [[1.0]] * 4
    assert found.numbers.shape == (4, 0)
    assert [part.dtype for part in found] == [np.int64, np.float32, np.float32]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["u", "v"]),
        pa.array(["u", "v"], pa.large_string()),
        pa.array(["u", "v"], pa.string_view()),
        pa.array(["u", "v"]).dictionary_encode(),
        pa.array([False, True]),
        pa.array([3, 7], pa.int8()),
        pa.array([3, 2**64 - 1], pa.uint64()),
        pa.array([1.5, 2.5]).dictionary_encode(),
        pa.array([3, 7], pa.date32()).dictionary_encode(),
        pa.array([["u"], ["v"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array([["u"], ["v"]], pa.large_list(pa.string())),
        pa.array([[3], [7]], pa.list_(pa.int32(), 1)),
        pa.array([[3], [7]], pa.list_view(pa.int32())),
        pa.array([[True], [False]]).take(pa.array([1, 0])),
    ],
    ids=lambda cells: str(cells.type),
)
def test_every_discrete_type_is_a_category(cells: pa.Array) -> None:
    assert kind(cells) == "category"
    assert encode(cells).ids.tolist() == [[1], [2]]


def test_a_value_that_is_missing_or_was_never_seen_has_the_missing_token() -> None:
    assert encode(["a", "b"], ["b", None, "", "z"]).ids.tolist() == [[2], [0], [0], [0]]
    assert encode([1.5, 2.5], [2.5, float("nan"), 9.0], "x:category").ids.tolist() == [
        [2],
        [0],
        [0],
    ]


def test_missing_values_are_no_tokens_of_their_own() -> None:
    columns = learn_columns(pa.table({"x": ["a", None, "", "a"]}), ["x"])
    assert columns.tokens == 2
    nothing = pa.array([None, None], pa.string())
    assert learn_columns(pa.table({"x": nothing}), ["x"]).tokens == 1
    assert encode(nothing).ids.tolist() == [[MISSING]] * 2


def test_both_zeros_are_one_category() -> None:
    assert encode([0.0, -0.0, 1.0], name="x:category").ids.tolist() == [[1], [1], [2]]


# lists -------------------------------------------------------------------------------------------


def test_the_values_of_a_list_share_the_weight() -> None:
    found = encode([["b", "a"], ["c"], ["c", "a", "b"]])
    assert found.ids.tolist() == [[2, 1, -1], [3, -1, -1], [3, 1, 2]]
    np.testing.assert_allclose(found.weights, [[0.5, 0.5, 0], [1, 0, 0], [1 / 3] * 3])


def test_of_a_list_only_seen_and_distinct_values_count() -> None:
    given = [["a", "z", "b", "a", None, ""], ["z"], [], None, [None]]
    expected = [{1: 0.5, 2: 0.5}, {0: 1.0}, {0: 1.0}, {0: 1.0}, {0: 1.0}]
    assert bags(encode([["a", "b"]], given)) == expected


def test_a_long_list_keeps_its_first_distinct_values() -> None:
    found = encode([["d", "d", "c", "a", "b"], ["a"]], max_values=3)
    assert found.ids.tolist() == [[4, 3, 1], [1, -1, -1]]


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, pa.list_view, lambda t: pa.list_(t, 2)])
def test_lists_are_read_across_chunks_slices_and_nulls(make: Any) -> None:
    cells = [["a", "b"], None, ["b", "c"], None, ["c", "a"]]
    whole = pa.array(cells, make(pa.string()))
    column = pa.chunked_array([whole.slice(1, 2), whole.slice(3), whole.slice(0, 1)])
    columns = learn_columns(pa.table({"x": column}))
    expected = [{0: 1.0}, {2: 0.5, 3: 0.5}, {0: 1.0}, {3: 0.5, 1: 0.5}, {1: 0.5, 2: 0.5}]
    assert bags(columns.encode(pa.table({"x": column}))) == expected


def test_what_a_null_list_hides_is_not_read() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4]), pa.array(["a", "x", "y", "b"]), mask=pa.array([False, True, False])
    )
    assert bags(encode(hidden)) == [{1: 1.0}, {0: 1.0}, {2: 1.0}]


def test_one_value_may_stand_for_a_list_and_a_list_for_one_value() -> None:
    assert bags(encode([["a", "b"]], ["b", None])) == [{2: 1.0}, {0: 1.0}]
    assert bags(encode(["a", "b"], [["b", "a"], []])) == [{2: 0.5, 1: 0.5}, {0: 1.0}]


# text --------------------------------------------------------------------------------------------


def test_words_are_lower_cased_split_and_hashed() -> None:
    found = bags(encode(["Toy Story (1995)", "ÉTÉ-toy, toy!"], name="x:text"))
    assert found[0] == pytest.approx({bucket(w): 1 / 3 for w in ("toy", "story", "1995")})
    assert found[1] == {bucket("été"): 0.5, bucket("toy"): 0.5}


def test_words_keep_the_marks_of_their_script() -> None:
    assert bags(encode(["हिन्दी 日本"], name="x:text")) == [
        {bucket("हिन्दी"): 0.5, bucket("日本"): 0.5}
    ]


def test_text_without_words_is_missing() -> None:
    found = encode(["a b"], ["", None, " ", "?! -", "a"], "x:text")
    assert bags(found) == [{0: 1.0}] * 4 + [{bucket("a"): 1.0}]


def test_words_never_seen_count_too_and_a_long_text_keeps_its_first() -> None:
    found = encode(["a b"], ["new words come up"], "x:text", max_values=2)
    assert bags(found) == [{bucket("new"): 0.5, bucket("words"): 0.5}]


def test_hashed_says_how_many_buckets_there_are() -> None:
    table = pa.table({"x": ["one two three four five"]})
    columns = learn_columns(table, ["x:text"], hashed=2)
    assert columns.tokens == 3
    assert set(columns.encode(table).ids.ravel()) <= {-1, 1, 2}


def test_words_hash_to_the_same_tokens_in_another_process() -> None:
    code = (
        "import pyarrow as pa; from softdex.encode.features.columns import learn_columns;"
        "t = pa.table({'x': ['Toy Story']});"
        "print(learn_columns(t, ['x:text']).encode(t).ids.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[bucket("toy"), bucket("story")]]


def test_a_list_of_strings_can_be_read_as_text() -> None:
    found = bags(encode([["new york", "york"], []], name="x:text"))
    assert found == [{bucket("new"): 0.5, bucket("york"): 0.5}, {0: 1.0}]


# numbers -----------------------------------------------------------------------------------------


def test_numbers_are_standardised_and_have_a_token_only_where_missing() -> None:
    found = encode([1.0, 2.0, None, 3.0, float("nan")])
    spread = np.sqrt(2 / 3)
    np.testing.assert_allclose(found.numbers[:, 0], [-1 / spread, 0, 0, 1 / spread, 0], rtol=1e-6)
    assert bags(found) == [{}, {}, {0: 1.0}, {}, {0: 1.0}]


@pytest.mark.parametrize("cells", [[0.1] * 7, [1e300] * 3, [5], [None, 2.5]])
def test_a_constant_number_gives_zero(cells: list[Any]) -> None:
    assert not encode(cells, [*cells, 77], "x:number").numbers.any()


def test_mean_and_scale_are_exact_where_they_can_be() -> None:
    part = learn_columns(pa.table({"x": [1994.0, None, 1995.0]})).parts[0]
    assert part == Number("x", "double", 1994.5, 0.5)


def test_a_number_that_is_missing_everywhere_gives_zero() -> None:
    found = encode(pa.array([None, None], pa.float64()), [1.0, None])
    assert found.numbers.tolist() == [[0.0], [0.0]]
    assert bags(found) == [{}, {0: 1.0}]


def test_huge_and_tiny_numbers_stay_finite() -> None:
    found = encode([1e308, -1e308, 0.0], [1.7e308, -1.7e308, 0.0])
    np.testing.assert_allclose(found.numbers[:, 0], np.array([1.7, -1.7, 0]) * 1.5**0.5, rtol=1e-6)
    largest = sys.float_info.max
    assert encode([largest, -largest]).numbers.tolist() == [[1], [-1]]
    assert encode([1e-9, 2e-9], [1e300, -1e300]).numbers.tolist() == [[FAR], [-FAR]]


@pytest.mark.parametrize(("cells", "count"), [([1.0, float("inf")], 1), ([float("-inf")] * 2, 2)])
@pytest.mark.parametrize("name", ["x", "x:category"])
def test_infinite_numbers_are_refused(cells: list[float], count: int, name: str) -> None:
    with pytest.raises(DataError, match=rf"fit: .*'x'.* infinite .* {count} of 2 rows"):
        encode(cells, name=name)
    with pytest.raises(DataError, match=rf"encode: .*'x'.* infinite .* {count} of 2 rows"):
        encode([1.0, 2.0], cells, name)


def test_dates_and_timestamps_are_numbers_whatever_their_unit() -> None:
    days = [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2), None]
    kinds = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
    kinds += [pa.timestamp("ms", "UTC"), pa.date32(), pa.date64()]
    cells = [pa.array(days, k) for k in kinds]
    assert {kind(each) for each in cells} == {"number"}
    for other in (*cells, pa.array(["2020-01-01", "2020-01-02", ""])):
        found = encode(cells[0], other)
        np.testing.assert_allclose(found.numbers[:, 0], [-1, 1, 0])
        assert bags(found) == [{}, {}, {0: 1.0}]
        assert encode(cells[0], other, "x:category").ids.tolist() == [[1], [2], [0]]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(np.array([1, 2], np.float16)),
        pa.array([1, 2], pa.float32()),
        pa.array([1, 2], pa.decimal128(5, 2)),
        pa.array([1, 2], pa.time32("s")),
        pa.array([1, 2], pa.time64("us")),
        pa.array([1, 2], pa.duration("ns")),
    ],
    ids=lambda cells: str(cells.type),
)
def test_all_else_that_counts_is_a_number(cells: pa.Array) -> None:
    assert kind(cells) == "number"
    np.testing.assert_allclose(encode(cells).numbers, [[-1], [1]])


# which kind --------------------------------------------------------------------------------------


def test_whole_numbers_are_categories_if_few_or_repeated_and_numbers_otherwise() -> None:
    assert kind(np.arange(1000)) == "category"
    assert kind(np.arange(1001)) == "number"
    assert kind(np.arange(1001).repeat(2)) == "number"  # half as many as rows
    assert kind(np.append(np.arange(1001).repeat(2), 0)) == "category"
    assert kind(pa.array([[i] for i in range(1001)])) == "category"


def test_strings_are_text_if_mostly_distinct_and_spaced() -> None:
    assert kind(["a b", "c d", "e"]) == "text"
    assert kind(["a b", "c d", "a b", "c d"]) == "category"  # half distinct
    assert kind(["a b", "c", "e"]) == "category"  # fewer than half have a space
    assert kind(["a b", None, None, ""]) == "text"  # what is missing does not count
    assert kind(pa.array(["a b", "c d"]).dictionary_encode()) == "category"
    assert kind([["a b"], ["c d"]]) == "category"


def test_the_kind_can_be_said() -> None:
    assert kind(["a b", "c d"], "x:category") == "category"
    assert kind(["a", "b"], "x:text") == "text"
    assert kind([1, 2], "x:number") == "number"
    assert kind([1.0, 2.0], "x:category") == "category"
    assert kind(["1", "2.5"], "x:number") == "number"
    assert kind([True, False], "x:number") == "number"
    assert kind([7, 8], "x:text") == "text"


def test_a_column_may_have_a_colon_in_its_name() -> None:
    table = pa.table({"genre:token": ["a", "a"], "year:number": [1.0, 2.0]})
    found = learn_columns(table, ["genre:token:text", "year:number"])
    assert [(type(p), p.name) for p in found.parts] == [
        (Text, "genre:token"),
        (Number, "year:number"),
    ]


def test_without_names_ids_and_nested_columns_are_left_out() -> None:
    table = pa.table(
        {
            "id": ["u1", "u2", "u3"],
            "code": pa.array(["u1", None, "u3"]).dictionary_encode(),
            "nothing": pa.array([None] * 3, pa.string()),
            "null": pa.nulls(3),
            "raw": [b"1", b"2", b"2"],
            "while": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
            "struct": [{"a": 1}] * 3,
            "deep": [[["a"]]] * 3,
            "ragged": [[0.5, 1.0], [0.5], None],
            "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
            "title": ["one two", "three four", "five six"],
            "genre": [["a"], ["b"], ["a"]],
            "colour": ["red", "blue", "red"],
            "price": [1.0, 2.0, 3.0],
        }
    )
    kinds = {part["name"]: part["kind"] for part in learn_columns(table).json()["columns"]}
    expected = {"title": "text", "genre": "category", "colour": "category", "price": "number"}
    assert kinds == expected


# columns side by side ----------------------------------------------------------------------------


def test_columns_share_one_token_table_one_after_the_other() -> None:
    table = pa.table({"a": ["u", "v", "v"], "n": [1.0, None, 2.0], "b": [["p", "q"], None, ["q"]]})
    columns = learn_columns(table)
    assert (columns.tokens, columns.numeric) == (3 + 1 + 3, 1)
    found = columns.encode(table)
    assert found.ids.tolist() == [[1, 5, 6], [2, 3, 4], [2, 6, -1]]
    assert found.weights.tolist() == [[1, 0.5, 0.5], [1, 1, 1], [1, 1, 0]]
    assert found.numbers.tolist() == [[-1], [0], [1]]


def test_the_order_of_names_is_the_order_of_tokens() -> None:
    table = pa.table({"a": ["u", "v", "v"], "b": ["p", "q", "q"]})
    names = [part.name for part in learn_columns(table, ["b", "a"]).parts]
    assert names == ["b", "a"]
    assert learn_columns(table, ["b", "a"]).encode(table).ids.tolist()[0] == [1, 4]


def test_a_row_is_never_of_no_width() -> None:
    found = encode([1.0, 2.0])
    assert found.ids.tolist() == [[-1], [-1]]
    assert found.weights.tolist() == [[0.0], [0.0]]


def test_an_empty_table_can_be_encoded() -> None:
    table = pa.table({"a": ["u", "v", "v"], "t": ["a b", "c d", "e f"], "n": [1.0, 2.0, 3.0]})
    found = learn_columns(table).encode(table.slice(0, 0))
    assert [part.shape for part in found] == [(0, 1), (0, 1), (0, 1)]
    chunkless = pa.table([pa.chunked_array([], field.type) for field in table.schema], table.schema)
    assert_same(learn_columns(table).encode(chunkless), found)


def test_a_column_that_is_absent_is_missing_everywhere() -> None:
    table = pa.table({"a": ["u", "v", "v"], "t": ["a b", "c d", "e f"], "n": [1.0, 2.0, 3.0]})
    columns = learn_columns(table)
    found = columns.encode(pa.table({"other": [1, 2]}))
    assert found.ids.tolist() == [[0, 3, 3 + 4097]] * 2
    assert found.weights.tolist() == [[1, 1, 1]] * 2
    assert found.numbers.tolist() == [[0], [0]]


# other types at encode time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learnt", "given", "expected"),
    [
        ([1994, 1995], [1995.0, float("nan"), 1994.0], [2, 0, 1]),
        ([1994, 1995], ["1995", "", "1994"], [2, 0, 1]),
        ([1994.0, 1995.0], [1995, None, 1994], [2, 0, 1]),
        (["7", "8"], [8, None, 7], [2, 0, 1]),
        ([False, True], [1, None, 0], [2, 0, 1]),
        ([False, True], ["true", "", "false"], [2, 0, 1]),
        (["a", "b"], pa.nulls(3), [0, 0, 0]),
        ([False, True], pa.nulls(3), [0, 0, 0]),
        (pa.array([0, 1], pa.date32()), pa.nulls(3), [0, 0, 0]),
        (pa.array([1, 2], pa.int8()), pa.array([2, None, 1], pa.uint64()), [2, 0, 1]),
        (["a", "b"], pa.array(["b", None, "a"]).dictionary_encode(), [2, 0, 1]),
        (["a", "b"], [b"b", None, b"a"], [2, 0, 1]),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_cast(learnt: Any, given: Any, expected: list[int]) -> None:
    assert encode(learnt, given, "x:category").ids[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("learnt", "given", "name"),
    [
        ([1994, 1995], [1994.5], "x"),
        ([1994, 1995], ["new"], "x"),
        ([1.0, 2.0], ["much"], "x"),
        ([1.0, 2.0], [[1.0]], "x"),
        ([1.0, 2.0], [dt.date(2020, 1, 1)], "x"),
        ([dt.date(2020, 1, 1)], [18262], "x"),
        ([dt.date(2020, 1, 1)], pa.array([5], pa.duration("s")), "x"),
        ([dt.date(2020, 1, 1)], ["soon"], "x"),
        ([False, True], [2], "x"),
        (["1", "2"], [1.0], "x"),
        (["a", "b"], [{"a": 1}], "x"),
        (["a", "b"], [[["a"]]], "x"),
        (["a", "b"], [b"\xff"], "x"),
        (["a b"], [dt.date(2020, 1, 1)], "x:text"),
        (pa.array([1], pa.uint64()), [-1], "x"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_cast_is_refused(learnt: Any, given: Any, name: str) -> None:
    got = re.escape(str(pa.array(given).type if isinstance(given, list) else given.type))
    with pytest.raises(
        DataError, match=rf"encode: expected the column 'x' as \w+, got {got} .*Cast"
    ):
        encode(learnt, given, name)


# what is asked wrongly ---------------------------------------------------------------------------


TABLE = pa.table({"genre": ["a", "b", "b"], "sub": [{"a": 1}] * 3, "vec": [{"a": 0.5}] * 3})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["genr"], "fit: unknown column 'genr'. Did you mean 'genre'?"),
        (["genr:text"], "fit: unknown column 'genr'. Did you mean 'genre'?"),
        (["genre:txt"], "unknown kind of the column 'genre': 'txt'. Did you mean 'text'?"),
        (["genre", "genre:text"], "the column 'genre' is named twice"),
        ([], "fit: expected at least one column, got none. Known: genre, sub, vec."),
        ("genre", "fit: expected names as a list, each text or nothing, got 'genre'."),
        (["sub"], "expected the column 'sub' to hold strings, numbers"),
        (["vec"], "expected the column 'vec' to hold strings, numbers"),
        (["sub:category"], "expected the column 'sub' as string, got struct"),
        (["vec:number"], "expected the column 'vec' as double, got struct"),
        (["genre:number"], "expected the column 'genre' as double, got string"),
    ],
    ids=str,
)
def test_names_that_make_no_sense_are_refused(names: Any, message: str) -> None:
    with pytest.raises(SoftdexError, match=re.escape(message)):
        learn_columns(TABLE, names)


def test_where_names_who_asks() -> None:
    with pytest.raises(SoftdexError, match=r"^two_tower: unknown column"):
        learn_columns(TABLE, ["genr"], where="two_tower")


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(SoftdexError, match=r"got only ids .*\(id, sub\).*'id:category'"):
        learn_columns(pa.table({"id": ["u", "v"], "sub": [{"a": 1}] * 2}))
    with pytest.raises(DataError, match="got 0 rows and 0 columns"):
        learn_columns(pa.table({}))
    with pytest.raises(DataError, match="got 0 rows and 3 columns"):
        learn_columns(TABLE.slice(0, 0))


@pytest.mark.parametrize("size", [0, -1, 2**25, True, 2.0, "many"])
@pytest.mark.parametrize("option", ["hashed", "max_values"])
def test_sizes_that_make_no_sense_are_refused(option: str, size: Any) -> None:
    with pytest.raises(SoftdexError, match=f"fit: expected {option} as a whole number from 1"):
        learn_columns(TABLE, **{option: size})


def test_two_columns_of_one_name_are_refused_if_they_are_read() -> None:
    twice = pa.table([pa.array(["a", "b"]), pa.array(["a", "b"])], ["genre", "genre"])
    for learn in (lambda: learn_columns(twice), lambda: learn_columns(twice, ["genre"])):
        with pytest.raises(DataError, match="fit: 2 columns are called 'genre'"):
            learn()
    with pytest.raises(DataError, match="encode: 2 columns are called 'genre'"):
        learn_columns(TABLE, ["genre"]).encode(twice)
    other = pa.table([pa.array([["a"]]), pa.array([1]), pa.array([1])], ["genre", "n", "n"])
    assert learn_columns(TABLE, ["genre"]).encode(other).ids.tolist() == [[1]]


# json --------------------------------------------------------------------------------------------


def learnt() -> Columns:
    table = pa.table({"c": ["v", "u", "u"], "y": [3, 5, 5], "n": [0.1, 0.2, None]})
    table = table.append_column("t", pa.array(["a b", "c d", "e f"]))
    table = table.append_column("d", pa.array([1, 2, 3], pa.date32()))
    table = table.append_column("f", pa.array([0.1, 0.2, 0.2]).dictionary_encode())
    return learn_columns(table.append_column("b", pa.array([True, False, None])))


def test_the_json_is_plain_and_small() -> None:
    table = pa.table({"c": ["v", "u", "u"], "n": [1.0, 3.0, None], "t": ["a b", "c d", "e f"]})
    assert learn_columns(table, hashed=8).json() == {
        "max_values": 32,
        "columns": [
            {"name": "c", "kind": "category", "type": "string", "values": ["u", "v"]},
            {"name": "n", "kind": "number", "type": "double", "mean": 2.0, "scale": 1.0},
            {"name": "t", "kind": "text", "hashed": 8},
        ],
    }


def test_columns_come_back_from_their_json() -> None:
    columns = learnt()
    back = columns_from_json(json.loads(json.dumps(columns.json(), sort_keys=True)))
    assert back == columns
    assert back.json() == columns.json()
    given = pa.table({"c": ["u", "w"], "y": [5, 4], "n": [9.5, None], "t": ["a", ""]})
    assert_same(back.encode(given), columns.encode(given))


def damage(*path: Any, value: Any) -> Any:
    """The JSON of columns with another value at a place; `...` takes it out."""
    found = copy.deepcopy(learnt().json())
    place = found
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return found


NAMES = [part.name for part in learnt().parts]  # c y n t d f b
C, Y, N, T, F, B = (("columns", NAMES.index(name)) for name in "cyntfb")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "expected columns with max_values, columns, got None"),
        ([], "expected columns with max_values, columns, got []"),
        ({}, "expected columns with max_values, columns, got []"),
        (damage("more", value=1), "expected columns with max_values"),
        (damage("max_values", value=...), "expected columns with max_values"),
        (damage("max_values", value="32"), "expected max_values of columns as int, got '32'"),
        (damage("max_values", value=True), "expected max_values of columns as int, got True"),
        (damage("max_values", value=0), "expected max_values as a whole number from 1"),
        (damage("max_values", value=10**400), "expected max_values as a whole number from 1"),
        (damage("columns", value={}), "expected columns of columns as list"),
        (damage("columns", value=[]), "expected columns with a name each, got []"),
        (damage("columns", value=[3]), "text or number or vector column, got 3"),
        (damage(*C, "kind", value=["text"]), "a category or text or number or vector column"),
        (damage(*C, "kind", value="number"), "expected a number column with name, kind, type"),
        (damage(*C, "name", value="y"), "expected columns with a name each"),
        (damage(*C, "name", value=7), "expected name of a category column as str, got 7"),
        (damage(*C, "name", value="\ud800"), "expected columns as string"),
        (damage(*C, "type", value="float"), "expected a type of string, int64"),
        (damage(*C, "type", value="int64"), "expected the values of 'c' as int"),
        (damage(*C, "values", value="uv"), "expected values of a category column as list"),
        (damage(*C, "values", value=["v", "u"]), "distinct and sorted"),
        (damage(*C, "values", value=["u", "u"]), "distinct and sorted"),
        (damage(*C, "values", value=["", "u"]), "not empty"),
        (damage(*C, "values", value=["u", None]), "expected the values of 'c' as str"),
        (damage(*C, "values", value=["u", 3]), "expected the values of 'c' as str"),
        (damage(*C, "values", value=["\ud800"]), "expected the values of 'c' as string"),
        (damage(*Y, "values", value=[2**63]), "expected the values of 'y' as int64"),
        (damage(*Y, "values", value=[10**400]), "expected the values of 'y' as int64"),
        (damage(*Y, "values", value=[True]), "expected the values of 'y' as int"),
        (damage(*Y, "type", value="uint64"), None),
        (damage(*F, "values", value=[0.1, NAN]), "to be finite"),
        (damage(*F, "values", value=[0.1, INF]), "to be finite"),
        (damage(*F, "values", value=[1]), "expected the values of 'f' as float"),
        (damage(*B, "values", value=[1]), "expected the values of 'b' as bool"),
        (damage(*N, "type", value="int64"), "expected type, mean and scale of 'n'"),
        (damage(*N, "mean", value=NAN), "expected type, mean and scale of 'n'"),
        (damage(*N, "mean", value=None), "expected mean of a number column as float, got None"),
        (damage(*N, "scale", value=-1.0), "expected type, mean and scale of 'n'"),
        (damage(*N, "scale", value=INF), "expected type, mean and scale of 'n'"),
        (damage(*N, "scale", value=NAN), "expected type, mean and scale of 'n'"),
        (damage(*T, "hashed", value=0), "expected hashed as a whole number from 1"),
        (damage(*T, "hashed", value=10**18), "expected hashed as a whole number from 1"),
        (damage(*T, "hashed", value=1.0), "expected hashed of a text column as int"),
    ],
)
def test_damaged_json_is_refused_in_words(found: Any, message: str | None) -> None:
    if message is None:
        columns_from_json(found)
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        columns_from_json(found)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(st.data())
def test_any_value_in_any_place_of_the_json_is_taken_or_a_value_error(data: st.DataObject) -> None:
    column = data.draw(st.integers(0, len(NAMES) - 1))
    entry = data.draw(st.sampled_from(sorted(learnt().json()["columns"][column])))
    found = damage("columns", column, entry, value=data.draw(plain_values))
    with contextlib.suppress(ValueError):
        assert columns_from_json(found).json() == found


# laws --------------------------------------------------------------------------------------------


letters = st.text("abé -", max_size=6)
CELLS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "word:category": (pa.string(), letters),
    "text:text": (pa.string(), letters),
    "tags:category": (pa.list_(pa.string()), st.lists(st.none() | letters, max_size=6)),
    "whole:category": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag:category": (pa.bool_(), st.booleans()),
    "price:number": (pa.float64(), st.floats(allow_infinity=False)),
    "day:number": (pa.date32(), st.dates()),
}


def tables(least: int) -> st.SearchStrategy[pa.Table]:
    row = st.tuples(*(st.none() | cells for _, cells in CELLS.values()))

    def build(rows: list[Any]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else [[]] * len(CELLS)
        arrays = [pa.array(c, t) for c, (t, _) in zip(columns, CELLS.values(), strict=True)]
        return pa.table(arrays, [name.partition(":")[0] for name in CELLS])

    return st.lists(row, min_size=least, max_size=8).map(build)


def token_ranges(columns: Columns) -> list[tuple[Any, int, int]]:
    ends = np.cumsum([part.size for part in columns.parts])
    return [(p, e - p.size, e) for p, e in zip(columns.parts, ends.tolist(), strict=True)]


@given(tables(1), tables(0), st.integers(1, 4), st.integers(1, 20))
def test_ids_stay_in_the_table_and_the_weights_of_a_column_sum_to_one(
    table: pa.Table, other: pa.Table, most: int, hashed: int
) -> None:
    columns = learn_columns(table, list(CELLS), hashed=hashed, max_values=most)
    for given_table in (table, other, other.drop(["word", "price"])):
        ids, weights, numbers = columns.encode(given_table)
        assert ids.shape == weights.shape
        assert ids.shape[1] >= 1
        assert ids.min(initial=0) >= -1
        assert ids.max(initial=0) < columns.tokens
        assert np.isfinite(numbers).all()
        assert numbers.shape == (given_table.num_rows, columns.numeric)
        assert (weights[ids < 0] == 0).all()
        assert ((ids[:, :-1] >= 0) >= (ids[:, 1:] >= 0)).all()  # pads come last
        for part, start, end in token_ranges(columns):
            inside = (ids >= start) & (ids < end)
            total = (weights * inside).sum(1)
            if isinstance(part, Number):
                assert set(total.tolist()) <= {0.0, 1.0}
            else:
                np.testing.assert_allclose(total, 1, rtol=1e-6)
                assert inside.sum(1).max(initial=0) <= most


@given(tables(1), st.randoms(use_true_random=False))
def test_permuting_rows_permutes_the_result(table: pa.Table, random: Any) -> None:
    order = list(range(table.num_rows))
    random.shuffle(order)
    shuffled = table.take(order)
    columns, again = learn_columns(table, list(CELLS)), learn_columns(shuffled, list(CELLS))
    assert again == columns
    found = columns.encode(table)
    assert_same(again.encode(shuffled), Encoded(*(part[order] for part in found)))


@given(tables(1), tables(0))
def test_columns_from_json_encode_alike(table: pa.Table, other: pa.Table) -> None:
    columns = learn_columns(table, list(CELLS), hashed=16)
    back = columns_from_json(json.loads(json.dumps(columns.json())))
    assert_same(back.encode(other), columns.encode(other))


@given(tables(1), tables(0), st.integers(1, 4))
def test_a_list_is_read_as_a_loop_over_rows_would(
    table: pa.Table, other: pa.Table, most: int
) -> None:
    columns = learn_columns(table, ["tags"], max_values=most)
    values = sorted({v for cell in table["tags"].to_pylist() for v in cell or [] if v})
    expected = []
    for cell in other["tags"].to_pylist():
        seen = list(dict.fromkeys(1 + values.index(v) for v in cell or [] if v in values))[:most]
        expected.append({i: np.float32(1 / len(seen)) for i in seen} if seen else {MISSING: 1.0})
    assert bags(columns.encode(other)) == expected


# vectors -----------------------------------------------------------------------------------------

VECTORS = [[1.0, 2.0, 0.0], None, [3.0, -2.0, 0.0], [2.0, 3.0, 3.0]]


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.float64()),
        pa.list_(pa.float32()),
        pa.list_(pa.float32(), 3),
        pa.large_list(pa.float16()),
    ],
)
def test_lists_of_fractions_of_one_length_are_vectors(type: pa.DataType) -> None:
    """Centred, and divided by their root mean square length, by numpy."""
    cells = pa.array(VECTORS, type)
    assert kind(cells) == "vector"
    found = encode(cells)
    matrix = np.array([row for row in VECTORS if row is not None])
    centred = matrix - matrix.mean(0)
    scale = np.sqrt((centred**2).sum(1).mean())
    np.testing.assert_allclose(found.numbers[[0, 2, 3]], centred / scale, rtol=1e-6)
    assert (found.numbers[1] == 0).all()
    assert bags(found) == [{}, {MISSING: 1.0}, {}, {}]
    for other in (cells.slice(1), pa.array([*VECTORS[1:], *VECTORS], type).slice(3)):
        columns = learn_columns(pa.table({"x": cells}))
        read = columns.encode(pa.table({"x": other}))
        assert_same(read, Encoded(*(a[-len(other) :] for a in found)))


def test_vectors_are_read_in_any_order_the_same_and_stand_in_a_manifest() -> None:
    draw = np.random.default_rng(0)
    cells = draw.normal(size=(50, 4)).tolist()
    table, turned = pa.table({"x": cells, "n": range(50)}), pa.table({"x": cells[::-1]})
    columns = learn_columns(table, ["n:number", "x"])
    assert columns.numeric == 5
    again = columns_from_json(json.loads(json.dumps(columns.json())))
    assert again.json() == columns.json()
    assert_same(again.encode(table), columns.encode(table))
    alone = learn_columns(turned, ["x"])
    assert alone.json()["columns"] == columns.json()["columns"][1:]
    assert (columns.encode(table.select(["n"])).numbers[:, 1:] == 0).all()


def test_whole_numbers_are_a_vector_if_they_are_called_one() -> None:
    assert kind([[1, 2], [3, 4]]) == "category"
    assert encode([[1, 2], [3, 4]], name="x:vector").numbers.shape == (2, 2)
    assert (encode([[1.0, 2.0]] * 3).numbers == 0).all()
    assert np.isfinite(encode([[1e300, 0.0], [-1e300, 1.0]]).numbers).all()


@pytest.mark.parametrize(
    ("cells", "name", "words"),
    [
        ([[1.0, 2.0], [1.0]], "x", "expected vectors of 2 finite numbers .*got 1 numbers in row 1"),
        ([[1.0, None]], "x", "got NaN, null or infinity in row 0 of 1. Make it null"),
        ([[1.0, 0.0], [1.0, math.nan]], "x", "got NaN, null or infinity in row 1 of 2"),
        ([[math.inf]], "x", "got NaN, null or infinity in row 0"),
        (pa.array([None], pa.list_(pa.float32())), "x", "the column 'x' has no vector"),
        ([1.0], "x:vector", "expected vectors in the column 'x', got double"),
        ([["a"]], "x:vector", "expected vectors of numbers in the column 'x'"),
    ],
)
def test_what_is_no_vector_is_one_clear_error(cells: Any, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        encode(cells, name=name)


def test_vectors_of_another_length_are_refused_later_too() -> None:
    columns = learn_columns(pa.table({"x": [[1.0, 2.0], [0.0, 1.0]]}))
    with pytest.raises(DataError, match=r"encode: expected vectors of 2 finite numbers .*got 3"):
        columns.encode(pa.table({"x": [[1.0, 2.0, 3.0]]}))


@pytest.mark.parametrize(
    "wrong", [{"mean": []}, {"mean": [1]}, {"mean": [math.nan]}, {"scale": -1.0}, {"scale": "1"}]
)
def test_a_damaged_vector_in_a_manifest_is_refused(wrong: dict[str, Any]) -> None:
    stored = learn_columns(pa.table({"x": [[1.0, 2.0]]})).json()
    stored["columns"][0] |= wrong
    with pytest.raises(ValueError, match="columns: expected"):
        columns_from_json(stored)
