"""Shares: what each item of a history adds to the score of an item.

Where the query is a sum over the history and the score is linear in the query, shares are the
scores of the sum's terms. Elsewhere they are differences: the score minus that without the item.
Shapes: N distinct items of the history, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from softdex.data.keys import as_list, find
from softdex.data.ragged import Ragged, offsets
from softdex.encode.terms import SumsTerms
from softdex.errors import SoftdexError
from softdex.index.contract import MAX_MEMORY, Filter
from softdex.index.tree.trace import above, beams
from softdex.index.tree.tree import as_tree
from softdex.model.asking import Ask, Asked, batch_size, blocks, query_of, rows_read, who, whole
from softdex.model.explanation import Explanation
from softdex.model.filter import check_columns
from softdex.score.slope import slope_of

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

COLUMNS = ("of", "item", "share")
LIST = 10  # length of the list whose beam search is traced
CELLS = 2**22  # items of shortened histories held at a time


class Shares(NamedTuple):
    """A score in parts: `base`, the user's own share or None, the shares (N,) of items `ids`."""

    method: str
    exact: bool
    score: float
    base: float
    own: float | None
    ids: np.ndarray
    shares: np.ndarray


def explain(
    model: Retriever,
    user: Any,
    item: Any,
    history: Sequence[Any] | None,
    k: int | None,
    columns: Any,
    ask: Ask = who,
    most_cells: float = math.inf,
) -> Explanation:
    """Return the shares of a user's history in the score of an item; see `Retriever.explain`.

    `most_cells` limits the items of all shortened histories together: of a history so long that
    there would be more, the latest items have shares, at least one.
    """
    most = None if k is None else whole("explain", k)
    names = check_columns(model.item_table, columns, "explain", COLUMNS)
    at = _one_item(model, item)
    if user is not None and len(as_list(user)) != 1:
        raise SoftdexError(f"explain: expected one user, got {len(as_list(user))}.")
    past = None if history is None else [as_list(history)]
    asked = ask(model, "explain", None if user is None else as_list(user), past)
    found = _linear(model, asked, at) or _left_out(model, asked, at, most_cells)
    table, rest = _table(model, found, names, most)
    return Explanation(
        user=asked.names[0].as_py() if asked.named else None,
        item=model.items.take(np.array([at]))[0].as_py(),
        score=found.score, base=found.base, rest=rest, exact=found.exact, method=found.method,
        table=table, path=_path(model, asked, at),
    )  # fmt: skip


# inside ------------------------------------------------------------------------------------------


def _one_item(model: Retriever, item: Any) -> int:
    rows = find(model.items, as_list(item), "explain", "items")
    if len(rows) != 1:
        raise SoftdexError(f"explain: expected one item, got {len(rows)}.")
    if not bool(model.index.alive[int(rows[0])]):
        raise SoftdexError(
            f"explain: item {as_list(item)[0]!r} was removed and gets no score. Call restore_items "
            "first."
        )
    return int(rows[0])


def _linear(model: Retriever, asked: Asked, item: int) -> Shares | None:
    """Return exact shares, None where the score is no linear function of a sum over the history."""
    encoder: Any = model.encoder
    if not isinstance(encoder, SumsTerms):
        return None
    by_features = model.user_tower is not None
    row = int(rows_read(model.encoder, model.seen, asked.rows, by_features=by_features)[0])
    terms = encoder.summands(row, asked.history)
    own = np.zeros_like(terms.rest) if terms.own is None else terms.own
    query = np.asarray(terms.items.sum(0)).ravel() + own + terms.rest
    slope = slope_of(model.index.scorer, query, item)
    if slope is None:
        return None
    shares = np.asarray(terms.items @ slope.weights)
    mine = None if terms.own is None else float(own @ slope.weights)
    base = slope.offset + float(terms.rest @ slope.weights)
    score = base + float(shares.sum()) + (mine or 0.0)
    return Shares(terms.method, True, score, base, mine, np.asarray(terms.ids), shares)


