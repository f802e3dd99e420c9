"""Handlers of the views of the page: what is measured once, and what is shown of a user."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Any

from softdex.model.asking import Asked
from softdex.serve import view_words, words
from softdex.serve.app import App, Call, Reply
from softdex.serve.explorer import studied
from softdex.serve.live import Following
from softdex.serve.served import Served
from softdex.serve.views import breakdown as broken
from softdex.serve.views import effort as efforts
from softdex.serve.views import exposure as exposed
from softdex.serve.views import inside as insides
from softdex.serve.views import layout as layouts
from softdex.serve.views import sampler as samplers
from softdex.serve.views import training as trained
from softdex.serve.words import encode


async def exposure(app: App, call: Call) -> Reply:
    """Show how the lists of a model spread over the catalogue: coverage, Gini coefficient, shares
    of head, middle and tail, beside those of the training events."""
    given = call.query(view_words.Exposure)
    served = app.registry.of(given.model)
    k = given.k

    def work() -> Any:
        return exposed.exposure(served.study, k, given.column)

    return await _part(app, served, ("exposure", k, given.column), work)


async def breakdown(app: App, call: Call) -> Reply:
    """Break a metric down by history length, or recall by the popularity or a column of the
    held-out items, with 95 % intervals."""
    given = call.query(view_words.Breakdown)
    served = app.registry.of(given.model)
    name = ("breakdown", encode(given))
    return await _part(app, served, name, lambda: broken.breakdown(served.study, given))


async def group_users(app: App, call: Call) -> Reply:
    """List the users of a group of a breakdown, those with the worst or the best lists first."""
    given = call.query(view_words.GroupUsers)
    served = app.registry.of(given.model)
    name = ("group", encode(given))
    return await _part(app, served, name, lambda: broken.group_users(served.study, given))


async def effort(app: App, call: Call) -> Reply:
    """Show what the index finds of the exact lists, and in how many milliseconds, as it looks at
    more; measured on this server."""
    given = call.query(view_words.Effort)
    served = app.registry.of(given.model)
    name = ("effort", given.k)
    return await _part(app, served, name, lambda: efforts.effort(served.study, given.k), "made")


async def effort_list(app: App, call: Call) -> Reply:
    """Search the list of a user at an effort: with the exact ranks, and what it misses."""
    given = await call.json(view_words.EffortList, app.settings.max_body)
    served = app.served("effort", given, given.k)

    def work(asked: Asked) -> Any:
        effort = math.inf if given.exact else given.effort
        return efforts.effort_list(served.study, asked, given.k, effort)

    made = ("effort",), lambda: efforts.tried(served.study).serves
    return await _viewed(app, served, "effort", given, work, made)


async def sampler(app: App, call: Call) -> Reply:
    """Show proposals of negatives beside the softmax of a user: curves, KL divergence, effective
    draws."""
    given = await call.json(view_words.Sampler, app.settings.max_body)
    served = app.served("sampler", given)

    def work(asked: Asked) -> Any:
        return samplers.sampler(served.study, asked, given.temperature)

    made = ("sampler",), lambda: samplers.made(served.study).own
    return await _viewed(app, served, "sampler", given, work, made)


async def sampler_draws(app: App, call: Call) -> Reply:
    """Draw items from a proposal for a user: log q, log p and weight of each, and the estimate of
    the softmax's normaliser."""
    given = await call.json(view_words.SamplerDraws, app.settings.max_body)
    served = app.served("draws", given)

    def work(asked: Asked) -> Any:
        name, n, seed = given.proposal, given.n, given.seed
        return samplers.draws(served.study, asked, name, n, seed, given.temperature)

    made = ("sampler",), lambda: samplers.made(served.study).own
    return await _viewed(app, served, "draws", given, work, made)


async def inside(app: App, call: Call) -> Reply:
    """Show how the index finds the list of a user: the nodes of a beam search per level, or the
    cells of a multi-index."""
    given = await call.json(view_words.Inside, app.settings.max_body)
    served = app.served("inside", given, given.k)

    def work(asked: Asked) -> Any:
        return insides.inside(served.study, asked, given.k, given.effort)

    made = ("effort",), lambda: efforts.tried(served.study).serves
    return await _viewed(app, served, "inside", given, work, made)


async def item_map(app: App, call: Call) -> Reply:
    """Show the items in the plane, those that the model finds similar close together."""
    given = call.query(view_words.Map)
    served = app.registry.of(given.model)
    name = ("map", given.column)
    return await _part(
        app, served, name, lambda: layouts.item_map(served.study, given.column), "made"
    )


async def training(app: App, call: Call) -> Reply:
    """Show the records of the epochs of a model's training."""
    served = app.registry.of(call.query(words.Which).model)
    found = await app.aside(lambda: trained.training(served.study))
    return Reply(encode(_head(served) | found), headers=served.headers)


# inside ------------------------------------------------------------------------------------------


def _head(served: Served) -> dict[str, Any]:
    return {"model": served.name, "seal": served.short_seal}


async def _part(
    app: App,
    served: Served,
    name: Hashable,
    work: Callable[[], dict[str, Any]],
    thread: str = "measured",
) -> Reply:
    """Answer with a part of a study that names its model."""
    return await studied(app, served, name, lambda: _head(served) | work(), thread)


async def _viewed(
    app: App,
    served: Served,
    where: str,
    given: Any,
    work: Callable[[Asked], dict[str, Any]],
    made: tuple[Hashable, Callable[[], Any]],
) -> Reply:
    """Answer with what is shown of a user, who is that of `recommend`.

    Args:
        app: the application.
        served: the model.
        where: names the view in errors.
        given: the request, with its user and history.
        work: makes the answer.
        made: name and work of a part of the study that must be there first.
    """
    reply = await studied(app, served, *made, "made")
    if reply.status != 200:
        return reply

    def answer() -> bytes:
        users = None if given.user is None else [given.user]
        history = None if given.history is None else [given.history]
        asked = Following(served.live)(served.model, where, users, history)
        return encode(_head(served) | {"user": given.user} | work(asked))

    found = app.studies.submit(answer, "shown")
    return Reply(await asyncio.wrap_future(found), headers=served.headers)
