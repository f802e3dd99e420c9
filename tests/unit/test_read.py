"""`sdx.read`: every kind of source, which columns it finds, attached tables, refusals."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

import softdex as sdx
from softdex.errors import DataError, SoftdexError

COLUMNS = {"user": ["ann", "bob"], "item": [7, 9], "time": [1, 2]}
WANTED = [("ann", 7, 1), ("bob", 9, 2)]
DAY = 86_400_000_000


class Event(NamedTuple):
    user: str
    item: int
    time: int


class Capsule:
    """Nothing but the PyCapsule protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class BatchCapsule:
    """The protocol of a single batch."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.table.to_batches()[0].__arrow_c_array__(requested_schema)


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return list(zip(*log.to_arrow().to_pydict().values(), strict=True))


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        sdx.read(source, **options)
    message = str(caught.value)
    assert message.startswith("read: ")
    assert message.endswith((".", "?"))
    return message


def table(**columns: Any) -> pa.Table:
    return pa.table({"user": [1, 2], "item": [3, 4]} | columns)


# sources in memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c,
        pa.table,
        pa.record_batch,
        lambda c: pa.table(c).to_reader(),
        lambda c: Capsule(pa.table(c)),
        lambda c: BatchCapsule(pa.table(c)),
        lambda c: pa.table({n: pa.chunked_array([[v] for v in cells]) for n, cells in c.items()}),
        pd.DataFrame,
        lambda c: pd.DataFrame(c, index=[5, 5]),
        pl.DataFrame,
        lambda c: pl.concat([pl.DataFrame(c)[:1], pl.DataFrame(c)[1:]], rechunk=False),
        lambda c: duckdb.from_arrow(pa.table(c)),
        lambda c: duckdb.from_arrow(pa.table(c)).to_arrow_table(),
        lambda c: duckdb.connect().execute(
            "select * from (values ('ann', 7, 1), ('bob', 9, 2)) t(user, item, time)"
        ),
        lambda c: pl.LazyFrame(c).filter(pl.col("time") > 0),
        lambda c: pa.table(c).to_pylist(),
        lambda c: iter(pa.table(c).to_pylist()),
        lambda c: list(zip(*c.values(), strict=True)),
        lambda c: zip(*c.values(), strict=True),
        lambda c: [Event(*cells) for cells in zip(*c.values(), strict=True)],
        lambda c: [list(cells) for cells in zip(*c.values(), strict=True)],
        lambda c: tuple(zip(*c.values(), strict=True)),
    ],
)
def test_every_table_in_memory_reads_as_the_same_log(make: Callable[[Any], Any]) -> None:
    assert rows(sdx.read(make(COLUMNS))) == WANTED


def test_an_array_of_integers_is_read_row_by_row() -> None:
    assert rows(sdx.read(np.array([[1, 2, 5], [3, 4, 6]]))) == [(1, 2, 5), (3, 4, 6)]


def test_tuples_may_carry_a_weight() -> None:
    log = sdx.read([("ann", "tea", 1, 2.5), ("bob", "tea", 2, 1.0)])
    assert log.weight is not None
    assert log.weight.tolist() == [2.5, 1.0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, ["cannot read NoneType", "Expected a path"]),
        (5, ["cannot read int"]),
        (b"user,item", ["cannot read bytes"]),
        (pl.LazyFrame(COLUMNS).select("x"), ["this LazyFrame gives no table"]),
        ([], ["the source is empty", "tuples"]),
        (iter(()), ["the source is empty"]),
        ([(1, 2), (1, 2, 3)], ["of one length", "lengths 2, 3"]),
        ([(1,)], ["lengths 1"]),
        ([(1, 2, 3, 4, 5)], ["lengths 5"]),
        ([{"user": 1, "item": 2}, (1, 2)], ["expected tuples", "'user': 1", "list of dicts"]),
        ([{"user": 1, "item": 2}, {"user": "a"}], ["column 'user' mixes int, str"]),
        ([{1, 2}], ["expected tuples", "{1, 2}"]),
        ([(1, 2), "ab"], ["expected tuples", "'ab'"]),
        ([1, 2], ["expected tuples", "lengths none"]),
        (np.array([1, 2]), ["expected tuples"]),
        (np.zeros((2, 2, 2)), ["expected tuples"]),
        ([(1, 2), ("a", 2)], ["column 'user' mixes int, str", "strings"]),
        ([(object(), 2)], ["column 'user' holds object objects"]),
        ([(2**70, 2)], ["column 'user' holds integers of more than 64 bits", "strings"]),
        (pd.DataFrame({"user": [1, "a"], "item": [1, 2]}), ["DataFrame", "user", "strings"]),
        (pd.DataFrame({"user": [2**70], "item": [1]}), ["DataFrame", "strings"]),
        (pd.Series([1, 2]), ["Series does not convert to an Arrow table"]),
        (pa.array([1, 2]), ["does not convert to an Arrow table"]),
        ({"user": [1], "item": [1, 2]}, ["dict does not convert", "equal length"]),
        (pl.DataFrame({"user": [uuid.UUID(int=1)], "item": [1]}), ["user holds Python objects"]),
        (pd.DataFrame([[1, 2]], columns=["user", "user"]), ["Duplicate column names"]),
        (pa.table([[1], [2], [3]], names=["user", "item", "item"]), ["duplicate columns (item)"]),
        (pa.table({}), ["no user column and no item column among no columns"]),
        (table().slice(0, 0), ["a table has columns user, item and no rows"]),
        (pa.table({"a": [1], "b": [2]}), ["among a, b", "user='...', item='...'"]),
        (sdx.read([(1, 2)], quiet=True), ["is a log already"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_log_is_refused_in_one_line(source: Any, words: list[str]) -> None:
    message = refused(source)
    assert all(word in message for word in words), message


# columns and types -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "user", ["user", "user_id", "userId", "UserID", "uid", "session", "USER ID"]
)
@pytest.mark.parametrize(
    ("item", "time"),
    [("item", "time"), ("movieId", "timestamp"), ("asin", "ts"), ("track_id", "date")],
)
def test_the_usual_names_are_found(user: str, item: str, time: str) -> None:
    log = sdx.read({"note": ["x"], time: [5], item: [2], user: [1]})
    assert rows(log) == [(1, 2, 5)]


def test_names_can_be_given_and_columns_left_out() -> None:
    source = {"who": [1], "user": [2], "what": [3], "item": [4], "when": [5], "rating": [6]}
    log = sdx.read(source, user="who", item="what", time="when", rating=False)
    assert log.to_arrow().to_pydict() == {"user": [1], "item": [3], "time": [5]}


def test_a_column_that_was_given_a_role_is_not_found_for_another() -> None:
    log = sdx.read({"user": [1], "item": [2], "count": [3]}, time="count")
    assert log.weight is None
    assert log.time is not None


def test_numbers_name_the_columns_of_a_table() -> None:
    assert rows(sdx.read(pd.DataFrame([[1, 2], [3, 4]]), user=1, item=0)) == [(2, 1), (4, 3)]


def test_what_was_found_is_said_on_standard_error(
    capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    source = {"userId": [1, 1], "movieId": [2, 3], "ts": [5, 6], "stars": [4, None]}
    sdx.read(source)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "read a table: user=userId item=movieId time=ts (stars left out: 1 nulls) "
        "-> 2 rows, 1 user, 2 items\n"
    )
    sdx.read(source, quiet=True)
    assert capsys.readouterr().err == ""


def test_of_several_time_columns_the_first_without_nulls_is_taken() -> None:
    log = sdx.read(table(time=[1, None], ts=[5, 6], date=[7, 8]))
    assert log.time is not None
    assert log.time.tolist() == [5, 6]
    assert "no value in column 'time': row 1" in refused(table(time=[1, None], ts=[None, 6]))


def test_a_connection_of_a_database_is_no_table() -> None:
    with duckdb.connect() as connection:
        assert "this DuckDBPyConnection gives no table" in refused(connection)


def test_a_rating_with_nulls_is_left_out_unless_asked_for() -> None:
    source = table(rating=[4.0, None])
    assert sdx.read(source).rating is None
    assert "no value in column 'rating': row 1" in refused(source, rating="rating")


A, B = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pa.array(["b", "a"]), ["a", "b"]),
        (pa.array(["b", "a"], pa.large_string()), ["a", "b"]),
        (pa.array(["b", "a"], pa.string_view()), ["a", "b"]),
        (pa.array(["b", "a"]).dictionary_encode(), ["a", "b"]),
        (pc.run_end_encode(pa.array(["b", "a"])), ["a", "b"]),
        (pa.array([b"b", b"\xff"]), [b"b", b"\xff"]),
        (pa.array([b"b", b"a"], pa.binary(1)), [b"a", b"b"]),
        (pa.array([b"b", b"a"], pa.binary_view()), [b"a", b"b"]),
        (pa.array([B.bytes, A.bytes], pa.uuid()), [A, B]),
        (pa.array([True, False]), [False, True]),
        (pa.array([100, -100], pa.int8()), [-100, 100]),
        (pa.array([2**64 - 1, 2**64 - 5], pa.uint64()), [2**64 - 5, 2**64 - 1]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [0, 2**64 - 1]),
        (pa.array([-(2**63), 2**63 - 1]), [-(2**63), 2**63 - 1]),
        (pa.array([Decimal(5), Decimal(2)], pa.decimal128(38, 0)), [2, 5]),
        (
            pa.array([Decimal(10**30), Decimal(2)], pa.decimal128(38, 0)),
            [Decimal(2), Decimal(10**30)],
        ),
        (pa.array([Decimal("1.5"), Decimal("0.5")]), [Decimal("0.5"), Decimal("1.5")]),
        (pa.array([1.5, 0.5]), [0.5, 1.5]),
        (
            pa.array([dt.date(2020, 1, 2), dt.date(2020, 1, 1)]),
            [dt.date(2020, 1, d) for d in (1, 2)],
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_ids_of_every_comparable_type_are_keys(column: pa.Array, keys: list[Any]) -> None:
    log = sdx.read(table(user=column))
    assert log.users.all().to_pylist() == keys
    assert log.users.take(log.user).to_pylist() == column.to_pylist()
    assert log.users.lookup(keys).tolist() == [0, 1]
    assert len(log.sha256) == 64


def test_uuids_go_in_and_out_as_objects() -> None:
    log = sdx.read([(B, "tea"), (A, "tea")])
    assert log.users.type == pa.uuid()
    assert rows(log) == [(B, "tea"), (A, "tea")]
    assert rows(sdx.read(pd.DataFrame({"user": [A], "item": [1]}))) == [(A, 1)]


WORDS = {"user": ["b", "a"], "item": [1, 2]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame(WORDS).astype({"user": "category"}),
        lambda: pd.DataFrame(WORDS).astype({"user": "string", "item": "Int64"}),
        lambda: pl.DataFrame(WORDS, schema_overrides={"user": pl.Categorical}),
        lambda: pl.DataFrame(WORDS, schema_overrides={"user": pl.Enum(["a", "b"])}),
        lambda: pl.DataFrame(WORDS, schema_overrides={"item": pl.UInt64}),
        lambda: duckdb.sql("select * from (values ('b', 1::hugeint), ('a', 2)) t(user_id, item)"),
    ],
)
def test_the_types_of_frames_make_no_difference(make: Callable[[], Any]) -> None:
    assert rows(sdx.read(make())) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize("cell", [[1], {"a": 1}])
def test_nested_ids_are_refused_with_their_type(cell: Any) -> None:
    message = refused(pa.table({"user": [cell], "item": [1]}))
    assert "expected users that can be compared" in message
    assert str(pa.array([cell]).type) in message


@pytest.mark.parametrize(
    ("column", "times"),
    [
        (pa.array([1, 2], pa.int8()), [1, 2]),
        (pa.array([1.5, 2.0]), [1.5, 2.0]),
        (pa.array([2**63 - 1, 1], pa.uint64()), [2**63 - 1, 1]),
        (pa.array([2**64 - 1, 1], pa.uint64()), [float(2**64), 1.0]),
        (pa.array([Decimal("1.5"), Decimal(2)]), [1.5, 2.0]),
        (pa.array([1, 2], pa.date32()), [DAY, 2 * DAY]),
        (pa.array([DAY // 1000, 0], pa.date64()), [DAY, 0]),
        (pa.array([1, -2], pa.timestamp("s")), [1_000_000, -2_000_000]),
        (pa.array([1999, 0], pa.timestamp("ns", "Europe/Berlin")), [1, 0]),
        (pa.array([7, 8], pa.duration("s")), [7, 8]),
        (pa.array(["5", "6"]), [5, 6]),
        (pa.array(["1970-01-02", "1970-01-03"]).dictionary_encode(), [DAY, 2 * DAY]),
        (pa.array([" 5", "6.5 "], pa.string_view()), [5.0, 6.5]),
        (pa.array(["1970-01-02 ", "1970-W01-4"]), [DAY, 0]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_times_of_every_ordered_type_are_numbers(column: pa.Array, times: list[Any]) -> None:
    log = sdx.read(table(time=column))
    assert log.time is not None
    assert log.time.tolist() == times


@pytest.mark.parametrize(
    ("role", "column"),
    [
        ("time", pa.array([True, False])),
        ("time", pa.array([1, 2], pa.time32("s"))),
        ("time", pa.array([[1], [2]])),
        ("rating", pa.array([1, 2], pa.date32())),
        ("rating", pa.array([1, 2], pa.timestamp("s"))),
        ("weight", pa.array([[1], [2]])),
        ("time", pa.array([2**62, 1], pa.timestamp("s"))),
    ],
)
def test_a_column_of_no_use_is_refused_with_its_type(role: str, column: pa.Array) -> None:
    message = refused(table(**{role: column}))
    assert f"the {role} column {role!r} has the Arrow type {column.type}" in message
    assert "Expected numbers" in message


def test_ratings_may_be_true_or_false() -> None:
    log = sdx.read(table(rating=[True, False]))
    assert log.rating is not None
    assert log.rating.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"user": [1, None]}, "no value in column 'user': row 1"),
        ({"item": [float("nan"), 1.0]}, "no value in column 'item': row 0"),
        ({"item": pa.nulls(2)}, "no value in column 'item': 2 rows (0, 1)"),
        (
            {"time": [1.0, float("inf")]},
            "is not a number or a date like the rest (e.g. 'inf'): row 1",
        ),
        ({"time": [1.0, float("nan")]}, "no value in column 'time': row 1"),
        ({"time": ["1", "soon"]}, "(e.g. 'soon'): row 1"),
        ({"weight": [-1, 1]}, "negative weight in column 'weight': row 0"),
        ({"weight": [float("inf"), 1]}, "'weight' is not a finite number (e.g. 'inf'): row 0"),
        ({"rating": [1e39, 1]}, "'rating' is not a finite number (e.g. '1e+39'): row 0"),
        (
            {"user": pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))},
            "no value in column 'user': row 1",
        ),
    ],
)
def test_bad_rows_are_named_and_only_they_are_dropped(column: dict[str, Any], words: str) -> None:
    source = table(**column)
    message = refused(source)
    assert words in message
    if "2 rows" not in words:
        bad = int(words[-1])
        left = sdx.read(source, bad_rows="drop")
        assert len(left) == 1
        assert left.items.all().to_pylist() == [source["item"][1 - bad].as_py()]


def test_dropping_a_null_leaves_large_integers_exact() -> None:
    log = sdx.read(table(time=pa.array([2**60 + 1, None])), bad_rows="drop")
    assert log.time is not None
    assert log.time.tolist() == [2**60 + 1]


def test_a_null_in_an_unused_column_is_fine() -> None:
    assert len(sdx.read(table(note=pa.nulls(2), other=["x", None]))) == 2


def test_flags_and_kept_columns_are_carried_along() -> None:
    source = table(test=[True, False], fold=[1, 2], note=["x", None], other=[1, 2])
    log = sdx.read(source, keep="note")
    assert {n: c.tolist() for n, c in log.extra.items()} == {
        "test": [True, False],
        "fold": [1, 2],
        "note": ["x", None],
    }


@pytest.mark.parametrize("option", [{"duplicates": "lst"}, {"bad_rows": "dorp"}])
def test_an_unknown_rule_names_the_nearest(option: dict[str, str]) -> None:
    with pytest.raises(SoftdexError, match=r"Did you mean '(last|drop)'"):
        sdx.read([(1, 2)], **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("keep", [(1, 2, 9, 1.0), (1, 2, 5, 2.0), (1, 3, 1, 4.0)]),
        ("last", [(1, 2, 9, 1.0), (1, 3, 1, 4.0)]),
        ("sum", [(1, 2, 9, 3.0), (1, 3, 1, 4.0)]),
    ],
)
def test_repeats_are_kept_or_merged(rule: str, wanted: list[Any]) -> None:
    source = [(1, 2, 9, 1.0), (1, 2, 5, 2.0), (1, 3, 1, 4.0)]
    assert rows(sdx.read(source, duplicates=rule)) == wanted


# matrices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [sp.csr_matrix, sp.csc_array, sp.coo_matrix, sp.dok_array, sp.lil_array]
)
def test_a_matrix_keeps_its_shape(kind: Any) -> None:
    log = sdx.read(kind(np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 0, 3, 0]], np.float64)))
    assert (log.num_users, log.num_items, len(log)) == (3, 4, 3)
    assert sorted(rows(log)) == [(0, 0, 1.0), (0, 2, 2.0), (2, 2, 3.0)]
    np.testing.assert_array_equal(log.item_counts, [1, 0, 2, 0])


def test_a_matrix_of_ones_has_no_weights_and_stored_zeros_are_no_events() -> None:
    assert sdx.read(sp.csr_matrix(np.eye(3, dtype=bool))).weight is None
    stored = sp.csr_matrix((np.array([0.0, 1.0]), ([0, 1], [0, 1])), shape=(2, 2))
    assert rows(sdx.read(stored)) == [(1, 1)]


@pytest.mark.parametrize(
    ("matrix", "options", "words"),
    [
        (sp.csr_matrix((3, 4)), {}, "the matrix (3, 4) holds no entry"),
        (sp.csr_matrix([[-1.0]]), {}, "negative or non-finite"),
        (sp.csr_matrix([[np.nan]]), {}, "negative or non-finite"),
        (sp.csr_matrix([[1e300]]), {}, "negative or non-finite"),
        (sp.csr_matrix([[1j]]), {}, "complex128"),
        (sp.coo_array(np.array([1, 0, 2])), {}, "shape (3,)"),
        (sp.csr_matrix([[1.0]]), {"time": "ts"}, "no columns to take time from"),
    ],
)
def test_a_matrix_that_is_no_log_is_refused(matrix: Any, options: Any, words: str) -> None:
    assert words in refused(matrix, **options)


# files and folders -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"user": [1], "item": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": [3], "item": [4], "more": [0]}), tmp_path / "b.PARQUET")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.csv").write_text("nothing")
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        lambda f: f,
        lambda f: str(f),
        lambda f: str(f / "*.[pP]*"),
        lambda f: [f / "a.parquet", str(f / "b.PARQUET")],
        lambda f: (f / "a.parquet", f / "b.PARQUET"),
        lambda f: [str(f / "a*"), f / "b.PARQUET"],
        lambda f: str(f)[:-1] + f"[{str(f)[-1]}]",
    ],
)
def test_parquet_comes_as_files_lists_globs_and_folders(
    folder: Path, source: Callable[[Path], Any]
) -> None:
    assert rows(sdx.read(source(folder))) == [(1, 2), (3, 4)]


def test_parquet_is_known_by_its_content(folder: Path) -> None:
    other = (folder / "a.parquet").rename(folder / "export.bin")
    assert rows(sdx.read(other)) == [(1, 2)]


def test_parquet_rows_are_named_by_file(folder: Path) -> None:
    pq.write_table(pa.table({"user": [5, None], "item": [1, 1]}), folder / "c.parquet")
    assert f"{folder / 'c.parquet'}: no value in column 'user': row 1" in refused(folder)
    assert rows(sdx.read(folder, bad_rows="drop")) == [(1, 2), (3, 4), (5, 1)]


def test_ids_of_several_types_become_strings(folder: Path) -> None:
    pq.write_table(pa.table({"user": ["ann"], "item": [5]}), folder / "c.parquet")
    assert rows(sdx.read(folder)) == [("1", 2), ("3", 4), ("ann", 5)]


def test_types_that_do_not_mix_are_refused(folder: Path) -> None:
    pq.write_table(pa.table({"user": [[1]], "item": [5]}), folder / "c.parquet")
    message = refused(folder)
    assert "column 'user' has the types int64, list<element: int64>" in message


def test_a_folder_of_text_and_parquet_is_refused(folder: Path) -> None:
    (folder / "c.csv").write_text("user,item\n1,2\n")
    assert "mixes Parquet and text files" in refused(folder)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.md").touch()
    message = refused(tmp_path)
    assert f"folder {tmp_path} holds no table" in message
    assert ".parquet" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a readable Parquet file"),
        (b"user,item\n1,2\n", "is not a readable Parquet file"),
        (b"PAR1" + bytes(40) + b"PAR1", "is not a readable Parquet file"),
        ("cut", "is not a readable Parquet file"),
        ("overwritten", "cannot read"),
    ],
)
def test_a_damaged_parquet_file_is_refused(folder: Path, content: Any, words: str) -> None:
    path = folder / "a.parquet"
    whole = path.read_bytes()
    damaged = {"cut": whole[:-30], "overwritten": whole[:4] + b"\xff" * 20 + whole[24:]}
    path.write_bytes(content if isinstance(content, bytes) else damaged[content])
    message = refused(path)
    assert words in message
    assert str(path) in message
    assert "\n" not in message


def test_a_parquet_file_without_the_column_is_named(folder: Path) -> None:
    pq.write_table(pa.table({"user": [1], "thing": [2]}), folder / "c.parquet")
    message = refused(folder)
    assert "c.parquet has no column item, which" in message


def test_duplicate_parquet_columns_are_refused(folder: Path) -> None:
    pq.write_table(pa.table([[1], [2], [3]], names=["user", "item", "item"]), folder / "a.parquet")
    assert "duplicate columns (item)" in refused(folder / "a.parquet")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.parqet", "Did you mean 'a.parquet'?"),
        ("zzz.csv", "holds .hidden.csv, _SUCCESS, a.parquet"),
        ("nowhere/a.csv", "is missing too"),
        ("*.csv.gz", "nothing matches"),
        ("x" * 5000, "File name too long"),
        ("user,item\n1,2", r"no file '"),
    ],
)
def test_a_missing_file_is_named_with_a_hint(folder: Path, name: str, words: str) -> None:
    message = refused(str(folder / name))
    assert words in message
    assert "\n" not in message


def test_no_home_no_file() -> None:
    assert "~nobody-of-that-name" in refused("~nobody-of-that-name/log.csv")


# item tables -------------------------------------------------------------------------------------

LOG = [("ann", "tea", 1), ("bob", "jam", 2)]
PRICES = {"item": ["tea", "cup", "jam"], "price": [3, 1, 2], "tags": [["x"], [], ["y"]]}


@pytest.mark.parametrize("make", [dict, pa.table, pd.DataFrame, pl.DataFrame])
def test_item_tables_attach_by_key(make: Callable[[Any], Any]) -> None:
    attached = sdx.read(LOG, items=make(PRICES)).item_table
    assert attached is not None
    assert attached.column_names == ["price", "tags"]
    assert attached["price"].to_pylist() == [1, 2, 3]  # cup, jam, tea
    assert attached["tags"].to_pylist() == [[], ["y"], ["x"]]


@pytest.mark.usefixtures("loud")
def test_items_of_the_table_without_events_are_items_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keys of another type join where they are of the log's: "x" is none of its numbers."""
    events = [("ann", 7), ("bob", 3), ("ann", 3)]
    log = sdx.read(events, items={"item": ["5", "3", "x", "9"], "price": [5, 3, 0, 9]})
    said = capsys.readouterr().err
    assert "1 item not in it, 2 more items without an event: log.compact() drops them" in said
    assert "1 row without an interaction left out -> 3 rows, 2 users, 4 items" in said
    assert log.items.all().to_pylist() == [3, 5, 7, 9]
    assert log.item_counts.tolist() == [2, 0, 1, 0]
    assert log.items.take(log.item).to_pylist() == [7, 3, 3]
    assert log.item_table is not None
    assert log.item_table["price"].to_pylist() == [3, 5, None, 9]
    small = log.compact()
    assert small.items.all().to_pylist() == [3, 7]
    assert sdx.read(events).item.tolist() == small.item.tolist()
    parts = sdx.split.per_user(log, (0.5, 0.5))
    assert len(parts.test.item_keys) == parts.train.num_items == 4