def _left_out(model: Retriever, asked: Asked, item: int, most_cells: float) -> Shares:
    """Return differences: an item's share is the score minus that of the history without it."""
    past = asked.history.ids
    if not model.encoder.reads_history:
        score = float(_scores(model, asked, asked.history, item)[0])
        return Shares("own vector", True, score, 0.0, score, past[:0], np.zeros(0))
    latest = int(max(1.0, min(len(past), most_cells / max(1, len(past)))))
    ids = np.unique(past[-latest:])
    ends = _ragged([past, past[:0]])
    score, base = map(float, _scores(model, asked, ends, item))
    size = min(CELLS // max(1, len(past)) + 1, batch_size(model.encoder, MAX_MEMORY, 1))
    shares = [
        score - _scores(model, asked, _ragged([past[past != i] for i in part]), item)
        for part in (ids[rows] for rows in blocks(len(ids), size))
    ]
    return Shares("leave-one-out", False, score, base, None, ids, np.concatenate(shares))


def _ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """Return arrays of ids as the rows of a ragged array."""
    lengths = np.array(list(map(len, rows)), np.int64)
    return Ragged(offsets(lengths), np.concatenate([*rows, np.zeros(0, np.int32)]).astype(np.int32))


def _scores(model: Retriever, asked: Asked, histories: Ragged, item: int) -> np.ndarray:
    """Return the score of an item for one user with each of these histories."""
    if not len(histories):
        return np.zeros(0)
    query = query_of(model, np.repeat(asked.rows, len(histories)), histories)
    ids = torch.tensor([item], device=model.index.alive.device)
    with torch.inference_mode():
        return model.index.score(query, ids)[:, 0].double().cpu().numpy()


def _table(
    model: Retriever, found: Shares, names: list[str], most: int | None
) -> tuple[pa.Table, float]:
    """Return the largest shares as a table, and the sum of those that it leaves out."""
    own = [] if found.own is None else [found.own]
    shares = np.concatenate([found.shares, own])
    listed = np.argsort(-np.abs(shares), kind="stable")[:most]
    listed = listed[np.argsort(-shares[listed], kind="stable")]
    ids = found.ids.astype(np.int64)
    users = listed >= len(ids)
    rows = pa.array(np.append(ids, np.zeros(len(own), np.int64))[listed], mask=users)
    places = pa.array(listed, mask=users)
    table = {
        "of": pa.array(np.where(users, "user", "history"), pa.string()),
        "item": model.items.take(ids).take(places),
        "share": shares[listed],
    }
    if names and model.item_table is not None:
        table |= {name: model.item_table[name].take(rows) for name in names}
    left = np.delete(shares, listed)
    return pa.table(table), float(left.sum())


def _path(model: Retriever, asked: Asked, item: int) -> pa.Table | None:
    """Return the item's node on every level of the beam search that `recommend` runs."""
    tree = as_tree(model.index)
    if tree is None or tree.depth == 1:
        return None
    past = asked.history.where(asked.history.ids != item)
    query = query_of(model, asked.rows, asked.history)
    with torch.inference_mode():
        found = beams(tree, query, min(LIST, tree.num_items), Filter(past), LIST)
    rows = []
    for beam in found:
        node = above(tree, item, beam.level)
        place = np.flatnonzero(beam.nodes == node)
        known = (float(beam.scores[place[0]]), int(place[0]) + 1) if len(place) else (None, None)
        kept = min(beam.kept, len(beam.nodes))
        rows.append((beam.level, node, *known, len(beam.nodes), kept))
    kinds = (pa.int64(), pa.int64(), pa.float64(), pa.int64(), pa.int64(), pa.int64())
    heads = ("level", "node", "score", "rank", "candidates", "kept")
    columns = zip(heads, kinds, zip(*rows, strict=True), strict=True)
    return pa.table({name: pa.array(cells, kind) for name, kind, cells in columns})
