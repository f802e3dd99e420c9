"""Hostile clients of the server: server errors, tracebacks in its log, connections lost.

Calls that schemathesis makes of the OpenAPI document, and hostile bodies to every endpoint.

Schemathesis is the extra `fuzz`; without it its calls are left out, with the reason.

python bench/serve_fuzz.py [--bodies 100000] [--calls 300]
"""

from __future__ import annotations

import http.client
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))

import bodies  # noqa: E402
import schema_calls  # noqa: E402
import softdex as sdx  # noqa: E402
from _harness import report, sized  # noqa: E402
from _options import parser, run, size  # noqa: E402

ADMIN = "admin-token-of-the-benchmark"
LIMITS = "schemathesis is not installed: pip install 'softdex[fuzz]'"
PARSER = parser(__file__, __doc__)
PARSER.add_argument("--bodies", type=size, default=sized(10**5, 200))
PARSER.add_argument("--calls", type=size, default=sized(300, 6), help="per operation")
PARSER.add_argument("--first", type=int, default=0, help="seed")


def models(folder: Path) -> list[str]:
    """Save small models of four kinds, and return the words that serve them."""
    log = sdx.synthetic.world(users=300, items=120, seed=7, events=15).interactions()
    small: dict[str, Any] = {"dim": 4, "epochs": 1, "device": "cpu", "quiet": True}
    made = {
        "cf": sdx.fit("item_cf", log, quiet=True),
        "rg2": sdx.fit("rg2", log, **small),
        "tdm": sdx.fit("tdm", log, **small, leaves="random", max_instances=64, beam=4),
        "sasrec": sdx.fit("sasrec", log, **small, heads=1),
    }
    for name, model in made.items():
        model.save(folder / f"{name}.sdx")
    return [f"{name}={folder / name}.sdx" for name in made]


def send(url: str, count: int, seed: int) -> tuple[Counter[int], int]:
    """Send hostile bodies over one connection at a time; return statuses and connections lost."""
    draw, statuses, lost = random.Random(seed), Counter[int](), 0
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    for _ in range(count):
        path, raw, headers = bodies.hostile(draw)
        head = headers | {"Authorization": f"Bearer {ADMIN}"}
        try:
            connection.request("POST", path, raw, head)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException) as error:
            lost += 1
            print(f"lost: {path} {raw[:200]!r} {headers}: {error!r}", file=sys.stderr)
            connection.close()
    connection.close()
    return statuses, lost


def called(url: str, count: int) -> dict[str, Any]:
    """What the calls of schemathesis found."""
    try:
        found = schema_calls.call(url, count, {"Authorization": f"Bearer {ADMIN}"})
    except ImportError:
        return {"skipped": LIMITS}
    for failure in found.failures:
        print(failure, file=sys.stderr)
    return {
        "calls": found.statuses.total(),
        "server_errors": found.errors,
        "other_failures": len(found.failures),
        "statuses": dict(sorted(found.statuses.items())),
    }


def main(given: Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokens").write_text(f"admin {ADMIN}\n")
        words = ["serve", *models(folder), "--port", "0", "--tokens", str(folder / "tokens"),
                 "--events", str(folder / "events.db"), "--max-wait", "60",
                 "--timeout", "60", "--drain", "0"]  # fmt: skip
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "softdex", *words],
                stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert server.stdout is not None
        at = re.search(r"http://\S+", server.stdout.readline())
        try:
            if at is None:
                raise SystemExit("serve_fuzz: the server did not start")
            began = time.perf_counter()
            schema = called(at[0], given.calls)
            statuses, lost = send(at[0], given.bodies, given.first)
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()
        said = (folder / "log").read_text()
        print(said, file=sys.stderr)
        errors = sum(n for status, n in statuses.items() if status >= 500 and status != 504)
        report(
            "serve_fuzz",
            "softdex serve of item_cf, rg2, tdm and sasrec with events and an admin token; "
            f"schemathesis: {given.calls} calls per operation, a third each of sound data, of "
            "unsound data, and of sound data that name known keys; bodies: odd fields, numbers, "
            "nesting, lengths, encodings, bytes and Arrow streams to every POST endpoint, seed "
            f"{given.first}; 504 where the client asks for a deadline of 1 ms is no error",
            schemathesis=schema,
            bodies=statuses.total() + lost,
            server_errors=errors,
            tracebacks=said.count("Traceback"),
            connections_lost=lost,
            statuses=dict(sorted(statuses.items())),
            seconds=round(time.perf_counter() - began, 1),
            exit_status=server.returncode,
        )
    if errors or lost or "Traceback" in said or server.returncode or schema.get("server_errors"):
        raise SystemExit("serve_fuzz: the server failed; standard error says where")


if __name__ == "__main__":
    run(PARSER, main)