def test_item_tables_keep_what_polars_makes_of_categories_and_structs() -> None:
    kinds = pl.Series(["hot", "sweet"], dtype=pl.Categorical)
    frame = pl.DataFrame({"item": ["tea", "jam"], "kind": kinds, "of": [{"a": "b"}, None]})
    attached = sdx.read(LOG, items=frame).item_table
    assert attached is not None
    assert attached.to_pydict() == {"kind": ["sweet", "hot"], "of": [None, {"a": "b"}]}


def test_item_tables_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text('item_id,title\n007,"Bond, James"\n7,Seven\n')
    log = sdx.read([("ann", "007"), ("ann", "8")], items=path)
    assert log.item_table is not None
    assert log.item_table["title"].to_pylist() == ["Bond, James", "Seven", None]


@pytest.mark.parametrize(("name", "options"), [("id", {}), ("key", {}), ("what", {"item": "what"})])
def test_the_key_column_is_found_as_in_the_log(name: str, options: dict[str, Any]) -> None:
    source = {"user": ["ann", "bob"], "what" if options else "item": ["tea", "jam"]}
    attached = sdx.read(source, items={name: ["tea"], "price": [3]}, **options).item_table
    assert attached is not None
    assert attached["price"].to_pylist() == [None, 3]


def test_keys_of_another_type_still_meet() -> None:
    log = sdx.read([("ann", 7), ("ann", 8)], items={"item": ["8", "7"], "price": [8, 7]})
    assert log.item_table is not None
    assert log.item_table["price"].to_pylist() == [7, 8]


