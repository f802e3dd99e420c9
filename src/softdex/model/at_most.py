"""At most n items per group in a list: the best list of those that keep the limits, greedily.

A list takes items by falling score and passes over an item one of whose groups is full. Rounds of
searches find it: each excludes the items of full groups and what was found before, until k items
are taken or none is left. With an exact index the list is exactly the greedy one; with another,
every round finds what that index finds.

Shapes: B users, K hits per user, I items, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.data.arrow import combined, unwrapped
from softdex.data.ragged import Ragged, group, offsets
from softdex.errors import SoftdexError, did_you_mean
from softdex.index.contract import Filter, Hits

AHEAD = 2  # hits per round, in lengths of the list

Search = Callable[[np.ndarray, int, Filter], Hits]
"""Returns the best k items per user, given as places (B,), under a filter of these users."""


class Groups(NamedTuple):
    """Groups of items, of one or more columns.

    Attributes:
        of: groups per item, each once; one more row, empty, for no item.
        items: items per group.
        most: items of each group in a list (G,).
    """

    of: Ragged
    items: Ragged
    most: np.ndarray


def groups(table: pa.Table | None, at_most: Any, method: str) -> Groups | None:
    """Read `at_most`: the values of each column named are groups; a null belongs to none."""
    if at_most is None:
        return None
    if not isinstance(at_most, Mapping):
        raise SoftdexError(f"{method}: expected at_most={{column: number, ...}}, got {at_most!r}.")
    if not at_most:
        return None
    if table is None:
        raise SoftdexError(f"{method}: at_most= needs item columns. Read the log with items=table.")
    items, codes, most = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for name, limit in at_most.items():
        if name not in table.column_names:
            known = did_you_mean(name, table.column_names)
            raise SoftdexError(f"{method}: no item column {name!r}. {known}")
        if isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1:
            raise SoftdexError(
                f"{method}: expected at_most={{{name!r}: n}} with a whole number of at least 1, "
                f"got {limit!r}."
            )
        rows, values = _values(table[name])
        items.append(rows)
        codes.append(values + sum(map(len, most)))
        most.append(np.full(int(values.max(initial=-1)) + 1, limit))
    item, code, limits = map(np.concatenate, (items, codes, most))
    pairs = np.unique(np.stack([item, code], 1), axis=0)
    of = group(pairs[:, 0], pairs[:, 1], table.num_rows + 1)
    return Groups(of, group(pairs[:, 1], pairs[:, 0], len(limits)), limits)


def best(search: Search, users: int, k: int, filter: Filter, limits: Groups | None) -> Hits:
    """Return the top k items per user that keep the limits, by falling score, ties by item id.

    Args:
        search: finds items of some of the users.
        users: number of users B.
        k: items per user.
        filter: what may come back, per user.
        limits: None: no limits.
    """
    rows = np.arange(users)
    if limits is None:
        return search(rows, k, filter)
    ids, scores = np.full((users, k), -1), np.full((users, k), -np.inf, np.float32)
    found = Hits(torch.empty(users, 0, dtype=torch.int64), torch.empty(users, 0))
    while len(rows):
        new = search(rows, AHEAD * k, filter)
        found = _sorted(found, new)
        taken, full = _taken(found.ids.numpy(), k, limits)
        user, place = np.nonzero(taken)
        rank = np.arange(len(user)) - offsets(taken.sum(1))[user]
        for whole, part, none in ((ids, found.ids, -1), (scores, found.scores, -np.inf)):
            whole[rows] = none
            whole[rows[user], rank] = part.numpy()[user, place]
        more = (taken.sum(1) < k) & (new.ids[:, -1] >= 0).cpu().numpy()
        filter = _closed(filter, found.ids.numpy(), full, limits, np.flatnonzero(more))
        found = Hits(*(part[torch.from_numpy(more)] for part in found))
        rows = rows[more]
    return Hits(torch.from_numpy(ids), torch.from_numpy(scores))


# inside ------------------------------------------------------------------------------------------


def _values(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the code of each value of a column; a list holds several values."""
    flat = combined(unwrapped(column))
    rows = np.arange(len(flat))
    if pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type):
        rows = pc.list_parent_indices(flat).to_numpy()
        flat = flat.flatten()
    codes = pc.fill_null(flat.dictionary_encode().indices, -1).to_numpy()
    return rows[codes >= 0].astype(np.int64), codes[codes >= 0].astype(np.int64)


def _sorted(old: Hits, new: Hits) -> Hits:
    """Join two lists per user by falling score, ties by item id."""
    ids = np.concatenate([old.ids.numpy(), new.ids.cpu().numpy()], 1)
    scores = np.concatenate([old.scores.numpy(), new.scores.float().cpu().numpy()], 1)
    scores = np.where(ids >= 0, scores, -np.inf)
    order = np.lexsort((ids, -scores), axis=1)
    return Hits(*(torch.from_numpy(np.take_along_axis(x, order, 1)) for x in (ids, scores)))


def _taken(ids: np.ndarray, k: int, limits: Groups) -> tuple[np.ndarray, tuple[Any, Any]]:
    """Walk the hits (B, K) of all users from the best: return which are taken (B, K), and the users
    and groups of the groups that are full then."""
    users, width = ids.shape
    each = limits.of.take(np.where(ids >= 0, ids, len(limits.of) - 1).ravel())
    user, place = np.divmod(each.row_of, max(width, 1))
    pairs, pair = np.unique(user * len(limits.most) + each.ids, return_inverse=True)
    of, code = np.divmod(pairs, max(len(limits.most), 1))
    left, order = limits.most[code], np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(width + 1))
    taken, room = ids >= 0, np.full(users, k)
    for j in range(width):
        here = order[edges[j] : edges[j + 1]]
        taken[:, j] &= room > 0
        taken[user[here[left[pair[here]] < 1]], j] = False
        room -= taken[:, j]
        left[pair[here[taken[user[here], j]]]] -= 1
    return taken, (of[left < 1], code[left < 1])


def _closed(
    filter: Filter, found: np.ndarray, full: tuple[Any, Any], limits: Groups, rows: np.ndarray
) -> Filter:
    """Return the filter of these users without what was found and without items of full groups."""
    filter, items = filter.take(rows), len(limits.of) - 1
    allow = torch.ones(items, dtype=torch.bool) if filter.allow is None else filter.allow.cpu()
    allow = allow.expand(len(rows), -1).clone()
    place = np.full(len(found), -1)
    place[rows] = np.arange(len(rows))
    user, at = np.nonzero(found[rows] >= 0)
    allow[user, found[rows][user, at]] = False
    mine = place[full[0]] >= 0
    shut = limits.items.take(full[1][mine])
    allow[place[full[0][mine]][shut.row_of], shut.ids.astype(np.int64)] = False
    return Filter(filter.exclude, allow)
