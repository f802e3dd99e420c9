"""Event files: what `softdex serve --events` keeps, opened, read, and joined with a log."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, convert, factorize, merge
from softdex.data.numbers import UNITS, UNIX_TIMES
from softdex.errors import DataError, counted

APPLICATION, VERSION = 0x73647865, 1  # of the file's header
NEW = "Name one of softdex serve --events, which makes a new one where there is none."
COLUMNS = ("user", "item", "time", "weight", "event_id")
INT64 = range(-(2**63), 2**63)


class EventFile(NamedTuple):
    """Events as they were read.

    Attributes:
        table: columns user, item, time, weight and event_id, in the order of arrival.
        store: identity of the file.
        until: number of the last event.
    """

    table: pa.Table
    store: str
    until: int


def read_event_file(path: Path, where: str, until: int | None = None) -> EventFile:
    """Read an event file, also while a server writes it.

    Args:
        path: the file.
        where: name to start errors with.
        until: number of the last event to read; None reads all.
    """
    if not path.is_file():
        raise DataError(f"{where}: no event file {path}. {NEW}")
    with reason(where, "read", path):
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        with contextlib.closing(connection):
            store = store_of(connection, path, where)
            if store is None:
                raise DataError(f"{where}: {path} is no event file. {NEW}")
            last = 2**63 - 1 if until is None else until
            query = f"SELECT seq, {', '.join(COLUMNS)} FROM events WHERE seq <= ? ORDER BY seq"
            rows = connection.execute(query, (last,)).fetchall()
    columns = list(zip(*rows, strict=True)) or [()] * 6
    cells = [
        *map(_key_column, columns[1:3]),
        pa.array(columns[3], pa.float64()),
        pa.array(columns[4], pa.float64()),
        pa.array(columns[5], pa.string()),
    ]
    table = pa.table(dict(zip(COLUMNS, cells, strict=True)))
    return EventFile(table, store, rows[-1][0] if rows else 0)


def join(log: Interactions, path: Path, until: int | None = None) -> tuple[Interactions, str]:
    """Append the events of a file to a log; return it with a line that says how many.

    Users and items that are not in the log join it. Left out are events that the log has already
    (same user, item and time), and keys that are none of the log's type.
    """
    file = read_event_file(path, "read", until)
    users, old_user, user = _joined(log.users, file.table["user"])
    items, old_item, item = _joined(log.items, file.table["item"])
    log = replace(log, users=users, items=items, user=old_user[log.user], item=old_item[log.item])
    stamp = _in_unit_of(log.time, file.table["time"].to_numpy())
    fits = (user >= 0) & (item >= 0)
    fresh = fits & ~_repeats(log, user, item, stamp)
    rows = np.flatnonzero(fresh)
    weight = file.table["weight"].to_numpy().astype(np.float32)[rows]
    kept = {"store": file.store, "until": file.until, "events": len(rows)}
    log = replace(
        log,
        user=np.append(log.user, user[rows]).astype(np.int32),
        item=np.append(log.item, item[rows]).astype(np.int32),
        time=None if log.time is None else np.append(log.time, stamp[rows]),
        rating=_longer(log.rating, np.full(len(rows), _highest(log.rating), np.float32)),
        weight=_weights(log, weight),
        extra={name: _longer(c, _blank(name, c, len(rows))) for name, c in log.extra.items()},
        events=kept,
    )
    notes = [f"{path}: {counted(len(rows), 'events')}"]
    for count, why in (
        (int((fits & ~fresh).sum()), "in the log already"),
        (int((~fits).sum()), "with keys of another type left out"),
    ):
        notes += [f"{count:,} {why}"] if count else []
    return log, ", ".join(notes)


def store_of(connection: sqlite3.Connection, path: Path, where: str) -> str | None:
    """Return the identity of an event file, None for an empty one; refuse any other file."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == APPLICATION and version > VERSION:
        raise DataError(f"{where}: {path} is from a newer version of softdex. Upgrade softdex.")
    if application == APPLICATION:
        return str(connection.execute("SELECT id FROM store").fetchone()[0])
    if tables or application:
        raise DataError(f"{where}: {path} is a database of another program. {NEW}")
    return None


