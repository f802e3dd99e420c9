"""Read a log from files, a table, a matrix or tuples, and say what was understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from softdex.data.arrow import unwrapped
from softdex.data.attach import attach, open_table
from softdex.data.bad_rows import check, of_weight, refuse_or_drop
from softdex.data.event_file import join
from softdex.data.interactions import Interactions
from softdex.data.keys import factorize, range_keys
from softdex.data.numbers import nulls
from softdex.data.roles import Column, find_columns, find_flags, first_line_as_data
from softdex.data.sources import Source, is_files, open_source
from softdex.data.spill import spilled
from softdex.errors import DataError, choose, counted, first_few
from softdex.messages import say


def read(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: Column = None,
    rating: Column = None,
    weight: Column = None,
    items: Any = None,
    item_columns: Sequence[str] | None = None,
    users: Any = None,
    keep: Sequence[str] = (),
    duplicates: str = "keep",
    bad_rows: str = "error",
    separator: str | None = None,
    encoding: str = "utf-8",
    events: str | Path | None = None,
    events_until: int | None = None,
    spill: str | Path | None = None,
    quiet: bool = False,
) -> Interactions:
    """Read a log of interactions.

    One line on standard error says which columns were taken and how large the log is.

    Args:
        source: where the log is. One of

            - a path, a glob, a folder or a list of paths: CSV, TSV, `::`-separated or RecBole
              `.inter` files, JSON lines, Parquet or Arrow; also in gzip, zstd, bzip2, xz or zip
              (`log.zip/ratings.csv`), and in folders called `column=value`;
            - an Arrow-compatible table: pandas, polars, DuckDB, pyarrow, a dict of columns, or a
              list of dicts;
            - a scipy sparse matrix, users x items, whose values are weights;
            - an iterable of `(user, item[, time[, weight]])` tuples.
        user, item: the id columns, by name, or by number in a file without header. By default they
            are found by their usual names (`user_id`, `movieId`, ...).
        time: what orders a user's events: numbers in any unit, or dates. By default found by its
            usual name, else by what it holds. False ignores it.
        rating: how much the user liked the item; only used to filter (`min_rating`). False
            ignores it.
        weight: how much an event counts in training. An event of weight 0 counts for nothing and
            is left out; negative weights are bad rows. False ignores it.
        items: an item table: a path or an Arrow-compatible table with a key column. Its columns
            filter recommendations and come back with them. MovieLens' u.item and movies.dat are
            known.
        item_columns: the names of the columns of an item table in a text file without header.
        users: a user table, by the same rules.
        keep: further columns to carry along in `extra`. Columns called test, split or fold always
            are.
        duplicates: repeated (user, item) pairs: `keep` them, or merge each pair into its `last`
            event or into the `sum` of its weights.
        bad_rows: `error` raises and names the rows; `drop` drops them and says how many.
        separator: what separates the columns of a text file, if the guess is wrong.
        encoding: of a text file.
        events: the event file of a server (`softdex serve --events FILE`), whose events are
            appended before repeats are merged. Their times are Unix times, and become those of the
            log if it has dates or Unix times in s, ms, us or ns. New users and items join the log.
        events_until: number of the last event to take; None takes all.
        spill: a folder on disk for the columns of a log that is larger than memory. Files are read
            one after another, Parquet files by row groups, and the log maps its columns from there.
            They vanish with the log.
        quiet: do not print what was found.

    Returns:
        the log. Row numbers of users and items follow their sorted keys, so they do not depend on
        the order of the source.

    Raises:
        DataError: the source cannot be read, a column is missing or ambiguous, or a row is bad.

    Example:
        >>> log = read([("ann", "tea", 1), ("ann", "jam", 2), ("bob", "tea", 1)], quiet=True)
        >>> log
        Interactions(3 rows, 2 users, 2 items)
    """
    choose("read", "duplicates rule", duplicates, ("keep", "last", "sum"))
    choose("read", "bad_rows rule", bad_rows, ("error", "drop"))
    keep = (keep,) if isinstance(keep, str) else keep or ()
    wanted = {"user": user, "item": item, "time": time, "rating": rating, "weight": weight}
    if spill is not None and (keep or not is_files(source)):
        raise DataError(
            "read: spill= reads users, items, times, ratings and weights of files. Pass paths, "
            "without keep=."
        )
    if sp.issparse(source):
        log, found = _from_matrix(source, wanted), "a sparse matrix (users x items):"
    else:
        opened, place = (
            open_source(source, separator, encoding),
            None if spill is None else Path(spill),
        )
        log, found = _from_columns(opened, wanted, keep, bad_rows, place)
    if events is not None:
        log, note = join(log, Path(events), events_until)
        found += f"; {note}"
    log = log.deduplicate(duplicates)
    if item_columns is not None and items is None:
        raise DataError("read: item_columns has no item table to name. Pass items=... too.")
    names = {"item": item_columns, "user": None}
    for what, table, column in (("item", items, item), ("user", users, user)):
        if table is not None:
            beside = open_table(table, separator, encoding, names[what])
            log, note = attach(log, what, beside, column, bad_rows)
            found += f"; {note}"
    size = {"rows": len(log), "users": log.num_users, "items": log.num_items}
    shown = ", ".join(counted(count, what) for what, count in size.items())
    say(f"read {found} -> {shown}", quiet=quiet)
    return log


def _from_columns(
    source: Source,
    wanted: Mapping[str, Column],
    keep: Sequence[str],
    bad_rows: str,
    spill: Path | None = None,
) -> tuple[Interactions, str]:
    """The log in the columns of a source, and a line that says which columns were taken."""
    if any(type(column) is int for column in wanted.values()):
        source = first_line_as_data(source)
    roles, notes = find_columns(source, wanted)
    candidates = [name for names in roles.values() for name in names]
    if spill is not None:
        log, chosen = spilled(
            source, roles, lambda absent: _choose_complete(absent, roles, wanted, notes), bad_rows,
            spill, notes,
        )  # fmt: skip
        return log, " ".join([f"{source.label}:", *(f"{r}={c}" for r, c in chosen.items()), *notes])
    flags = find_flags(source, keep, set(candidates))
    columns = list(dict.fromkeys([*candidates, *flags]))
    ids = [roles["user"][0], roles["item"][0]]
    fetched = source.fetch(columns, ids)
    absent = {name: int(nulls(fetched.table[name]).sum()) for name in candidates}
    chosen = _choose_complete(absent, roles, wanted, notes)
    values, bad = check(fetched.table, chosen)
    if bad and not fetched.places:
        fetched = source.fetch_with_places(columns, ids)
        values, bad = check(fetched.table, chosen)
    table = fetched.table
    if bad or fetched.problems:
        good = refuse_or_drop(source, fetched, bad, bad_rows, notes)
        table, values = table.filter(pa.array(good)), {r: v[good] for r, v in values.items()}
    if "weight" in values:
        good = of_weight(values["weight"], source.label, chosen["weight"], notes)
        table, values = table.filter(pa.array(good)), {r: v[good] for r, v in values.items()}
    if table.num_rows == 0:
        raise DataError(f"read: {source.label} has columns {first_few(source.names)} and no rows.")
    users, user = factorize(table[chosen["user"]], "user")
    items, item = factorize(table[chosen["item"]], "item")
    extra = {name: unwrapped(table[name]).to_numpy() for name in flags}
    found = " ".join([f"{source.label}:", *(f"{r}={c}" for r, c in chosen.items()), *notes])
    log = Interactions(users, items, user, item, extra=extra, **values)  # type: ignore[arg-type]
    return log, found


def _choose_complete(
    absent: Mapping[str, int],
    roles: dict[str, list[str]],
    wanted: Mapping[str, Column],
    notes: list[str],
) -> dict[str, str]:
    """One column per role: of several candidates for the time, the first without nulls.

    A rating that was found by its name alone is left out if it has nulls.
    """
    chosen = {role: names[0] for role, names in roles.items()}
    for role in ("time", "rating"):
        names = roles.get(role, [])
        complete = [name for name in names if not absent[name]]
        skipped = names[: names.index(complete[0])] if complete else names
        if not skipped or wanted[role] is not None or (role == "time" and not complete):
            continue
        notes += [f"({name} left out: {absent[name]:,} nulls)" for name in skipped]
        del chosen[role]
        if complete:
            chosen[role] = complete[0]
    return chosen


def _from_matrix(matrix: Any, wanted: Mapping[str, Column]) -> Interactions:
    """The log in a sparse matrix. Empty rows are users, and empty columns items, without events."""
    named = [role for role, column in wanted.items() if column not in (None, False)]
    if named:
        raise DataError(
            f"read: a matrix has no columns to take {first_few(named)} from. Use a table."
        )
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"read: expected a users x items matrix of numbers, got shape {matrix.shape} of "
            f"{matrix.dtype}."
        )
    coo = matrix.tocoo()
    stored = coo.data != 0
    with np.errstate(over="ignore"):
        data = coo.data[stored].astype(np.float32)
    if not np.isfinite(data).all() or (data < 0).any():
        raise DataError("read: the matrix holds negative or non-finite values. Expected weights.")
    if not len(data):
        raise DataError(f"read: the matrix {coo.shape} holds no entry. Expected users x items.")
    return Interactions(
        range_keys(coo.shape[0]),
        range_keys(coo.shape[1]),
        coo.row[stored].astype(np.int32),
        coo.col[stored].astype(np.int32),
        weight=None if (data == 1).all() else data,
    )
