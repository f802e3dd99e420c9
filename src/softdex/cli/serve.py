"""softdex serve: models over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from softdex.errors import SoftdexError, counted

EXTRA = ("starlette", "uvicorn", "uvloop", "httptools", "msgspec", "prometheus_client")


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Run folder or saved model, or NAME=PATH; several.")
    ],
    host: Annotated[
        str, typer.Option(help="Address; another than this machine's needs --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    tokens: Annotated[
        Path | None, typer.Option(help="File of lines `read TOKEN` and `admin TOKEN`.")
    ] = None,
    share: Annotated[
        list[str] | None, typer.Option(help="NAME=SHARE of the users, for A/B tests; repeat.")
    ] = None,
    watch: Annotated[
        Path | None, typer.Option(help="Folder whose model files are served as they come.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="File that keeps live events; lists follow them.")
    ] = None,
    max_wait: Annotated[
        float, typer.Option(help="Seconds of expected wait beyond which requests get 429.")
    ] = 0.025,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request gets 504.")] = 2.0,
    drain: Annotated[float, typer.Option(help="Seconds of answers after SIGTERM.")] = 5.0,
) -> None:
    """Serve models over HTTP: recommend, similar, batches, metrics, hot swap."""
    check_extra("serve")
    from softdex.serve.app import Settings
    from softdex.serve.start import made, run

    shares = {name: _number(text) for name, text in map(_pair, share or [])}
    settings = Settings(
        host=host, port=port, tokens=tokens, watch=watch, events=events, max_wait=max_wait,
        timeout=timeout, drain=drain,
    )  # fmt: skip
    server, url = made(named(models, "serve"), shares, settings)
    run(server, lambda: typer.echo(welcome(server.app, url)))


def check_extra(where: str) -> None:
    """Refuse to serve without the packages that it takes, with the line that installs them."""
    from importlib.util import find_spec

    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise SoftdexError(
            f"{where}: {', '.join(missing)} not installed. Run: pip install 'softdex[serve]'"
        )


def welcome(app: Any, url: str) -> str:
    """Return address, capacity and three lines to try."""
    lines = [f"softdex serves {counted(len(app.registry.models), 'models')} at {url}"]
    for name, served in app.registry.models.items():
        pace, model = served.pace, served.model
        one = (pace.fixed + pace.each) * 1e3
        lines.append(
            f"  {name}: {model.recipe}, {counted(len(model.users), 'users')}, "
            f"{counted(len(model.items), 'items')}; computes about {pace.capacity:,.0f} lists/s, "
            f"one alone in {one:.1f} ms"
        )
    model = app.registry.of(None).model
    token = " -H 'Authorization: Bearer TOKEN'" if app.tokens else ""
    items = [_key(key) for key in model.items.all()[:2].to_pylist()]
    history = json.dumps({"history": items, "k": 5})
    user = quote(str(model.users.all()[0].as_py()), safe="") if len(model.users) else "KEY"
    lines += ["Try:", f"  curl{token} '{url}/v1/recommend/{user}?k=5'"]
    if model.encoder.reads_history:
        quoted = history.replace("'", "'\\''")
        head = "-H 'Content-Type: application/json'"
        lines.append(f"  curl{token} {url}/v1/recommend {head} -d '{quoted}'")
    else:
        lines.append(f"  curl{token} '{url}/v1/similar/{quote(str(items[0]), safe='')}?k=5'")
    lines.append(f"  curl{token} {url}/v1/models")
    return "\n".join(lines)


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else str(key)


def named(models: list[str], where: str) -> dict[str, Any]:
    """Return the paths of models, by the names given or by those of the files."""
    from softdex.serve.served import name_of

    found: dict[str, Any] = {}
    for each in models:
        name, equals, path = each.partition("=")
        name, path = (
            (name, path) if equals and not Path(each).exists() else (name_of(Path(each)), each)
        )
        if name in found:
            raise SoftdexError(f"{where}: two models are called {name!r}. Write NAME=PATH.")
        if not Path(path).exists():
            raise SoftdexError(f"{where}: no file {path}. Expected a run folder or a saved model.")
        found[name] = Path(path)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, share = text.rpartition("=")
    if not equals:
        raise SoftdexError(f"--share: expected NAME=SHARE, got {text!r}.")
    return name, share


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SoftdexError(f"--share: expected a number, got {text!r}.") from None
