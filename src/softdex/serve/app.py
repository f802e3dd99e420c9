"""The ASGI application: identity, access, limits and errors around the table of endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from softdex.errors import UnknownKey, did_you_mean
from softdex.serve.batcher import Batcher, Full, Late
from softdex.serve.metrics import Metrics
from softdex.serve.pictures import Pictures
from softdex.serve.problems import Problem, invalid, overloaded, problem_of
from softdex.serve.registry import Registry
from softdex.serve.served import Served
from softdex.serve.study import Studies
from softdex.serve.tokens import Tokens, check_access
from softdex.serve.words import encode

if TYPE_CHECKING:
    from softdex.serve.endpoints import Endpoint

JSON, ARROW, HTML = "application/json", "application/vnd.apache.arrow.stream", "text/html"
PROBLEM = b"application/problem+json"
ALWAYS = (
    (b"content-security-policy", b"default-src 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
READ_ON = 4  # times the longest body are read before the connection is closed instead
SLOWEST = 3600_000  # milliseconds that a client may ask for
ASIDE = 16  # look-ups that may wait outside the model thread
LOG = logging.getLogger("softdex.serve")
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


@final
@dataclass(frozen=True)
class Settings:
    """How a server behaves.

    Attributes:
        host, port: address; port 0 takes a free one.
        tokens: file of bearer tokens, or None.
        watch: folder whose model files are served as they come, or None.
        events: file that keeps live events, or None.
        pictures: folder of pictures of items, named by their keys or by a cell of theirs, or None.
        max_wait: seconds of expected wait beyond which requests are shed.
        timeout: seconds after which a request is not computed any more; `X-Timeout-Ms` says less.
        max_k, max_history: longest list and history.
        max_body, max_batch_body: bytes of a request, and of a batch.
        max_batch: requests of a batch, or users whose vectors are asked for.
        max_rows: items in all lists of a batch together.
        drain: seconds that SIGTERM lets the server answer before it stops listening.
        header_seconds, request_seconds, idle_seconds: time-outs of a connection.
        max_connections: connections at a time.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    tokens: Path | None = None
    watch: Path | None = None
    events: Path | None = None
    pictures: Path | None = None
    max_wait: float = 0.025
    timeout: float = 2.0
    max_k: int = 1000
    max_history: int = 10_000
    max_body: int = 2**20
    max_batch_body: int = 2**23
    max_batch: int = 10_000
    max_rows: int = 2_000_000
    drain: float = 5.0
    header_seconds: float = 10.0
    request_seconds: float = 60.0
    idle_seconds: float = 30.0
    max_connections: int = 1000


class Reply(NamedTuple):
    """An answer."""

    body: bytes
    status: int = 200
    media: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@final
