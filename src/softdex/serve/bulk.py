"""Batches of requests: JSON or an Arrow stream, computed in slices behind single requests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from softdex.data.sources import open_source
from softdex.errors import UnknownKey
from softdex.model.artifact import stream_table
from softdex.model.key_files import columns
from softdex.model.sampling import BITS
from softdex.serve import answers
from softdex.serve.app import ARROW, LOG, App, Call, Reply
from softdex.serve.batcher import Job
from softdex.serve.problems import Problem, problem_of
from softdex.serve.words import Batch, Recommend, TableQuery, encode

AT_ONCE = 32  # requests that are looked at before others are answered
BULK_SECONDS = 120.0


async def batch(app: App, call: Call) -> Reply:
    """Recommend to many users: one answer or problem per request. Or an Arrow stream of users, with
    the options in the query: an Arrow stream of lists."""
    if call.media == ARROW:
        return await _table(app, call)
    return await _requests(app, call)


async def _requests(app: App, call: Call) -> Reply:
    given = await call.json(Batch, app.settings.max_batch_body)
    call.query(TableQuery)  # has no effect, and is refused if it is wrong
    served, until = app.registry.of(None), call.deadline(BULK_SECONDS)
    check_size(app, "recommend", len(given.requests), sum(max(r.k, 0) for r in given.requests))
    jobs = list[Job | Problem]()
    for start in range(0, len(given.requests), AT_ONCE):
        jobs += [_job(app, call, words, until) for words in given.requests[start : start + AT_ONCE]]
        await asyncio.sleep(0)  # others are answered meanwhile
    found = iter(await gathered(app, _cut([job for job in jobs if isinstance(job, Job)])))
    answers = [j if isinstance(j, Problem) else next(found) for j in jobs]
    parts = await app.aside(lambda: [_part(app, call, each) for each in answers], sure=True)
    took = round((time.perf_counter() - call.began) * 1e3, 3)
    head = encode({"model": served.name, "request_id": call.id, "took_ms": took})
    return Reply(head[:-1] + b',"answers":[' + b",".join(parts) + b"]}", headers=served.headers)


async def _table(app: App, call: Call) -> Reply:
    options = call.query(TableQuery)
    app.check("recommend", options.k, None)
    if options.mode == "sample" and options.seed is None:
        options = replace(options, seed=secrets.randbits(BITS))
    raw = await call.body(app.settings.max_batch_body)
    users = await app.aside(lambda: _users(raw))
    check_size(app, "recommend", 0, len(users) * max(options.k, 0))
    served, until = app.registry.of(options.model), call.deadline(BULK_SECONDS)
    slices = []
    size = served.pace.slice
    for start in range(0, max(1, len(users)), size):
        part = users.slice(start, size)
        asked = answers.Asked(served, (part, start, options), call.id, call.began)
        slices.append(
            [Job(answers.table, call.id, asked, served.pace, until, len(part) or 1, call.began)]
        )
    found = await gathered(app, slices)
    for each in found:
        if isinstance(each, Exception):
            raise each
    raw = await app.aside(lambda: _stream(found), sure=True)
    return Reply(raw, media=ARROW, headers=served.headers)


def check_size(app: App, method: str, requests: int, rows: int) -> None:
    """Refuse a batch that is larger than this server computes."""
    for count, most, what in (
        (requests, app.settings.max_batch, "requests"),
        (rows, app.settings.max_rows, "items in all lists together"),
    ):
        if count > most:
            found = f"expected a batch of at most {most:,} {what}, got {count:,}."
            raise Problem(422, f"{method}: {found} Divide it.", field="requests")


async def gathered(app: App, slices: Sequence[list[Job]]) -> list[Any]:
    """Compute slices of jobs behind single requests; one answer or error per job."""
    futures = app.batcher.submit_bulk(slices)
    return list(await asyncio.gather(*futures, return_exceptions=True))


def _job(app: App, call: Call, words: Recommend, until: float) -> Job | Problem:
    try:
        served = app.served("recommend", words, words.k)
    except Problem as problem:
        return problem
    asked = answers.Asked(served, words, call.id, call.began)
    group = answers.group_of(served, words)
    return Job(answers.recommend, group, asked, served.pace, until, 1, call.began)


def _cut(jobs: Sequence[Job]) -> list[list[Job]]:
    """Cut jobs into slices that single requests can wait for."""
    slices = list[list[Job]]()
    room = 0.0
    for job in jobs:
        room -= 1 / job.pace.slice
        if room < 0:
            slices.append([])
            room = 1 - 1 / job.pace.slice
        slices[-1].append(job)
    return slices


def _part(app: App, call: Call, found: Any) -> bytes:
    if not isinstance(found, Exception):
        return bytes(found)
    if isinstance(found, UnknownKey):
        app.metrics.unknown()
    problem = problem_of(found)
    if problem.status == 500:
        LOG.error("request %s failed", call.id, exc_info=found)
    return encode(problem.members(call.id))


def _users(raw: bytes) -> pa.Array:
    """Return the users of an Arrow stream."""
    try:
        table = stream_table(pa.py_buffer(raw))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise Problem(400, f"The body is no Arrow stream without compression ({error}).") from None
    return columns(open_source(table, None, "utf-8"), "user")[0]


def _stream(tables: Sequence[pa.Table]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(out.getvalue().to_pybytes())
