"""Answer batches of requests in the model thread: lists of users and of items, encoded.

Requests of one group have the same options, so that one search answers them together.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from softdex.data.keys import find
from softdex.index.contract import Hits
from softdex.index.gumbel import Drawn
from softdex.model import answer
from softdex.model.empty import why_empty
from softdex.model.retriever import Retriever
from softdex.model.rules import Rules
from softdex.model.sampling import COLUMNS, Sampling, sampling
from softdex.model.wanted import wanted
from softdex.serve.live import Following
from softdex.serve.served import Served
from softdex.serve.words import Recommend, Similar, TableQuery, encode


class Asked(NamedTuple):
    """A request and what its answer says of it."""

    served: Served
    words: Any
    request_id: str
    arrived: float


def group_of(served: Served, words: Recommend | Similar) -> Hashable:
    """Return what requests that are answered together have in common."""
    common = (
        served, words.k, tuple(words.columns),
        None if words.allow is None else tuple(words.allow),
        None if words.where is None else encode(words.where),
        None if words.at_most is None else tuple(words.at_most.items()),
    )  # fmt: skip
    if isinstance(words, Similar):
        return (*common, None if words.deny is None else tuple(words.deny))
    named = (words.user is None, words.history is None)
    drawn = (words.mode, words.temperature)
    return (*common, words.exclude_seen, words.unknown, *drawn, *named)


def recommend(asked: Sequence[Asked]) -> list[bytes]:
    """Return the answers to requests of one group."""
    served, words = asked[0].served, [each.words for each in asked]
    how = _samplings(served.model, words)
    answers = []
    for at, (each, found) in enumerate(zip(asked, _recommended(served, words, how), strict=True)):
        served.recent.append(each.words)
        served.fallbacks += "fallback" in found
        found |= {"sampling": how[at].words} if how else {}
        answers.append(encode(head(served, each) | {"user": each.words.user} | found))
    return answers


def similar(asked: Sequence[Asked]) -> list[bytes]:
    """Return the answers to requests of one group."""
    served, first = asked[0].served, asked[0].words
    model = served.model
    keys = [item for each in asked for item in each.words.items]
    rules = Rules(first.allow, first.deny, first.where, first.at_most)
    like = wanted(model, "similar", first.k, first.columns, rules, None)
    rows = find(model.items, keys, "similar", "items")
    lists = [
        items
        for _, hits in answer.alike(model, rows, like)
        for items in _items(model, hits, like.columns)
    ]
    found, answers = iter(zip(keys, lists, strict=True)), []
    for each in asked:
        served.recent.append(each.words)
        pairs = [{"item": key, "items": items} for key, items in _next(found, each.words.items)]
        answers.append(encode(head(served, each) | {"similar": pairs}))
    return answers


def table(asked: Sequence[Asked]) -> list[pa.Table]:
    """Return the lists of parts of tables of users, one table each; `words` is (users, place of the
    first of them, options)."""
    return [recommended_table(each.served, *each.words) for each in asked]


def recommended_table(served: Served, users: pa.Array, first: int, options: TableQuery) -> pa.Table:
    """Return the lists of users as `Retriever.recommend` does, after their live events."""
    model, where, rules = served.model, "recommend", Rules(exclude_seen=options.exclude_seen)
    how = sampling(model, where, options.mode, options.temperature, options.seed, None)
    how = None if how is None else how._replace(first=first)
    asked = Following(served.live)(model, where, users, None, options.unknown)
    like = wanted(model, where, options.k, options.columns, rules, asked, sampling=how)
    return pa.concat_tables(answer.tables(model, asked, answer.parts_of(model, asked, like), like))


def head(served: Served, each: Asked) -> dict[str, Any]:
    """Return what every answer of a model begins with."""
    took = (time.perf_counter() - each.arrived) * 1e3
    return {
        "model": served.name,
        "seal": served.short_seal,
        "request_id": each.request_id,
        "took_ms": round(took, 3),
    }


# inside ------------------------------------------------------------------------------------------


def _samplings(model: Retriever, words: Sequence[Recommend]) -> list[Sampling]:
    """Return how the list of each request is drawn; none for the best items."""
    found = [
        sampling(model, "recommend", each.mode, each.temperature, each.seed, each.at_most)
        for each in words
    ]
    return [how for how in found if how is not None]


def _recommended(
    served: Served, words: Sequence[Recommend], how: Sequence[Sampling]
) -> list[dict[str, Any]]:
    """Return the items of each list, and what there is to say of them."""
    model, first, where = served.model, words[0], "recommend"
    users = None if first.user is None else [each.user for each in words]
    history = None if first.history is None else [each.history for each in words]
    denied = any(each.deny for each in words)
    deny = [each.deny or [] for each in words] if denied else None
    rules = Rules(first.allow, deny, first.where, first.at_most, first.exclude_seen)
    ask = Following(served.live)
    asked = ask(model, where, users, history, first.unknown)
    drawn = how[0]._replace(seeds=np.array([each.seed for each in how])) if how else None
    like = wanted(model, where, first.k, first.columns, rules, asked, sampling=drawn)
    found: list[dict[str, Any]] = [{"items": []} for _ in words]
    for part, hits in answer.lists(model, asked, answer.parts_of(model, asked, like), like):
        ids = hits.ids.cpu().numpy()
        served.lists.append(ids[ids >= 0])
        for at, items in zip(part.tolist(), _items(model, hits, like.columns), strict=True):
            mine = found[asked.places[at]]
            mine["items"] = items
            if asked.strangers[at]:
                mine["fallback"] = "popular"
    for place, (mine, read) in enumerate(zip(found, ask.reads, strict=True)):
        if read is not None:
            mine["live"] = read
        if not mine["items"]:
            mine["empty"] = why_empty(model, where, rules, like, asked.only(place))
    return found


def _items(
    model: Retriever, hits: Hits | Drawn, columns: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the items of each list."""
    ids, scores = hits.ids.cpu().numpy(), hits.scores.float().cpu().numpy()
    real = ids >= 0
    keys = model.items.take(ids[real]).to_pylist()
    ranks = np.nonzero(real)[1] + 1
    names = ["item", "rank", "score"]
    cells: list[Any] = [keys, ranks.tolist(), scores[real].tolist()]
    if isinstance(hits, Drawn):
        names += COLUMNS
        cells += [getattr(hits, name).cpu().numpy()[real].tolist() for name in COLUMNS]
    if columns and model.item_table is not None:
        extra = model.item_table.select(columns).take(pa.array(ids[real]))
        names += columns
        cells += [extra[name].to_pylist() for name in columns]
    start = 0
    rows = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
    for count in real.sum(1).tolist():
        yield rows[start : start + count]
        start += count


def _next(found: Iterator[Any], items: Sequence[Any]) -> list[Any]:
    return [next(found) for _ in items]