class Call:
    """A request while it is answered.

    Attributes:
        scope, receive: of ASGI.
        headers: by lower-case name; of repeated ones the last.
        id: of the request.
        began: on the clock of `time.perf_counter`.
        endpoint: path of the endpoint, for the metrics.
        reply: the answer, once there is one.
        unread: whether more of the body may come.
    """

    __slots__ = ("began", "endpoint", "headers", "id", "receive", "reply", "scope", "unread")

    def __init__(self, scope: Scope, receive: Receive, id: str) -> None:
        self.scope, self.receive, self.id = scope, receive, id
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began, self.endpoint = time.perf_counter(), "none"
        self.reply: Reply | None = None
        length = self.headers.get(b"content-length", b"0")
        self.unread = length != b"0" or b"transfer-encoding" in self.headers

    @property
    def media(self) -> str:
        """Content type of the request."""
        return (
            self.headers.get(b"content-type", b"")
            .partition(b";")[0]
            .strip()
            .lower()
            .decode("latin-1")
        )

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.scope["path_params"][name])

    def deadline(self, most: float) -> float:
        """Return when the request need not be computed any more, after `most` seconds at most."""
        given = self.headers.get(b"x-timeout-ms")
        if given is not None:
            if not given.isdigit() or len(given) > 9 or not 0 < int(given) <= SLOWEST:
                raise Problem(
                    422, f"X-Timeout-Ms: expected milliseconds as a whole number up to {SLOWEST:,}."
                )
            most = min(int(given) / 1e3, most)
        return self.began + most

    async def body(self, most: int) -> bytes:
        """Read the body; refuse a longer one."""
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:18]) > READ_ON * most:
            raise _too_long(most)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "The client left before the body was complete.")
            part = message.get("body", b"")
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > READ_ON * most:
                raise _too_long(most)
            if not message.get("more_body", False):
                self.unread = False
                break
        if size > most:
            raise _too_long(most)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def json(self, kind: type[T], most: int) -> T:
        """Read the body as JSON of a type."""
        if self.media != JSON and not self.media.endswith("+json"):
            raise Problem(415, f"Expected Content-Type: {JSON}, got {self.media or 'none'}.")
        raw = await self.body(most)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            raise invalid(error, kind) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, f"The body is not JSON ({error}).") from None

    def query(self, kind: type[S]) -> S:
        """Read the query as options of a type; what may repeat becomes a list."""
        given: dict[str, Any] = {}
        try:
            text = self.scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=1000)
        except ValueError as error:
            raise Problem(400, f"The query cannot be read ({error}).") from None
        lists = {f.name for f in msgspec.structs.fields(kind) if f.default_factory is list}
        for name, value in pairs:
            if name in lists:
                given.setdefault(name, []).append(value)
            else:
                given[name] = value
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error, kind) from None