@contextlib.contextmanager
def reason(where: str, verb: str, path: Path) -> Iterator[None]:
    """Turn errors of the database into one sentence."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise DataError(f"{where}: cannot {verb} {path} ({said(error)}).") from None


def said(error: Exception) -> str:
    """Return what an error of the database means."""
    text = str(error)
    for part, meaning in (
        ("not a database", f"it is no event file. {NEW.removesuffix('.')}"),
        ("malformed", "it is damaged; restore it from a copy, or name a new file"),
        ("disk is full", "the disk is full; free some space"),
        ("disk I/O", "the disk failed"),
        ("locked", "another program holds it; stop that one"),
        ("readonly", "it may not be written to"),
        ("unable to open", "it, or its folder, may not be written to"),
    ):
        if part in text:
            return meaning
    return error.strerror if isinstance(error, OSError) and error.strerror else text


# inside ------------------------------------------------------------------------------------------


def _key_column(keys: Sequence[Any]) -> pa.Array:
    """Return keys as integers if all are, else as text."""
    if all(isinstance(key, int) for key in keys):
        return pa.array(keys, pa.int64())
    return pa.array([str(key) for key in keys], pa.string())


def _joined(known: Keys, given: pa.ChunkedArray) -> tuple[Keys, np.ndarray, np.ndarray]:
    """Return the union of keys, where the known ones stand in it, and where the given ones do, -1
    for keys that are none of the known type."""
    keys = convert(given.combine_chunks(), known.type)
    new = keys.filter(pa.array(known.lookup(keys) < 0)).drop_null()
    place = np.arange(len(known))
    if len(new):
        known, order = merge(known, factorize(pc.unique(new))[0])
        place = np.argsort(order)
    return known, place.astype(np.int32), known.lookup(keys)


def _in_unit_of(time: np.ndarray | None, seconds: np.ndarray) -> np.ndarray:
    """Return Unix times in the unit of a log: s, ms, us or ns; as they are if it has another."""
    if time is None:
        return seconds
    low, high = float(time.min()), float(time.max())
    units = [u for u in UNITS if UNIX_TIMES[0] * u <= low and high < UNIX_TIMES[1] * u]
    return (seconds * (units[0] if units else 1)).astype(time.dtype)


def _repeats(
    log: Interactions, user: np.ndarray, item: np.ndarray, stamp: np.ndarray
) -> np.ndarray:
    """Return which events the log has already."""
    if log.time is None or not len(user):
        return np.zeros(len(user), bool)
    pairs, mine = (u * np.int64(log.num_items) + i for u, i in ((user, item), (log.user, log.item)))
    near = np.isin(mine, pairs)
    have = set(zip(mine[near].tolist(), log.time[near].tolist(), strict=True))
    given = zip(pairs.tolist(), stamp.tolist(), strict=True)
    return np.fromiter((each in have for each in given), bool, len(user))


def _weights(log: Interactions, new: np.ndarray) -> np.ndarray | None:
    """Return the weights of both; a log without weights counts 1 each."""
    if log.weight is None and (new == 1).all():
        return None
    old = np.ones(len(log), np.float32) if log.weight is None else log.weight
    return np.append(old, new)


def _longer(column: np.ndarray | None, more: np.ndarray) -> Any:
    return None if column is None else np.append(column, more)


def _highest(rating: np.ndarray | None) -> float:
    """Return the rating of an event, which has none and is kept by every threshold."""
    return 0.0 if rating is None else float(rating.max())


def _blank(name: str, column: np.ndarray, count: int) -> np.ndarray:
    """Return flags that hold out no event."""
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"read: the log has the column {name!r}, which events of an event file do not "
            "have. Drop it, or read the log without events=."
        )
    return np.zeros(count, column.dtype)
