"""A server that is killed while clients post: no acknowledged event is lost, none is doubled."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import softdex as sdx
from marks import slow
from serving import Client
from softdex.data.event_file import read_event_file
from softdex.serve import registry
from softdex.serve.app import Settings
from softdex.serve.start import made, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
CLIENTS = 3


@contextlib.contextmanager
def child(model: sdx.Retriever, events: Path) -> Iterator[tuple[int, str]]:
    """Serve in a process of its own, which is killed at the end."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            server, url = made({"m": model}, None, Settings(port=0, events=events))
            run(server, lambda: os.write(writes, url.encode()))  # once it listens
        except BaseException as error:
            os.write(writes, repr(error).encode())
        os._exit(1)
    os.close(writes)
    try:
        url = os.read(reads, 1000).decode()
        assert url.startswith("http://"), url
        yield pid, url
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reads)


def post(url: str, number: int, counts: Iterator[int], pending: list[int], acked: set[int]) -> None:
    """Post events until the server is gone; what was not acknowledged is sent again."""
    client = Client(url)
    with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            if not pending:
                pending += itertools.islice(counts, random.Random(number).randint(1, 4))
            events = [{"user": f"c{number}", "item": n, "event_id": str(n)} for n in pending]
            found = client.post("/v1/events", events)
            assert found.status == 202, found.body
            acked.update(pending)
            pending.clear()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
@pytest.mark.parametrize("kills", [4, *slow(60)])
def test_a_killed_server_loses_no_acknowledged_event_and_doubles_none(
    kills: int, model: sdx.Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MEASURE", 1e-9)  # of the pace: seconds per start
    path, draw, counts = tmp_path / "events.db", random.Random(0), itertools.count()
    pending: list[list[int]] = [[] for _ in range(CLIENTS)]
    acked: set[int] = set()
    for _ in range(kills):
        with child(model, path) as (_, url):
            threads = [
                threading.Thread(target=post, args=(url, i, counts, pending[i], acked))
                for i in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            time.sleep(draw.uniform(0.02, 0.15))
        for thread in threads:
            thread.join(20)
    kept = Counter(map(int, read_event_file(path, "here").table["item"].to_pylist()))
    assert len(acked) > kills
    assert not acked - kept.keys()
    assert set(kept.values()) == {1}
    assert kept.keys() - acked <= {n for each in pending for n in each}
