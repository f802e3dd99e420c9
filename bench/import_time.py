"""Seconds to import softdex, and of the shortest commands.

python bench/import_time.py [RUNS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from argparse import Namespace

import softdex as sdx
from _harness import report, scratch, sized
from _options import parser, run, size

PARSER = parser(__file__, __doc__)
PARSER.add_argument("runs", nargs="?", type=size, default=sized(7, 1))
MODEL = scratch() / "model.sdx"
RECOMMEND = ["recommend", str(MODEL), "--user", "u0001"]
WORK = {
    "python": ["-c", ""],
    "torch": ["-c", "import torch"],
    "softdex": ["-c", "import softdex"],
    "softdex_and_fit": ["-c", "import softdex; softdex.fit"],
    "version": ["-m", "softdex", "--version"],
    "help": ["-m", "softdex", "--help"],
    "recipes": ["-m", "softdex", "recipes"],
    "recommend": ["-m", "softdex", *RECOMMEND],
}


def main(given: Namespace) -> None:
    world = sdx.synthetic.world(users=2000, items=100, seed=0)
    sdx.fit("rg2", world.interactions(), quiet=True, epochs=1).save(MODEL)
    least = dict.fromkeys(WORK, (9e9, 9e9))
    for _ in range(given.runs):
        for name, words in WORK.items():
            least[name] = min(least[name], once(words))
    report(
        "import_time",
        "a new process each, least of the runs by the clock; recommend: rg2, one user",
        runs=given.runs,
        seconds={name: round(wall, 3) for name, (wall, _) in least.items()},
        processor_seconds={name: round(busy, 3) for name, (_, busy) in least.items()},
    )


def once(words: list[str]) -> tuple[float, float]:
    """Clock seconds and processor seconds of one process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise SystemExit(f"import_time: {' '.join(words)} ended with {status}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run(PARSER, main)
