"""Training on 1, 2, 4 and 8 ranks of one machine: events per second, and the share of waiting.

    python bench/scale_out.py [RECIPE ...] [--ranks N ...]

Strong scaling keeps the batch and the log, weak scaling gives each rank as many. Ranks share the
cores; each has its own threads, and they meet through Gloo.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
from torch import multiprocessing

import softdex as sdx
from _data import random_log
from _harness import TINY, report, sized
from _options import parser, run, size
from softdex.recipes.catalogue import make, options
from softdex.solve.loop import Run

USERS, ITEMS, EVENTS = sized((50_000, 50_000, 20), (200, 80, 5))  # events per user
BATCH: dict[str, dict[str, Any]] = {  # per step; a sweep of closed-form steps has none
    "ssm": {"batch_size": sized(8192, 64), "index": "uniform", "negatives": sized(2000, 20)},
    "fastvae": {"batch_size": sized(512, 16), "index": "imi_popularity"},
    "rg2": {},
}
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all_single", "broadcast",
)  # fmt: skip

PARSER = parser(__file__, __doc__)
PARSER.add_argument("recipes", nargs="*", default=list(sized(BATCH, {"ssm": {}})))
PARSER.add_argument(
    "--ranks", nargs="+", type=size, default=sized([1, 2, 4, 8], [1, 2]), help="numbers of ranks"
)


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """Sum up the seconds that this rank spends in collectives."""
    spent = {"seconds": 0.0}
    before = {name: getattr(dist, name) for name in COLLECTIVES}

    def timed(function: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **given)
            finally:
                spent["seconds"] += time.perf_counter() - began

        return call

    for name, function in before.items():
        setattr(dist, name, timed(function))
    try:
        yield spent
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def work(rank: int, world: int, folder: str, recipe: str, weak: bool) -> None:
    """In each rank: an epoch to compile, and one by the clock."""
    sdx.set_threads(1 if TINY else max(1, len(os.sched_getaffinity(0)) // world))
    os.environ["SOFTDEX_QUIET"] = "1"
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    times = world if weak else 1
    given = dict(BATCH.get(recipe, {}))
    if "batch_size" in given:
        given["batch_size"] *= times
    log = random_log(USERS * times, ITEMS, EVENTS)
    chosen = options(recipe) | given | {"epochs": 3, "device": "cpu"}
    training = Run(make(recipe, log, chosen), log, quiet=True)
    training.advance(1)
    with clocked() as waited:
        began = time.perf_counter()
        training.advance(1)
        seconds = time.perf_counter() - began
    if rank == 0:
        figures = {
            "events_per_second": round(len(log) / seconds),
            "seconds_per_epoch": round(seconds, 4),
            "share_in_collectives": round(waited["seconds"] / seconds, 4),
        }
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


def measured(recipe: str, world: int, *, weak: bool) -> dict[str, Any]:
    """The figures of a group of this many ranks."""
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (world, folder, recipe, weak), world)
        found: dict[str, Any] = json.loads(Path(folder, "figures.json").read_text())
        return found


def main(given: Namespace) -> None:
    for recipe in given.recipes:
        options(recipe)  # refuses unknown ones
    for recipe in given.recipes:
        for kind in ("strong", "weak"):
            first = 0.0
            for world in given.ranks:
                figures = measured(recipe, world, weak=kind == "weak")
                first = first or figures["events_per_second"] / world
                report(
                    "scale_out",
                    f"{kind} scaling, {USERS:,} users{' per rank' * (kind == 'weak')}, {ITEMS:,} "
                    f"items, {EVENTS} events per user; the second epoch, on rank 0",
                    recipe=recipe,
                    scaling=kind,
                    ranks=world,
                    threads_per_rank=max(1, len(os.sched_getaffinity(0)) // world),
                    options=BATCH.get(recipe, {}),
                    **figures,
                    efficiency=round(figures["events_per_second"] / first / world, 4),
                )


if __name__ == "__main__":
    run(PARSER, main)
