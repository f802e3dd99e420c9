"""Seconds and memory of reading a folder of Parquet files, spilled to disk and into memory, and of
what is done with the log then: each in a process of its own.

Memory is the peak above the start: all that is resident, pages of files that the kernel could drop
among them, and without these (`anonymous`, sampled).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _harness import peak_of, report, scratch, sized
from _options import parser, run, size

EVENTS = sized(10**7, 10_000)
FILES = 20

PARSER = parser(__file__, __doc__)
PARSER.add_argument("events", nargs="?", type=size, default=EVENTS, help="events of the log")
PARSER.add_argument("--reading", action="store_true", help="do nothing with the log")
PARSER.add_argument("--one", help="the folder and the way of reading of this process")


def write(folder: Path, events: int) -> None:
    """Write events of random users and items, integers, with times."""
    users, items, rows = max(10, events // 50), max(10, events // 500), events // FILES
    for i in range(FILES):
        random = np.random.default_rng(i)
        table = {
            "user": random.integers(0, users, rows),
            "item": (items * random.random(rows) ** 2).astype(np.int64),
            "time": random.integers(0, 10**8, rows),
        }
        pq.write_table(pa.table(table), folder / f"{i}.parquet")


def anonymous() -> float:
    """Memory of the process that is no file, in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x.split()[1] for x in lines if x.startswith("RssAnon"))) * 1024 / 1e9


def watched(work: object) -> tuple[object, dict[str, float]]:
    """`peak_of`, and the peak of anonymous memory above the start."""
    start = most = anonymous()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        answer, figures = peak_of(work)
    finally:
        ended.set()
        thread.join()
    return answer, figures | {"anonymous_gb": round(most - start, 3)}


def measure(folder: Path, way: str, *, reading: bool) -> None:
    """Read the log, and use it."""
    import softdex as sdx

    spill = {"spill": folder / "disk"} if way == "disk" else {}
    sdx.read(folder / "0.parquet", quiet=True)
    began = time.perf_counter()
    log, figures = watched(lambda: sdx.read(folder, quiet=True, **spill))
    rows = {"read": figures}
    works = {
        "counts": lambda: (log.user_counts, log.item_counts),
        "popular": lambda: sdx.fit("popular", log, quiet=True),
        "describe": log.describe,
        "leave_last": lambda: sdx.split.leave_last(log),
    }
    for name, work in () if reading else works.items():
        rows[name] = watched(work)[1]
    spent = round(time.perf_counter() - began, 1)
    protocol = f"{len(log):,} events of integers in {FILES} Parquet files, warm page cache"
    report("read_spill", protocol, way=way, events=len(log), seconds=spent, steps=rows)


def main(given: Namespace) -> None:
    if given.one is not None:
        folder, way = json.loads(given.one)
        measure(Path(folder), way, reading=given.reading)
        return
    with tempfile.TemporaryDirectory(dir=scratch()) as place:
        write(Path(place), given.events)
        for way in ("memory", "disk"):
            words = [sys.executable, __file__, "--one", json.dumps([place, way])]
            more = [word for word in ("--tiny", "--reading") if word in sys.argv]
            subprocess.run([*words, *more], check=True, env=os.environ)


if __name__ == "__main__":
    run(PARSER, main)
