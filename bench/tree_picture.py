"""Trees as pictures: F@20 against the number of negatives, or the validation of each epoch.

    python bench/tree_picture.py negatives RUNS.jsonl OUT.png    (S0, Fig. 4)
    python bench/tree_picture.py rounds RUNS.jsonl OUT.png       (S0, Fig. 3)

RUNS holds lines of `bench/quality.py dtr-ml-1m RUNS.jsonl recipe=dtr negatives=10 ...`. A mark on a
line of epochs is the first after the tree was learned.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator


def negatives(runs: list[dict[str, Any]], axis: Axes) -> None:
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        options = run["options"]
        if run["recipe"] == "dtr" and options["negatives"] is not None:
            found[options["sampling"]][options["negatives"]].append(run["metrics"]["f@20"])
    for sampling, by_count in sorted(found.items()):
        counts = sorted(by_count)
        means = [sum(by_count[n]) / len(by_count[n]) for n in counts]
        axis.plot(counts, means, "-o", label=f"dtr, sampling={sampling}", markersize=4)
    axis.set_xlabel("negatives a level")
    axis.set_ylabel("F@20")


def rounds(runs: list[dict[str, Any]], axis: Axes) -> None:
    starts = sorted({str(run["options"]["leaves"]) for run in runs})
    for run in runs:
        options, history = run["options"], run["history"]
        words = [run["recipe"], f"leaves {options['leaves']}", f"rounds {options['rounds']}"]
        words += [options["rectify"]] if options["rectify"] != "none" else []
        epochs = [record["epoch"] for record in history]
        colour = f"C{starts.index(str(options['leaves']))}"
        axis.plot(
            epochs,
            [record["metric"] for record in history],
            "-" if options["rounds"] > 1 else "--",
            color=colour,
            label=", ".join(words),
        )
        learned = [record for record in history if "moved" in record]
        axis.plot(
            [record["epoch"] for record in learned],
            [record["metric"] for record in learned],
            "o", color=colour, markersize=5,
        )  # fmt: skip
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("epoch")
    axis.set_ylabel("ndcg@20, validation")


def main() -> None:
    what, path, out = sys.argv[1:]
    runs = [json.loads(line) for line in Path(path).read_text().splitlines()]
    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    {"negatives": negatives, "rounds": rounds}[what](runs, axis)
    axis.set_title(runs[0]["benchmark"].removeprefix("quality dtr-"), fontsize=10)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
