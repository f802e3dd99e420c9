"""Live events on disk: an SQLite file in WAL mode, one thread that writes, group commit.

An append is done when it is on disk. Whatever waits while the disk is busy is the next commit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, final

from softdex.data.event_file import APPLICATION, INT64, VERSION, reason, said, store_of
from softdex.errors import SoftdexError
from softdex.files import sync_folder
from softdex.serve.words import WEIGHTS, Event, Key

if sys.platform != "win32":
    import fcntl

TAIL = 100  # latest events of a user that are kept in memory
HELD = 500_000  # users and events that are kept in memory
COMMIT = 10_000  # events per commit, beyond which the next one begins
LATEST = 7_200_000_000  # seconds: the year 2198, up to which nanoseconds fit 64 bits
LONGEST = 1000  # characters of a key
SCHEMA = (
    "CREATE TABLE store (id TEXT NOT NULL, opened INTEGER NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE, user NOT NULL,"
    " item NOT NULL, time REAL NOT NULL, weight REAL NOT NULL)",
    "CREATE INDEX by_user ON events (CAST(user AS TEXT), time, seq)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
INSERT = "INSERT OR IGNORE INTO events (event_id, user, item, time, weight) VALUES (?, ?, ?, ?, ?)"
LAST = (
    "SELECT time, seq, item FROM events WHERE CAST(user AS TEXT) = ? "
    f"ORDER BY time DESC, seq DESC LIMIT {TAIL}"
)
Note = Callable[[int, int, float], None]


class EventsError(SoftdexError):
    """The events could not be kept: the disk is full, or the file is damaged or closed."""


class Kept(NamedTuple):
    """An event of a user: its time, its number in the file, and the item."""

    time: float
    seq: int
    item: Key


Tail = tuple[Kept, ...]
Append = tuple[list[tuple[Any, ...]], "Future[int]"]


@final
class Events:
    """The events of a server, on disk; the latest of each user also in memory.

    Args:
        path: file that keeps them; made if there is none.
        note: is told new events, repeated ones and the seconds of each commit.

    Attributes:
        store: identity of the file.
        waiting: number of events that are not on disk yet.
    """

    def __init__(self, path: str | Path, note: Note = lambda new, repeated, seconds: None) -> None:
        self.path, self._note = Path(path), note
        self._held = _taken(self.path)
        try:
            self._writer, self.store = _opened(self.path)
            self._reader = _connected(self.path)
        except BaseException:
            os.close(self._held)
            raise
        self._tails: OrderedDict[str, Tail] = OrderedDict()
        self._size = self._commits = self.waiting = 0
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._queue: SimpleQueue[Append | None] = SimpleQueue()
        self._open = True
        self._thread = threading.Thread(target=self._write, name="softdex-events", daemon=True)
        self._thread.start()

    def append(self, events: Sequence[Event]) -> Future[int]:
        """Keep events; the future has the number of new ones, once they are on disk.

        An event whose event_id is known counts once, and so does one that is sent without an id
        only once: it gets an id of its own. Raises `SoftdexError` for an event that is none.
        """
        now = time.time()
        rows = [_row(place, event, now) for place, event in enumerate(events)]
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()  # a client that leaves cancels nothing
        with self._lock:
            if not self._open:
                raise EventsError("events: the server is shutting down.")
            self.waiting += len(rows)
            self._queue.put((rows, future))
        return future

    def of(self, user: object) -> Tail:
        """Return the latest events of a user, oldest first, at most `TAIL`; 7 and "7" are the same
        user. Safe in any thread."""
        key = str(user)
        with self._lock:
            found, before = self._tails.get(key), self._commits
            if found is not None:
                self._tails.move_to_end(key)
                return found
        try:
            with self._reading:
                rows = self._reader.execute(LAST, (key,)).fetchall()
        except sqlite3.Error as error:
            raise EventsError(f"events: cannot read {self.path} ({said(error)}).") from None
        found = tuple(Kept(*row) for row in reversed(rows))
        with self._lock:
            if self._commits == before:  # else it may be out of date for the next request
                self._hold(key, found)
        return found

    @property
    def is_alive(self) -> bool:
        """Return whether what is appended will be written."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Write what waits, then close the file."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._queue.put(None)
        self._thread.join()
        with self._reading, contextlib.suppress(sqlite3.Error):
            self._reader.close()
            self._writer.close()
        os.close(self._held)

    # the thread that writes ----------------------------------------------------------------------

    def _write(self) -> None:
        ends = False
        while not ends:
            batch, size, ends = list[Append](), 0, False
            with contextlib.suppress(Empty):
                while size < COMMIT and not ends:
                    found = self._queue.get_nowait() if batch else self._queue.get()
                    ends = found is None
                    if found is not None:
                        batch.append(found)
                        size += len(found[0])
            if batch:
                self._commit(batch, size)

    def _commit(self, batch: Sequence[Append], size: int) -> None:
        """Write appends in one transaction, then say so."""
        began, fresh, counts = time.perf_counter(), list[tuple[str, Kept]](), list[int]()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for rows, _ in batch:
                before = len(fresh)
                for row in rows:
                    done = self._writer.execute(INSERT, row)
                    if done.rowcount:
                        assert done.lastrowid is not None
                        fresh.append((str(row[1]), Kept(row[3], done.lastrowid, row[2])))
                counts.append(len(fresh) - before)
            self._writer.execute("COMMIT")
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            failed = EventsError(f"events: cannot write {self.path} ({said(error)}).")
            with self._lock:
                self.waiting -= size
            for _, future in batch:
                future.set_exception(failed)
            return
        with self._lock:
            self._commits += 1
            self.waiting -= size
            for key, event in fresh:
                self._add(key, event)
        for (_, future), count in zip(batch, counts, strict=True):
            future.set_result(count)
        self._note(len(fresh), size - len(fresh), time.perf_counter() - began)

    def _add(self, key: str, event: Kept) -> None:
        """Add an event to the tail of its user, if that is in memory."""
        tail = self._tails.get(key)
        if tail is not None and all(each.seq != event.seq for each in tail):
            self._size -= 1 + len(tail)
            self._hold(key, tuple(sorted((*tail, event))[-TAIL:]))

    def _hold(self, key: str, tail: Tail) -> None:
        """Keep a tail in memory, and forget those that were not asked for lately."""
        self._tails[key] = tail
        self._size += 1 + len(tail)
        while self._size > HELD:
            _, old = self._tails.popitem(last=False)
            self._size -= 1 + len(old)


