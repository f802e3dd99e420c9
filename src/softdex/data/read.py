"""Read a log from a file, a table or a matrix, and say what was understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from softdex.data import delimited
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, encode, plain, range_keys
from softdex.data.sources import Loaded, Source, nulls, numbers, open_source
from softdex.errors import DataError, choose, nearest, some
from softdex.messages import say

NAMES = {
    "user": "user userid uid users session sessionid customer customerid member memberid visitor "
    "visitorid reviewerid account accountid source",
    "item": "item itemid iid items movie movieid product productid asin article articleid track "
    "trackid artist artistid song songid book bookid isbn sku video videoid news newsid poi "
    "location locationid business businessid target",
    "time": "time timestamp ts datetime date unixtime eventtime createdat unixreviewtime position",
    "rating": "rating ratings score stars overall",
    "weight": "weight count plays playcount confidence",
}
FLAGS = ("test", "istest", "split", "fold")
ONE = {"user": "a user", "item": "an item"}
Column = str | int | Literal[False] | None


def read(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: Column = None,
    rating: Column = None,
    weight: Column = None,
    items: Any = None,
    users: Any = None,
    keep: Sequence[str] = (),
    duplicates: str = "keep",
    bad_rows: str = "error",
    separator: str | None = None,
    encoding: str = "utf-8",
    quiet: bool = False,
) -> Interactions:
    """Read a log of interactions.

    Args:
        source: a path (CSV, TSV, `::`-separated, RecBole .inter, any of them .gz, or Parquet), a
            glob, a folder or a list of paths; a table that speaks Arrow (pandas, polars, DuckDB,
            pyarrow); a scipy sparse matrix users x items; or an iterable of (user, item[, time
            [, weight]]) tuples.
        user, item, time, rating, weight: column names, or numbers where a file has no header. Left
            out, they are found by the usual names. `False` leaves an optional column out.
        items: an item table (path or Arrow-speaking) with a key column; its columns can filter
            (`where=`) and come back with recommendations.
        users: a user table, by the same rules; its columns go with the log.
        keep: further columns to carry along. Those called test, split or fold always are.
        duplicates: `keep` repeats of a (user, item) pair, or merge them: `last`, `sum`.
        bad_rows: `error` refuses a file with bad rows and says which; `drop` leaves them out and
            says how many.
        separator, encoding: of a text file, where the guess is wrong.
        quiet: do not print what was found.

    Example:
        >>> log = read([("ann", "tea", 1), ("ann", "jam", 2), ("bob", "tea", 1)], quiet=True)
        >>> log
        Interactions(3 rows, 2 users, 2 items)
    """
    choose("read", "duplicates rule", duplicates, ("keep", "last", "sum"))
    choose("read", "bad_rows rule", bad_rows, ("error", "drop"))
    keep = (keep,) if isinstance(keep, str) else keep or ()
    wanted = {"user": user, "item": item, "time": time, "rating": rating, "weight": weight}
    if sp.issparse(source):
        log, found = _from_matrix(source, wanted), "a sparse matrix (users x items):"
    else:
        log, found = _from_columns(open_source(source, separator, encoding), wanted, keep, bad_rows)
    log = log.deduplicate(duplicates)
    for what, table, column in (("item", items, item), ("user", users, user)):
        if table is not None:
            loader = open_source(table, separator, encoding)
            log, note = _attach(log, what, loader, column, bad_rows)
            found += f"; {note}"
    size = f"{len(log):,} rows, {log.num_users:,} users, {log.num_items:,} items"
    say(f"read {found} -> {size}", quiet=quiet)
    return log


def _simple(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _find_columns(
    loader: Source, wanted: Mapping[str, Column]
) -> tuple[dict[str, list[str]], list[str]]:
    """The candidate columns of each role, best first."""
    given = {r: _named(loader, r, c) for r, c in wanted.items() if c is not None and c is not False}
    for role, name in given.items():
        if list(given.values()).count(name) > 1:
            raise DataError(f"read: column {name!r} has two roles, one is {role}. Name another.")
    headerless = bool(loader.text) and not loader.text[0].has_header
    guess = _guess_by_place(loader.text[0]) if headerless else {}
    roles = {role: [name] for role, name in given.items()}
    for role in (r for r, c in wanted.items() if c is None):
        found = [guess[role]] if role in guess else [] if guess else _usual(loader.names, role)
        roles[role] = [name for name in found if name not in given.values()]
        twins = [n for n in roles[role] if _simple(n) == _simple(roles[role][0])]
        if len(twins) > 1:
            raise DataError(f"read: columns {some(twins)} could each be the {role}. Say {role}=...")
    missing = [r for r in ("user", "item") if not roles.get(r)]
    if missing:
        raise DataError(_missing(loader, missing, headerless))
    guessed = any(guess.get(r) and wanted[r] is None for r in wanted)
    notes = ["(no header: columns guessed by place)"] if guessed else []
    return {role: names for role, names in roles.items() if names}, notes


def _usual(names: Sequence[str], role: str) -> list[str]:
    """The columns that bear a usual name of this role, the most usual first."""
    return [name for alias in NAMES[role].split() for name in names if _simple(name) == alias]


def _without_header(loader: Source) -> Source:
    """Columns given by number and a first line that says nothing known: it is data."""
    usual = any(_usual(loader.names, role) for role in NAMES)
    if not loader.text or usual or delimited.has_numbers(loader.text[0]):
        return loader
    text = [shape.without_header() for shape in loader.text]
    return replace(loader, names=text[0].names, text=text)


def _missing(loader: Source, missing: list[str], headerless: bool) -> str:
    what = " and no ".join(f"{r} column" for r in missing)
    names = [n if n.isprintable() and len(n) < 40 else repr(n[:40]) for n in loader.names]
    text = f"read: {loader.label} has no {what} among {some(names, 12) or 'no columns'}. "
    if any("\ufffd" in name for name in names):
        text += f"Its first line is not {loader.text[0].encoding}: is it a text table? "
    if headerless:
        return (
            text + "It has no header: give column numbers, e.g. read(path, user=0, item=1, time=3)."
        )
    fix = ", ".join(f"{r}='...'" for r in missing)
    if len(missing) == 1:
        other = "item" if missing == ["user"] else "user"
        return (
            f"{text}If this is {ONE[other]} table, attach it to a log: read(log_path, "
            f"{other}s=path). If it is a log, name the column: read(path, {fix})."
        )
    text += f"Name it: read(path, {fix})."
    return text + (" If the first line is data, number it: user=0, item=1." if loader.text else "")


def _named(loader: Source, role: str, given: str | int) -> str:
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise DataError(f"read: {role}={given!r}: expected a column name, a number, None or False.")
    if isinstance(given, int):
        if not 0 <= given < len(loader.names):
            raise DataError(
                f"read: {role}={given}: the source has columns 0 to {len(loader.names) - 1}."
            )
        return loader.names[given]
    if given not in loader.names:
        raise DataError(f"read: no column {given!r} for {role}. {nearest(given, loader.names)}")
    return given


def _guess_by_place(shape: delimited.Layout) -> dict[str, str]:
    """Headerless files are user, item[, rating][, time]; a last column of large numbers is time."""
    width = len(shape.names)
    if not 2 <= width <= 4:
        return {}
    guess = {"user": "0", "item": "1"}
    if width == 2:
        return guess
    try:
        large = min(float(row[-1]) for row in shape.sample if len(row) == width) >= 1e8
    except ValueError:
        return {}
    if large:
        guess["time"] = str(width - 1)
    if width == 4 or not large:
        guess["rating"] = "2"
    return guess


def _from_columns(
    loader: Source, wanted: Mapping[str, Column], keep: Sequence[str], bad_rows: str
) -> tuple[Interactions, str]:
    """Build a log from the columns of a table; also a line that says which were taken."""
    if any(type(column) is int for column in wanted.values()):
        loader = _without_header(loader)
    for name in keep:
        if name not in loader.names:
            raise DataError(f"read: no column {name!r} to keep. {nearest(name, loader.names)}")
    roles, notes = _find_columns(loader, wanted)
    taken = {name for names in roles.values() for name in names}
    flags = [n for n in loader.names if n in keep or (_simple(n) in FLAGS and n not in taken)]
    columns = list(dict.fromkeys([*(n for names in roles.values() for n in names), *flags]))
    ids = [roles["user"][0], roles["item"][0]]
    loaded = loader.load(columns, ids)
    chosen = _choose_complete(loaded.table, roles, wanted, notes)
    values, bad = _check(loaded.table, chosen)
    if bad and not loaded.places:
        loaded = loader.locate(columns, ids)
        values, bad = _check(loaded.table, chosen)
    table = loaded.table
    if bad or loaded.problems:
        good = _refuse_or_drop(loader, loaded, bad, bad_rows, notes)
        table, values = table.filter(pa.array(good)), {r: v[good] for r, v in values.items()}
    if table.num_rows == 0:
        raise DataError(f"read: {loader.label} has columns {some(loader.names)} and no rows.")
    users, user = encode(table[chosen["user"]], "user")
    items, item = encode(table[chosen["item"]], "item")
    extra = {name: plain(table[name]).to_numpy() for name in flags}
    found = " ".join([f"{loader.label}:", *(f"{r}={c}" for r, c in chosen.items()), *notes])
    log = Interactions(users, items, user, item, extra=extra, **values)  # type: ignore[arg-type]
    return log, found


def _choose_complete(
    table: pa.Table, roles: dict[str, list[str]], wanted: Mapping[str, Column], notes: list[str]
) -> dict[str, str]:
    """One column a role: of several found, the first without nulls.

    A rating that nobody asked for is left out when it has nulls.
    """
    chosen = {role: names[0] for role, names in roles.items()}
    for role in ("time", "rating"):
        names = roles.get(role, [])
        absent = {name: int(nulls(table[name]).sum()) for name in names}
        complete = [name for name in names if not absent[name]]
        skipped = names[: names.index(complete[0])] if complete else names
        if not skipped or wanted[role] is not None or (role == "time" and not complete):
            continue
        notes += [f"({name} left out: {absent[name]:,} nulls)" for name in skipped]
        del chosen[role]
        if complete:
            chosen[role] = complete[0]
    return chosen


def _check(
    table: pa.Table, chosen: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The numeric columns by role, and masks of the rows that cannot be used by what is wrong."""
    values: dict[str, np.ndarray] = {}
    bad: dict[str, np.ndarray] = {}
    for role, name in chosen.items():
        absent = nulls(table[name])
        bad[f"no value in column {name!r}"] = absent
        if role in ("user", "item"):
            continue
        found, wrong = numbers(table[name], f"the {role} column {name!r}", dates=role == "time")
        if role != "time":
            with np.errstate(over="ignore"):
                found = found.astype(np.float32)
            wrong |= ~np.isfinite(found)
        if wrong.any():
            example = str(table[name][int(np.argmax(wrong))])[:30]
            kind = "a number or a date like the rest" if role == "time" else "a finite number"
            bad[f"column {name!r} is not {kind} (e.g. {example!r})"] = wrong
        if role == "weight":
            bad[f"negative weight in column {name!r}"] = (found < 0) & ~absent
        values[role] = found
    return values, {problem: mask for problem, mask in bad.items() if mask.any()}


