"""ndcg@20 and recall@20 of in-batch objectives against the batch size, as a picture.

python bench/in_batch_picture.py RUNS.jsonl docs/img/in-batch.png

RUNS holds lines of `bench/quality.py gowalla-test RUNS.jsonl recipe=bir batch_size=256 ...`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt

METRICS = ("recall@20", "ndcg@20")
COLOURS = {"ssl_pop": "#999999", "bir": "#d97706", "xir": "#2563eb"}


def main() -> None:
    runs, out = sys.argv[1:]
    found: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in Path(runs).read_text().splitlines():
        run = json.loads(line)
        options = run["options"]
        plain = options.get("encoder") == "user" and not options.get("smooth")
        if run["benchmark"] == "quality gowalla-test" and run["recipe"] in COLOURS and plain:
            found[run["recipe"]][options["batch_size"]].append(run["metrics"])
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, metric in zip(axes, METRICS, strict=True):
        for recipe, colour in COLOURS.items():
            sizes = sorted(found[recipe])
            means = [
                sum(m[metric] for m in found[recipe][s]) / len(found[recipe][s]) for s in sizes
            ]
            axis.plot(sizes, means, "-o", color=colour, label=recipe, markersize=4)
            for size in sizes:
                for each in found[recipe][size]:
                    axis.plot(size, each[metric], ".", color=colour, markersize=3)
        axis.set_xscale("log", base=2)
        ticks = sorted({s for sizes in found.values() for s in sizes})
        axis.set_xticks(ticks, [f"{s:,}" for s in ticks])
        axis.set_xlabel("batch size")
        axis.set_title(f"Gowalla, {metric}", fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