@final
class App:
    """The application.

    Args:
        registry: the served models.
        settings: limits.
        tokens: who may ask; None lets everybody ask, and nobody reload.
        endpoints: the table.
        metrics: counters.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        tokens: Tokens | None,
        endpoints: Sequence[Endpoint],
        metrics: Metrics,
    ) -> None:
        self.registry, self.settings, self.tokens = registry, settings, tokens
        self.endpoints, self.metrics = endpoints, metrics
        self.batcher = Batcher(settings.max_wait, metrics)
        metrics.watch(registry, lambda: self.batcher.depth, self.batcher.expected_wait)
        self.draining = False
        self._aside, self._waiting = ThreadPoolExecutor(2, "softdex-aside"), 0
        self.loader = ThreadPoolExecutor(1, "softdex-loader")
        self.studies, self.pictures = Studies(), Pictures(settings.pictures)
        self._prefix, self._count = secrets.token_hex(4), itertools.count()
        self._router = Router([self._route(each) for each in endpoints], redirect_slashes=False)

    async def aside(self, work: Callable[[], T], *, sure: bool = False) -> T:
        """Look something up outside event loop and model thread; refuse it if too much waits and it
        is not `sure`, as is the end of what was computed."""
        if self._waiting >= ASIDE and not sure:
            self.metrics.shed("aside")
            raise overloaded(1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._aside, work)
        finally:
            self._waiting -= 1

    def served(self, method: str, asked: Any, k: int = 1) -> Served:
        """Return the model of a request about a user, a history, or both; refuse one of neither."""
        if asked.user is None and asked.history is None:
            raise Problem(422, f"{method}: expected user, or history=[item, ...].", field="user")
        self.check(method, k, asked.history)
        return self.registry.of(asked.model, asked.user)

    def check(self, method: str, k: int, keys: Sequence[Any] | None, name: str = "history") -> None:
        """Refuse a list or a history that is longer than this server computes."""
        most_k, most = self.settings.max_k, self.settings.max_history
        if k > most_k:
            raise Problem(422, f"{method}: expected k of at most {most_k:,}, got {k:,}.", field="k")
        if keys is not None and len(keys) > most:
            found = f"expected at most {most:,} items in {name}, got {len(keys):,}."
            raise Problem(422, f"{method}: {found}", field=name)

    def faults(self) -> list[str]:
        """Return why the process cannot answer any more; nothing while all is well."""
        kept = self.registry.events
        broken = [] if self.batcher.is_alive else ["The thread of the model has ended."]
        if kept is not None and not kept.is_alive:
            broken.append("The thread that writes events has ended.")
        return broken

    def close(self) -> None:
        """End the threads."""
        self.batcher.close()
        if self.registry.events is not None:
            self.registry.events.close()
        self._aside.shutdown(wait=False, cancel_futures=True)
        self.loader.shutdown(wait=False, cancel_futures=True)
        self.studies.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        self.batcher.coming -= scope.get("state", {}).pop("coming", 0)
        call = Call(scope, receive, self._id(scope))
        try:
            scope["app"], scope["call"] = self, call
            await self._router(scope, receive, send)
            reply = call.reply
            assert reply is not None
        except Exception as error:
            reply = self._refused(call, error)
        if call.unread and reply.status != 413:
            with contextlib.suppress(Problem):  # else the client could not go on
                await call.body(self.settings.max_body)
        headers = [
            (b"content-type", reply.media.encode()),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", call.id.encode()),
            *ALWAYS,
            *reply.headers,
        ]
        if self.draining or call.unread:
            headers.append((b"connection", b"close"))
        self.metrics.request(call.endpoint, reply.status, time.perf_counter() - call.began)
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def too_busy(self, scope: Any) -> bytes:
        """Return a whole answer 429, for requests that are refused before they are read."""
        began, request_id = time.perf_counter(), self._id(scope)
        problem = overloaded(self.batcher.expected_wait())
        body = encode(problem.members(request_id))
        named = (
            (b"content-type", PROBLEM), (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()), *ALWAYS, *problem.headers,
        )  # fmt: skip
        self.metrics.shed("wait")
        self.metrics.request("none", 429, time.perf_counter() - began)
        lines = [b"%s: %s\r\n" % pair for pair in named]
        return b"".join((b"HTTP/1.1 429 Too Many Requests\r\n", *lines, b"\r\n", body))

    # inside --------------------------------------------------------------------------------------

    def _id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and ID.fullmatch(value):
                return str(value.decode())
        return f"{self._prefix}-{next(self._count):x}"

    def _route(self, endpoint: Endpoint) -> Route:
        return Route(endpoint.path, _Bound(self, endpoint), methods=[endpoint.method])

    def _refused(self, call: Call, error: Exception) -> Reply:
        """Return the answer that says why there is none."""
        if isinstance(error, HTTPException):
            error = self._no_endpoint(call, error)
        problem = problem_of(error)
        if isinstance(error, Full):
            self.metrics.shed("wait")
        elif isinstance(error, Late):
            self.metrics.shed("deadline")
        elif isinstance(error, UnknownKey):
            self.metrics.unknown()
        elif problem.status == 500:
            LOG.error("request %s failed", call.id, exc_info=error)
        body = encode(problem.members(call.id))
        return Reply(body, problem.status, PROBLEM.decode(), problem.headers)

    def _no_endpoint(self, call: Call, error: HTTPException) -> Problem:
        path = call.scope["path"]
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "")
            return Problem(
                405,
                f"{path} takes {allowed}, not {call.scope['method']}.",
                ((b"allow", allowed.encode()),),
            )
        known = dict.fromkeys(each.path for each in self.endpoints)
        shown = did_you_mean(path, known) if len(path) < 200 else ""
        hint = shown if shown.startswith("Did") else "GET /docs lists the endpoints."
        return Problem(404, f"No endpoint {path[:200]}. {hint}")


@final
class _Bound:
    """An endpoint as an ASGI application."""

    def __init__(self, app: App, endpoint: Endpoint) -> None:
        self.app, self.endpoint = app, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        call.endpoint = self.endpoint.path.replace(":path", "")
        check_access(self.app.tokens, self.endpoint.access, call.headers.get(b"authorization"))
        call.reply = await self.endpoint.handler(self.app, call)


def _too_long(most: int) -> Problem:
    return Problem(413, f"Expected a body of at most {most:,} bytes.")
