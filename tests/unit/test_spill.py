"""Logs on disk: read in pieces, they are the logs that are read at once."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.data import columnar, spill
from softdex.errors import DataError

COLUMNS = ("user", "item", "time", "rating", "weight")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three Parquet files of a log with times and weights, read a few row groups at a time."""
    monkeypatch.setattr(columnar, "PIECE", 50)
    random, place = np.random.default_rng(0), tmp_path / "log"
    place.mkdir()
    for i, rows in enumerate((130, 7, 90)):
        table = {
            "user": [f"u{n}" for n in random.integers(0, 40, rows)],
            "item": random.integers(5 * i, 30, rows) * 10**12,
            "time": random.integers(0, 99, rows),
            "weight": random.integers(0, 4, rows) / 2,
        }
        pq.write_table(pa.table(table), place / f"{i}.parquet", row_group_size=20)
    return place


def same(spilled: sdx.Interactions, whole: sdx.Interactions) -> None:
    assert (spilled.users, spilled.items) == (whole.users, whole.items)
    for name in COLUMNS:
        got, wanted = getattr(spilled, name), getattr(whole, name)
        assert (got is None) == (wanted is None), name
        if wanted is not None:
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
    assert spilled.sha256 == whole.sha256


def both(tmp_path: Path, source: Any, **options: Any) -> sdx.Interactions:
    """The log on disk, once it is known to be the one in memory."""
    log = sdx.read(source, quiet=True, spill=tmp_path / "disk", **options)
    same(log, sdx.read(source, quiet=True, **options))
    return log


def test_a_log_on_disk_is_the_log_in_memory(folder: Path, tmp_path: Path) -> None:
    log = both(tmp_path, folder)
    assert len(log) < 227
    assert log.weight is not None
    for name in COLUMNS[:3]:
        assert isinstance(getattr(log, name), np.memmap)
        assert not getattr(log, name).flags.writeable
    assert len(list(spill.pieces(columnar_source(folder)))) == 6
    both(tmp_path, folder, weight=False, rating="weight", time=False, duplicates="last")
    both(tmp_path, [folder / "2.parquet", folder / "0.parquet"])


def columnar_source(folder: Path) -> Any:
    from softdex.data.sources import open_source

    return open_source(folder, None, "utf-8")


def test_its_files_vanish_and_it_trains_and_splits_as_any(folder: Path, tmp_path: Path) -> None:
    disk, log = tmp_path / "disk", both(tmp_path, folder, weight=False)
    assert list(disk.iterdir()) == []
    whole = sdx.read(folder, weight=False, quiet=True)
    assert dict(log.describe()) == dict(whole.describe())
    split, wanted = (sdx.split.leave_last(each) for each in (log, whole))
    assert split.card == wanted.card
    for recipe in ("item_cf", "popular"):
        lists = [
            sdx.fit(recipe, part.train).recommend(whole.users.all(), unknown="popular")
            for part in (split, wanted)
        ]
        assert lists[0].table.equals(lists[1].table)
    del log, split
    gc.collect()


def test_keys_of_different_types_and_files_of_text(folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    pcsv.write_csv(pa.table({"user": [3, 1], "item": ["b", "a"], "time": [1, 2]}), texts / "a.csv")
    pcsv.write_csv(pa.table({"user": ["x", "1"], "item": ["b", "c"], "time": [3, 4]}),
                   texts / "b.csv")  # fmt: skip
    assert both(tmp_path, texts).users.all().to_pylist() == ["1", "3", "x"]
    days = tmp_path / "days"
    for day in (1, 2):
        (days / f"user={day}").mkdir(parents=True)
        pq.write_table(pa.table({"item": [day, 7]}), days / f"user={day}" / "x.parquet")
    assert both(tmp_path, days).users.all().to_pylist() == [1, 2]


def test_bad_rows_are_named_or_dropped(folder: Path, tmp_path: Path) -> None:
    bad = pa.table({"user": ["u1", None, "only bad"], "item": [10**12, 0, 5], "time": [1, 2, None],
                    "weight": [1.0, 1.0, -1.0]})  # fmt: skip
    pq.write_table(bad, folder / "3.parquet", row_group_size=1)
    with pytest.raises(DataError, match=r"3\.parquet: .*row 2"):
        sdx.read(folder, spill=tmp_path / "disk", time="time", quiet=True)
    assert list((tmp_path / "disk").iterdir()) == []
    log = both(tmp_path, folder, bad_rows="drop", time="time")
    assert "only bad" not in log.users.all().to_pylist()


def test_what_cannot_be_spilled_is_refused(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a"], "item": [1], "time": [0.5], "weight": [1.0]}),
                   folder / "9.parquet")  # fmt: skip
    disk = tmp_path / "disk"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (folder, {}, "column 'time' has whole numbers in some files and others in .*9.parquet"),
        ([("ann", "tea")], {}, "read: spill= reads users, items, .* Pass paths"),
        (folder, {"keep": "time"}, "without keep="),
    ]
    for source, options, words in cases:
        with pytest.raises(DataError, match=words):
            sdx.read(source, spill=disk, quiet=True, **options)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write into spill="):
        sdx.read(folder / "0.parquet", spill=tmp_path / "file", quiet=True)
