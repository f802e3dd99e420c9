"""Answer requests: item lists per user or per item, as tables.

Shapes: B users or items asked about, K places per list, I items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import torch

from softdex.data.keys import as_list, find
from softdex.data.ragged import Ragged
from softdex.errors import SoftdexError
from softdex.index.contract import MAX_MEMORY, Filter, Hits
from softdex.index.flat import Flat
from softdex.index.gumbel import Drawn
from softdex.machine import parse_bytes
from softdex.messages import say
from softdex.model.asking import Asked, batch_size, blocks, everybody, query_of, shard_of, who
from softdex.model.at_most import best
from softdex.model.empty import why_empty
from softdex.model.recommendations import Recommendations
from softdex.model.rules import Rules
from softdex.model.sampling import BEST, COLUMNS, Drawing, Sampling, drawn, sampling
from softdex.model.wanted import Wanted, wanted
from softdex.progress import progress
from softdex.score.counting import Constant
from softdex.score.product import Cosine
from softdex.table_files import check_table_file, save_tables

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever


@runtime_checkable
class KnowsLikeness(Protocol):
    """An encoder that knows which items are alike, without item vectors."""

    def similar(self, items: np.ndarray) -> Any:
        """Return queries whose best items are most like these (N,)."""
        ...


def recommend(
    model: Retriever,
    users: Any,
    k: Any,
    history: Any,
    rules: Rules,
    columns: Any,
    unknown: str,
    max_memory: int | str,
    drawing: Drawing = BEST,
) -> Recommendations:
    """Return the lists of users; see `Retriever.recommend`."""
    method, limit = "recommend", parse_bytes(max_memory)
    how = sampling(model, method, *drawing, rules.at_most)
    asked = who(model, method, users, history, unknown)
    like = wanted(model, method, k, columns, rules, asked, limit, how)
    found = pa.concat_tables(tables(model, asked, parts_of(model, asked, like), like))
    if not len(found):
        say(why_empty(model, method, rules, like, asked))
    return Recommendations(found)


def recommend_all(
    model: Retriever,
    path: Path,
    k: Any,
    users: Any,
    rules: Rules,
    columns: Any,
    unknown: str,
    max_memory: int | str,
    drawing: Drawing = BEST,
    shard: Any = None,
) -> int:
    """Write the lists of all users, or of some; see `Retriever.recommend_all`."""
    method, limit = "recommend_all", parse_bytes(max_memory)
    check_table_file(path, method)
    how = sampling(model, method, *drawing, rules.at_most)
    asked = (
        everybody(model, method, unknown)
        if users is None
        else who(model, method, users, None, unknown)
    )
    if shard is not None:
        asked = asked.shard(*shard_of(method, shard))
    like = wanted(model, method, k, columns, rules, asked, limit, how)
    parts = parts_of(model, asked, like)
    with progress(parts, "recommending") as shown:
        rows = save_tables(path, tables(model, asked, shown, like))
    if shard is not None and not len(asked.rows):
        say(f"{method}: shard {shard[0]} of {shard[1]} holds no user")
    elif not rows:
        say(why_empty(model, method, rules, like, asked))
    elif asked.strangers.any():
        count = int(asked.strangers.sum())
        users = f"{count:,} of {len(asked.rows):,} users"
        say(f"{method}: {users} without events in training: they get the most popular items")
    return rows


def similar(model: Retriever, items: Any, k: Any, rules: Rules, columns: Any) -> Recommendations:
    """Return the lists of items; see `Retriever.similar`."""
    like = wanted(model, "similar", k, columns, rules, None)
    rows = find(model.items, as_list(items), "similar", "items")
    found = pa.concat_tables(
        _table(model, "item", model.items.take(rows), part, hits, like.columns, found="similar")
        for part, hits in alike(model, rows, like)
    )
    if not len(found):
        say(why_empty(model, "similar", rules, like, None))
    return Recommendations(found)


def parts_of(model: Retriever, asked: Asked, like: Wanted) -> list[np.ndarray]:
    """Divide the users asked about into blocks, each for one search within `max_memory`."""
    size = batch_size(model.encoder, like.max_memory, like.k, like.bytes_per_user)
    return blocks(len(asked.rows), size)


def tables(
    model: Retriever, asked: Asked, parts: Iterable[np.ndarray], like: Wanted
) -> Iterator[pa.Table]:
    """Yield one table per block of users: user, rank, item, score, columns..."""
    for part, hits in lists(model, asked, parts, like):
        table = _table(model, "user", asked.names, part, hits, like.columns)
        how = like.sampling
        yield table if how is None else table.replace_schema_metadata(how.note())


def lists(
    model: Retriever, asked: Asked, parts: Iterable[np.ndarray], like: Wanted
) -> Iterator[tuple[np.ndarray, Hits | Drawn]]:
    """Yield the lists of each block of users, with the places (b,) of these users."""
    for part in parts:
        rows, history, how = asked.rows[part], asked.history.take(part), like.sampling
        filter, strangers = like.filter(part, history, len(model.items)), asked.strangers[part]
        if how is not None:
            given = like.k, filter, how, asked.places[part], like.max_memory
            lists = drawn(model.index, query_of(model, rows, history), *given)
            yield part, _with_popular_drawn(model, lists, strangers, *given)
            continue
        if like.limits is None:
            hits = search(model, rows, history, like.k, filter, like.max_memory)
        else:
            hits = _limited(model, rows, history, filter, like)
        yield part, _with_popular(model, hits, strangers, filter, like)


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


def alike(model: Retriever, rows: np.ndarray, like: Wanted) -> Iterator[tuple[np.ndarray, Hits]]:
    """Yield the lists of each block of item rows, with the places (b,) of these items."""
    for part in blocks(len(rows), batch_size(model.encoder, like.max_memory, like.k)):
        asked = rows[part]
        itself = Ragged(np.arange(len(asked) + 1), asked)

        def found(at: np.ndarray, k: int, filter: Filter, asked: np.ndarray = asked) -> Hits:
            return _alike(model, asked[at], k, filter)

        yield part, best(found, len(asked), like.k, Filter(itself, like.mask), like.limits)


# inside ------------------------------------------------------------------------------------------


def _limited(
    model: Retriever, rows: np.ndarray, history: Ragged, filter: Filter, like: Wanted
) -> Hits:
    """Search the best items that keep the limits."""

    def found(at: np.ndarray, k: int, filter: Filter) -> Hits:
        return search(model, rows[at], history.take(at), k, filter, like.max_memory)

    return best(found, len(rows), like.k, filter, like.limits)


def _with_popular(
    model: Retriever, hits: Hits, strangers: np.ndarray, filter: Filter, like: Wanted
) -> Hits:
    """Replace the lists of strangers by the most popular items; one search where rules are not per
    user."""
    places = np.flatnonzero(strangers)
    if not len(places):
        return hits
    alike = like.only is None and like.never is None
    counts = Constant(torch.from_numpy(model.item_counts.astype(np.float32)))
    popular = Flat(counts, model.index.alive.cpu())

    def found(rows: np.ndarray, k: int, filter: Filter) -> Hits:
        return popular.search(torch.empty(len(rows), 0), k, filter=filter)

    mine = filter.take(places[:1] if alike else places)
    lists = best(found, 1 if alike else len(places), like.k, mine, like.limits)
    ids, scores = hits.ids.cpu().clone(), hits.scores.cpu().clone()
    ids[places], scores[places] = lists.ids, lists.scores
    return Hits(ids, scores)


def _with_popular_drawn(
    model: Retriever,
    lists: Drawn,
    strangers: np.ndarray,
    k: int,
    filter: Filter,
    how: Sampling,
    places: np.ndarray,
    max_memory: int,
) -> Drawn:
    """Replace the lists of strangers by draws in proportion to (1 + events)^(1 / temperature)."""
    rows = np.flatnonzero(strangers)
    if not len(rows):
        return lists
    counts = torch.from_numpy(model.item_counts.astype(np.float32))
    popular = Flat(Constant(counts.log1p()), model.index.alive.cpu())
    every, query = how._replace(candidates=0), torch.empty(len(rows), 0)
    mine = drawn(popular, query, k, filter.take(rows), every, places[rows], max_memory)
    mine = mine._replace(scores=torch.where(mine.ids >= 0, counts[mine.ids], -torch.inf))
    whole = Drawn(*(part.cpu().clone() for part in lists))
    for part, new in zip(whole, mine, strict=True):
        part[rows] = new
    return whole


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
    part: np.ndarray,
    hits: Hits | Drawn,
    columns: list[str],
    found: str = "item",
) -> pa.Table:
    """Make a table with one row per hit; `part` are the places of the lists among the names."""
    ids, scores = hits.ids.cpu().numpy(), hits.scores.float().cpu().numpy()
    real = ids >= 0
    at, place = np.nonzero(real)
    table = {
        asked: names.take(pa.array(part[at])),
        "rank": place.astype(np.int32) + 1,
        found: model.items.take(ids[real]),
        "score": scores[real],
    }
    if isinstance(hits, Drawn):
        table |= {name: getattr(hits, name).cpu().numpy()[real] for name in COLUMNS}
    if columns and model.item_table is not None:
        extra = model.item_table.select(columns).take(pa.array(ids[real]))
        table |= {name: extra[name] for name in columns}
    return pa.table(table)
