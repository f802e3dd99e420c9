"""Event files beside a log: joined by key and time, merged by its rules, noted on the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

import softdex as sdx
from softdex.cli.app import app
from softdex.cli.config import plan_of
from softdex.cli.options import LogOptions
from softdex.data.event_file import read_event_file
from softdex.plan import prepare, to_toml
from softdex.serve.events import Events
from softdex.serve.words import Event

DAY = 1_700_000_000  # in seconds


def file_of(path: Path, *events: Event) -> Path:
    store = Events(path)
    store.append(events).result(10)
    store.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return file_of(
        tmp_path / "events.db",
        Event("ann", "jam", DAY + 2.5),
        Event("dan", "tea", DAY + 1),
        Event("ann", "tea", DAY + 3, 2.0),
    )


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in log.to_arrow().to_pylist()]


def test_events_join_a_log_with_their_users_and_items(file: Path) -> None:
    log = sdx.read({"user": ["bob", "ann"], "item": ["tea", "tea"], "time": [DAY, DAY + 1]},
                   events=file)  # fmt: skip
    assert log.users.all().to_pylist() == ["ann", "bob", "dan"]
    assert rows(log) == [
        ("bob", "tea", DAY, 1.0),
        ("ann", "tea", DAY + 1, 1.0),
        ("ann", "jam", DAY + 2, 1.0),
        ("dan", "tea", DAY + 1, 1.0),
        ("ann", "tea", DAY + 3, 2.0),
    ]
    assert log.items.take(log.histories[0]).to_pylist() == ["tea", "jam", "tea"]
    assert log.events == {
        "store": read_event_file(file, "").store,
        "until": 3,
        "events": 3,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([DAY, DAY + 1], DAY + 2),
        ([DAY + 0.5, DAY + 1.5], DAY + 2.5),
        ([DAY * 1000, DAY * 1000 + 1], DAY * 1000 + 2500),
        ([DAY * 10**6, DAY * 10**6 + 1], DAY * 10**6 + 2_500_000),
        ([DAY * 10**9, DAY * 10**9 + 1], DAY * 10**9 + 2_500_000_000),
        (["2023-11-13", "2023-11-14"], DAY * 10**6 + 2_500_000),
        ([1, 2], DAY + 2),
    ],
    ids=["s", "float", "ms", "us", "ns", "dates", "own"],
)
def test_times_become_those_of_the_log(given: list[Any], expected: float, file: Path) -> None:
    log = sdx.read({"user": ["ann", "ann"], "item": ["a", "b"], "time": given}, events=file)
    assert log.time is not None
    assert log.time[2] == expected
    assert log.items.take(log.histories[0]).to_pylist()[-2:] == ["jam", "tea"]


def test_a_log_without_time_weight_or_rating_stays_one(tmp_path: Path) -> None:
    file = file_of(tmp_path / "e.db", Event("bob", "tea"))
    log = sdx.read([("ann", "tea")], events=file)
    assert (log.time, log.weight, log.rating) == (None, None, None)
    assert rows(log) == [("ann", "tea"), ("bob", "tea")]


def test_events_are_merged_by_the_rules_of_the_log(file: Path) -> None:
    table = {"user": ["ann", "ann"], "item": ["tea", "ale"], "time": [DAY, DAY]}
    last = sdx.read(table, events=file, duplicates="last")
    assert rows(last) == [
        ("ann", "ale", DAY, 1.0),
        ("ann", "jam", DAY + 2, 1.0),
        ("dan", "tea", DAY + 1, 1.0),
        ("ann", "tea", DAY + 3, 2.0),
    ]
    assert rows(sdx.read(table, events=file, duplicates="sum"))[-1] == ("ann", "tea", DAY + 3, 3.0)


def test_an_event_that_the_log_has_already_counts_once(file: Path) -> None:
    log = sdx.read(read_event_file(file, "").table, events=file)
    assert len(log) == 3
    assert log.events is not None
    assert log.events["events"] == 0
    table = {"user": ["ann"], "item": ["jam"], "time": [DAY + 2]}
    assert len(sdx.read(table, events=file)) == 3


def test_keys_find_the_keys_of_the_log_whatever_their_type(tmp_path: Path) -> None:
    file = file_of(tmp_path / "e.db", Event(7, "12"), Event("7", 13), Event("x", 12))
    log = sdx.read({"user": [5, 7], "item": [12, 14]}, events=file)
    assert rows(log) == [(5, 12), (7, 14), (7, 12), (7, 13)]  # x is no number
    text = sdx.read({"user": ["5", "7"], "item": ["12", "14"]}, events=file)
    assert rows(text) == [("5", "12"), ("7", "14"), ("7", "12"), ("7", "13"), ("x", "12")]
    matrix = sdx.read(sp.csr_matrix(np.eye(14)), events=file)
    assert rows(matrix)[-2:] == [(7, 12), (7, 13)]


def test_many_keys_are_found_too(tmp_path: Path) -> None:
    file = file_of(tmp_path / "e.db", *(Event(f"u{i}", i) for i in range(200)))
    log = sdx.read({"user": [f"u{i}" for i in range(0, 200, 2)], "item": range(100)}, events=file)
    assert rows(log)[100:] == [(f"u{i}", i) for i in range(200)]


def test_ratings_keep_events_and_flags_hold_none_out(file: Path) -> None:
    table = {"user": ["ann", "bob"], "item": ["tea", "tea"], "rating": [2, 5], "test": [0, 1]}
    log = sdx.read(table, events=file)
    assert len(log.min_rating(5)) == 4
    assert log.extra["test"].tolist() == [0, 1, 0, 0, 0]
    with pytest.raises(sdx.DataError, match="the log has the column 'fold', which events of"):
        sdx.read({"user": ["a"], "item": ["b"], "fold": ["x"]}, events=file)


def test_the_same_events_are_read_again_though_the_file_has_grown(file: Path) -> None:
    store = Events(file)
    store.append([Event("eve", "tea")]).result(10)
    table = {"user": ["ann"], "item": ["tea"]}
    assert len(sdx.read(table, events=file)) == 5  # while a server writes it
    log = sdx.read(table, events=file, events_until=3)
    assert (len(log), log.events["until"]) == (4, 3)  # type: ignore[index]
    store.close()


def test_an_empty_file_joins_nothing(tmp_path: Path) -> None:
    log = sdx.read([("ann", "tea", 1)], events=file_of(tmp_path / "e.db"))
    assert rows(log) == [("ann", "tea", 1)]
    assert log.events["until"] == 0  # type: ignore[index]


def test_what_is_no_event_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\nann,tea\n")
    for name, sentence in (("nix.db", "no event file"), ("log.csv", "it is no event file")):
        with pytest.raises(sdx.DataError, match=sentence):
            sdx.read([("ann", "tea")], events=tmp_path / name)


def test_the_card_says_how_many_events_came_from_a_file(file: Path, tmp_path: Path) -> None:
    log = sdx.read([("ann", "tea", 1), ("bob", "jam", 2), ("bob", "tea", 3)], events=file)
    parts = sdx.split.leave_last(log, valid=False)
    model = sdx.fit("popular", parts.train)
    assert model.card.events == log.events
    model.save(tmp_path / "m.sdx")
    assert sdx.load(tmp_path / "m.sdx").card.events == log.events
    assert sdx.fit("popular", sdx.read(pa.table({"user": [1], "item": [2]}))).card.events is None


def test_a_run_notes_the_last_event_and_a_new_one_reads_on(file: Path, tmp_path: Path) -> None:
    table = {"user": ["ann", "ann", "bob", "bob"], "item": ["a", "b", "a", "b"], "time": range(4)}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    plan = plan_of(LogOptions(str(tmp_path / "log.parquet"), events=str(file)), None)
    log, _ = prepare(plan)
    assert (len(log), plan["data"]["events_until"]) == (7, 3)
    config = tmp_path / "config.toml"
    config.write_text(to_toml({**plan, "recipe": "popular"}))
    file_of(file, Event("bob", "c"))
    assert len(prepare(plan_of(LogOptions(), config))[0]) == 7
    assert len(prepare(plan_of(LogOptions(events=str(file)), config))[0]) == 8


def test_an_export_is_a_log(file: Path, tmp_path: Path) -> None:
    for name in ("out.parquet", "out.csv", "out.jsonl"):
        done = CliRunner().invoke(app, ["-q", "events", "export", str(file), str(tmp_path / name)])
        assert (done.exit_code, "3 events" in done.stdout) == (0, True)
        log = sdx.read(tmp_path / name)
        assert rows(log)[0] == ("ann", "jam", DAY + 2.5, 1.0)
    missing = CliRunner().invoke(app, ["events", "export", "nix.db", str(tmp_path / "x.csv")])
    assert "no event file nix.db" in str(missing.exception)
    wrong = CliRunner().invoke(app, ["events", "expert", str(file), str(tmp_path / "x.csv")])
    assert "Did you mean 'export'?" in str(wrong.exception)