def _refuse_or_drop(
    loader: Source, loaded: Loaded, bad: dict[str, np.ndarray], bad_rows: str, notes: list[str]
) -> np.ndarray:
    """Mask of the good rows of a table that has bad ones or had bad lines, unless that is refused.

    What is wrong with a row is said with its place in its file.
    """
    problems = {label: dict(found) for label, found in loaded.problems.items()}
    start = 0
    for label, lines in loaded.places or []:
        for problem, mask in bad.items():
            hit = lines[mask[start : start + len(lines)]].tolist()
            if hit:
                problems.setdefault(label, {})[problem] = hit
        start += len(lines)
    unit = "line" if loader.text else "row"
    said = "; ".join(f"{label}: {delimited.explain(p, unit)}" for label, p in problems.items())
    drop = np.logical_or.reduce([np.zeros(loaded.table.num_rows, bool), *bad.values()])
    if bad_rows == "error" or drop.all():
        raise DataError(f"read: {said}. {NONE_LEFT if drop.all() else FIX}")
    unparsed = sum(len(lines) for found in loaded.problems.values() for lines in found.values())
    notes.append(f"(dropped {unparsed + int(drop.sum()):,} bad {unit}s: {said})")
    return ~drop


FIX = (
    "Mend the source, leave such rows out with bad_rows='drop', or leave an optional column out, "
    "e.g. time=False."
)
NONE_LEFT = (
    "No good row is left. Is it the right file? An optional column can be left out, e.g. "
    "time=False."
)


