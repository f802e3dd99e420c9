"""Kill a training run at random moments with SIGKILL, resume it, compare the model byte by byte."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import report
from softdex.cli.demo import write_world

TIMES = int(os.environ.get("KILLS", "50"))
OPTIONS = [
    "--recipe", "ssm", "-o", "dim=16", "-o", "negatives=50", "-o", "epochs=12", "-o", "patience=0",
    "-o", "device=cpu",
]  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "softdex", "-q", "fit", "--out", str(out), *more]


def model_hash(out: Path) -> str:
    return hashlib.sha256((out / "model.sdx").read_bytes()).hexdigest()


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_world(folder, users=1000, items=500, seed=0)
        log = str(folder / "clicks.parquet")
        began = time.perf_counter()
        subprocess.run(
            command(folder / "whole", log, *OPTIONS), check=True, stdout=subprocess.DEVNULL
        )
        span = time.perf_counter() - began
        expected = model_hash(folder / "whole")
        draw = random.Random(0)
        same = kills = 0
        for i in range(TIMES):
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
        "ssm on world(1000, 500), 12 epochs, one thread; SIGKILL at a random moment between 30 % "
        "and 100 % of a run's length, then --resume",
        runs=TIMES,
        killed=kills,
        identical=same,
        seconds_of_a_run=round(span, 2),
    )
    if same != TIMES:
        raise SystemExit(f"kill_resume: {TIMES - same} runs ended in another model")


if __name__ == "__main__":
    main()
