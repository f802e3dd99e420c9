"""Pictures of trees: F@20 by the number of negatives, or validation by epoch.

    python bench/tree_picture.py negatives RUNS.jsonl OUT.png    (DTR, Fig. 4)
    python bench/tree_picture.py rounds RUNS.jsonl OUT.png       (DTR, Fig. 3)

RUNS holds lines of `bench/quality.py dtr-ml-1m RUNS.jsonl recipe=dtr negatives=10 ...`. A dot marks
the first epoch after the tree was learned.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quality
from _data import runs
from _options import parser, run, unless_tiny, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TINY_RUNS = [f"recipe=dtr beam=20 dim=8 negatives={n}" for n in (3, 6)]


def by_negatives(found_runs: list[dict[str, Any]], axis: Axes) -> None:
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in found_runs:
        options = each["options"]
        if each["recipe"] == "dtr" and options["negatives"] is not None:
            found[options["sampling"]][options["negatives"]].append(each["metrics"]["f@20"])
    for sampling, by_count in sorted(found.items()):
        counts = sorted(by_count)
        means = [sum(by_count[n]) / len(by_count[n]) for n in counts]
        axis.plot(counts, means, "-o", label=f"dtr, sampling={sampling}", markersize=4)
    axis.set_xlabel("negatives per level")
    axis.set_ylabel("F@20")


def by_epoch(found_runs: list[dict[str, Any]], axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    starts = sorted({str(each["options"]["leaves"]) for each in found_runs})
    for each in found_runs:
        options, history = each["options"], each["history"]
        words = [each["recipe"], f"leaves {options['leaves']}", f"rounds {options['rounds']}"]
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


PICTURES = {"negatives": by_negatives, "rounds": by_epoch}

PARSER = parser(__file__, __doc__)
PARSER.add_argument("picture", choices=list(PICTURES), **unless_tiny("negatives"))
PARSER.add_argument("runs", type=Path, **unless_tiny(None))
PARSER.add_argument("out", **written("trees.png"))


def main(given: Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = runs(given.runs or quality.tiny_runs("dtr-ml-1m", *TINY_RUNS))
    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    PICTURES[given.picture](found, axis)
    axis.set_title(found[0]["benchmark"].removeprefix("quality dtr-"), fontsize=10)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(given.out, dpi=130)
    print(f"tree_picture: wrote {given.out}")


if __name__ == "__main__":
    run(PARSER, main)
