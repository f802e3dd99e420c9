"""Roles: which column of a source holds the user, the item, the time, the rating, the weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from softdex.data.numbers import is_time
from softdex.data.sources import Source, with_layouts
from softdex.errors import DataError, did_you_mean, first_few

USUAL_NAMES = {  # in lower case, without punctuation; the most usual first
    "user": "user userid uid users session sessionid customer customerid member memberid visitor "
    "visitorid reviewerid account accountid source",
    "item": "item itemid iid items movie movieid product productid asin article articleid track "
    "trackid artist artistid song songid book bookid isbn sku video videoid news newsid poi "
    "location locationid business businessid target",
    "time": "time timestamp ts datetime date unixtime eventtime createdat unixreviewtime position",
    "rating": "rating ratings score stars overall",
    "weight": "weight count plays playcount confidence",
}
SPLIT_FLAGS = ("test", "istest", "split", "fold")
WITH_ARTICLE = {"user": "a user", "item": "an item"}
Column = str | int | Literal[False] | None
"""A column by name or number; False for no column; None to find it by its usual names."""


def find_columns(
    source: Source, wanted: Mapping[str, Column]
) -> tuple[dict[str, list[str]], list[str]]:
    """The candidate columns of each role, best first, and notes on what was guessed."""
    given = {r: _named(source, r, c) for r, c in wanted.items() if c is not None and c is not False}
    for role, name in given.items():
        if list(given.values()).count(name) > 1:
            raise DataError(f"read: column {name!r} has two roles, one is {role}. Name another.")
    headerless = any(not layout.has_header for layout in source.layouts[:1])
    guess = _guess_by_position(source) if headerless else {}
    roles = {role: [name] for role, name in given.items()}
    for role in (r for r, c in wanted.items() if c is None):
        found = [guess[role]] if role in guess else [] if guess else _usual(source.names, role)
        roles[role] = [name for name in found if name not in given.values()]
        twins = [n for n in roles[role] if _simplified(n) == _simplified(roles[role][0])]
        if len(twins) > 1:
            raise DataError(
                f"read: columns {first_few(twins)} could each be the {role}. Name one: {role}=..."
            )
    missing = [r for r in ("user", "item") if not roles.get(r)]
    if missing:
        raise DataError(_missing(source, missing, headerless))
    roles = {role: names for role, names in roles.items() if names}
    guessed = any(guess.get(r) and wanted[r] is None for r in wanted)
    notes = ["(no header: columns guessed by position)"] if guessed else []
    if wanted["time"] is None and "time" not in roles:
        taken = {name for names in roles.values() for name in names}
        found = _times(source, [name for name in source.names if name not in taken])
        if len(found) > 1:
            raise DataError(
                f"read: columns {first_few(found)} of {source.label} could each be the time. "
                "Name one: time=..., or none: time=False."
            )
        if found:
            roles["time"] = found
            notes.append(f"({found[0]} taken as the time by its type)")
    return roles, notes


def _times(source: Source, names: list[str]) -> list[str]:
    """Those of the columns that tell when, by what their first rows hold."""
    sample = source.sample(names)
    return [name for name in names if is_time(name, sample[name])]


def find_key_column(source: Source, what: str, column: Column) -> str:
    """The key column of an item or user table: named as in the log, or by a usual name."""
    found = [n for n in source.names if n == column] + _usual(source.names, what)
    found += [name for name in source.names if _simplified(name) in ("id", "key")]
    if not found:
        raise DataError(
            f"read: the {what} table {source.label} has no {what} column among "
            f"{first_few(source.names, 12)}. Name its key column {what!r}, or as in the log."
        )
    return found[0]


def find_flags(source: Source, keep: Sequence[str], taken: set[str]) -> list[str]:
    """The columns to carry along: those in `keep`, and split flags without another role."""
    for name in keep:
        if name not in source.names:
            raise DataError(f"read: no column {name!r} to keep. {did_you_mean(name, source.names)}")
    return [
        name
        for name in source.names
        if name in keep or (_simplified(name) in SPLIT_FLAGS and name not in taken)
    ]


def first_line_as_data(source: Source) -> Source:
    """Take the first line of a text source as data if it cannot be told to be a header.

    For columns given by number. A first line is a header if it holds a usual name, or if it holds
    no number and the lines below it do.
    """
    usual = any(_usual(source.names, role) for role in USUAL_NAMES)
    if not source.layouts or usual or source.layouts[0].has_numbers():
        return source
    return with_layouts(source, [layout.without_header() for layout in source.layouts])


def _simplified(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _usual(names: Sequence[str], role: str) -> list[str]:
    """The columns that bear a usual name of this role, the most usual first."""
    return [n for usual in USUAL_NAMES[role].split() for n in names if _simplified(n) == usual]


def _named(source: Source, role: str, given: str | int) -> str:
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise DataError(f"read: {role}={given!r}: expected a column name, a number, None or False.")
    if isinstance(given, int):
        if not 0 <= given < len(source.names):
            raise DataError(
                f"read: {role}={given}: the source has columns 0 to {len(source.names) - 1}."
            )
        return source.names[given]
    if given not in source.names:
        raise DataError(
            f"read: no column {given!r} for {role}. {did_you_mean(given, source.names)}"
        )
    return given


def _guess_by_position(source: Source) -> dict[str, str]:
    """Roles by position in a file without header: user, item, then a rating, a time or both.

    The time is the column that tells when, or the last one if it holds large numbers.
    """
    width = len(source.names)
    if not 2 <= width <= 4:
        return {}
    guess = {"user": "0", "item": "1"}
    if width == 2:
        return guess
    times = _times(source, source.names[2:])
    if not times:
        try:
            last = [float(row[-1]) for row in source.layouts[0].sample if len(row) == width]
        except ValueError:
            return {}
        times = source.names[-1:] if min(last) >= 1e8 else []
    if len(times) > 1:
        return {}
    if times:
        guess["time"] = times[0]
    if width == 4 or not times:
        guess["rating"] = next(name for name in source.names[2:] if name not in times)
    return guess


def _missing(source: Source, missing: list[str], headerless: bool) -> str:
    what = " and no ".join(f"{r} column" for r in missing)
    names = [n if n.isprintable() and len(n) < 40 else repr(n[:40]) for n in source.names]
    text = f"read: {source.label} has no {what} among {first_few(names, 12) or 'no columns'}. "
    if source.layouts and any("\ufffd" in name for name in names):
        text += f"Its first line is not {source.layouts[0].encoding}: is it a text table? "
    if headerless:
        return (
            text + "It has no header: give column numbers, e.g. read(path, user=0, item=1, time=3)."
        )
    fix = ", ".join(f"{r}='...'" for r in missing)
    if len(missing) == 1:
        other = "item" if missing == ["user"] else "user"
        return (
            f"{text}If this is {WITH_ARTICLE[other]} table, attach it to a log: read(log_path, "
            f"{other}s=path). If it is a log, name the column: read(path, {fix})."
        )
    text += f"Name them: read(path, {fix})."
    number = " If the first line is data, give column numbers: user=0, item=1."
    return text + (number if source.layouts else "")
