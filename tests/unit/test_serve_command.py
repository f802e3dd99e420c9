"""softdex serve: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import softdex as sdx
from serving import Client
from softdex.cli import serve as command
from softdex.cli.app import app
from softdex.serve import start
from softdex.serve.http import Server


@pytest.fixture
def file(model: sdx.Retriever, tmp_path: Path) -> Path:
    model.save(tmp_path / "cf.sdx")
    return tmp_path / "cf.sdx"


@contextmanager
def started(file: Path, drain: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "softdex", "serve", str(file), "--port", "0", "--drain", drain]
    found = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield found
    finally:
        found.kill()
        found.communicate()


def test_the_command_prints_its_address_and_lines_to_try_and_drains_when_it_is_terminated(
    file: Path, parts: sdx.Split
) -> None:
    with started(file, drain="0.5") as process:
        url = said(process, file)
        sdx.fit("popular", parts.train).save(file)
        client = Client(url)
        process.send_signal(signal.SIGHUP)
        while client.get("/v1/models").json["models"][0]["recipe"] != "popular":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        while client.get("/readyz").status == 200:
            client = Client(url)
        draining = Client(url).get("/v1/recommend/u001")  # it answers new connections still
        assert (draining.status, draining.headers["connection"]) == (200, "close")
        assert Client(url).get("/livez").status == 200
        assert process.wait(10) == 0


def said(process: subprocess.Popen[str], file: Path) -> str:
    """Read what a server prints, try its lines, and return its address."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(6)]
    url = lines[0].split()[-1]
    assert lines[0] == f"softdex serves 1 model at {url}\n"
    assert "cf: item_cf, 300 users" in lines[1]
    assert "lists/s" in lines[1]
    for line in lines[3:]:
        words = [*shlex.split(line), "-s", "-f"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, line
        assert '"model' in done.stdout
    return url


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_and_ctrl_c_end_the_command_without_a_drain(
    first: signal.Signals, file: Path
) -> None:
    with started(file, drain="60") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        process.send_signal(first)
        if first is signal.SIGTERM:
            while Client(url).get("/readyz").status == 200:
                pass
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_look_prints_its_address_where_there_is_no_browser(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def answer(server: Server, tell: Callable[[], None]) -> None:
        tell()
        server.app.close()
        server.listening.close()

    monkeypatch.setattr(start, "run", answer)
    monkeypatch.setattr(start.webbrowser, "open", lambda url: bool(shown.append(url)) or True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(start.sys, "platform", "linux")
    found = CliRunner().invoke(app, ["look", str(file)])
    line = r"the page is at http://127\.0\.0\.1:\d+ \(open it in a browser\); Ctrl-C ends it\n"
    assert re.fullmatch(line, found.output)
    assert shown == []
    monkeypatch.setenv("DISPLAY", ":0")
    found = CliRunner().invoke(app, ["look", str(file)])
    assert re.fullmatch(line.replace(r" \(open it in a browser\)", ""), found.output)
    [url] = shown
    assert url in found.output
    CliRunner().invoke(app, ["look", str(file), "--no-browser"])
    assert shown == [url]


def test_without_the_extra_the_command_says_how_to_install_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EXTRA", ("msgspec", "no_such_package"))
    found = CliRunner().invoke(app, ["serve", str(file)])
    assert str(found.exception) == (
        "serve: no_such_package not installed. Run: pip install 'softdex[serve]'"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{file}", "--host", "0.0.0.0"], "is open to other machines"),
        (["{file}", "{file}"], "two models are called 'cf'"),
        (["nothing.sdx"], "no file nothing.sdx"),
        (["{file}", "--share", "cf"], "expected NAME=SHARE"),
        (["{file}", "--share", "cf=x"], "expected a number"),
        (["{file}", "--share", "cg=1"], "share of 'cg'. Known: cf."),
        (["{file}", "--tokens", "nowhere"], "cannot read the tokens"),
        (["{file}", "--port", "99999"], "a port from 0 to 65535"),
        (["{file}", "--watch", "nowhere", "--port", "0"], "not a folder to watch"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, file: Path) -> None:
    given = [word.format(file=file) for word in words]
    found = CliRunner().invoke(app, ["serve", *given])
    assert isinstance(found.exception, sdx.SoftdexError)
    assert sentence in str(found.exception)
    assert "\n" not in str(found.exception)
