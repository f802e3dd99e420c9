"""Scores of given items, shares of a score, and query vectors: what a list does not say.

Users are those of `recommend`: their live events follow their histories.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence

from softdex.messages import silence
from softdex.model import export, scoring, shares
from softdex.serve.answers import Asked, head
from softdex.serve.app import App, Call, Reply
from softdex.serve.batcher import Job, Late
from softdex.serve.bulk import BULK_SECONDS, check_size, gathered
from softdex.serve.live import Following
from softdex.serve.problems import Problem
from softdex.serve.served import Served
from softdex.serve.words import Explain, Score, Vectors, encode

FIRST = ("user", "item", "rank")  # columns that stand first in a row, or above the rows
CELLS = 100_000  # items of all shortened histories of an explanation: up to a second


async def score(app: App, call: Call) -> Reply:
    """Score given items for a user, with their ranks among all items: to rank again what others
    found."""
    words = await call.json(Score, app.settings.max_body)
    app.check("score", 1, words.items, "items")
    served, until = app.served("score", words), call.deadline(app.settings.timeout)
    asked = Asked(served, words, call.id, call.began)
    job = Job(scored, group_of(served, words), asked, served.pace_of("score"), until, 1, call.began)
    return Reply(await app.batcher.submit(job), headers=served.headers)


async def explain(app: App, call: Call) -> Reply:
    """Explain the score of an item: the share of each item of the user's history in it, and for
    trees the item's way through the beam."""
    words = await call.json(Explain, app.settings.max_body)
    served, until = app.served("explain", words), call.deadline(app.settings.timeout)
    asked = Asked(served, words, call.id, call.began)
    found = app.studies.submit(lambda: explained(asked, until), "shown")  # as long as many lists
    return Reply(await asyncio.wrap_future(found), headers=served.headers)


async def vectors(app: App, call: Call) -> Reply:
    """Show the query vectors of users or histories, for those who search elsewhere."""
    words = await call.json(Vectors, app.settings.max_body)
    count = _count(app, words)
    served, until = app.registry.of(words.model), call.deadline(BULK_SECONDS)
    pace, slices = served.pace_of("vectors"), []
    size = pace.slice
    for start in range(0, max(1, count), size):
        part = Vectors(
            None if words.users is None else words.users[start : start + size],
            None if words.histories is None else words.histories[start : start + size],
        )
        asked = Asked(served, part, call.id, call.began)
        slices.append([Job(vectored, served, asked, pace, until, size, call.began)])
    rows: list[list[float]] = []
    reads: list[bool | None] = []
    for found in await gathered(app, slices):
        if isinstance(found, Exception):
            raise found
        rows += found[0]
        reads += found[1]
    answer = head(served, asked) | {"vectors": rows}
    live = {} if all(each is None for each in reads) else {"live": reads}
    body = await app.aside(lambda: encode(answer | live), sure=True)
    return Reply(body, headers=served.headers)


def group_of(served: Served, words: Score) -> Hashable:
    """Return what requests that are scored together have in common."""
    named = (words.user is None, words.history is None)
    return (served, tuple(words.columns), words.exclude_seen, len(words.items), *named)


# in the model thread -----------------------------------------------------------------------------


def scored(asked: Sequence[Asked]) -> list[bytes]:
    """Return the answers to requests of one group."""
    served, words = asked[0].served, [each.words for each in asked]
    first, ask = words[0], Following(served.live)
    users = None if first.user is None else [each.user for each in words]
    history = None if first.history is None else [each.history for each in words]
    items = [each.items for each in words]
    table = scoring.score(
        served.model, users, items, history, first.exclude_seen, first.columns, ask
    ).table
    table = table.select(["item", "rank", *(n for n in table.column_names if n not in FIRST)])
    size, answers = len(first.items), []
    for at, (each, read) in enumerate(zip(asked, ask.reads, strict=True)):
        rows = table.slice(at * size, size).to_pylist()
        found = head(served, each) | {"user": each.words.user, "items": rows}
        answers.append(encode(found if read is None else found | {"live": read}))
    return answers


def vectored(asked: Sequence[Asked]) -> list[tuple[list[list[float]], list[bool | None]]]:
    """Return the vectors of parts of requests, and whether they read live events."""
    found = []
    for each in asked:
        ask = Following(each.served.live)
        rows = export.query_vectors(each.served.model, each.words.users, each.words.histories, ask)
        found.append((rows.tolist(), ask.reads))
    return found


# beside the model thread -------------------------------------------------------------------------


def explained(asked: Asked, until: float) -> bytes:
    """Return the answer to a request, unless it is late."""
    if time.perf_counter() > until:
        raise Late
    words, ask = asked.words, Following(asked.served.live)
    with silence():
        why = shares.explain(
            asked.served.model, words.user, words.item, words.history, words.k, words.columns,
            ask, CELLS,
        )  # fmt: skip
    found = head(asked.served, asked) | why.json() | {"user": words.user}
    return encode(found if ask.reads[0] is None else found | {"live": ask.reads[0]})


# inside ------------------------------------------------------------------------------------------


def _count(app: App, words: Vectors) -> int:
    """Return how many vectors are asked for; refuse what is no request for vectors."""
    given = [each for each in (words.users, words.histories) if each is not None]
    check_size(app, "vectors", max(map(len, given), default=0), 0)
    if not given:
        raise Problem(
            422, "vectors: expected users, or histories=[[item, ...], ...].", field="users"
        )
    if len({*map(len, given)}) > 1:
        users, histories = map(len, given)
        found = f"expected one history per user, got {histories:,} for {users:,} users."
        raise Problem(422, f"vectors: {found}", field="histories")
    for each in words.histories or ():
        app.check("vectors", 1, each, "histories")
    return len(given[0])
