"""Answer requests: item lists per user or per item, as tables.

Shapes: B users or items asked about, K places per list, I items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from softdex.data.keys import as_list, find
from softdex.data.ragged import Ragged
from softdex.errors import SoftdexError
from softdex.files import write_atomically
from softdex.index.contract import MAX_MEMORY, Filter, Hits
from softdex.index.flat import Flat
from softdex.model.asking import Asked, batch_size, blocks, query_of, whole
from softdex.model.filter import allowed, check_columns
from softdex.score.counting import Constant
from softdex.score.product import Cosine

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever


@runtime_checkable
class KnowsLikeness(Protocol):
    """An encoder that knows which items are alike, without item vectors."""

    def similar(self, items: np.ndarray) -> Any:
        """Return queries whose best items are most like these (N,)."""
        ...


class Wanted(NamedTuple):
    """The lists that are asked for.

    Attributes:
        k: length of a list.
        allow: mask over items (I,), or None.
        columns: item columns to add to the table.
        exclude_seen: whether to exclude the items of the history.
        max_memory: bytes of scores held at a time.
    """

    k: int
    allow: Tensor | None
    columns: list[str]
    exclude_seen: bool = True
    max_memory: int = MAX_MEMORY


def wanted(
    model: Retriever,
    method: str,
    k: Any,
    columns: Any,
    allow: Any,
    deny: Any,
    where: Any,
    exclude_seen: bool = True,
    max_memory: int = MAX_MEMORY,
) -> Wanted:
    """Check the arguments that `recommend`, `recommend_all` and `similar` share.

    `method` is the one called, named in errors.
    """
    columns = check_columns(model.item_table, columns, method)
    k = min(whole(method, k), len(model.items))
    mask = allowed(model.items, model.item_table, allow, deny, where, method)
    return Wanted(k, mask, columns, exclude_seen, max_memory)


def parts_of(model: Retriever, asked: Asked, like: Wanted) -> list[np.ndarray]:
    """Divide the users asked about into blocks, each for one search within `max_memory`."""
    return blocks(len(asked.rows), batch_size(model.encoder, like.max_memory, like.k))


def tables(
    model: Retriever, asked: Asked, parts: Iterable[np.ndarray], like: Wanted
) -> Iterator[pa.Table]:
    """Yield one table per block of users: user, rank, item, score, columns..."""
    for part in parts:
        history = asked.history.take(part)
        filter = Filter(history if like.exclude_seen else None, like.allow)
        hits = search(model, asked.rows[part], history, like.k, filter, like.max_memory)
        hits = _with_popular(model, hits, asked.strangers[part], like)
        yield _table(model, "user", asked.names.take(pa.array(part)), hits, like.columns)


def search(
    model: Retriever,
    users: np.ndarray,
    history: Ragged,
    k: int,
    filter: Filter,
    max_memory: int = MAX_MEMORY,
) -> Hits:
    """Search the best k items per user (B,)."""
    asked = query_of(model, users, history)
    return model.index.search(asked, k, filter=filter, max_memory=max_memory)


def similar(model: Retriever, items: Any, like: Wanted) -> Iterator[pa.Table]:
    """Yield one table per block of items: item, rank, similar, score, columns..."""
    rows = find(model.items, as_list(items), "similar", "items")
    for part in blocks(len(rows), batch_size(model.encoder, like.max_memory, like.k)):
        asked = rows[part]
        itself = Ragged(np.arange(len(asked) + 1), asked)
        hits = _alike(model, asked, like.k, Filter(itself, like.allow))
        yield _table(model, "item", model.items.take(asked), hits, like.columns, found="similar")


def to_parquet(tables: Iterator[pa.Table], path: str | Path) -> int:
    """Stream tables, at least one, into a Parquet file; return the number of rows."""
    count = 0

    def fill(file: Any) -> None:
        nonlocal count
        first = next(tables)
        with pq.ParquetWriter(file, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                count += table.num_rows

    write_atomically(Path(path), fill)
    return count


# inside ------------------------------------------------------------------------------------------


def _with_popular(model: Retriever, hits: Hits, strangers: np.ndarray, like: Wanted) -> Hits:
    """Replace the lists of strangers by the most popular items."""
    if not strangers.any():
        return hits
    counts = Constant(torch.from_numpy(model.item_counts.astype(np.float32)))
    popular = Flat(counts, model.index.alive.cpu()).search(
        torch.empty(1, 0), like.k, filter=Filter(None, like.allow)
    )
    ids, scores = hits.ids.cpu().clone(), hits.scores.cpu().clone()
    ids[strangers], scores[strangers] = popular
    return Hits(ids, scores)


def _alike(model: Retriever, items: np.ndarray, k: int, filter: Filter) -> Hits:
    """Search similar items, by the cosine of their vectors or by what the encoder knows."""
    vectors = model.index.vectors()
    if vectors is not None:
        cosine = Cosine(vectors, torch.ones((), device=vectors.device))
        likeness = Flat(cosine, model.index.alive)
        return likeness.search(vectors[torch.from_numpy(items)], k, filter=filter)
    if not isinstance(model.encoder, KnowsLikeness):
        raise SoftdexError(f"similar: {model.recipe} has no vectors of items to compare.")
    hits = model.index.search(model.encoder.similar(items), k, filter=filter)
    return Hits(torch.where(hits.scores > 0, hits.ids, -1), hits.scores)


def _table(
    model: Retriever,
    asked: str,
    names: pa.Array,
    hits: Hits,
    columns: list[str],
    found: str = "item",
) -> pa.Table:
    """Make a table with one row per hit."""
    ids, scores = hits.ids.cpu().numpy(), hits.scores.float().cpu().numpy()
    real = ids >= 0
    at, place = np.nonzero(real)
    table = {
        asked: names.take(pa.array(at)),
        "rank": place.astype(np.int32) + 1,
        found: model.items.take(ids[real]),
        "score": scores[real],
    }
    if columns and model.item_table is not None:
        extra = model.item_table.select(columns).take(pa.array(ids[real]))
        table |= {name: extra[name] for name in columns}
    return pa.table(table)
