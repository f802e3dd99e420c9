"""The experiments of the papers: runs of other scripts, a line each in bench/results/NAME.jsonl.

    python bench/experiments.py NAME [--workers 2] [--minutes 60] [--only TEXT ...] [--show]

Runs that have a line are skipped, so a long experiment grows over several calls; a failed run
leaves no line. An option `save=@NAME` keeps a model for runs with `leaves=@NAME`. `--only` takes
the runs whose command contains each text, `--show` prints what there is as a table, and `--list`
the commands that have no line yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any

from _experiments import EXPERIMENTS, Experiment
from _harness import TINY, scratch
from _options import parser, run, size

HERE = Path(__file__).parent
RESULTS = scratch() if TINY else HERE / "results"
MODELS = scratch() if TINY else Path(tempfile.gettempdir()) / "softdex-models"
DROPPED = ("key", "history", "last", "tiny")  # of a line of the other scripts


PARSER = parser(__file__, __doc__)
PARSER.add_argument(
    "name", choices=EXPERIMENTS, **({"nargs": "?", "default": "in-batch"} if TINY else {})
)
PARSER.add_argument("--workers", type=size, default=1, help="runs at a time")
PARSER.add_argument("--minutes", type=float, default=60.0, help="start no run after so many")
PARSER.add_argument("--only", default=[], nargs="*", help="runs whose command contains these")
PARSER.add_argument("--folder", type=Path, default=RESULTS, help="where the lines are")
PARSER.add_argument("--show", action="store_true", help="print the table, run nothing")
PARSER.add_argument("--list", action="store_true", help="print the commands left, run nothing")


def main(given: Namespace) -> None:
    experiment, path = EXPERIMENTS[given.name](), given.folder / f"{given.name}.jsonl"
    lines = read(path)
    if given.show:
        print("\n".join(table(experiment, list(lines.values()))))
        return
    left = [
        c for c in experiment.commands if c not in lines and all(text in c for text in given.only)
    ]
    left = left[:1] if TINY else left
    if given.list:
        print("\n".join(left))
        return
    end = time.monotonic() + 60 * given.minutes
    with ThreadPoolExecutor(given.workers) as pool:
        for done in as_completed(
            [pool.submit(once, command, end, experiment.curves) for command in left]
        ):
            if (line := done.result()) is not None:
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(f"experiments: {len(read(path))} of {len(experiment.commands)} runs are in {path}")


def once(command: str, end: float, curves: bool) -> dict[str, Any] | None:
    """The line of a run in a process of its own; None if it failed, or it is too late to start."""
    if time.monotonic() > end:
        return None
    MODELS.mkdir(exist_ok=True)
    script, task, *options = command.replace("@", f"{MODELS}/").split()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.jsonl"
        words = [str(HERE / f"{script}.py"), task, str(out), *options, *["--tiny"] * TINY]
        done = subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
            capture_output=True,
            text=True,
        )
        if done.returncode or not out.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["no line was written"]
            print(f"experiments: {command}: {last[0]}", file=sys.stderr, flush=True)
            return None
        line = json.loads(out.read_text().splitlines()[-1])
    return {"command": command} | {
        name: value
        for name, value in line.items()
        if name not in DROPPED or (curves and name == "history")
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a file by their commands."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["command"]: line for line in lines}


def table(experiment: Experiment, lines: list[dict[str, Any]]) -> Iterator[str]:
    """A Markdown table: means over seeds, and their range where there are several."""
    cells: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    order = {command: place for place, command in enumerate(experiment.commands)}
    for line in sorted(lines, key=lambda line: order.get(line["command"], len(order))):
        _, task, *options = line["command"].split()
        said = {"task": task} | dict(option.split("=", 1) for option in options)
        row, column = (
            ", ".join(
                said[n] if n in ("task", "recipe") else f"{n}={said[n]}" for n in names if n in said
            )
            for names in (experiment.rows, experiment.columns)
        )
        cells[row][column].append([_metric(line, name) for name in experiment.metrics])
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    yield f"{', '.join(experiment.metrics)}"
    yield ""
    yield "| | " + " | ".join(columns) + " |"
    yield "|---" * (1 + len(columns)) + "|"
    for row, found in cells.items():
        yield f"| {row} | " + " | ".join(_cell(found.get(column, [])) for column in columns) + " |"


def _metric(line: dict[str, Any], name: str) -> float:
    of, _, own = name.rpartition(" ")
    found: float = line[of or "metrics"][own]
    return found


def _label(said: dict[str, str], names: tuple[str, ...]) -> str:
    plain = ("task", "recipe")
    return ", ".join(said[n] if n in plain else f"{n}={said[n]}" for n in names if n in said)


def _cell(seeds: list[list[float]]) -> str:
    return " / ".join(
        f"{mean(values):.4f}".lstrip("0")
        + (f" ({min(values):.4f}-{max(values):.4f}, {len(values)})" if len(values) > 1 else "")
        for values in zip(*seeds, strict=True)
    )


if __name__ == "__main__":
    run(PARSER, main)
