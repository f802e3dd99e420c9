"""The table of endpoints: requests are routed by it, and the OpenAPI document is made from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, final

from softdex.serve import (
    answers,
    catalogue,
    explorer,
    page_words,
    replies,
    view_words,
    viewed,
    words,
)
from softdex.serve import view_answers as shown
from softdex.serve.app import HTML, App, Call, Reply
from softdex.serve.batcher import Job
from softdex.serve.bulk import batch
from softdex.serve.keep import events
from softdex.serve.openapi import document, page
from softdex.serve.pace import Pace
from softdex.serve.problems import Problem
from softdex.serve.scores import explain, score, vectors
from softdex.serve.served import Served
from softdex.serve.words import Recommend, RecommendQuery, Similar, SimilarQuery, encode

Handler = Callable[[App, Call], Awaitable[Reply]]


@final
@dataclass(frozen=True)
class Endpoint:
    """A row of the table; the handler's docstring is its description.

    Attributes:
        method, path: what is routed to it.
        handler: answers.
        answer: type of the JSON that it answers, or a media type.
        body: type of the JSON that it takes.
        query: type of the options in the query.
        problems: statuses of its refusals.
        access: who may ask.
        success: status of its answers.
        many: whether the body may also be a list of its type.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    answer: type | str
    body: type | None = None
    query: type | None = None
    problems: Sequence[int] = ()
    access: Literal["open", "read", "admin"] = "read"
    success: int = 200
    many: bool = False


# lists -------------------------------------------------------------------------------------------


async def recommend(app: App, call: Call) -> Reply:
    """Recommend k items to a user, by key, by history, or both: the best, or a sample."""
    asked = await call.json(Recommend, app.settings.max_body)
    return await _recommended(app, call, asked)


async def recommend_user(app: App, call: Call) -> Reply:
    """Recommend k items to a user; for curl and browsers."""
    given = call.query(RecommendQuery)
    asked = Recommend(
        user=call.path("user"),
        k=given.k,
        exclude_seen=given.exclude_seen,
        allow=list(given.allow) or None,
        deny=list(given.deny) or None,
        where=_where(given.where),
        columns=given.columns,
        unknown=given.unknown,
        mode=given.mode,
        temperature=given.temperature,
        seed=given.seed,
        model=given.model,
    )
    return await _recommended(app, call, asked)


async def similar(app: App, call: Call) -> Reply:
    """Find the k most similar items per item."""
    asked = await call.json(Similar, app.settings.max_body)
    return await _similar(app, call, asked)


async def similar_item(app: App, call: Call) -> Reply:
    """Find the k most similar items of an item; for curl and browsers."""
    given = call.query(SimilarQuery)
    asked = Similar(
        [call.path("item")], given.k, where=_where(given.where), columns=given.columns,
        model=given.model,
    )  # fmt: skip
    return await _similar(app, call, asked)


async def _recommended(app: App, call: Call, asked: Recommend) -> Reply:
    served = app.served("recommend", asked, asked.k)
    return await _computed(app, call, served, served.pace, answers.recommend, asked)


async def _similar(app: App, call: Call, asked: Similar) -> Reply:
    app.check("similar", asked.k, asked.items, "items")
    served = app.registry.of(asked.model)
    pace, users = served.pace_of("similar"), max(1, len(asked.items))
    return await _computed(app, call, served, pace, answers.similar, asked, users)


async def _computed(
    app: App, call: Call, served: Served, pace: Pace, work: Any, asked: Any, users: int = 1
) -> Reply:
    """Let the model thread answer."""
    job = Job(
        work, answers.group_of(served, asked), answers.Asked(served, asked, call.id, call.began),
        pace, call.deadline(app.settings.timeout), users, call.began,
    )  # fmt: skip
    body = await app.batcher.submit(job)
    return Reply(body, headers=served.headers)


def _where(given: Sequence[str]) -> dict[str, Any] | None:
    """Read conditions column:value; values of one column are alternatives."""
    found: dict[str, Any] = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not colon:
            raise Problem(422, f"where: expected column:value, got {each!r}.", field="where")
        found.setdefault(name, []).append(value)
    return found or None


# models ------------------------------------------------------------------------------------------


async def models(app: App, call: Call) -> Reply:
    """List the served models, their shares, and why a reload failed."""
    registry = app.registry
    rows = [
        each.entry() | {"share": registry.shares.get(name), "trouble": registry.troubles.get(name)}
        for name, each in registry.models.items()
    ]
    lost = [
        {"name": name, "trouble": text}
        for name, text in registry.troubles.items()
        if name not in registry.models
    ]
    found = {"default": registry.default, "shares": registry.shares, "models": rows + lost}
    return Reply(encode(found))


async def model_card(app: App, call: Call) -> Reply:
    """Show a model's card: recipe, options, data, split, metrics, index, capacity."""
    served = app.registry.of(call.path("name"))
    return Reply(encode(served.card()), headers=served.headers)


async def reload(app: App, call: Call) -> Reply:
    """Load a model file and swap it in; on failure the old model stays."""
    given = await call.json(words.Reload, app.settings.max_body) if call.unread else words.Reload()
    name, path = call.path("name"), None if given.path is None else Path(given.path)

    def work() -> Any:
        return app.registry.reload(name, path, other_catalogue=given.other_catalogue)

    swap = await asyncio.get_running_loop().run_in_executor(app.loader, work)
    found = {"model": name, "old": swap.old, "new": swap.new, "seconds": swap.seconds}
    return Reply(encode(found), headers=app.registry.of(name).headers)


# the server --------------------------------------------------------------------------------------


async def live(app: App, call: Call) -> Reply:
    """Say whether the process works: 503 with the reasons if it has to be started again."""
    return _health(app.faults(), "broken")


