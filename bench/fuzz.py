"""Hostile inputs of every kind: how many were tried, and what became of them.

python bench/fuzz.py [--inputs 100000] [--kind model_files.bits]
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS / "fuzz"), str(TESTS)]
os.environ |= {"SOFTDEX_QUIET": "1", "CUDA_VISIBLE_DEVICES": ""}  # a GPU does not survive a fork

import harness  # noqa: E402

import softdex as sdx  # noqa: E402
from _harness import report, sized  # noqa: E402
from _options import parser, run, size  # noqa: E402

PARSER = parser(__file__, __doc__)
PARSER.add_argument("--inputs", type=size, default=sized(10**5, 1), help="shared by the kinds")
PARSER.add_argument("--kind", help="only this one, or those of one file")
PARSER.add_argument("--workers", type=size, default=sized(os.cpu_count() or 1, 1))
PARSER.add_argument("--first", type=int, default=0, help="first seed")


def main(given: Namespace) -> None:
    kinds = {
        name: attempt
        for name, attempt in harness.kinds().items()
        if given.kind in (None, name, name.partition(".")[0])
    }
    if not kinds:
        PARSER.error(f"there is no kind {given.kind!r}: {', '.join(harness.kinds())}")
    sdx.set_threads(1)
    harness.warm(kinds.values())
    began = time.perf_counter()
    each, total = -(-given.inputs // len(kinds)), dict.fromkeys(harness.OUTCOMES, 0)
    figures = {}
    for name, attempt in kinds.items():
        tally = harness.run(attempt, range(given.first, given.first + each), workers=given.workers)
        total = {outcome: n + tally.counts[outcome] for outcome, n in total.items()}
        figures[name] = {"tried": tally.tried} | tally.counts
        for seed, outcome, said in tally.failed:
            print(f"{name}, seed {seed}: {outcome}\n{said}", file=sys.stderr)
    report(
        "fuzz",
        f"{each} seeds per kind from {given.first}, each input in a child process",
        kinds=figures,
        total={"tried": sum(total.values())} | total,
        seconds=round(time.perf_counter() - began, 1),
    )


if __name__ == "__main__":
    run(PARSER, main)
