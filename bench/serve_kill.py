"""Events acknowledged, lost and doubled when `softdex serve` is killed at random under load.

python bench/serve_kill.py [KILLS]
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import softdex as sdx
from _harness import report, sized
from _options import parser, run, size
from softdex.data.event_file import read_event_file

CLIENTS, BATCH = 8, 5
SECONDS = sized((0.05, 1.0), (0.05, 0.3))  # from the first address to the kill
PARSER = parser(__file__, __doc__)
PARSER.add_argument("kills", nargs="?", type=size, default=sized(100, 2))


class Poster(threading.Thread):
    """Posts events until the server is gone; what was not acknowledged is sent again."""

    def __init__(self, at: str, name: int, ids: Iterator[int], unsure: list[int]) -> None:
        super().__init__()
        self.at, self.user, self.ids, self.unsure = at, f"c{name}", ids, unsure
        self.acked: list[int] = []
        self.refused = 0
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self.at, timeout=20)
        head = {"Content-Type": "application/json"}
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                if not self.unsure:
                    self.unsure += itertools.islice(self.ids, BATCH)
                events = [{"user": self.user, "item": n, "event_id": str(n)} for n in self.unsure]
                connection.request("POST", "/v1/events", json.dumps(events), head)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 202:
                    self.acked += self.unsure
                    self.unsure.clear()
                else:
                    self.refused += 1
        connection.close()


def main(given: Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        model, path = Path(name) / "popular.sdx", Path(name) / "events.db"
        log = sdx.synthetic.world(users=100, items=50, seed=0).interactions()
        sdx.fit("popular", log, quiet=True).save(model)
        command = [sys.executable, "-m", "softdex", "serve", str(model), "--port", "0"]
        draw, ids, unsure = (
            random.Random(0),
            itertools.count(),
            [list[int]() for _ in range(CLIENTS)],
        )
        acked, refused, spent, idle = list[int](), 0, 0.0, 0
        for _ in range(given.kills):
            server = subprocess.Popen(
                [*command, "--events", str(path)], stdout=subprocess.PIPE, text=True
            )
            assert server.stdout is not None
            at = re.search(r"http://(\S+)", server.stdout.readline())
            if at is None:
                raise SystemExit("serve_kill: the server did not start")
            began = time.perf_counter()
            posters = [Poster(at[1], i, ids, unsure[i]) for i in range(CLIENTS)]
            time.sleep(draw.uniform(*SECONDS))
            server.send_signal(signal.SIGKILL)
            spent += time.perf_counter() - began
            server.communicate()
            for poster in posters:
                poster.join()
                acked += poster.acked
                refused += poster.refused
            idle += not any(poster.acked for poster in posters)
        kept = Counter(map(int, read_event_file(path, "serve_kill").table["item"].to_pylist()))
    lost, doubled = len(set(acked) - kept.keys()), sum(count > 1 for count in kept.values())
    report(
        "serve_kill",
        f"softdex serve, popular, {CLIENTS} clients that post {BATCH} events at a time and send "
        f"again what was not acknowledged; SIGKILL {SECONDS[0]} to {SECONDS[1]} s after the "
        "server's address, then the next server on the same file",
        kills=given.kills,
        kills_before_any_acknowledgement=idle,
        acknowledged=len(acked),
        kept=len(kept),
        lost=lost,
        doubled=doubled,
        refused=refused,
        acknowledged_per_second=round(len(acked) / spent),
    )
    if lost or doubled:
        raise SystemExit(f"serve_kill: {lost} events were lost, {doubled} doubled")


if __name__ == "__main__":
    run(PARSER, main)