async def ready(app: App, call: Call) -> Reply:
    """Say whether requests should come here: 503 with the reasons, such as shutting down."""
    leaving = ["The server is shutting down."] if app.draining else []
    return _health([*app.faults(), *leaving], "not ready")


def _health(reasons: list[str], status: str) -> Reply:
    found = {"status": status if reasons else "ok", "reasons": reasons}
    return Reply(encode(found), 503 if reasons else 200)


async def metrics(app: App, call: Call) -> Reply:
    """Show counters in the format of Prometheus."""
    text = await app.aside(app.metrics.text)
    return Reply(text, media="text/plain; version=0.0.4; charset=utf-8")


async def openapi(app: App, call: Call) -> Reply:
    """Describe the endpoints in OpenAPI 3.1."""
    return Reply(_described())


async def docs(app: App, call: Call) -> Reply:
    """Show the endpoints as a page, which loads nothing from elsewhere."""
    return Reply(_shown(), media=f"{HTML}; charset=utf-8")


@cache
def _described() -> bytes:
    return encode(document(ENDPOINTS))


@cache
def _shown() -> bytes:
    return page(ENDPOINTS).encode()


ASK = (400, 401, 404, 413, 415, 422, 429, 500, 503, 504)
GET = (400, 401, 404, 422, 429, 500, 503, 504)
SEE = (400, 401, 404, 422, 429, 500)
SWAP = (400, 401, 403, 404, 409, 413, 415, 422, 500)
Table = dict[str, Any]


def _get(
    path: str, handler: Handler, answer: Any, query: type | None = None, problems: Any = SEE
) -> Endpoint:
    return Endpoint("GET", path, handler, answer, None, query, problems)


def _open(path: str, handler: Handler, answer: Any, problems: Any = ()) -> Endpoint:
    return Endpoint("GET", path, handler, answer, None, None, problems, "open")


def _post(
    path: str, handler: Handler, answer: Any, body: type, query: type | None = None, **more: Any
) -> Endpoint:
    return Endpoint("POST", path, handler, answer, body, query, **{"problems": ASK, **more})


ENDPOINTS: tuple[Endpoint, ...] = (
    _post("/v1/recommend", recommend, replies.Recommended, Recommend),
    _post("/v1/recommend/batch", batch, replies.Recommendeds, words.Batch, words.TableQuery),
    _get("/v1/recommend/{user:path}", recommend_user, replies.Recommended, RecommendQuery, GET),
    _post("/v1/similar", similar, replies.Alike, Similar),
    _get("/v1/similar/{item:path}", similar_item, replies.Alike, SimilarQuery, GET),
    _post("/v1/score", score, replies.Scored, words.Score),
    _post("/v1/explain", explain, replies.Explained, words.Explain),
    _post("/v1/vectors", vectors, replies.Vectored, words.Vectors),
    _post("/v1/events", events, replies.Accepted, words.Event, success=202, many=True),
    _get("/v1/items", catalogue.items, replies.Found, words.Look),
    _post("/v1/items", explorer.rows, replies.Shown, page_words.Rows),
    _get("/v1/items/{item:path}", catalogue.item, Table, words.Which),
    _get("/v1/pictures/{item:path}", explorer.picture, "image/*", words.Which),
    _get("/v1/users", catalogue.users, replies.Found, words.Look),
    _get("/v1/users/{user:path}", catalogue.user, Table, words.Which),
    _get("/v1/study", explorer.facts, Table, words.Which),
    _get("/v1/study/result", explorer.result, Table, words.Which),
    _get("/v1/study/users", explorer.users, Table, page_words.Chosen),
    _get("/v1/study/users/{user:path}", explorer.user, Table, page_words.OfUser),
    _get("/v1/study/differences", explorer.differences, Table, page_words.Pair),
    _get("/v1/study/exposure", viewed.exposure, shown.Exposures, view_words.Exposure),
    _get("/v1/study/breakdown", viewed.breakdown, shown.Broken, view_words.Breakdown),
    _get(
        "/v1/study/breakdown/users", viewed.group_users, shown.UsersOfGroup, view_words.GroupUsers
    ),
    _get("/v1/study/effort", viewed.effort, shown.Efforts, view_words.Effort),
    _post("/v1/study/effort", viewed.effort_list, shown.EffortLists, view_words.EffortList),
    _post("/v1/study/sampler", viewed.sampler, shown.Samplers, view_words.Sampler),
    _post("/v1/study/sampler/draws", viewed.sampler_draws, shown.Drawings, view_words.SamplerDraws),
    _post("/v1/study/inside", viewed.inside, shown.Insides, view_words.Inside),
    _get("/v1/study/map", viewed.item_map, shown.Maps, view_words.Map),
    _get("/v1/study/training", viewed.training, shown.Trainings, words.Which),
    _get("/v1/models", models, replies.Models, None, (401,)),
    _get("/v1/models/{name}", model_card, Table, None, (401, 404)),
    _post("/v1/models/{name}/reload", reload, replies.Reloaded, words.Reload, problems=SWAP,
          access="admin"),
    _open("/health/live", live, replies.Health, (503,)),
    _open("/health/ready", ready, replies.Health, (503,)),
    _open("/livez", live, replies.Health, (503,)),
    _open("/readyz", ready, replies.Health, (503,)),
    _open("/v2/health/live", live, replies.Health, (503,)),
    _open("/v2/health/ready", ready, replies.Health, (503,)),
    _get("/metrics", metrics, "text/plain", None, (401, 429)),
    _open("/openapi.json", openapi, Table),
    _open("/docs", docs, HTML),
    _open("/", explorer.home, HTML),
    _open("/page/{file:path}", explorer.file, "*/*", (404,)),
)  # fmt: skip
"""Every endpoint; what is asked most comes first."""