def _from_matrix(matrix: Any, wanted: Mapping[str, Column]) -> Interactions:
    """A sparse matrix keeps its shape: empty rows are users, empty columns are items."""
    named = [role for role, column in wanted.items() if column not in (None, False)]
    if named:
        raise DataError(f"read: a matrix has no columns to take {some(named)} from. Use a table.")
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


# tables of items and of users --------------------------------------------------------------------


def read_table(source: Any, what: str) -> tuple[Keys, pa.Table]:
    """The keys of a table of items or users that stands alone, and its other columns in order."""
    loader = open_source(source, None, "utf-8")
    key = _key_column(loader, what, None)
    table, _ = _load_keyed(loader, key, "error")
    if not table.num_rows:
        raise DataError(f"read: the {what} table {loader.label} is empty.")
    keys, rows = encode(table[key], what)
    if len(keys) < table.num_rows:
        twice = keys.take(np.flatnonzero(np.bincount(rows) > 1))
        raise DataError(
            f"read: the {what} table {loader.label} has {some(twice)} more than once. Keep one row "
            "of each."
        )
    return keys, table.take(pa.array(np.argsort(rows))).drop_columns([key]).combine_chunks()


def _attach(
    log: Interactions, what: str, loader: Source, column: Column, bad_rows: str
) -> tuple[Interactions, str]:
    """Put a table of items or of users beside the log, one row per key."""
    keys = log.items if what == "item" else log.users
    key = _key_column(loader, what, column)
    table, notes = _load_keyed(loader, key, bad_rows)
    place = _places(keys, table[key], what, key)
    aligned = table.take(pa.array(place, mask=place < 0)).drop_columns([key]).combine_chunks()
    without = int((place < 0).sum())
    spare = table.num_rows - (len(keys) - without)
    note = " ".join([f"{what}s from {loader.label} ({some(aligned.column_names, 8)})", *notes])
    if without:
        note += f", {without:,} {what}s not in it"
    if spare:
        note += f", {spare:,} of its rows have no interaction and are left out"
    return replace(log, **{f"{what}_table": aligned}), note


