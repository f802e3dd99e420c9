"""An exported page: the explorer with the answers for a sample of users, as files.

Its files are scripts and its modules stand in the page itself, so that it also opens from a disk.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final
from urllib.parse import quote, unquote, urlencode

from softdex.data.holdout import Holdout
from softdex.errors import SoftdexError
from softdex.files import check_folder
from softdex.model.retriever import Retriever
from softdex.progress import progress
from softdex.serve.app import App, Settings
from softdex.serve.endpoints import ENDPOINTS
from softdex.serve.explorer import FILES, MEDIA
from softdex.serve.metrics import Metrics
from softdex.serve.registry import registry_of
from softdex.serve.study import CUTOFFS
from softdex.style import style

KINDS = ("random", "cold", "hard", "easy")
LIST, WHY, SHARES, NEAR = 50, 10, 30, 20  # items of a list, those explained, shares, similar items
MAPPED = 20_000  # items of a model whose map is in the copy
TOGETHER, BUCKETS = 16, 64  # users asked about at a time, files of similar items
IMPORT = re.compile(r'(^import [^"]*|\bimport\()"(\.[^"]+)"', re.MULTILINE)
HEADERS = [(b"content-type", b"application/json")]


def export_page(
    models: Mapping[str, Retriever | Path],
    folder: Path,
    users: int = 100,
    holdout: Holdout | None = None,
) -> int:
    """Write the page of models for a sample of users; return the number of users.

    Args:
        models: models or their files and run folders, by name.
        folder: is made; it must not be there, or be empty.
        users: number of users, at most: some at random, and those with the worst and the best lists
            and the fewest events.
        holdout: what was held out of their training; None: as run folders say.
    """
    if users < 1:
        raise SoftdexError(f"export: expected at least one user, got {users}.")
    check_folder(folder, "export")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SoftdexError(f"export: {folder} is not empty. Choose a new folder for the page.")
    settings = Settings(max_wait=600.0, timeout=600.0)
    metrics = Metrics()
    registry = registry_of(models, None, metrics.reload, None, holdout)
    app = App(registry, settings, None, ENDPOINTS, metrics)
    part = folder.parent / f".softdex-{secrets.token_hex(6)}.part"
    try:
        (part / "data").mkdir(parents=True)
        count = _written(_Copy(app, part / "data"), users)
        said = {"made": time.strftime("%Y-%m-%d"), "users": count}
        (part / "index.html").write_text(page(said), encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    finally:
        app.close()
        shutil.rmtree(part, ignore_errors=True)
    return count


def page(said: Mapping[str, Any]) -> str:
    """Return the page as one file of HTML with its styles and modules."""
    modules = {f"softdex/{name}": _module(name) for name in sorted(FILES) if name.endswith(".js")}
    sheets = [
        style(),
        *(FILES[name].read_text() for name in sorted(FILES) if name.endswith(".css")),
    ]
    icon = _data(MEDIA[".svg"], FILES["icon.svg"].read_bytes())
    head = FILES["index.html"].read_text()
    head = re.sub(r'\s*<(link rel="stylesheet"|script)[^\n]*', "", head)
    head = head.replace("page/icon.svg", icon)
    scripts = (
        f"<script>softdexStill = {_safe(said)}</script>"
        f"<script>{FILES['theme.js'].read_text()}</script>"
        f'<script type="importmap">{_safe({"imports": modules})}</script>'
        f"<style>{''.join(sheets)}</style>"
        '<script type="module">import "softdex/app.js";</script>'
    )
    return head.replace("</head>", f"{scripts}</head>")


# inside ------------------------------------------------------------------------------------------


def _written(copy: _Copy, users: int) -> int:
    """Write in a thread: where a notebook has an event loop, no other may run."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: asyncio.run(copy.write(users)))
        try:
            return done.result()
        finally:
            copy.ends = True


class _User(NamedTuple):
    """Where a user is from."""

    key: Any
    file: str


