"""Memory that trainings were predicted to need, beside the peak that they had: each in a process of
its own.

The prediction is that of `softdex plan`; the peak is that of the process above its start, once the
libraries are loaded and something was trained, or that of the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace

from _harness import GPU, peak_of, report, reset_peak, sized
from _options import parser, run

ROWS = sized(
    [
        ("rg2", 500_000, 500_000, 5_000_000, {"dim": 128}),
        ("ssm", 200_000, 200_000, 2_000_000, {"batch_size": 2048}),
        ("ssm", 1_000_000, 500_000, 4_000_000, {}),
        ("ssm", 100_000, 2_000_000, 1_000_000, {"dim": 128}),
        ("bpr", 500_000, 500_000, 2_000_000, {}),
        ("fastvae", 100_000, 200_000, 2_000_000, {}),
        ("fastvae", 50_000, 1_000_000, 1_000_000, {"dim": 64, "hidden": 64}),
        ("ials", 1_000_000, 200_000, 4_000_000, {"dim": 128}),
        ("bir", 500_000, 500_000, 2_000_000, {}),
        ("sasrec", 20_000, 500_000, 1_000_000, {"objective": "ssm", "index": "uniform"}),
        ("softmax", 200_000, 50_000, 600_000, {}),
    ],
    [("ssm", 200, 100, 2000, {"dim": 8}), ("rg2", 200, 100, 2000, {"dim": 8})],
)

PARSER = parser(__file__, __doc__)
PARSER.add_argument("--row", help="the row that this process trains, as JSON")


def train(row: list[object]) -> None:
    """Train an epoch of one row and print what it was predicted to need and what it took."""
    import softdex as sdx
    from softdex.distributed.sizing import Machines, Sizes, size_up, stand_in

    recipe, users, items, events, options = row
    assert isinstance(options, dict)
    sizes = Sizes(int(users), int(items), int(events))
    machine = Machines(1, GPU, 10**15, 1e9)
    predicted = size_up(str(recipe), sizes, machine, options).layouts[0].memory
    quick = {"epochs": 1}
    sdx.fit(str(recipe), stand_in(Sizes(300, 200, 3000)), quiet=True, **options, **quick)
    reset_peak()

    def work() -> None:
        log = stand_in(sizes)
        sdx.fit(str(recipe), log, quiet=True, max_seconds=5, **options, **quick)

    figures = peak_of(work)[1]
    if GPU:
        import torch

        measured = torch.cuda.max_memory_allocated() / 1e9
    else:
        measured = figures["peak_above_start_gb"]
    report(
        "plan_memory",
        "five seconds of an epoch on random events; peak above the start, libraries loaded",
        recipe=recipe, **sizes._asdict(), options=options, predicted_gb=round(predicted / 1e9, 3),
        measured_gb=round(measured, 3), ratio=round(predicted / 1e9 / max(measured, 1e-3), 2),
        seconds=figures["seconds"],
    )  # fmt: skip


def main(given: Namespace) -> None:
    if given.row is not None:
        train(json.loads(given.row))
        return
    tiny = ["--tiny"] if "--tiny" in sys.argv else []
    for row in ROWS:
        words = [sys.executable, __file__, *tiny, "--row", json.dumps(row)]
        subprocess.run(words, check=True, env=os.environ)


if __name__ == "__main__":
    run(PARSER, main)
