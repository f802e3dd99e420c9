"""Attach tables of items and of users to a log, one row per key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from softdex.data.arrow import combined
from softdex.data.bad_rows import refuse_or_drop
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, convert, factorize, merge
from softdex.data.movielens import in_latin, with_genres, with_names
from softdex.data.numbers import nulls
from softdex.data.roles import WITH_ARTICLE, Column, find_key_column
from softdex.data.sources import Source, open_source, with_layouts
from softdex.errors import DataError, counted, first_few


def open_table(
    source: Any, separator: str | None, encoding: str, columns: Sequence[str] | None = None
) -> Source:
    """Open a table of items or users; `columns` names those of a text file without header."""
    opened = open_source(source, separator, encoding)
    layouts = opened.layouts
    if columns is None:
        return with_layouts(opened, list(map(with_names, layouts))) if layouts else opened
    names = [columns] if isinstance(columns, str) else list(columns)
    if not layouts:
        raise DataError(
            f"read: item_columns names the columns of a text file without header. {opened.label} "
            f"has columns {first_few(opened.names, 8)}."
        )
    if len(names) != len(opened.names) or len(set(names)) < len(names):
        raise DataError(
            f"read: item_columns names {len(names)} columns ({first_few(names, 8)}), and "
            f"{opened.label} has {len(opened.names)}. Name each column once."
        )
    plain = [in_latin(layout.without_header()) for layout in layouts]
    return with_layouts(opened, [replace(layout, names=names) for layout in plain])


def read_table(source: Any, what: str) -> tuple[Keys, pa.Table]:
    """Read a table of items or users without a log.

    Args:
        source: a path or an Arrow-compatible table with a key column.
        what: "item" or "user".

    Returns:
        the keys, and the other columns in the order of the keys.
    """
    opened = open_table(source, None, "utf-8")
    key = find_key_column(opened, what, None)
    table, _ = _with_keys(opened, key, "error")
    if not table.num_rows:
        raise DataError(f"read: the {what} table {opened.label} is empty.")
    keys, rows = factorize(table[key], what)
    if len(keys) < table.num_rows:
        twice = keys.take(np.flatnonzero(np.bincount(rows) > 1))
        raise DataError(
            f"read: the {what} table {opened.label} has {first_few(twice)} more than once. Keep "
            f"one row per {what}."
        )
    return keys, table.take(pa.array(np.argsort(rows))).drop_columns([key]).combine_chunks()


def attach(
    log: Interactions, what: str, source: Source, column: Column, bad_rows: str
) -> tuple[Interactions, str]:
    """Attach a table of items or users to a log.

    Args:
        log: gets the table as `item_table` or `user_table`, aligned with its keys; items of the
            table without events become items of the log.
        what: "item" or "user".
        source: the table.
        column: its key column, as named in the log.
        bad_rows: `error` or `drop`.

    Returns:
        the log, and a note that counts the keys and rows without a match.
    """
    keys = log.items if what == "item" else log.users
    key = find_key_column(source, what, column)
    table, notes = _with_keys(source, key, bad_rows)
    place, cold = _places(keys, table[key], what, key), 0
    if what == "item":
        log = _with_cold_items(log, table[key])
        cold, keys = len(log.items) - len(keys), log.items
        place = _places(keys, table[key], what, key) if cold else place
    aligned = table.take(pa.array(place, mask=place < 0)).drop_columns([key]).combine_chunks()
    without = int((place < 0).sum())
    spare = table.num_rows - (len(keys) - without)
    columns = first_few(aligned.column_names, 8)
    note = " ".join([f"{what}s from {source.label} ({columns})", *notes])
    if without:
        note += f", {counted(without, f'{what}s')} not in it"
    if cold:
        note += f", {counted(cold, 'more items')} without an event: log.compact() drops them"
    if spare:
        note += f", {counted(spare, 'rows')} without an interaction left out"
    return replace(log, **{f"{what}_table": aligned}), note


def _with_cold_items(log: Interactions, column: pa.ChunkedArray) -> Interactions:
    """The log with the keys of a column that are no item of it yet, where they are of its type."""
    cold = pa.array(log.items.lookup(column) < 0)
    new = convert(combined(column.filter(cold)), log.items.type).drop_null()
    if not len(new):
        return log
    merged, order = merge(log.items, factorize(new)[0])
    place = np.argsort(order).astype(np.int32)
    return replace(log, items=merged, item=place[log.item])


def _with_keys(source: Source, key: str, bad_rows: str) -> tuple[pa.Table, list[str]]:
    """The rows of a table that have a key, and notes on those dropped."""
    fetched, notes = source.fetch(source.names, [key]), list[str]()
    if nulls(fetched.table[key]).any() and not fetched.places:
        fetched = source.fetch_with_places(source.names, [key])
    absent = nulls(fetched.table[key])
    bad = {f"no value in column {key!r}": absent} if absent.any() else {}
    table = fetched.table
    if bad or fetched.problems:
        table = table.filter(pa.array(refuse_or_drop(source, fetched, bad, bad_rows, notes)))
    return with_genres(source.label, table), notes


def _places(keys: Keys, column: pa.ChunkedArray, what: str, name: str) -> np.ndarray:
    """The row of the table for each key of the log; -1 where there is none."""
    rows = keys.lookup(column)
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        raise DataError(
            f"read: no key of the {what} table's column {name!r} ({first_few(column.slice(0, 3))}) "
            f"is {WITH_ARTICLE[what]} of the log ({first_few(keys.values.slice(0, 3))}). Is it the "
            "right table?"
        )
    twice = np.flatnonzero(np.bincount(rows[known]) > 1)
    if len(twice):
        shown = first_few(keys.take(twice[:6]))
        raise DataError(f"read: the {what} table repeats keys ({shown}). Keep one row per {what}.")
    place = np.full(len(keys), -1, np.int64)
    place[rows[known]] = known
    return place