@final
class _Copy:
    """Asks the application, and writes its answers.

    Args:
        app: is asked as over HTTP.
        folder: for the files.
    """

    def __init__(self, app: App, folder: Path) -> None:
        self.app, self.folder = app, folder
        self.names, self.ends = list(app.registry.models), False
        self.facts: dict[str, Any] = {}
        self.mentioned: dict[Any, None] = {}
        self.listed: dict[Any, None] = {}

    async def write(self, count: int) -> int:
        """Write the files of a number of users."""
        self.facts = {name: await self.get("/v1/study", model=name) for name in self.names}
        chosen = {name: await self._chosen(name, count) for name in self.names}
        rows = {row["user"]: row for kinds in chosen.values() for r in kinds.values() for row in r}
        users = [_User(key, f"u{n}") for n, key in enumerate(rows)]
        blocks = [users[i : i + TOGETHER] for i in range(0, len(users), TOGETHER)]
        with progress(blocks, "writing the page") as shown:
            for block in shown:
                await asyncio.gather(*(self._user(user) for user in block))
        near = await self._similar()
        answers = await self._study()
        items = await self.post("/v1/items", items=[*self.mentioned], model=self.names[0])
        rows_shown = [row for row in items["rows"] if row is not None]
        self._save("page", {
            "models": await self.get("/v1/models"),
            "answers": answers,
            "chosen": chosen,
            "users": [{"user": key, "events": row["events"]} for key, row in rows.items()],
            "file": {str(user.key): user.file for user in users},
            "items": rows_shown,
            "row": {str(row["item"]): n for n, row in enumerate(rows_shown)},
            "near": near,
        })  # fmt: skip
        return len(users)

    async def _chosen(self, name: str, count: int) -> dict[str, list[Any]]:
        """Return users of each kind; together no more than a number, over all models."""
        held = self.facts[name]["holdout"]
        kinds = KINDS if held else KINDS[:2]
        limit = max(1, count // (len(kinds) * len(self.names)))
        metric = {"metric": "ndcg@20"} if held else {}
        found = {}
        for kind in kinds:
            given = {"kind": kind, "limit": limit, "seed": 0, "model": name} | metric
            found[kind] = (await self.get("/v1/study/users", **given))["rows"]
        return found

    async def _user(self, user: _User) -> None:
        """Write the file of a user: per model, history, list, what was held out, and why."""
        found = {}
        for name in self.names:
            held: Any = None
            at, given = quote(str(user.key), safe=""), {"model": name}
            known = await self.get(f"/v1/users/{at}", **given)
            who = {"user": user.key, **given}
            mine: dict[str, Any] = {"known": known}
            if self.facts[name]["holdout"]:
                held = mine["held"] = await self.get(f"/v1/study/users/{at}", **given)
                if held["targets"]:
                    more = {"metrics": "true"} | given
                    mine["metrics"] = await self.get(f"/v1/study/users/{at}", **more)
            ask = {} if held is None else held["ask"]
            past = {n: v for n, v in ask.items() if n == "history"}
            columns = [each["name"] for each in self.facts[name]["columns"]]
            mine["list"] = await self.post(
                "/v1/recommend", **who, **ask, k=LIST, columns=columns, unknown="popular"
            )
            targets = [] if held is None else held["targets"]
            if targets:
                mine["score"] = await self.post("/v1/score", **who, **past, items=targets)
            items = [each["item"] for each in mine["list"]["items"]]
            mine["why"] = {
                str(item): await self.post("/v1/explain", **who, **past, item=item, k=SHARES)
                for item in dict.fromkeys([*items[:WHY], *targets[:WHY]])
            }
            self.mentioned |= dict.fromkeys([*known["history"], *past.get("history", [])])
            self.mentioned |= dict.fromkeys([*items, *targets])
            self.listed |= dict.fromkeys(items[:WHY])
            found[name] = mine
        self._save(user.file, found)

    async def _similar(self) -> dict[str, str]:
        """Write what is similar to listed items; return the file of each."""
        files: dict[str, dict[str, Any]] = {}
        places = {}
        for n, item in enumerate(self.listed):
            place = places[str(item)] = f"s{n % BUCKETS}"
            for name in self.names:
                columns = [each["name"] for each in self.facts[name]["columns"]]
                near = await self.post(
                    "/v1/similar", items=[item], k=NEAR, columns=columns, model=name
                )
                files.setdefault(place, {}).setdefault(name, {})[str(item)] = near
                self.mentioned |= dict.fromkeys(e["item"] for e in near["similar"][0]["items"])
        for place, content in files.items():
            self._save(place, content)
        return places

    async def _study(self) -> dict[str, Any]:
        """Return answers that are the same for all users, by what is asked."""
        held = [name for name in self.names if self.facts[name]["holdout"]]
        asks: list[tuple[str, dict[str, Any]]] = []
        asks += [("v1/study", {"model": name}) for name in self.names]
        asks += [("v1/study/result", {"model": name}) for name in held]
        asks += [(f"v1/models/{quote(name, safe='')}", {}) for name in self.names]
        result = await self.get("/v1/study/result", model=held[0]) if held else {}
        metrics: list[dict[str, str]] = [{}]
        metrics += [
            {"metric": name} for name in result.get("metrics", ()) if "coverage" not in name
        ]
        asks += [
            ("v1/study/differences", {"model": one, "other": other, "limit": 10} | metric)
            for one, other in itertools.permutations(held, 2)
            for metric in metrics
        ]
        for name in self.names:
            asks += self._views(name, [each["metric"] for each in metrics[1:]])
        found = {}
        for path, given in asks:
            words = "&".join(f"{n}={v}" for n, v in sorted(given.items()))
            found[f"{unquote(path)}?{words}"] = await self.get(f"/{path}", **given)
        return found

    def _views(self, name: str, metrics: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return what the views ask for that are the same for all users of a model."""
        facts, model = self.facts[name], {"model": name}
        ks = [k for k in CUTOFFS if k <= facts["items"]] or [facts["items"]]
        asks: list[tuple[str, dict[str, Any]]] = [("v1/study/training", model)]
        asks += [("v1/study/exposure", {"k": k} | model) for k in ks]
        if facts["tree"] or facts["product"]:
            asks += [("v1/study/effort", {"k": k} | model) for k in ks]
        if facts["holdout"]:
            groups: list[dict[str, str]] = [{"by": "popularity"}]
            if facts["category"]:
                groups.append({"by": "category", "column": facts["category"]})
            asks += [
                ("v1/study/breakdown", by | metric | model)
                for by in groups
                for metric in ({}, *({"metric": f"recall@{k}"} for k in ks))
            ]
            asks += [
                ("v1/study/breakdown", {"by": "history"} | metric | model)
                for metric in ({}, *({"metric": each} for each in metrics))
            ]
        if facts["items"] <= MAPPED and (facts["tree"] or facts["product"]):
            column = {"column": facts["category"]} if facts["category"] else {}
            asks.append(("v1/study/map", column | model))
        return asks

    def _save(self, name: str, content: Any) -> None:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        script = f"softdexFile({json.dumps(name)},{text})\n"
        (self.folder / f"{name}.js").write_text(script, encoding="utf-8", errors="replace")

    async def get(self, path: str, **given: Any) -> Any:
        """Ask for a path, until it is computed."""
        while True:
            status, found = await self._asked("GET", path, urlencode(given).encode(), b"")
            if status != 202:
                return _checked(status, found, path)
            await asyncio.sleep(0.05)

    async def post(self, path: str, **body: Any) -> Any:
        """Post to a path."""
        status, found = await self._asked("POST", path, b"", json.dumps(body).encode())
        return _checked(status, found, path)

    async def _asked(self, method: str, path: str, query: bytes, body: bytes) -> tuple[int, Any]:
        if self.ends:
            raise asyncio.CancelledError
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": unquote(path),
            "raw_path": path.encode(), "query_string": query, "headers": HEADERS, "root_path": "",
            "scheme": "http", "http_version": "1.1", "server": None, "client": None,
        }  # fmt: skip
        await self.app(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])


def _checked(status: int, found: Any, path: str) -> Any:
    if status >= 400:
        raise SoftdexError(f"export: {path}: {found['detail']}")
    return found


def _module(name: str) -> str:
    """Return a module as an address that holds it, with imports by name."""
    here = PurePosixPath(name).parent

    def absolute(found: re.Match[str]) -> str:
        return f'{found[1]}"softdex/{_plain((here / found[2]).parts)}"'

    text = IMPORT.sub(absolute, FILES[name].read_text(encoding="utf-8"))
    return _data(MEDIA[".js"], text.encode())


def _plain(parts: Sequence[str]) -> str:
    """Return a path without `.` and `..`."""
    found: list[str] = []
    for part in parts:
        if part == "..":
            found.pop()
        elif part != ".":
            found.append(part)
    return "/".join(found)


def _data(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def _safe(value: Any) -> str:
    """Return JSON that ends no script."""
    return json.dumps(value).replace("<", "\\u003c")
