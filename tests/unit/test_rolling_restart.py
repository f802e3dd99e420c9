"""Two copies are restarted one after another under load, and no request fails."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

import pytest

import softdex as sdx

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[2] / "deploy" / "nginx.conf"
TOKEN = "read-token-0123456789"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
USERS, WIDTH = 100, 3


class Copy:
    """A process that serves a model at a port."""

    def __init__(self, port: int, file: Path, tokens: Path, drain: float) -> None:
        self.port = port
        self.words = [sys.executable, "-m", "softdex", "--threads", "1", "serve", str(file)]
        self.words += ["--port", str(port), "--tokens", str(tokens), "--drain", str(drain)]
        self.words += ["--max-wait", "5", "--timeout", "10"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            finally:
                connection.close()
        return False

    def wait(self) -> None:
        """Wait as `ExecStartPost` of the unit does."""
        while not self.is_ready():
            assert self.process.poll() is None
            time.sleep(0.05)

    def restart(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        self.start()
        self.wait()


@contextlib.contextmanager
def two_copies(file: Path, folder: Path, drain: float) -> Iterator[list[Copy]]:
    tokens = folder / "tokens"
    tokens.write_text(f"read {TOKEN}\n")
    copies = [Copy(port, file, tokens, drain) for port in free_ports(2)]
    try:
        for copy in copies:
            copy.wait()
        yield copies
    finally:
        for copy in copies:
            copy.process.kill()
            copy.process.wait()


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Client:
    """One connection per port, which stays open; nothing is tried again."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self.ports, self.turn = ports, itertools.count()
        self.open: dict[int, http.client.HTTPConnection] = {}

    def ask(self, method: str, path: str, body: str | None = None) -> int:
        ports = self.ports()
        self.close(self.open.keys() - set(ports))
        port = ports[next(self.turn) % len(ports)]
        if port not in self.open:
            self.open[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.open[port].request(method, path, body, HEADERS)
        answer = self.open[port].getresponse()
        answer.read()
        if answer.will_close:
            self.close({port})
        return answer.status

    def close(self, ports: Set[int]) -> None:
        for port in list(ports):
            self.open.pop(port).close()


class Turns:
    """A client that asks the ready copies in turn."""

    def __init__(self, copies: list[Copy]) -> None:
        self.copies, self.ready, self.ends = copies, [c.port for c in copies], threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        while not self.ends.wait(0.05):
            self.ready = [copy.port for copy in self.copies if copy.is_ready()]

    def client(self) -> Client:
        return Client(lambda: self.ready)

    def close(self) -> None:
        self.ends.set()
        self.thread.join()


class Nginx:
    """nginx in front, with the configuration of `deploy`."""

    def __init__(self, copies: list[Copy], folder: Path) -> None:
        (self.port,) = free_ports(1)
        text = CONF.read_text().replace("listen 80;", f"listen 127.0.0.1:{self.port};")
        for old, copy in zip(("8001", "8002"), copies, strict=True):
            text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{copy.port}")
        text = text.replace("rate=500r/s", "rate=100000r/s")  # all clients have one address here
        (folder / "softdex.conf").write_text(text)
        places = " ".join(
            f"{name}_temp_path {folder / name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder / 'pid'}; error_log {folder / 'error.log'} warn;\n"
            f"events {{}} http {{ {places} include {folder / 'softdex.conf'}; }}\n"
        )
        words = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        self.process = subprocess.Popen(words)
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            assert self.process.poll() is None

    def client(self) -> Client:
        return Client(lambda: [self.port])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def load(client: Callable[[], Client], clients: int, pause: float) -> Iterator[Counter[object]]:
    """Ask all the time from several clients, and count answers by status, and errors by name."""
    found: Counter[object] = Counter()
    ends = threading.Event()

    def work(first: int) -> None:
        own, numbers = client(), itertools.count(first)
        while not ends.wait(pause):
            user = f"u{next(numbers) % USERS:0{WIDTH}d}"
            try:
                found[own.ask("GET", f"/v1/recommend/{user}?k=5")] += 1
                found[own.ask("POST", "/v1/recommend", json.dumps({"user": user, "k": 5}))] += 1
            except Exception as error:
                found[repr(error)] += 1
                own.close(own.open.keys())
        own.close(own.open.keys())

    threads = [threading.Thread(target=work, args=(7 * i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("balancer", ["turns", "nginx"])
def test_no_request_fails_while_copies_are_restarted(
    balancer: str, model: sdx.Retriever, tmp_path: Path
) -> None:
    if balancer == "nginx" and shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    model.save(tmp_path / "cf.sdx")
    with two_copies(tmp_path / "cf.sdx", tmp_path, drain=3.0) as copies:
        before = Turns(copies) if balancer == "turns" else Nginx(copies, tmp_path)
        try:
            with load(before.client, clients=4, pause=0.01) as found:
                for copy in copies:
                    copy.restart()
        finally:
            before.close()
    assert set(found) == {200}, found
    assert found[200] > 200
