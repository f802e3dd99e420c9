"""Rules of a request: which items may come back, for all users or per user.

Shapes: B users asked about, I items.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from softdex.data.arrow import NOT_CONVERTIBLE
from softdex.data.keys import as_list, find, sound
from softdex.data.memory import collected
from softdex.data.ragged import Ragged, group, offsets
from softdex.data.roles import find_key_column
from softdex.data.sources import open_source
from softdex.errors import DataError, SoftdexError, first_few, in_number
from softdex.messages import say
from softdex.model.asking import Asked, is_list
from softdex.model.key_files import items_of

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever


class Rules(NamedTuple):
    """Which items may be recommended, as the caller says it; see `Retriever.recommend`."""

    allow: Any = None
    deny: Any = None
    where: Any = None
    at_most: Any = None
    exclude_seen: bool = True


class Listed(NamedTuple):
    """Item rows per user; `users` are keys, or None for the users asked about in their order."""

    users: Any
    items: Ragged


def rows_of(
    model: Retriever, method: str, name: str, given: Any, asked: Asked | None
) -> np.ndarray | Ragged:
    """Return the item rows of `allow` or `deny`: for all users (N,), or per user asked about.

    Args:
        model: knows users and items.
        method, name: the method called and its argument, named in errors.
        given: item keys; or per user: a mapping, a table of users and items, or a list of lists.
        asked: the users asked about; None where there are none, as in `similar`.
    """
    read = _read(model, method, name, given)
    if isinstance(read, np.ndarray):
        return read
    if asked is None:
        raise SoftdexError(
            f"{method}: expected {name} as item keys, the same for all, not per user."
        )
    if read.users is not None:
        return _by_key(model, method, name, read, asked)
    if len(read.items) != asked.given:
        raise SoftdexError(
            f"{method}: expected one list per user in {name}, got {len(read.items):,} lists for "
            f"{asked.given:,} {in_number(asked.given, 'users')}."
        )
    return read.items.take(asked.places)


# inside ------------------------------------------------------------------------------------------


def _read(model: Retriever, method: str, name: str, given: Any) -> np.ndarray | Listed:
    if isinstance(given, Mapping):
        return Listed(list(given), _lists(model, method, name, map(as_list, given.values())))
    table = _table(given)
    if table is not None:
        given = _items_of(table, method, name)
    if isinstance(given, pa.Table):
        return Listed(given["user"], _one_each(_rows(model, method, name, given["item"])))
    cells = sound(as_list(given), method, f"items in {name}")
    if not isinstance(given, (Iterable, pa.Scalar)) and not _is_value(given):
        raise SoftdexError(f"{_expected(method, name)}; got {type(given).__name__}.")
    single = isinstance(cells, np.ndarray) and not cells.ndim
    nested = [] if single else [is_list(cell) for cell in cells]
    if not any(nested):
        rows = _rows(model, method, name, cells)
        return rows[rows >= 0]
    if all(nested):
        _refuse_index(given, method, name)
        return Listed(None, _lists(model, method, name, cells))
    raise SoftdexError(f"{_expected(method, name)}; got keys beside lists.")


def _expected(method: str, name: str) -> str:
    return (
        f"{method}: expected {name} as item keys, or per user as {{user: [item, ...]}}, as a table "
        "of users and items or as one list per user"
    )


def _is_value(given: Any) -> bool:
    """Whether Arrow holds it in a column, which no function, log or path is."""
    try:
        pa.array([given])
    except NOT_CONVERTIBLE:
        return False
    return True


def _by_key(model: Retriever, method: str, name: str, read: Listed, asked: Asked) -> Ragged:
    """Return the items listed for each user asked about, by key; none for users not listed."""
    what, others = f"users in {name}", dict[str, int]()
    of = _codes(model, method, what, read.users, others, known=asked.named)
    wanted = _codes(model, method, "users", asked.names, others, known=asked.named)
    if len(of) and of.min() >= len(model.users) and not np.isin(of, wanted).any():
        find(model.users, read.users, method, what)  # raises: it knows none of them
    codes, of = np.unique(np.append(wanted, of), return_inverse=True)
    of, wanted = of[len(wanted) :], of[: len(wanted)]
    return group(of[read.items.row_of], read.items.ids, len(codes)).take(wanted)


def _codes(
    model: Retriever, method: str, what: str, keys: Any, others: dict[str, int], *, known: bool
) -> np.ndarray:
    """Return the row of each key, or a number from the number of users on for other keys."""
    rows = find(model.users, keys, method, what, known=False)
    cells = keys.to_pylist() if isinstance(keys, (pa.Array, pa.ChunkedArray)) else keys
    for i in np.flatnonzero(rows < 0) if known else range(len(rows)):
        rows[i] = len(model.users) + others.setdefault(str(cells[i]), len(others))
    return rows


def _lists(model: Retriever, method: str, name: str, lists: Iterable[Any]) -> Ragged:
    lists = [list(sound(each, method, f"items in {name}")) for each in lists]
    rows = _rows(model, method, name, [item for each in lists for item in each])
    return Ragged(offsets(np.array(list(map(len, lists)), np.int64)), rows).where(rows >= 0)


def _one_each(rows: np.ndarray) -> Ragged:
    return Ragged(np.arange(len(rows) + 1), rows).where(rows >= 0)


def _rows(model: Retriever, method: str, name: str, items: Any) -> np.ndarray:
    """Return the row of each item, -1 for unknown ones: they cannot be recommended anyway.

    An `allow` of unknown items only is refused: it holds something else than item keys.
    """
    what = f"items in {name}"
    rows = find(model.items, items, method, what, known=False).astype(np.int32)
    unknown = np.flatnonzero(rows < 0)
    if not len(unknown):
        return rows
    if name == "allow" and len(unknown) == len(rows):
        find(model.items, items, method, what)  # raises: it knows none of them
    cells = items.to_pylist() if isinstance(items, (pa.Array, pa.ChunkedArray)) else list(items)
    each = dict.fromkeys(repr(cells[i]) for i in unknown)
    words = f"{len(each):,} unknown {in_number(len(each), what)}"
    say(f"{method}: {words} ignored ({first_few(each)})", logging.WARNING)
    return rows


def _table(given: Any) -> pa.Table | None:
    """Return a table that was given as pandas, polars, DuckDB or Arrow has it; None if it is no
    table."""
    if isinstance(given, (list, tuple)):
        return None
    try:
        return pa.table(collected(given))
    except (*NOT_CONVERTIBLE, ValueError):
        return None


def _items_of(table: pa.Table, method: str, name: str) -> pa.ChunkedArray | pa.Table:
    source = open_source(table, None, "utf-8")
    try:
        find_key_column(source, "item", None)
    except DataError:
        raise DataError(
            f"{method}: expected {name} as a table with a column of items, and one of users if it "
            f"is per user, got the columns {first_few(table.column_names)}. Rename them user and "
            "item."
        ) from None
    return items_of(source)


def _refuse_index(lists: Any, method: str, name: str) -> None:
    """Refuse a pandas Series of lists with an index of its own, which may hold the users."""
    index = getattr(lists, "index", None)
    if index is None or callable(index) or type(index).__name__ == "RangeIndex":
        return
    raise SoftdexError(
        f"{method}: {name} is a Series of lists with an index of its own. Pass {name}.to_dict() if "
        f"the index holds the users, {name}.tolist() if the lists are in the order of the users."
    )
