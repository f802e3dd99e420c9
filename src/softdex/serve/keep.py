"""Take live events: answered once they are on disk."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from softdex.serve.app import App, Call, Reply
from softdex.serve.problems import Problem, overloaded
from softdex.serve.replies import Accepted
from softdex.serve.words import Event, encode

ONE_OR_MORE: Any = Event | list[Event]
AT_ONCE = 500  # events that are looked at in the event loop
WAITING = 100_000  # events that may wait for the disk


async def events(app: App, call: Call) -> Reply:
    """Keep an event, or a list of them: answered once they are on disk, and from then on in the
    lists of their users. Users and items need not be known: events are kept for the next model."""
    kept = app.registry.events
    if kept is None:
        raise Problem(404, "This server keeps no events. Start it with --events FILE.")
    given = await call.json(ONE_OR_MORE, app.settings.max_body)
    batch = given if isinstance(given, list) else [given]
    if kept.waiting > WAITING:
        app.metrics.shed("events")
        raise overloaded(1.0)
    add = partial(kept.append, batch)
    waits = (
        add() if len(batch) <= AT_ONCE else await app.aside(add)
    )  # others are answered meanwhile
    new = await asyncio.wrap_future(waits)
    live = {
        name: each.live is not None and each.live.reads
        for name, each in app.registry.models.items()
    }
    return Reply(encode(Accepted(call.id, new, len(batch) - new, live)), 202)
