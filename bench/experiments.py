"""The experiments of the papers: runs of other scripts, a line each in bench/results/NAME.jsonl.

    python bench/experiments.py NAME [--workers 2] [--minutes 60] [--only TEXT ...] [--show]

Runs that have a line are skipped, so a long experiment grows over several calls; a failed run
leaves no line. `--only` takes the runs whose command contains each text, `--show` prints what there
is as a table, and `--list` the commands that have no line yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from _harness import TINY, scratch
from _options import parser, run, size

HERE = Path(__file__).parent
RESULTS = scratch() if TINY else HERE / "results"
DROPPED = ("key", "history", "last", "tiny")  # of a line of the other scripts


class Experiment(NamedTuple):
    """Commands, and how their table is laid out.

    Attributes:
        commands: script and arguments, without the file that the script writes.
        rows, columns: arguments that name a row and a column: `task`, or options.
        metrics: of a cell.
    """

    commands: list[str]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metrics: tuple[str, ...]


def in_batch() -> Experiment:
    """BIR, Fig. 7: in-batch objectives by batch size, the row's target and hits kept."""
    sets = "lastfm-hetrec", "amazon-beauty", "gowalla", "amazon-book-kgat", "ml-10m-implicit"
    sizes = 256, 512, 1024, 2048, 4096, 8192
    priors = {"ssl_pop": (0, 0.7), "bir": (0, 0.5), "xir": (0, 0.5)}
    commands = [
        f"quality xir-{name} recipe={recipe} batch_size={size} prior={prior} own=keep hits=keep "
        "epochs=40 patience=0 seed=0"
        for name, size, recipe in product(sets, sizes, priors)
        for prior in priors[recipe]
    ]
    return Experiment(commands, ("task", "recipe", "prior"), ("batch_size",), ("ndcg@10",))


def dtr_folds() -> Experiment:
    """DTR, Table 2, on a small set: over ten folds every user of amazon-beauty is asked once."""
    by_level = "batch_size=256 epochs=5 patience=0 lr=0.005"
    walks = "recipe=dtr sampling=tree batch_size=256 epochs=5 patience=0 lr=0.01"
    settings = (
        "recipe=popular",
        "recipe=item_cf",
        "recipe=youtube_dnn lr=0.01 epochs=15 patience=0",
        "recipe=sasrec max_history=50 dropout=0.5 epochs=20 patience=5",
        *(f"recipe={recipe} {by_level}" for recipe in ("plt", "tdm", "jtm", "din")),
        "recipe=otm batch_size=256 epochs=5 patience=0 lr=0.02",
        f"recipe=dtr sampling=uniform {by_level}",
        walks,
        f"{walks} rectify=path warm_up=1",
        f"{walks} rectify=child warm_up=1",
    )
    commands = [
        f"quality dtr-amazon-beauty fold={fold} {setting}"
        for fold, setting in product(range(10), settings)
    ]
    return Experiment(commands, ("recipe", "sampling", "rectify"), (), ("f@20", "masked f@20"))


def own_draws() -> Experiment:
    """Losses on draws: draws per row, draws that the batch shares, and the earlier defaults."""
    sets = "rg-lastfm-hetrec", "rg-ml-latest-small", "ml-100k", "ml-1m"
    softer = "temperature=0.1 prior=0.7"
    earlier = {
        "bpr": f"{softer} negatives=100",
        "bce": "",
        "dns": f"{softer} negatives=20",
        "self_adversarial": f"{softer} negatives=100",
    }
    commands = [
        f"quality {name} recipe={recipe}{options} seed={seed}"
        for name, recipe, seed in product(sets, earlier, range(3))
        for options in dict.fromkeys(
            ["", " shared=true", f" shared=true {earlier[recipe]}".rstrip()]
        )
    ]
    rows = "recipe", "shared", "temperature", "negatives"
    return Experiment(commands, rows, ("task",), ("ndcg@20", "ndcg@50"))


def rg() -> Experiment:
    """RG2, Table 3: every row tuned on validation, dim 64."""
    sets = "ml-100k", "ml-latest-small", "amazon-beauty-large", "ml-1m", "ml-10m-implicit"
    by_descent = "bpr", "bce", "ssm", "uib", "sml", "sparsemax", "softmax", "softmax score=dot"
    rows = [f"{recipe} tune=12 epochs=30 patience=4" for recipe in by_descent]
    rows += [f"{recipe} tune=24 epochs=12 patience=3" for recipe in ("ials", "rg2", "rgx")]
    commands = [f"quality rg-{name} recipe={row} dim=64" for name, row in product(sets, rows)]
    return Experiment(commands, ("recipe", "score"), ("task",), ("ndcg@10", "mrr@10"))


def fastvae() -> Experiment:
    """FastVAE, Table 3: the factorisations beside the autoencoders, tuned on validation."""
    recipes = "bpr", "warp", "aobpr", "dns", "pris", "self_adversarial"
    rows = [f"{recipe} tune=12 epochs=30 patience=4" for recipe in recipes]
    commands = [
        f"fastvae_quality {name} recipe={row} dim=64"
        for name, row in product(("gowalla", "ml-10m"), rows)
    ]
    return Experiment(commands, ("recipe",), ("task",), ("ndcg@50", "recall@50"))


def wrmf() -> Experiment:
    """FastVAE, Table 3, WRMF with the grid of the paper: an event weighs so many times as much as
    an item without one, dim 32, a plain L2 of .01; `-valid` chooses."""
    commands = [
        f"fastvae_quality {name}{part} recipe=ials dim=32 reg=l2 alpha={1 / weight:g} "
        f"lam={0.01 / weight:g} epochs=15 patience=3"
        for name, part, weight in product(
            ("gowalla", "ml-10m"), ("-valid", ""), (1, 5, 10, 20, 50, 100, 200, 500)
        )
    ]
    return Experiment(commands, ("alpha",), ("task",), ("ndcg@50", "recall@50"))


EXPERIMENTS = {
    "in-batch": in_batch,
    "dtr-folds": dtr_folds,
    "own-draws": own_draws,
    "rg": rg,
    "fastvae": fastvae,
    "wrmf": wrmf,
}

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
        for done in as_completed([pool.submit(once, command, end) for command in left]):
            if (line := done.result()) is not None:
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(f"experiments: {len(read(path))} of {len(experiment.commands)} runs are in {path}")


def once(command: str, end: float) -> dict[str, Any] | None:
    """The line of a run in a process of its own; None if it failed, or it is too late to start."""
    if time.monotonic() > end:
        return None
    script, task, *options = command.split()
    with TemporaryDirectory() as folder:
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
    return {"command": command} | {n: v for n, v in line.items() if n not in DROPPED}


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
