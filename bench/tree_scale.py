"""A tree of very many items: to make, save, load and search it by the library's own doors.

python bench/tree_scale.py [items, default 1e7]

The scorer is trained for one step on a handful of events: this is about size. Beside it, the time
to copy the file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _harness import milliseconds, peak_of, report
from softdex.data.interactions import Interactions
from softdex.data.keys import range_keys

USERS, EVENTS = 200, 30


def main() -> None:
    items = int(float((sys.argv[1:] or ["1e7"])[0]))
    draw = np.random.default_rng(0)
    item = draw.integers(0, items, USERS * EVENTS).astype(np.int32)
    user = np.repeat(np.arange(USERS, dtype=np.int32), EVENTS)
    log = Interactions(range_keys(USERS), range_keys(items), user, item, time=np.arange(len(user)))
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
        row["levels"] = loaded.index.depth  # type: ignore[union-attr]
    report(
        "tree_scale", f"{items:,} items, dim 24, beam 150", threads=torch.get_num_threads(), **row
    )


if __name__ == "__main__":
    main()
