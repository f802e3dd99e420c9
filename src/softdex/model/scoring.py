"""Score given items for users: to rank again what others found.

Shapes: B users, N items per user, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from softdex.data.ragged import Ragged
from softdex.index.contract import MAX_MEMORY, Filter
from softdex.index.flat import Flat, permitted
from softdex.index.tree.tree import as_tree
from softdex.model.asking import Ask, batch_size, queries, who
from softdex.model.estimate import rows_of, softmax_of
from softdex.model.filter import RESULT, check_columns
from softdex.model.recommendations import Recommendations

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

COLUMNS = (*RESULT, "log_prob")


def score(
    model: Retriever,
    users: Any,
    items: Any,
    history: Any,
    exclude_seen: bool,
    columns: Any,
    ask: Ask = who,
) -> Recommendations:
    """Return scores, ranks and log-probabilities of given items; see `Retriever.score`."""
    names = check_columns(model.item_table, columns, "score", COLUMNS)
    asked = ask(model, "score", users, history)
    rows = rows_of(model.items, items, len(asked.rows), "score")
    rows = np.broadcast_to(rows, (len(asked.rows), rows.shape[-1]))
    softmax = None
    if model.index.scorer.is_product:
        softmax = softmax_of(model, "score", model.temperature)
    found: list[tuple[np.ndarray, ...]] = []
    size = batch_size(model.encoder, MAX_MEMORY, len(model.items) + rows.shape[-1])
    for part, query in queries(model, asked.rows, asked.history, size):
        ids = torch.from_numpy(rows[part].astype(np.int64)).to(model.index.alive.device)
        seen = asked.history.take(part) if exclude_seen else None
        with torch.inference_mode():
            scores = [model.index.score(query, ids)]
            scores += [] if softmax is None else [softmax.log_prob(query, ids)]
        cells = [each.float().cpu().numpy().ravel() for each in scores]
        found.append((*cells, _ranks(model, query, seen, rows[part]).ravel()))
    values, *log_prob, rank = (np.concatenate(each) for each in zip(*found, strict=True))
    flat = rows.ravel()
    table = {
        "user": asked.names.take(pa.array(np.repeat(np.arange(len(rows)), rows.shape[1]))),
        "rank": pa.array(rank, pa.int32(), mask=rank == 0),
        "item": model.items.take(flat),
        "score": values,
    }
    table |= dict(zip(("log_prob",), log_prob, strict=False))
    if names and model.item_table is not None:
        table |= {name: model.item_table[name].take(pa.array(flat)) for name in names}
    return Recommendations(pa.table(table))


def _ranks(model: Retriever, query: Any, seen: Ragged | None, items: np.ndarray) -> np.ndarray:
    """Return the ranks (B, N) in an exact search, 0 for items that it does not return."""
    every, index = len(model.items), model.index
    at = items.astype(np.int64)
    if as_tree(index) is None:
        flat = Flat(index.scorer, index.alive)
        blocks = permitted(flat.blocks(query), Filter(seen))
        return _above(torch.cat([scores for _, scores in blocks], 1).cpu().numpy(), at)
    hits = index.search(query, every, filter=Filter(seen), effort=np.inf)
    ids = hits.ids.cpu().numpy()
    row, place = np.nonzero(ids >= 0)
    ranks = np.zeros((len(ids), every), np.int32)
    ranks[row, ids[row, place]] = place + 1
    return np.take_along_axis(ranks, at, 1)


def _above(scores: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the ranks (B, N) of items by scores (B, I), equal ones by id; 0 for scores of -inf."""
    mine, ordered = np.take_along_axis(scores, items, 1), np.sort(scores, axis=1)
    ranks = np.zeros(items.shape, np.int32)
    for row, wanted in enumerate(mine):
        below, upto = (np.searchsorted(ordered[row], wanted, side) for side in ("left", "right"))
        ranks[row] = scores.shape[1] - upto + 1
        for tied in np.flatnonzero((upto - below > 1) & (wanted > -np.inf)):
            ranks[row, tied] += int((scores[row, : items[row, tied]] == wanted[tied]).sum())
    ranks[mine == -np.inf] = 0
    return ranks
