"""Start a server: in the background of a notebook, or in the foreground of a command."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, final

from softdex.data.holdout import Holdout
from softdex.errors import SoftdexError
from softdex.messages import say
from softdex.model.retriever import Retriever
from softdex.serve.app import App, Settings
from softdex.serve.endpoints import ENDPOINTS
from softdex.serve.events import Events
from softdex.serve.http import Server, bound
from softdex.serve.metrics import Metrics
from softdex.serve.registry import Registry, registry_of
from softdex.serve.served import name_of
from softdex.serve.tokens import read_tokens
from softdex.serve.watch import models_in, watching

LOOKER_WAITS = 60.0  # seconds: whoever looks would rather wait than be refused
SWITCH = 0.0005  # seconds after which a thread gives way, so that answers leave while others come


@final
class Serving:
    """A server in the background; also a context manager that stops it.

    Attributes:
        url: where it answers.
    """

    def __init__(self, server: Server, url: str) -> None:
        self._server, self.url = server, url
        self._thread = threading.Thread(target=self._answer, name="softdex-http", daemon=True)
        self._thread.start()
        server.listens.wait()

    def close(self) -> None:
        """Answer what is being computed, then stop."""
        self._server.stop()
        self._thread.join()

    def _answer(self) -> None:
        app = self._server.app
        with watching(app.registry, app.settings.watch):
            self._server.serve_forever()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Serving({self.url})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank">{self.url}</a>'


def serve(
    models: Retriever | str | Path | Mapping[str, Retriever | str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    shares: Mapping[str, float] | None = None,
    tokens: str | Path | None = None,
    events: str | Path | None = None,
    **limits: Any,
) -> Serving:
    """Serve models over HTTP in the background, and return where.

    Args:
        models: a model or its file; or several by name, of which the first is the default.
        host, port: address; another host than this machine's own needs `tokens`. Port 0 takes a
            free one.
        shares: per model, its share of the users, for A/B tests.
        tokens: file of lines `read TOKEN` and `admin TOKEN`.
        events: file that keeps live events, made if there is none; None takes no events.
        limits: fields of `softdex.serve.app.Settings`.
    """
    given = {"host": host, "port": port, "tokens": tokens, "events": events}
    server, url = made(named(models), shares, _settings(limits | given))
    return Serving(server, url)


def look(
    models: Retriever | str | Path | Mapping[str, Retriever | str | Path],
    test: Holdout | None = None,
    *,
    port: int = 0,
    browser: bool = True,
    pictures: str | Path | None = None,
    **limits: Any,
) -> Serving:
    """Open the page of models in the browser, and return their server.

    Args:
        models: a model, its file or its run folder; or several by name, of which the first is shown
            first.
        test: what was held out of their training. None: models from run folders find it themselves.
        port: port on this machine; 0 takes a free one.
        browser: whether to open a browser, if there is one.
        pictures: folder of pictures of items, each named by the item's key, or as one of the item's
            columns says.
        limits: fields of `softdex.serve.app.Settings`.
    """
    waits = {"max_wait": LOOKER_WAITS, "timeout": LOOKER_WAITS}
    settings = _settings({**waits, **limits, "port": port, "pictures": pictures})
    server, url = made(named(models), None, settings, test)
    serving = Serving(server, url)
    if not (browser and opened(url)):
        say(f"look: {url}")
    return serving


def opened(url: str) -> bool:
    """Open an address in a browser with windows; return whether there is one."""
    shows = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    try:
        return shows and webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False


def named(
    models: Retriever | str | Path | Mapping[str, Retriever | str | Path],
) -> dict[str, Retriever | Path]:
    """Return models by name; one alone is named by its file."""
    if not isinstance(models, Mapping):
        name = name_of(Path(models)) if isinstance(models, (str, Path)) else "model"
        models = {name: models}
    return {name: _path_or_model(each) for name, each in models.items()}


def made(
    models: Mapping[str, Retriever | Path],
    shares: Mapping[str, float] | None,
    settings: Settings,
    holdout: Holdout | None = None,
) -> tuple[Server, str]:
    """Load models and bind the address; return the server, and where it will answer."""
    _check(settings)
    tokens = None if settings.tokens is None else read_tokens(settings.tokens)
    if tokens is None and not is_loopback(settings.host):
        raise SoftdexError(
            f"serve: {settings.host} is open to other machines. Pass a file of tokens "
            "(--tokens FILE), or stay on 127.0.0.1 behind a proxy."
        )
    if not models:
        raise SoftdexError("serve: expected at least one model.")
    if settings.watch is not None:
        models_in(settings.watch)  # raises if it is no folder
    listening, kept = bound(settings.host, settings.port), None
    try:
        metrics = Metrics()
        kept = None if settings.events is None else Events(settings.events, metrics.events)
        registry = registry_of(models, shares, metrics.reload, kept, holdout)
        port = listening.getsockname()[1]
        app = App(registry, replace(settings, port=port), tokens, ENDPOINTS, metrics)
    except BaseException:
        listening.close()
        if kept is not None:
            kept.close()
        raise
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Server(app, listening), f"http://{host}:{port}"


def run(server: Server, tell: Callable[[], None]) -> None:
    """Answer in the main thread until SIGTERM or Ctrl-C; SIGHUP reads every model again.

    Args:
        server: of `made`.
        tell: is called once the server listens.
    """
    registry, settings = server.app.registry, server.app.settings
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # else a collection that looks at every model stops all requests

    def once_listening() -> None:
        server.listens.wait()
        if not server.should_exit:
            tell()

    with (
        _handlers(
            {
                signal.SIGTERM: lambda: server.drain(settings.drain),
                signal.SIGINT: lambda: server.drain(0.0),
                signal.SIGHUP: lambda: _later(server, registry),
            }
        ),
        watching(registry, settings.watch),
    ):
        threading.Thread(target=once_listening, daemon=True).start()
        server.serve_forever()


def reload_all(registry: Registry) -> None:
    """Read every model again from its file; one that fails stays as it is."""
    for name, served in list(registry.models.items()):
        if served.path is not None:
            try:
                swap = registry.reload(name)
            except Exception as error:
                say(f"serve: {name} was not reloaded: {error}")
            else:
                say(f"serve: reloaded {name} in {swap.seconds:.1f} s")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# inside ------------------------------------------------------------------------------------------


def _path_or_model(given: Any) -> Retriever | Path:
    if isinstance(given, (Retriever, Path)):
        return given
    if isinstance(given, str):
        return Path(given)
    raise SoftdexError(
        f"serve: expected models, or paths of model files, got {type(given).__name__}."
    )


def _settings(given: Mapping[str, Any]) -> Settings:
    paths = {each.name for each in fields(Settings) if "Path" in str(each.type)}
    found = dict(given)
    try:
        found |= {n: Path(v) for n, v in given.items() if n in paths and v is not None}
        return Settings(**found)
    except TypeError as error:
        raise SoftdexError(f"serve: {error}.") from None


def _check(settings: Settings) -> None:
    """Refuse limits that are none."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.type not in ("int", "float"):
            continue
        kind, number = (int, "whole number") if field.type == "int" else ((int, float), "number")
        if not isinstance(value, kind) or not 0 <= value < 1e9:  # not for NaN either
            raise SoftdexError(
                f"serve: expected {field.name} as a {number} of at least 0, got {value!r}."
            )


def _later(server: Server, registry: Registry) -> None:
    server.app.loader.submit(reload_all, registry)


@contextlib.contextmanager
def _handlers(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Handle signals meanwhile."""

    def handler(work: Callable[[], None]) -> Callable[[int, Any], None]:
        return lambda number, frame: work()

    before = {number: signal.signal(number, handler(work)) for number, work in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