# inside ------------------------------------------------------------------------------------------


def _row(place: int, event: Event, now: float) -> tuple[Any, ...]:
    """Return an event as it is written; refuse one that is none."""

    def refuse(expected: str, found: object) -> SoftdexError:
        return SoftdexError(f"events: event {place}: expected {expected}, got {found!r}.")

    when = now if event.time is None else event.time
    if not 0 <= when < LATEST:
        raise refuse("time in seconds since 1970", when)
    if not WEIGHTS[0] <= event.weight <= WEIGHTS[1]:
        raise refuse("a weight from 1e-6 to 1e6", event.weight)
    texts = [str(event.user), str(event.item), event.event_id]
    for text in texts:
        if len(text) > LONGEST or not _is_unicode(text):
            raise refuse(f"keys of at most {LONGEST} characters of Unicode", text[:20])
    if not texts[0] or not texts[1]:
        raise refuse("keys of a user and an item", "")
    user, item = (
        key if isinstance(key, str) or key in INT64 else text
        for key, text in zip((event.user, event.item), texts, strict=False)
    )
    id = event.event_id or secrets.token_hex(16)
    return id, user, item, float(when), float(event.weight)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _taken(path: Path) -> int:
    """Take the lock of a file of events, and return its handle."""
    if not path.parent.is_dir():
        raise EventsError(f"events: no folder {path.parent}. Make it, or name another file.")
    if path.exists() and not path.is_file():
        raise EventsError(f"events: {path} is not a file. Name a new one.")
    with reason("events", "write", path):
        handle = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise EventsError(
            f"events: another server keeps its events in {path}. Stop it, or name another file."
        ) from None
    except OSError:  # a file system without locks
        pass
    return handle


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)


def _opened(path: Path) -> tuple[sqlite3.Connection, str]:
    """Open a file of events, or make it, and return its identity; it is seen to be writable."""
    with reason("events", "write", path), contextlib.ExitStack() as on_error:
        connection = _connected(path)
        on_error.callback(connection.close)
        store = store_of(connection, path, "events")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        if store is None:
            store = secrets.token_hex(16)
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (?, 0)", (store,))
        connection.execute("UPDATE store SET opened = opened + 1")
        connection.execute("COMMIT")
        with contextlib.suppress(OSError):  # some systems cannot sync a folder
            sync_folder(path.parent)
        on_error.pop_all()
    return connection, store
