"""Seconds and memory to make, save, load and search a model with a tree of very many items.

    python bench/tree_scale.py [ITEMS]

The scorer is trained for one step on a few events: only size matters here. Beside it, the seconds
to copy the file.
"""

from __future__ import annotations

import shutil
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

import softdex as sdx
from _data import log_of
from _harness import milliseconds, peak_of, report, sized
from _options import parser, run, size

USERS, EVENTS = 200, 30

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="?", type=size, default=sized(10**7, 1000))


def main(given: Namespace) -> None:
    items = given.items
    draw = np.random.default_rng(0)
    item = draw.integers(0, items, USERS * EVENTS)
    log = log_of(np.repeat(np.arange(USERS), EVENTS), item, USERS, items)
    options = {"leaves": "random", "max_instances": 128, "epochs": 1, "per_row": True}
    few = {"negatives": 20, "max_history": 20, "device": "cpu"}
    row: dict[str, Any] = {}
    model, row["make"] = peak_of(lambda: sdx.fit("dtr", log, **options, **few))
    with tempfile.TemporaryDirectory() as folder:
        path, other = Path(folder) / "tree.sdx", Path(folder) / "raw"
        row["save"] = peak_of(lambda: model.save(path))[1]
        row["file GB"] = round(path.stat().st_size / 1e9, 2)
        row["copying the file"] = peak_of(lambda: shutil.copyfile(path, other))[1]
        loaded, row["load"] = peak_of(lambda: sdx.load(path))
        history = [item[:20].tolist()]
        row["single query ms"] = milliseconds(
            lambda: loaded.recommend(history=history, k=20), 20, warm=3
        )
        row["levels"] = loaded.index.depth
    report("tree_scale", f"{items:,} items, dim 24, beam 150", **row)


if __name__ == "__main__":
    run(PARSER, main)
