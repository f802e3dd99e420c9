"""uvicorn with limits: headers, idle and slow connections, and a drain before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from softdex.errors import SoftdexError
from softdex.serve.app import App, Settings

MAX_HEADERS = 2**15  # bytes
SWEEP = 1.0  # seconds between looks at all connections, at most
TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
BEAT = 0.01  # seconds between looks at how late the event loop is
STALE = 0.002  # seconds in which a connection that is read again sends what waited
TURNS = (
    20  # refused connections that are read again per beat if the server is full, else four times
)
RESERVED = 64  # file descriptors for models, events and the log


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address."""
    if not 0 <= port < 2**16:
        raise SoftdexError(f"serve: expected a port from 0 to {2**16 - 1}, got {port}.")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(address)
        except OSError:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SoftdexError(
            f"serve: cannot listen on {host}:{port} ({why}). Choose another --host or --port."
        ) from None
    return found


class Connection(HttpToolsProtocol):
    """A connection that is ended when it is slow, or when its headers are long."""

    app: App  # of the server, set by `protocol`
    most = 1000  # connections at a time
    refused: deque[Connection]  # connections of the server that wait to be read again
    again = False  # whether the latest request was refused
    paused, stale = 0.0, 0.0  # when it was refused; until when what comes has waited since then
    since = math.inf  # when a request began, or the wait for one
    heading = True  # whether headers are awaited
    length = 0  # bytes of headers so far
    shedding = False  # whether the request is refused without a look at it
    unsent, sent = 0, math.inf  # bytes that wait for the client, and when it last took some

    def connection_made(self, transport: Any) -> None:
        """Refuse the connection if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > self.most:
            self.app.metrics.shed("connections")
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Read data, and refuse headers that are too long."""
        super().data_received(data)
        if not self.heading or self.parser is None:
            return
        self.length += len(data)
        if self.length > MAX_HEADERS:
            self.app.metrics.shed("headers")
            self.transport.write(TOO_LONG)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the clock of a request."""
        super().on_message_begin()
        self.since, self.heading, self.length = self.loop.time(), True, 0

    def on_headers_complete(self) -> None:
        """Start the request, or refuse it before it costs anything if the server is full."""
        self.heading = False
        free = self.cycle is None or self.cycle.response_complete
        asks = free and self.url.startswith(b"/v1/rec")
        stale = self.again and self.loop.time() < self.stale
        self.shedding = asks and (stale or self.app.batcher.is_full(again=self.again))
        if not self.shedding:
            self.again = False
            self.scope["state"]["coming"] = int(asks)
            self.app.batcher.coming += asks
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if not self.shedding:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        if not self.shedding:
            super().on_message_complete()
            return
        self.shedding, self.heading, self.length, self.again = False, True, 0, True
        self.transport.write(self.app.too_busy(self.scope))
        self.flow.pause_reading()
        self.paused = self.loop.time()
        self.refused.append(self)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.pipeline:
            self.heading, self.length = True, 0

    def read_on(self) -> None:
        """Read a connection again whose request was refused."""
        now = self.loop.time()
        self.stale = now + STALE if now - self.paused > self.app.settings.max_wait else 0.0
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def sweep(self, now: float) -> None:
        """End the connection if it is slow."""
        settings, cycle, spent = self.app.settings, self.cycle, now - self.since
        waiting = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if not 0 < waiting == self.unsent:
            self.unsent, self.sent = waiting, now
        if cycle is None or cycle.response_complete:
            slow = self.timeout_keep_alive_task is None and spent > settings.header_seconds
        else:
            reads = cycle.more_body and spent > settings.header_seconds
            slow = reads or spent > settings.request_seconds
        unread = waiting > 0 and now - self.sent > settings.header_seconds
        if (slow or unread) and self.transport is not None:
            self.app.metrics.shed("slow")
            self.transport.abort()


def protocol(app: App) -> type[Connection]:
    """Return the protocol of a server's connections."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = min(app.settings.max_connections, max(1, files - RESERVED))
    return type("Connection", (Connection,), {"app": app, "most": most, "refused": deque()})


@final
class Server(uvicorn.Server):
    """A server that drains: it answers for some time while it says that it is not ready.

    Args:
        app: the application.
        listening: the socket that it listens on.
    """

    def __init__(self, app: App, listening: socket.socket) -> None:
        settings: Settings = app.settings
        self.connection = protocol(app)
        super().__init__(
            uvicorn.Config(
                app,
                http=self.connection,
                loop="uvloop",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=1024,
                timeout_keep_alive=math.ceil(settings.idle_seconds),
                timeout_graceful_shutdown=math.ceil(settings.request_seconds),
            )
        )
        self.app, self.listening = app, listening
        self.listens = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._late = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone; `serve.start` has handlers of its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._beat(self.loop.time())
        self._sweeper = self.loop.create_task(self._sweep())
        self.listens.set()

    def serve_forever(self) -> None:
        """Answer until `drain` or `stop`."""
        try:
            self.run([self.listening])
        finally:
            self.listens.set()
            self.app.close()

    def drain(self, seconds: float) -> None:
        """Be not ready, answer for some seconds more, then end; a second call ends at once."""
        if self.app.draining:
            self.stop()
            return
        self.app.draining = True
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, self.stop)

    def stop(self) -> None:
        """End: answer what is being computed; a second call does not wait for it."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    def _beat(self, due: float) -> None:
        """Measure how late the event loop is, twice in a row, since once is no overload; read
        refused connections again, a few at a time while the server is full."""
        assert self.loop is not None
        now, batcher, refused = self.loop.time(), self.app.batcher, self.connection.refused
        late = max(0.0, now - due)
        batcher.beat(min(late, self._late))
        self._late = late
        turns = TURNS if batcher.is_full(again=True) else 4 * TURNS
        for _ in range(min(len(refused), turns)):
            refused.popleft().read_on()
        self.loop.call_at(now + BEAT, self._beat, now + BEAT)

    async def _sweep(self) -> None:
        pause = min(SWEEP, self.app.settings.header_seconds / 2)
        while not self.should_exit:
            await asyncio.sleep(pause)
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                connection.sweep(now)  # type: ignore[union-attr]
