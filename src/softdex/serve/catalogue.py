"""Look up items and users: rows of the item table, histories, and keys by their start or text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from softdex.model.retriever import Retriever
from softdex.serve.app import App, Call, Reply
from softdex.serve.served import Served
from softdex.serve.words import Look, Which, encode


async def items(app: App, call: Call) -> Reply:
    """Find items by the start of their key, or by text in their columns."""
    given = call.query(Look)
    served = app.registry.of(given.model)

    def work() -> list[dict[str, Any]]:
        return item_rows(served.model, served.finder.items(given.q, given.limit))

    return _reply(served, {"rows": await app.aside(work)})


async def item(app: App, call: Call) -> Reply:
    """Show an item: its columns and its number of training events."""
    served = app.registry.of(call.query(Which).model)
    row = served.model.items.rows([call.path("item")], "items", "items")
    return _reply(served, item_rows(served.model, row)[0])


async def users(app: App, call: Call) -> Reply:
    """Find users by the start of their key."""
    given = call.query(Look)
    served = app.registry.of(given.model)
    model = served.model

    def work() -> list[dict[str, Any]]:
        rows = served.finder.users.rows(given.q, given.limit)
        keys, events = model.users.take(rows).to_pylist(), model.seen.take(rows).lengths
        return [{"user": k, "events": n} for k, n in zip(keys, events.tolist(), strict=True)]

    return _reply(served, {"rows": await app.aside(work)})


async def user(app: App, call: Call) -> Reply:
    """Show a user's history, oldest first, and the live events that come after it."""
    served = app.registry.of(call.query(Which).model)
    model, key = served.model, call.path("user")
    follow = served.live
    live = [] if follow is None else await app.aside(lambda: follow.rows(key).tolist())
    row = model.users.rows([key], "users", "users") if not live else model.users.lookup([key])
    known = bool(row[0] >= 0)
    history = _keys(model, model.seen.take(row).ids) if known else []
    found = {"user": model.users.take(row).to_pylist()[0] if known else key, "history": history}
    return _reply(served, found | ({"live": _keys(model, live)} if live else {}))


def item_rows(model: Retriever, rows: np.ndarray) -> list[dict[str, Any]]:
    """Return the keys, columns and training events of items."""
    keys, counts = model.items.take(rows).to_pylist(), model.item_counts[rows].tolist()
    found = [{"item": k, "events": n} for k, n in zip(keys, counts, strict=True)]
    if model.item_table is not None:
        for row, more in zip(found, model.item_table.take(pa.array(rows)).to_pylist(), strict=True):
            row["columns"] = more
    return found


# inside ------------------------------------------------------------------------------------------


def _keys(model: Retriever, rows: Any) -> list[Any]:
    return model.items.take(np.asarray(rows, np.int64)).to_pylist()


def _reply(served: Served, found: dict[str, Any]) -> Reply:
    head = {"model": served.name, "seal": served.short_seal}
    return Reply(encode(head | found), headers=served.headers)
