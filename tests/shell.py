"""A shell for pages: softdex, curl, cp and mkdir; `softdex serve ... &` in this process."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softdex.cli.app import app
from softdex.serve import registry, start
from softdex.serve.http import Server
from softdex.serve.start import Serving
from softdex.serve.watch import look, models_in

MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text()
PORT = "localhost:8000"


class Shell:
    """Runs lines as they stand on a page, except that the server takes a free port.

    Attributes:
        answers: what curl printed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Any] = []
        self.server: Server | None = None
        self.serving: Serving | None = None
        monkeypatch.setattr(registry, "MEASURE", 1e-9)
        monkeypatch.setattr(start, "run", self.background)

    def run(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if not words:
            return
        runs = {"make": self.make, "softdex": self.softdex, "curl": self.curl, "cp": self.cp,
                "mkdir": lambda words: Path(words[-1]).mkdir(exist_ok=True)}  # fmt: skip
        assert words[0] in runs, line
        runs[words[0]](words)

    def close(self) -> None:
        if self.serving is not None:
            self.serving.close()

    def make(self, words: list[str]) -> None:
        for target in words[1:]:
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), words

    def softdex(self, words: list[str]) -> None:
        if words[-1] == "&":
            words = [*words[:-1], "--port", "0"]
        result = CliRunner().invoke(app, ["-q", *words[1:]])
        assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception}"
        if "--json" in words:
            json.loads(result.stdout)

    def background(self, server: Server, tell: Any) -> None:
        """Serve in another thread, where `softdex serve` would stay."""
        self.server, self.serving = server, Serving(server, "")
        if server.app.settings.watch is not None:
            self.known = models_in(server.app.settings.watch)
        tell()

    def curl(self, words: list[str]) -> None:
        if not shutil.which("curl"):
            pytest.skip("there is no curl")
        assert self.server is not None
        here = f"127.0.0.1:{self.server.app.settings.port}"
        given = [word.replace(PORT, here) for word in words]
        done = subprocess.run([*given, "--fail-with-body"], capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        self.answers.append(json.loads(done.stdout))

    def cp(self, words: list[str]) -> None:
        shutil.copy(*words[1:])
        folder = self.server.app.settings.watch if self.server is not None else None
        if self.server is not None and folder is not None:  # at once, not at the next look
            look(self.server.app.registry, folder, self.known)
