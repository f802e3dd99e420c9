"""The explorer: the files of the page, and what it asks for beside lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from softdex.serve import differences as compared
from softdex.serve import overview, page_words, pictures, words
from softdex.serve.app import HTML, App, Call, Reply
from softdex.serve.catalogue import item_rows
from softdex.serve.problems import Problem
from softdex.serve.served import Served
from softdex.serve.words import encode
from softdex.style import style

FOLDER = Path(__file__).with_name("page")
MEDIA = {
    ".html": HTML, ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
    ".txt": "text/plain",
}  # fmt: skip
FILES = {file.relative_to(FOLDER).as_posix(): file for file in FOLDER.rglob("*.*")}
LATER = ("theme.js", "vendor/uplot.js")  # not wanted for the first list
MODULES = [name for name in sorted(FILES) if name.endswith(".js") and name not in LATER]
PATIENCE = 0.2  # seconds that a request waits for its part before it is told to ask again


async def home(app: App, call: Call) -> Reply:
    """Show the models as a page, which loads nothing from elsewhere."""
    early = "".join(f'<link rel="modulepreload" href="page/{name}">' for name in MODULES)
    text = FILES["index.html"].read_text(encoding="utf-8").replace("</head>", f"{early}</head>")
    return Reply(text.encode(), media=f"{HTML}; charset=utf-8")


async def file(app: App, call: Call) -> Reply:
    """Send a file of the page."""
    name = call.path("file")
    if name == "style.css":
        return Reply(style().encode(), media="text/css; charset=utf-8")
    found = FILES.get(name)
    if found is None:
        raise Problem(404, f"The page has no file {name[:200]}.")
    return Reply(found.read_bytes(), media=f"{MEDIA[found.suffix]}; charset=utf-8")


async def rows(app: App, call: Call) -> Reply:
    """Show items by key: their columns and numbers of training events; null for unknown ones."""
    given = await call.json(page_words.Rows, app.settings.max_body)
    app.check("items", 1, given.items, "items")
    served = app.registry.of(given.model)

    def work() -> list[Any]:
        model = served.model
        at = model.items.lookup([str(key) for key in given.items])
        found = item_rows(model, at[at >= 0])
        for row, place in zip(found, at[at >= 0].tolist(), strict=True):
            if app.pictures.of(row["item"], model.item_table, place) is not None:
                row["picture"] = True
        left = iter(found)
        return [next(left) if known else None for known in (at >= 0).tolist()]

    return _reply(served, {"rows": await app.aside(work)})


async def picture(app: App, call: Call) -> Reply:
    """Send the picture of an item."""
    served, key = app.registry.of(call.query(words.Which).model), call.path("item")
    row = int(served.model.items.rows([key], "pictures", "items")[0])
    found = app.pictures.of(key, served.model.item_table, row)
    if found is None:
        raise Problem(404, "The item has no picture.")
    body = await app.aside(found.read_bytes)
    return Reply(body, media=pictures.MEDIA[found.suffix.lower()])


async def facts(app: App, call: Call) -> Reply:
    """Show what a model can do, its item columns with their values, and whether it is known what
    was held out of its training."""
    served = app.registry.of(call.query(words.Which).model)
    return _reply(served, await app.aside(lambda: served.study.facts))


async def result(app: App, call: Call) -> Reply:
    """Show the metrics of a model on what was held out of its training."""
    served = app.registry.of(call.query(words.Which).model)
    return await studied(app, served, "result", lambda: overview.metrics(served.study))


async def users(app: App, call: Call) -> Reply:
    """List users to look at: some at random, those with the worst or the best lists, or those with
    the fewest events."""
    given = call.query(page_words.Chosen)
    served = app.registry.of(given.model)

    def work() -> Any:
        return {"rows": overview.users(served.study, given)}

    if given.kind in ("random", "cold") and not given.metric:
        return _reply(served, await app.aside(work))
    return await studied(app, served, ("users", encode(given)), work)


async def user(app: App, call: Call) -> Reply:
    """Show what was held out of a user's events and the fields of the request that is measured, or
    the metrics of its list."""
    given, key = call.query(page_words.OfUser), call.path("user")
    served = app.registry.of(given.model)
    row = int(served.model.users.rows([key], "users", "users")[0])
    work = overview.user_metrics if given.metrics else overview.user
    return await studied(app, served, ("user", row, given.metrics), lambda: work(served.study, row))


async def differences(app: App, call: Call) -> Reply:
    """Compare two models on what was held out of both: paired differences with 95 % intervals, and
    the users whose lists differ most."""
    given = call.query(page_words.Pair)
    served, other = app.registry.of(given.model), app.registry.of(given.other)
    name = ("differences", other.seal, encode(given))
    return await studied(
        app, served, name, lambda: compared.differences(served.study, other.study, given)
    )


async def studied(
    app: App, served: Served, name: Hashable, work: Callable[[], Any], thread: str = "measured"
) -> Reply:
    """Answer with a part of a study, or with 202 while it is computed."""
    waits = asyncio.wrap_future(served.study.part(app.studies, name, work, thread))
    waits.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([waits], timeout=PATIENCE)
    if not waits.done():
        return Reply(encode({"working": True}), 202, headers=served.headers)
    return Reply(waits.result(), headers=served.headers)


# inside ------------------------------------------------------------------------------------------


def _reply(served: Served, found: dict[str, Any]) -> Reply:
    head = {"model": served.name, "seal": served.short_seal}
    return Reply(encode(head | found), headers=served.headers)
