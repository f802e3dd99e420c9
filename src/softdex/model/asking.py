"""Ask about users: keys and histories become rows, and rows become queries.

A stranger is a user of whom the encoder has learned nothing. Shapes: B users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from softdex.data.arrow import flattened
from softdex.data.expect import expect
from softdex.data.holdout import Holdout
from softdex.data.keys import Keys, as_list, find, sound
from softdex.data.ragged import Ragged, empty, offsets
from softdex.encode.contract import Encoder
from softdex.errors import DataError, SoftdexError, choose, in_number

if TYPE_CHECKING:
    from softdex.model.parts import Known
    from softdex.model.retriever import Retriever

BATCH = 1024  # users per search, at most
Ask = Callable[["Retriever", str, Any, Any], "Asked"]  # `who`, or one that knows more of users


class Asked(NamedTuple):
    """Users asked about.

    Attributes:
        names: keys as given (B,), or 0, 1, ... for histories alone.
        rows: rows of the training log (B,), -1 for strangers.
        history: item rows per user, oldest first.
        strangers: who gets the most popular items instead, (B,).
        places: place of each user in the request (B,).
        given: number of users in the request, skipped ones included.
        named: whether names are keys of users.
    """

    names: pa.Array
    rows: np.ndarray
    history: Ragged
    strangers: np.ndarray
    places: np.ndarray
    given: int
    named: bool = True

    def only(self, place: int) -> Asked:
        """Return the user in a place of the request, or nobody if that one was skipped."""
        return self.take(np.flatnonzero(self.places == place))._replace(given=1)

    def shard(self, i: int, n: int) -> Asked:
        """Return shard i of n: the next n-th of the users, in their order."""
        count = len(self.rows)
        return self.take(np.arange(i * count // n, (i + 1) * count // n))

    def take(self, part: np.ndarray) -> Asked:
        """Return some of the users, who keep their places in the request."""
        return Asked(
            self.names.take(pa.array(part)), self.rows[part], self.history.take(part),
            self.strangers[part], self.places[part], self.given, self.named,
        )  # fmt: skip


def who(model: Retriever, where: str, users: Any, history: Any, unknown: str = "error") -> Asked:
    """Find users by key, by history, or both; see `Retriever.recommend`."""
    _check_rule(where, unknown)
    if users is None and history is None:
        raise SoftdexError(f"{where}: expected users, or history=[[item, ...], ...].")
    if history is None:
        asked = _by_key(model, where, as_list(users), unknown)
    else:
        asked = _by_history(model, where, users, history, unknown)
    if unknown != "popular":
        return asked
    return asked._replace(strangers=asked.strangers | (asked.history.lengths == 0))


def everybody(model: Retriever, where: str, unknown: str = "error") -> Asked:
    """Ask about every user of a model."""
    _check_rule(where, unknown)
    return _in_training(model, where, np.arange(len(model.users)), model.users.all(), unknown)


def trained(
    encoder: Encoder, seen: Ragged, rows: np.ndarray, *, by_features: bool = False
) -> np.ndarray:
    """Return whether the encoder has learned something of each row (B,): it takes events, or
    features of users."""
    if encoder.answers_strangers or by_features:
        return rows >= 0
    return events(seen, rows) > 0


def events(seen: Ragged, rows: np.ndarray) -> np.ndarray:
    """Return the number of training events per row (B,), 0 for row -1."""
    counts = seen.indptr[np.maximum(rows, 0) + 1] - seen.indptr[np.maximum(rows, 0)]
    return np.where(rows >= 0, counts, 0)


def check(
    where: str,
    known: Known | Retriever,
    holdout: Any,
    encoder: Encoder,
    recipe: str,
    *,
    by_features: bool = False,
) -> None:
    """Refuse what is no holdout, is of another log, or has users that cannot be served."""
    expect(Holdout, where, holdout)
    if (holdout.user_keys, holdout.item_keys) != (known.users, known.items):
        raise DataError(
            f"{where}: the holdout is of another log (its users or items differ from the "
            "model's). Use the split that the model was trained on."
        )
    served = trained(encoder, known.seen, holdout.users, by_features=by_features)
    strangers = ~served & (holdout.targets.lengths > 0)
    if strangers.any() and not encoder.reads_history:
        raise DataError(
            f"{where}: {int(strangers.sum()):,} users of the holdout have no event in training, "
            f"and {recipe} keeps one vector per user. Train with encoder='history', or use a split "
            "that divides each user's events."
        )


def query(
    encoder: Encoder,
    seen: Ragged,
    users: np.ndarray,
    history: Ragged,
    *,
    by_features: bool = False,
) -> Any:
    """Return the queries of B users.

    An encoder that reads histories gets -1 for users without events in training: their own vectors
    were never trained, unless they are made from features.
    """
    users = rows_read(encoder, seen, users, by_features=by_features)
    with torch.inference_mode():
        return encoder(users, history)


def rows_read(
    encoder: Encoder, seen: Ragged, users: np.ndarray, *, by_features: bool = False
) -> np.ndarray:
    """Return the rows (B,) that the encoder gets: -1 where a history stands for the user."""
    if encoder.reads_history and not by_features:
        return np.where(events(seen, users) > 0, users, -1)
    return users


def queries(
    model: Retriever, users: np.ndarray, history: Ragged, size: int
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield queries of up to `size` users at a time, with the places (b,) of these users."""
    for part in blocks(len(users), size):
        yield part, query_of(model, users[part], history.take(part))