def _load_keyed(loader: Source, key: str, bad_rows: str) -> tuple[pa.Table, list[str]]:
    """The rows of a table that have a key; also notes on those left out."""
    loaded, notes = loader.load(loader.names, [key]), list[str]()
    if nulls(loaded.table[key]).any() and not loaded.places:
        loaded = loader.locate(loader.names, [key])
    absent = nulls(loaded.table[key])
    bad = {f"no value in column {key!r}": absent} if absent.any() else {}
    if not bad and not loaded.problems:
        return loaded.table, notes
    good = _refuse_or_drop(loader, loaded, bad, bad_rows, notes)
    return loaded.table.filter(pa.array(good)), notes


def _places(keys: Keys, column: pa.ChunkedArray, what: str, name: str) -> np.ndarray:
    """Where in a column each key of the log stands, -1 where it does not."""
    rows = keys.lookup(column)
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        raise DataError(
            f"read: no key of the {what} table's column {name!r} ({some(column.slice(0, 3))}) is "
            f"{ONE[what]} of the log ({some(keys.values.slice(0, 3))}). Is it the right table?"
        )
    twice = np.flatnonzero(np.bincount(rows[known]) > 1)
    if len(twice):
        shown = some(keys.take(twice[:6]))
        raise DataError(f"read: the {what} table repeats keys ({shown}). Keep one row per {what}.")
    place = np.full(len(keys), -1, np.int64)
    place[rows[known]] = known
    return place


def _key_column(loader: Source, what: str, column: Column) -> str:
    """The key column of a table of items or of users: named as in the log, or usual."""
    usual = [n for n in loader.names if n == column] + _usual(loader.names, what)
    usual += [name for name in loader.names if _simple(name) in ("id", "key")]
    if not usual:
        raise DataError(
            f"read: the {what} table {loader.label} has no {what} column among "
            f"{some(loader.names, 12)}. Call its key column {what!r}, or as in the log."
        )
    return usual[0]
