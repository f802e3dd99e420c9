"""The hash of a log: one per multiset of events, however they are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.data.fingerprint import key_hashes
from softdex.data.keys import factorize

ROWS = 500
DRAW = np.random.default_rng(0)
TABLE = pa.table(
    {
        "user": [f"user {n}" for n in DRAW.integers(40, size=ROWS)],
        "item": DRAW.integers(10**9, 10**9 + 60, ROWS),
        "time": np.arange(ROWS),
        "weight": DRAW.integers(1, 4, ROWS).astype(float),
    }
)


def shuffled(table: pa.Table, folder: Path) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(1).permutation(len(table))))


def in_small_row_groups(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "log.parquet", row_group_size=7)
    return folder / "log.parquet"


def as_dictionary(table: pa.Table, folder: Path) -> pa.Table:
    return table.set_column(0, "user", table["user"].dictionary_encode())


def with_columns_turned(table: pa.Table, folder: Path) -> pa.Table:
    return table.select(["weight", "time", "item", "user"])


def with_narrow_items(table: pa.Table, folder: Path) -> pa.Table:
    return table.set_column(1, "item", table["item"].cast(pa.int32()))


def as_text(table: pa.Table, folder: Path) -> Path:
    sdx.read(table).to_pandas().to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


@pytest.mark.parametrize(
    "export",
    [shuffled, in_small_row_groups, as_dictionary, with_columns_turned, with_narrow_items, as_text],
)
def test_two_exports_of_one_table_have_one_hash_and_one_card(
    export: Callable[[pa.Table, Path], pa.Table | Path], tmp_path: Path
) -> None:
    if export is as_text:
        pytest.importorskip("pandas")
    first, second = sdx.read(TABLE), sdx.read(export(TABLE, tmp_path))
    assert first.sha256 == second.sha256
    one, other = sdx.split.leave_last(first), sdx.split.leave_last(second)
    assert one.card == other.card
    assert one.train.sha256 == other.train.sha256 != first.sha256


def test_an_event_more_or_twice_is_another_log() -> None:
    log = sdx.read(TABLE)
    found = {
        log.select(rows).sha256
        for rows in (np.arange(ROWS), np.arange(ROWS - 1), np.append(np.arange(ROWS), 0))
    }
    assert len(found) == 3


def test_events_that_swap_their_items_are_another_log() -> None:
    pairs = [("a", "x"), ("b", "y")], [("a", "y"), ("b", "x")]
    one, other = (sdx.read(p).sha256 for p in pairs)
    assert one != other


def test_the_hash_depends_on_keys_and_not_on_their_rows() -> None:
    """A log with keys before the others has other row numbers for the same events."""
    log = sdx.read([("b", "y", 1), ("c", "z", 2)])
    more = sdx.read([("a", "x", 0), ("b", "y", 1), ("c", "z", 2)])
    assert more.select(np.array([1, 2])).sha256 == log.sha256


@pytest.mark.parametrize(
    "keys",
    [
        ["", "a", "aa", "b", "ab", "ba", "a\0", "\0a", "ä"],
        [0, 1, -1, 2**62, 255, 256],
        [b"\0" * n for n in range(5)],
    ],
)
def test_keys_that_differ_have_hashes_that_differ(keys: list[object]) -> None:
    hashes = key_hashes(factorize(pa.array(keys))[0])
    assert len(set(hashes.tolist())) == len(keys)


def test_a_part_of_the_keys_has_the_hashes_that_it_had() -> None:
    """Slices share buffers, so offsets do not start at 0."""
    keys = factorize(pa.array(["ant", "bee", "cow", "dog"]))[0]
    part = type(keys)(keys.values[2:], keys.type)
    assert key_hashes(part).tolist() == key_hashes(keys)[2:].tolist()
