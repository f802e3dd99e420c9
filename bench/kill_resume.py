"""Share of runs killed at a random moment and resumed that end in the same model, byte by byte.

python bench/kill_resume.py [RUNS]
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import pyarrow.parquet as pq

import softdex as sdx
from _harness import report, sized
from _options import parser, run, size

USERS, ITEMS = sized((1000, 500), (60, 40))
PARSER = parser(__file__, __doc__)
PARSER.add_argument("runs", nargs="?", type=size, default=sized(50, 1))
OPTIONS = [
    "--recipe", "ssm", "-o", "dim=16", "-o", "negatives=50", "-o", "epochs=12", "-o", "patience=0",
    "-o", "device=cpu",
]  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "softdex", "-q", "fit", "--out", str(out), *more]


def model_hash(out: Path) -> str:
    return hashlib.sha256((out / "model.sdx").read_bytes()).hexdigest()


def main(given: Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = str(folder / "clicks.parquet")
        world = sdx.synthetic.world(users=USERS, items=ITEMS, seed=0)
        pq.write_table(world.interactions().to_arrow(), log)
        began = time.perf_counter()
        subprocess.run(
            command(folder / "whole", log, *OPTIONS), check=True, stdout=subprocess.DEVNULL
        )
        span = time.perf_counter() - began
        expected = model_hash(folder / "whole")
        draw = random.Random(0)
        same = kills = 0
        for i in range(given.runs):
            out = folder / f"run{i}"
            started = subprocess.Popen(command(out, log, *OPTIONS), stdout=subprocess.DEVNULL)
            time.sleep(draw.uniform(0.3, 1.0) * span)
            if started.poll() is None:
                started.send_signal(signal.SIGKILL)
                kills += 1
            started.wait()
            if not (out / "model.sdx").exists():
                again = command(out, "--resume") if (out / "config.toml").exists() else None
                again = again or command(out, log, *OPTIONS)
                subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
            same += model_hash(out) == expected
    report(
        "kill_resume",
        f"ssm on world({USERS}, {ITEMS}), 12 epochs, one thread; SIGKILL at a random moment "
        "between 30 % and 100 % of a run's length, then --resume",
        runs=given.runs,
        killed=kills,
        identical=same,
        seconds_of_a_run=round(span, 2),
    )
    if same != given.runs:
        raise SystemExit(f"kill_resume: {given.runs - same} runs ended in another model")


if __name__ == "__main__":
    run(PARSER, main)
