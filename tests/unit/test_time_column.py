"""The time column under an unusual name: found by what it holds, said, and never guessed at."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.cli import app as cli
from softdex.errors import DataError

PAIRS = {"user": [1, 1, 2], "item": [3, 4, 3]}
SECONDS = [1_262_304_000, 1_262_304_005, 1_262_304_003]
DAYS = [dt.datetime(2010, 1, d) for d in (1, 3, 2)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(DAYS),
        pa.array(DAYS, pa.timestamp("ns", "Europe/Berlin")),
        pa.array(DAYS, pa.date32()),
        pa.array(["2010-01-01", "2010-01-03", "2010-01-02"]),
        pa.array(["2010-01-01 10:00:00", "2010-01-03", "2010-01-02T11:00:00Z"]).dictionary_encode(),
        pa.array(SECONDS, pa.uint32()),
        pa.array([s * 1000 for s in SECONDS]),
        pa.array([s * 1_000_000 for s in SECONDS]),
        pa.array([s + 0.5 for s in SECONDS]),
        pa.array(SECONDS).cast(pa.decimal128(19, 0)),
        pa.array([s * 1_000_000_000 for s in SECONDS]),
        pa.array(map(str, SECONDS)),
        pa.array(["2010/1/1", "2010/01/03", "2010/1/2 8:30"]),
        pa.array(["1/13/2010 8:26", "1/15/2010 18:01", "1/14/2010 9:00"]),
        pa.array(["13/1/2010", "15/01/2010 7:05:59", "14/1/2010"]),
        pa.array(["3.1.2010 8:00", "3.1.2010 10:00", "3.1.2010 9:59"]),
    ],
    ids=lambda column: f"{column.type} {column[0]}",
)
@pytest.mark.parametrize("name", ["occurred_at", "t_dat", "when"])
def test_a_single_column_that_tells_when_is_the_time(name: str, column: pa.Array) -> None:
    log = sdx.read(pa.table(PAIRS | {name: column}))
    assert log.time is not None
    assert log.time.argsort().tolist() == [0, 2, 1]
    assert sdx.split.leave_last(log, valid=False).test.targets.ids.tolist() == [1]


def test_what_was_taken_by_its_type_is_said(capsys: pytest.CaptureFixture[str], loud: None) -> None:
    sdx.read(PAIRS | {"when": SECONDS})
    assert capsys.readouterr().err == (
        "read a table: user=user item=item time=when (when taken as the time by its type) "
        "-> 3 rows, 2 users, 2 items\n"
    )


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("price", [5, 1_262_304_000, 7]),
        ("order_id", SECONDS),
        ("phone", [s * 7 for s in SECONDS]),
        ("year", [2010, 2011, 2012]),
        ("note", ["2010-01-01", "soon", "later"]),
        ("deleted_at", [DAYS[0], None, None]),
        ("returned", [True, False, True]),
        ("span", pa.array([1, 2, 3], pa.duration("s"))),
        ("nothing", pa.nulls(3)),
    ],
)
def test_what_does_not_tell_when_is_no_time(name: str, cells: Any) -> None:
    assert sdx.read(PAIRS | {name: cells}).time is None


def test_dates_that_may_begin_with_the_day_or_the_month_are_refused() -> None:
    """A row that tells may come late, so the first rows alone do not decide."""
    with pytest.raises(DataError) as caught:
        sdx.read(PAIRS | {"when": ["1/2/2010", "1/3/2010", "2/4/2010"]})
    assert str(caught.value) == (
        "read: the time column 'when' has dates such as '1/2/2010', and no row tells whether the "
        "day or the month comes first. Write them as 1997-09-22."
    )
    late = {"user": [1] * 1002, "item": range(1002), "when": [*["1/2/2010"] * 1001, "1/13/2010"]}
    log = sdx.read(late)
    assert log.time is not None
    assert int(log.time[-1] - log.time[0]) == 11 * 86_400_000_000
    mixed = {"user": [1, 1], "item": [1, 2], "when": ["13/1/2010", "1/13/2010"]}
    with pytest.raises(DataError, match=r"e\.g\. '1/13/2010'"):
        sdx.read(mixed, time="when")


def test_of_several_columns_that_tell_when_none_is_guessed() -> None:
    source = PAIRS | {"born": DAYS, "seen": SECONDS}
    with pytest.raises(DataError) as caught:
        sdx.read(source)
    assert str(caught.value) == (
        "read: columns born, seen of a table could each be the time. Name one: time=..., or none: "
        "time=False."
    )
    assert sdx.read(source, time="seen").time.tolist() == SECONDS  # type: ignore[union-attr]
    assert sdx.read(source, time=False).time is None
    usual = source | {"ts": [3, 1, 2]}
    assert sdx.read(usual).time.tolist() == [3, 1, 2]  # type: ignore[union-attr]


def test_a_null_in_the_only_time_is_refused_rather_than_the_time_left_out() -> None:
    with pytest.raises(DataError, match=r"no value in column 'seen': row 2.*time=False"):
        sdx.read(PAIRS | {"seen": [*DAYS[:2], None]})


def test_a_cell_that_is_no_date_is_refused_rather_than_the_time_left_out() -> None:
    source = PAIRS | {"when": ["22.09.1997 21:57", "23.09.1997 20:00", "31.02.1998 10:00"]}
    with pytest.raises(DataError, match=r"\(e\.g\. '31\.02\.1998 10:00'\): row 2.*time=False"):
        sdx.read(source)
    log = sdx.read(source, bad_rows="drop")
    assert log.time is not None
    assert len(log) == 2


def test_a_column_with_another_role_is_not_the_time() -> None:
    log = sdx.read(PAIRS | {"a": SECONDS, "b": SECONDS}, user="a", weight="b")
    assert log.time is None


@pytest.mark.parametrize(
    ("line", "time", "rating"),
    [
        ("1,2,1262304000,4", 1_262_304_000, 4.0),
        ("1,2,4,1262304000", 1_262_304_000, 4.0),
        ("1,2,2010-01-01,4", 1_262_304_000_000_000, 4.0),
        ("1,2,2010-01-01", 1_262_304_000_000_000, None),
        ("1,2,700000000000000000", 700_000_000_000_000_000, None),
    ],
)
def test_without_a_header_the_time_may_stand_before_the_rating(
    tmp_path: Path, line: str, time: int, rating: float | None
) -> None:
    (tmp_path / "log.csv").write_text(f"{line}\n" * 3)
    log = sdx.read(tmp_path / "log.csv")
    assert log.time is not None
    assert log.time[0] == time
    assert (None if log.rating is None else log.rating[0]) == rating


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_files_are_looked_into_too(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    table = pa.table(PAIRS | {"title": ["a", "b", "c"], "when": SECONDS})
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        rows = [table.column_names, *zip(*table.to_pydict().values(), strict=True)]
        path.write_text(
            "\n".join(("," if suffix == "csv" else "\t").join(map(str, r)) for r in rows)
        )
    assert sdx.read(path).time.tolist() == SECONDS  # type: ignore[union-attr]


def fit(path: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> int:
    words = ["softdex", "fit", str(path), "-r", "popular", "--out", str(path.parent / "run")]
    monkeypatch.setattr("sys.argv", [*words, *options])
    monkeypatch.setenv("COLUMNS", "300")
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_command_line_splits_at_random_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u in range(4) for i in range(10)))
    assert fit(path, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == (
        "error: split: the log has no time, so the last events of a user are not known. Name its "
        "column with --time, or ask for a random split with --split random."
    )
    assert not (tmp_path / "run").exists()
    assert fit(path, "--split", "random", monkeypatch=monkeypatch) == 0
    assert "per_user split" in capsys.readouterr().out


def test_the_command_line_ignores_times_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "user,item,when,seen\n" + "".join(f"1,{i},1.1.2020,2.1.2020\n" for i in range(9))
    )
    assert fit(path, "--split", "random", monkeypatch=monkeypatch) == 2
    assert "columns when, seen" in capsys.readouterr().err
    assert fit(path, "--split", "random", "--time", "false", monkeypatch=monkeypatch) == 0
    assert "time = false" in (tmp_path / "run" / "config.toml").read_text()


def test_the_splits_that_need_time_refuse_a_log_without() -> None:
    log = sdx.read(PAIRS)
    for split in (sdx.split.leave_last, sdx.split.by_user, sdx.split.global_time, sdx.split.dtr):
        with pytest.raises(DataError, match=rf"split.{split.__name__}: the log has no time"):
            split(log)
