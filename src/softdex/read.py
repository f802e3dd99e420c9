"""Read a log from a file, a table or a matrix, and say what was understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from softdex import delimited
from softdex.errors import DataError, choose, nearest, some
from softdex.interactions import Interactions
from softdex.keys import encode, range_keys
from softdex.sources import Source, concatenate, open_source
from softdex.tables import say

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
        keep: further columns to carry along. Boolean columns and columns called test, split or
            fold always are.
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
    wanted = {"user": user, "item": item, "time": time, "rating": rating, "weight": weight}
    if sp.issparse(source):
        log, found = _from_matrix(source), "a sparse matrix (rows are users, columns are items)"
    else:
        log, found = _from_columns(open_source(source, separator, encoding), wanted, keep, bad_rows)
    log = log.deduplicate(duplicates)
    if items is not None:
        log, note = _attach(log, open_source(items, separator, encoding))
        found += f"; {note}"
    size = f"{len(log):,} rows, {log.num_users:,} users, {log.num_items:,} items"
    say(f"read {found} -> {size}", quiet=quiet)
    return log


def _simple(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _find_columns(
    loader: Source, wanted: Mapping[str, Column], required: tuple[str, ...] = ("user", "item")
) -> tuple[dict[str, list[str]], list[str]]:
    """The candidate columns of each role, best first."""
    by_name: dict[str, list[str]] = {}
    for name in loader.names:
        by_name.setdefault(_simple(name), []).append(name)
    roles: dict[str, list[str]] = {}
    notes: list[str] = []
    headerless = bool(loader.text) and not loader.text[0].has_header
    guess = _guess_by_place(loader.text[0]) if headerless else {}
    for role, given in wanted.items():
        if given is False:
            continue
        if given is not None:
            roles[role] = [_named(loader, role, given)]
        elif guess:
            if role in guess:
                roles[role] = [guess[role]]
        else:
            roles[role] = [c for alias in NAMES[role].split() for c in by_name.get(alias, [])]
            twins = [c for c in roles[role] if _simple(c) == _simple(roles[role][0])]
            if len(twins) > 1:
                raise DataError(
                    f"read: columns {some(twins)} could each be the {role}. Say {role}=..."
                )
    if guess and any(wanted[role] is None for role in guess if role in wanted):
        notes.append("(no header: columns guessed by place)")
    missing = [r for r in required if not roles.get(r)]
    if missing:
        raise DataError(_missing(loader, missing, headerless))
    return {role: names for role, names in roles.items() if names}, notes


def _missing(loader: Source, missing: list[str], headerless: bool) -> str:
    what = " and no ".join(f"{r} column" for r in missing)
    text = f"read: {loader.label} has no {what} among {some(loader.names, 12)}. "
    if headerless:
        return (
            text + "It has no header: give column numbers, e.g. read(path, user=0, item=1, time=3)."
        )
    fix = ", ".join(f"{r}='...'" for r in missing)
    if missing == ["user"]:
        return (
            text + "If this is an item table, attach it to a log: read(log, items=this). "
            f"If it is a log, name the column: read(path, {fix})."
        )
    return text + f"Name it: read(path, {fix})."


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
    for name in keep:
        if name not in loader.names:
            raise DataError(f"read: no column {name!r} to keep. {nearest(name, loader.names)}")
    roles, notes = _find_columns(loader, wanted)
    taken = {name for names in roles.values() for name in names}
    flags = [n for n in loader.names if n in keep or (_simple(n) in FLAGS and n not in taken)]
    columns = list(dict.fromkeys([*(n for names in roles.values() for n in names), *flags]))
    ids = [roles["user"][0], roles["item"][0]]
    try:
        table = loader.load(columns, ids)
    except pa.ArrowInvalid as error:
        chosen = {role: names[0] for role, names in roles.items()}
        table = _without_bad_lines(loader, chosen, columns, bad_rows, notes, str(error))
    else:
        chosen = _choose_complete(table, roles, wanted, notes)
        bad = _bad_rows(table, chosen)
        if bad and loader.text:
            table = _without_bad_lines(loader, chosen, columns, bad_rows, notes, "")
        elif bad:
            table = _without_bad_rows(table, bad, loader.label, bad_rows, notes)
    if table.num_rows == 0:
        raise DataError(f"read: {loader.label} has columns {some(loader.names)} and no rows.")
    users, user = encode(table[chosen["user"]], "user")
    items, item = encode(table[chosen["item"]], "item")
    numbers = {
        r: _numbers(table[chosen[r]], r) for r in ("time", "rating", "weight") if r in chosen
    }
    extra = {n: table[n].to_numpy() for n in flags}
    found = " ".join([f"{loader.label}:", *(f"{r}={c}" for r, c in chosen.items()), *notes])
    log = Interactions(users, items, user, item, extra=extra, **numbers)  # type: ignore[arg-type]
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
        nulls = {name: _is_null(table[name]).true_count for name in names}
        complete = [name for name in names if not nulls[name]]
        skipped = names[: names.index(complete[0])] if complete else names
        if not skipped or wanted[role] is not None or (role == "time" and not complete):
            continue
        notes += [f"({name} left out: {nulls[name]:,} nulls)" for name in skipped]
        del chosen[role]
        if complete:
            chosen[role] = complete[0]
    return chosen


def _is_null(column: pa.ChunkedArray) -> pa.Array:
    """Null or NaN."""
    mask = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
    return mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask


def _bad_rows(table: pa.Table, chosen: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Masks of the rows that cannot be used, by what is wrong with them."""
    bad: dict[str, np.ndarray] = {}
    for role, name in chosen.items():
        null = _is_null(table[name])
        if null.true_count:
            bad[f"no value in column {name!r}"] = null.to_numpy(zero_copy_only=False)
        if role in ("user", "item"):
            continue
        wrong = ~np.isfinite(_numbers(table[name], role, strict=False)) & ~null.to_numpy(
            zero_copy_only=False
        )
        if wrong.any():
            example = table[name][int(np.argmax(wrong))]
            bad[f"column {name!r} is not a number or a date (e.g. {str(example)[:30]!r})"] = wrong
        if role == "weight":
            negative = _numbers(table[name], role, strict=False) < 0
            if negative.any():
                bad[f"negative weight in column {name!r}"] = negative
    return bad


NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def _numbers(column: pa.ChunkedArray, role: str, *, strict: bool = True) -> np.ndarray:
    """A column as numbers: times as int64 or float64 (dates in microseconds), others float32.

    With `strict=False` what is not a number becomes NaN.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(
            pa.int64()
        )
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            good = pc.match_substring_regex(column, NUMBER)
            column = pc.if_else(good, column, None).cast(pa.float64())
    elif not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        try:
            column = column.cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(f"read: the {role} column has type {kind}. Expected numbers.") from None
    if not strict and column.null_count:
        column = column.cast(pa.float64())
    values = column.to_numpy()
    if role != "time":
        return values.astype(np.float32)
    return values.astype(np.int64) if values.dtype.kind in "iu" else values.astype(np.float64)


def _without_bad_rows(
    table: pa.Table, bad: dict[str, np.ndarray], label: str, bad_rows: str, notes: list[str]
) -> pa.Table:
    places = {problem: np.flatnonzero(mask).tolist() for problem, mask in bad.items()}
    text = delimited.explain(places, unit="row")
    if bad_rows == "error":
        raise DataError(f"read: {label}: {text} {FIX}")
    drop = np.logical_or.reduce(list(bad.values()))
    notes.append(f"(dropped {int(drop.sum()):,} bad rows: {text})")
    return table.filter(pa.array(~drop))


FIX = "Mend the source, or leave such rows out with bad_rows='drop'."


def _without_bad_lines(
    loader: Source,
    chosen: Mapping[str, str],
    columns: list[str],
    bad_rows: str,
    notes: list[str],
    reason: str,
) -> pa.Table:
    """Find the bad lines of text files by a slow second pass: refuse them, or read around them."""
    numeric = {chosen[r]: r for r in ("time", "rating", "weight") if r in chosen}
    used, ids = list(chosen.values()), [chosen["user"], chosen["item"]]
    tables = []
    for shape in loader.text:
        if bad_rows == "error":
            problems = delimited.bad_lines(shape, used, numeric)
            if problems:
                text = delimited.explain(problems)
                raise DataError(f"read: {shape.path}: {text} {FIX}")
            continue
        table, problems = delimited.load_good_lines(shape, used, columns, ids, numeric)
        tables.append(table)
        dropped = sum(map(len, problems.values()))
        notes.append(
            f"(dropped {dropped:,} bad lines of {shape.path}: {delimited.explain(problems)})"
        )
    if not tables:
        raise DataError(f"read: {loader.label} does not parse ({reason}). Is the separator right?")
    return concatenate(tables)


def _from_matrix(matrix: Any) -> Interactions:
    """A sparse matrix keeps its shape: empty rows are users, empty columns are items."""
    coo = matrix.tocoo()
    stored = coo.data != 0
    data = np.asarray(coo.data[stored], dtype=np.float32)
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


def _attach(log: Interactions, loader: Source) -> tuple[Interactions, str]:
    """Put an item table beside the log, one row per item key."""
    roles, _ = _find_columns(loader, {"item": None}, required=("item",))
    key = roles["item"][0]
    try:
        table = loader.load(loader.names, [key])
    except pa.ArrowInvalid as error:
        raise DataError(f"read: the item table {loader.label} does not parse ({error}).") from None
    if table[key].null_count:
        raise DataError(f"read: the item table has {table[key].null_count:,} rows without a key.")
    rows = log.items.lookup(table[key])
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        raise DataError(
            f"read: no key of the item table's column {key!r} ({some(table[key].slice(0, 3))}) is "
            f"an item of the log ({some(log.items.values.slice(0, 3))}). Is it the right table?"
        )
    place = np.full(log.num_items, -1, np.int64)
    place[rows[known]] = known
    if (np.bincount(rows[known]) > 1).any():
        twice = np.flatnonzero(np.bincount(rows[known]) > 1)[:5]
        raise DataError(f"read: the item table repeats keys ({some(log.items.take(twice))}).")
    aligned = table.take(pa.array(place, mask=place < 0)).drop_columns([key]).combine_chunks()
    without, spare = int((place < 0).sum()), table.num_rows - len(known)
    note = f"items from {loader.label} ({some(aligned.column_names, 8)})"
    if without:
        note += f", {without:,} items not in it"
    if spare:
        note += f", {spare:,} of its rows have no interaction and are left out"
    return replace(log, item_table=aligned), note