def test_what_does_not_meet_is_counted(capsys: pytest.CaptureFixture[str], loud: None) -> None:
    sdx.read(LOG, items={"item": ["tea", "cup", "pot"], "price": [3, 1, 2]})
    said = capsys.readouterr().err
    assert "items from a table (price), 1 item not in it, 2 more items without an event" in said


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"item": ["tea", "tea"]}, ["repeats keys (tea)", "one row per item"]),
        ({"item": ["cup"]}, ["(cup) is an item of the log (jam, tea)"]),
        ({"sku_code": ["tea"]}, ["no item column among sku_code", "'item'"]),
        ({"item": ["tea", None]}, ["no value in column 'item': row 1"]),
        ("/nowhere/items.csv", ["no file /nowhere/items.csv"]),
        (5, ["cannot read int"]),
    ],
)
def test_an_item_table_that_does_not_fit_is_refused(items: Any, words: list[str]) -> None:
    message = refused(LOG, items=items)
    assert all(word in message for word in words), message


def test_bad_lines_of_an_item_table_follow_the_same_rule(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item,price\ntea,1,2\njam,5\n,7\n")
    message = refused(LOG, items=path)
    assert "expected 2 columns, got 3: line 2" in message
    assert "no value in column 'item': line 4" in message
    attached = sdx.read(LOG, items=path, bad_rows="drop").item_table
    assert attached is not None
    assert attached["price"].to_pylist() == [5, None]


def test_a_matrix_takes_an_item_table_by_column_number() -> None:
    log = sdx.read(sp.csr_matrix(np.eye(2)), items={"item": [1, 0], "name": ["b", "a"]})
    assert log.item_table is not None
    assert log.item_table["name"].to_pylist() == ["a", "b"]


# user tables -------------------------------------------------------------------------------------

FLIPPED = [("tea", "ann", 1), ("jam", "bob", 2)]


@pytest.mark.parametrize("make", [dict, pa.table, pd.DataFrame, pl.DataFrame])
def test_user_tables_attach_by_key_as_item_tables_do(make: Callable[[Any], Any]) -> None:
    prices = {"user" if name == "item" else name: cells for name, cells in PRICES.items()}
    log = sdx.read(FLIPPED, users=make(prices))
    assert log.item_table is None
    assert log.user_table is not None
    assert log.user_table.equals(sdx.read(LOG, items=make(PRICES)).compact().item_table)


def test_a_log_takes_both_tables() -> None:
    log = sdx.read(LOG, items={"id": ["tea"], "price": [3]}, users={"id": ["bob"], "age": [40]})
    assert log.item_table is not None
    assert log.user_table is not None
    assert log.item_table.to_pydict() == {"price": [None, 3]}
    assert log.user_table.to_pydict() == {"age": [None, 40]}


@pytest.mark.parametrize("name", ["user", "userId", "customer_id", "id", "who"])
def test_the_key_column_of_users_is_usual_or_as_in_the_log(name: str) -> None:
    source = {"who": ["ann", "bob"], "item": ["tea", "jam"]}
    attached = sdx.read(source, user="who", users={"item": [1], name: ["bob"]}).user_table
    assert attached is not None
    assert attached.to_pydict() == {"item": [None, 1]}


def test_user_tables_come_from_files_and_read_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "log.user"
    path.write_text("user_id:token\tage:float\nbob\t40\nann\t31\n")
    first, again = (sdx.read(LOG, users=path).user_table for _ in range(2))
    assert first is not None
    assert first.to_pydict() == {"age": [31, 40]}
    assert first.equals(again)


def test_users_that_do_not_meet_are_counted(capsys: pytest.CaptureFixture[str], loud: None) -> None:
    table = {"user": ["ann", "cyd", "dan"], "age": [3, 1, 2]}
    sdx.read(LOG, users=table)
    alone = capsys.readouterr().err
    words = "users from a table (age), 1 user not in it, 2 rows without an interaction"
    assert words in alone
    sdx.read(LOG, items=PRICES, users=table)
    assert f"drops them; {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"user": ["ann", "ann"]}, ["the user table repeats keys (ann)", "one row per user"]),
        ({"user": ["cyd"]}, ["user table's column 'user' (cyd) is a user of the log (ann, bob)"]),
        ({"nick": ["ann"]}, ["user table a table has no user column among nick", "'user'"]),
        ({"user": ["ann", None]}, ["no value in column 'user': row 1"]),
        ("/nowhere/users.csv", ["no file /nowhere/users.csv"]),
        (5, ["cannot read int"]),
    ],
)
def test_a_user_table_that_does_not_fit_is_refused(users: Any, words: list[str]) -> None:
    message = refused(LOG, users=users)
    assert all(word in message for word in words), message


def test_bad_lines_of_a_user_table_follow_the_same_rule(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user,age\nann,1,2\nbob,5\n,7\n")
    message = refused(LOG, users=path)
    assert "expected 2 columns, got 3: line 2" in message
    assert "no value in column 'user': line 4" in message
    attached = sdx.read(LOG, users=path, bad_rows="drop").user_table
    assert attached is not None
    assert attached["age"].to_pylist() == [None, 5]


def test_a_matrix_takes_a_user_table_by_row_number() -> None:
    log = sdx.read(sp.csr_matrix(np.eye(2, 3)), users={"user": [1, 0], "name": ["b", "a"]})
    assert log.user_table is not None
    assert log.user_table["name"].to_pylist() == ["a", "b"]
