"""A load generator in its own process: connections that ask, one request at a time each.

python bench/_load.py URL SECONDS CONNECTIONS [REQUESTS_PER_SECOND] [USERS]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

WARM = 1.0  # seconds that do not count
K = 20


class Load:
    """What all connections share.

    Attributes:
        found: status, seconds and seal of each answer.
        failed: connections that were lost.
        open: whether to go on.
    """

    def __init__(self, requests: list[bytes], rate: float) -> None:
        self.requests, self.rate = requests, rate
        self.found: list[tuple[int, float]] = []
        self.seals: set[bytes] = set()
        self.failed, self.open, self.draw = 0, True, random.Random(0)
        self.next = time.perf_counter()

    def delay(self) -> float:
        """Seconds until the next request may leave; 0 without a rate."""
        if not self.rate:
            return 0.0
        now = time.perf_counter()
        self.next = max(self.next, now - 0.1) + self.draw.expovariate(self.rate)
        return max(0.0, self.next - now)


class Connection(asyncio.Protocol):
    """One connection; the clock of a request starts when it is written."""

    def __init__(self, load: Load) -> None:
        self.load, self.busy = load, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.later()

    def later(self) -> None:
        if not self.load.open:
            self.transport.close()
        elif delay := self.load.delay():
            asyncio.get_running_loop().call_later(delay, self.ask)
        else:
            self.ask()

    def ask(self) -> None:
        if not self.load.open or self.transport.is_closing():
            return
        self.parser, self.began, self.busy = (
            httptools.HttpResponseParser(self), time.perf_counter(), True,
        )  # fmt: skip
        self.transport.write(self.load.draw.choice(self.load.requests))

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-model-seal":
            self.load.seals.add(value)

    def on_message_complete(self) -> None:
        self.busy = False
        spent = time.perf_counter() - self.began
        self.load.found.append((self.parser.get_status_code(), spent))
        self.later()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.failed += self.busy and self.load.open


async def loaded(url: str, seconds: float, connections: int, rate: float, users: int) -> None:
    """Ask for some seconds, and print what came as a JSON line."""
    at = urlsplit(url)
    load = Load([request(i) for i in range(users)], rate)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(load), at.hostname, at.port)
    await asyncio.sleep(min(WARM, seconds))
    load.found.clear()
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu
    load.open = False
    good = sorted(each for status, each in load.found if status == 200)
    statuses = [status for status, _ in load.found]
    count = len(statuses)
    print(json.dumps({
        "connections": connections,
        "asked_per_second": round(count / spent),
        "requests_per_second": round(len(good) / spent),
        "p50_ms": quantile(good, 0.5),
        "p99_ms": quantile(good, 0.99),
        "shed": round(sum(status == 429 for status in statuses) / max(1, count), 4),
        "failed": sum(status not in (200, 429) for status in statuses) + load.failed,
        "seals": len(load.seals),
        "generator_us_per_request": round(cpu / max(1, count) * 1e6, 1),
    }))  # fmt: skip


def quantile(sorted_seconds: list[float], share: float) -> float | None:
    """A quantile in milliseconds."""
    if not sorted_seconds:
        return None
    return round(sorted_seconds[int(share * (len(sorted_seconds) - 1))] * 1e3, 2)


def request(user: int) -> bytes:
    body = json.dumps({"user": user, "k": K}).encode()
    return (
        b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


if __name__ == "__main__":
    url, *numbers = sys.argv[1:]
    seconds, connections, rate, users = [float(n) for n in numbers]
    uvloop.run(loaded(url, seconds, int(connections), rate, int(users)))