def query_of(model: Retriever, users: np.ndarray, history: Ragged) -> Any:
    """Return the queries of B users of a model."""
    by_features = _by_features(model)
    return query(model.encoder, model.seen, users, history, by_features=by_features)


def batch_size(encoder: Encoder, max_memory: int, k: int, more: int = 0) -> int:
    """Return how many users to search at a time: queries and hits, with copies, fit the memory.

    Args:
        encoder: makes the queries.
        max_memory: bytes held at a time.
        k: length of a list.
        more: further bytes per user.
    """
    return int(np.clip(max_memory // (2 * encoder.query_bytes + 32 * k + more), 1, BATCH))


def blocks(n: int, size: int) -> list[np.ndarray]:
    """Divide the numbers from 0 to n - 1 into blocks of up to `size`; at least one block."""
    return [np.arange(start, min(start + size, n)) for start in range(0, max(n, 1), size)]


def is_list(cell: Any) -> bool:
    """Return whether a value is a list of keys, not a key."""
    return isinstance(cell, Iterable) and not isinstance(cell, (str, bytes, Mapping))


def whole(where: str, k: Any, most: float = math.inf) -> int:
    """Return k as an int; refuse what is no length of a list."""
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
        raise SoftdexError(f"{where}: expected k as a whole number of at least 1, got {k!r}.")
    if int(k) > most:
        raise SoftdexError(f"{where}: expected k of at most {most:,}, got {int(k):,}.")
    return int(k)


def shard_of(where: str, shard: Any) -> tuple[int, int]:
    """Return i and n of a shard; refuse what is none."""
    whole = isinstance(shard, (tuple, list)) and all(type(x) is int for x in shard)
    if not whole or len(shard) != 2 or not 0 <= shard[0] < shard[1]:
        raise SoftdexError(
            f"{where}: expected a shard i of n as (i, n), with i from 0 to n - 1, got {shard!r}."
        )
    return shard[0], shard[1]


def histories_of(
    items: Keys, where: str, history: Any, unknown: str, name: str = "history"
) -> Ragged:
    """Find the item rows of each list; unknown items are an error, or dropped.

    `name` is the argument or column that holds the lists, named in errors.
    """
    what = f"items in {name}"
    lists = sound(as_list(history), where, what)
    found = flattened(lists)
    if found is None:
        if not all(map(is_list, lists)):
            raise SoftdexError(f"{where}: expected {name}=[[item, ...], ...], one list per user.")
        lists = [list(sound(h, where, what)) for h in lists]
        found = [item for h in lists for item in h], np.array([len(h) for h in lists], np.int64)
    flat, lengths = found
    if not len(flat):
        return empty(len(lengths))
    rows = find(items, flat, where, what, known=unknown == "error")
    return Ragged(offsets(lengths), rows).where(rows >= 0)


# inside ------------------------------------------------------------------------------------------


def _by_features(model: Retriever) -> bool:
    return model.user_tower is not None


def _by_key(model: Retriever, where: str, keys: Any, unknown: str) -> Asked:
    """Find users by key; their histories are their training events."""
    rows = find(model.users, keys, where, "users", known=unknown == "error")
    return _in_training(model, where, rows, keys, unknown)


def _check_rule(where: str, unknown: str) -> None:
    choose(where, "rule for unknown users", unknown, ("error", "popular", "skip"))


def _in_training(model: Retriever, where: str, rows: np.ndarray, keys: Any, unknown: str) -> Asked:
    """Ask about the users in these rows of the training log, -1 for unknown ones."""
    known = trained(model.encoder, model.seen, rows, by_features=_by_features(model))
    rows = np.where(known, rows, -1)
    if unknown == "error" and not known.all():
        key = list(keys)[int(np.argmin(rows))]
        raise SoftdexError(
            f"{where}: user {key!r} has no event in training, and {model.recipe} cannot serve "
            "users without events. recommend() takes unknown='popular' or unknown='skip'."
        )
    given, places = len(rows), np.arange(len(rows))
    if unknown == "skip":
        places = np.flatnonzero(rows >= 0)
        rows = rows[places]
    if (rows >= 0).all():
        history = model.seen.take(rows)
        return Asked(model.users.take(rows), rows, history, rows < 0, places, given)
    seen = model.seen
    or_nothing = Ragged(np.append(seen.indptr, seen.indptr[-1]), seen.ids)  # of the row -1
    names = _names(model.users, keys)
    return Asked(names, rows, or_nothing.take(rows), rows < 0, places, given)


def _by_history(model: Retriever, where: str, users: Any, history: Any, unknown: str) -> Asked:
    """Take histories as given; keys of users need not be known."""
    encoder = model.encoder
    if not encoder.reads_history:
        raise SoftdexError(
            f"{where}: {model.recipe} keeps one vector per user and cannot read a history. Train "
            "with encoder='history' or encoder='mix'."
        )
    past = histories_of(model.items, where, history, unknown)
    if unknown == "error" and not encoder.answers_strangers and not past.lengths.all():
        place = int(np.argmin(past.lengths))
        raise SoftdexError(
            f"{where}: history {place} is empty, and {model.recipe} cannot serve users without "
            "events. recommend() takes unknown='popular'."
        )
    nobody, places, given = np.zeros(len(past), bool), np.arange(len(past)), len(past)
    if users is None:
        names, rows = pa.array(places), np.full(given, -1)
        return Asked(names, rows, past, nobody, places, given, named=False)
    keys = as_list(users)
    rows = find(model.users, keys, where, "users", known=False)
    if len(past) != len(rows):
        raise SoftdexError(
            f"{where}: expected one history per user, got {len(past):,} for "
            f"{len(rows):,} {in_number(len(rows), 'users')}."
        )
    if encoder.history_first:
        rows = np.full(len(rows), -1)
    return Asked(_names(model.users, keys), rows, past, nobody, places, given)


def _names(known: Keys, keys: Any) -> pa.Array:
    """Return keys as given, in the type of the known ones if they fit it, else as text."""
    if isinstance(keys, pa.Array) and keys.type == known.type:
        return keys
    cells = keys.to_pylist() if isinstance(keys, (pa.Array, pa.ChunkedArray)) else list(keys)
    try:
        return Keys(pa.array(cells).cast(known.values.type), known.type).all()
    except (pa.ArrowException, OverflowError):
        return pa.array([str(cell) for cell in cells])
