"""The store of live events: durable when acknowledged, each once, the latest of a user in order."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import softdex as sdx
from softdex.data.event_file import read_event_file
from softdex.serve import events as stores
from softdex.serve.events import TAIL, Events, EventsError
from softdex.serve.words import Event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def events(path: Path) -> Iterator[Events]:
    found = Events(path)
    yield found
    found.close()


def kept(events: Events, *given: Event) -> int:
    return events.append(given).result(10)


def items(events: Events, user: object) -> list[Any]:
    return [each.item for each in events.of(user)]


def test_an_event_is_on_disk_once_it_is_acknowledged(events: Events, path: Path) -> None:
    assert kept(events, Event("ann", "tea", 5, 2.0, "a"), Event(7, 9)) == 2
    table = read_event_file(path, "here").table
    assert table["user"].to_pylist() == ["ann", "7"]  # text beside a number
    assert table["item"].to_pylist() == ["tea", "9"]
    assert table["event_id"][0].as_py() == "a"
    assert table["time"][0].as_py() == 5
    assert table["weight"].to_pylist() == [2.0, 1.0]
    assert table["time"][1].as_py() > 1.7e9


def test_every_commit_is_flushed_to_the_disk(events: Events) -> None:
    """A kill does not show this: the system keeps what was written but not flushed."""
    modes = [
        events._writer.execute(f"PRAGMA {n}").fetchone()[0] for n in ("synchronous", "journal_mode")
    ]
    assert modes == [2, "wal"]  # 2 is FULL


def test_a_repeated_id_counts_once_also_after_a_restart(events: Events, path: Path) -> None:
    event = Event("ann", "tea", 1, event_id="a")
    assert kept(events, event, event) == 1
    assert kept(events, event, Event("ann", "jam", 2, event_id="b")) == 1
    events.close()
    again = Events(path)
    assert again.store == events.store
    assert kept(again, event) == 0
    assert items(again, "ann") == ["tea", "jam"]
    again.close()


def test_events_without_an_id_are_all_kept(events: Events) -> None:
    assert kept(events, Event("ann", "tea", 1), Event("ann", "tea", 1)) == 2


def test_the_latest_events_of_a_user_come_in_order_of_time(events: Events) -> None:
    kept(events, Event(7, "c", 3), Event("7", "a", 1))
    assert items(events, 7) == items(events, "7") == ["a", "c"]
    kept(events, Event("7", "b", 2), Event("7", "d", 3), Event("8", "x", 1))
    assert items(events, 7) == ["a", "b", "c", "d"]
    assert events.of("nobody") == ()


def test_the_tail_of_a_user_is_bounded(events: Events) -> None:
    kept(events, *(Event("ann", i, i) for i in range(TAIL + 5)))
    assert items(events, "ann") == list(range(5, TAIL + 5))
    kept(events, Event("ann", "new", 1000), Event("ann", "old", 0))
    assert items(events, "ann") == [*range(6, TAIL + 5), "new"]


def test_memory_is_bounded_and_what_was_forgotten_is_read_again(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "HELD", 10)
    kept(events, *(Event(user, item, item) for user in range(20) for item in range(3)))
    for _ in range(2):
        assert all(items(events, user) == [0, 1, 2] for user in range(20))
        assert events._size <= 10
        assert len(events._tails) <= 3
    kept(events, Event(0, 3, 3), Event(19, 3, 3))
    assert items(events, 0) == items(events, 19) == [0, 1, 2, 3]


def test_what_waits_while_the_disk_is_busy_is_one_commit(path: Path) -> None:
    commits: list[tuple[int, int]] = []
    events = Events(path, lambda new, repeated, seconds: commits.append((new, repeated)))
    futures = [events.append([Event("ann", i, event_id=str(i % 150))]) for i in range(200)]
    assert sum(future.result(10) for future in futures) == 150
    events.close()
    assert len(commits) < 50
    assert [sum(column) for column in zip(*commits, strict=True)] == [150, 50]
    assert events.waiting == 0


def test_readers_and_writers_in_many_threads_agree(events: Events) -> None:
    def work(user: int) -> None:
        for item in range(15):
            kept(events, Event(user, item))
            assert items(events, user) == list(range(item + 1))
            events.of((user + 1) % 4)

    threads = [threading.Thread(target=work, args=(user,)) for user in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(items(events, user) == list(range(15)) for user in range(4))


def test_closing_writes_what_waits_and_nothing_is_taken_after_it(
    events: Events, path: Path
) -> None:
    futures = [events.append([Event("ann", i)]) for i in range(50)]
    events.close()
    events.close()
    assert [future.result(0) for future in futures] == [1] * 50
    with pytest.raises(EventsError, match="shutting down"):
        events.append([Event("ann", "tea")])
    assert len(read_event_file(path, "here").table) == 50


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Event("ann", "tea", -1), "event 1: expected time in seconds since 1970, got -1"),
        (Event("ann", "tea", 1_700_000_000_000), "expected time in seconds"),
        (Event("ann", "tea", float("nan")), "expected time in seconds"),
        (Event("ann", "tea", 1, 0.0), "expected a weight from 1e-6 to 1e6, got 0"),
        (Event("ann", "tea", 1, float("nan")), "expected a weight"),
        (Event("", "tea"), "expected keys of a user and an item"),
        (Event("ann", ""), "expected keys of a user and an item"),
        (Event("ann", "x" * 1001), "at most 1000 characters"),
        (Event("ann\ud800", "tea"), "of Unicode"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_is_no_event_is_refused_and_its_batch_with_it(
    event: Event, sentence: str, events: Events
) -> None:
    with pytest.raises(sdx.SoftdexError, match=sentence):
        events.append([Event("ann", "jam"), event])
    assert events.of("ann") == ()


def test_keys_come_back_as_they_were_given(events: Events) -> None:
    odd = ["\x00", "a\x00b", "ä", "'; DROP TABLE events; --", "007", 2**63 - 1, -(2**63), 0]
    kept(events, *(Event(key, key, 1) for key in odd))
    assert [items(events, key) for key in odd] == [[key] for key in odd]
    kept(events, Event("big", 2**64 - 1))
    assert items(events, "big") == [str(2**64 - 1)]  # as text, which finds the number


# files -------------------------------------------------------------------------------------------


def text(path: Path) -> None:
    path.write_text("user,item\nann,tea\n" * 100)


def of_others(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (user, item)")
    connection.close()


def newer(path: Path) -> None:
    Events(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def damaged(path: Path) -> None:
    Events(path).close()
    raw = bytearray(path.read_bytes())
    raw[100:4096] = bytes(len(raw[100:4096]))
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (text, "it is no event file"),
        (of_others, "is a database of another program"),
        (newer, "newer version of softdex"),
        (damaged, "damaged"),
        (Path.mkdir, "not a file"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_file_is_refused_in_one_sentence_and_left_alone(
    spoil: Callable[[Path], None], sentence: str, path: Path
) -> None:
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    for _ in range(2):  # the lock is given back
        with pytest.raises(sdx.SoftdexError, match=sentence) as error:
            Events(path)
        assert "\n" not in str(error.value)
    assert not before or path.read_bytes() == before


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"no folder .*nix.*Make it"):
        Events(tmp_path / "nix" / "events.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(sdx.SoftdexError, match="events: cannot write"):
        Events(tmp_path / "events.db")


def test_a_file_belongs_to_one_server(events: Events, path: Path) -> None:
    with pytest.raises(sdx.SoftdexError, match="another server keeps its events in"):
        Events(path)
    events.close()
    Events(path).close()


def test_a_full_disk_refuses_events_until_there_is_space(events: Events) -> None:
    kept(events, Event("ann", "tea", 1))
    events.of("ann")
    pages = events._writer.execute("PRAGMA page_count").fetchone()[0]
    events._writer.execute(f"PRAGMA max_page_count = {pages}")
    big = [Event("ann", "x" * 900, i) for i in range(50)]
    with pytest.raises(EventsError, match=r"cannot write .*the disk is full; free some space"):
        kept(events, *big)
    assert items(events, "ann") == ["tea"]
    events._writer.execute("PRAGMA max_page_count = 1000000")
    assert kept(events, *big) == 50
    assert len(events.of("ann")) == 51
    assert events.waiting == 0


def test_a_file_that_can_no_longer_be_read_is_one_sentence(events: Events) -> None:
    events._reader.close()
    with pytest.raises(EventsError, match=r"events: cannot read .*events\.db"):
        events.of("ann")
