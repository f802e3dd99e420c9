"""A picture of ndcg@20 and recall@20 of the in-batch objectives by batch size.

    python bench/in_batch_picture.py RUNS.jsonl docs/img/in-batch.png

RUNS holds lines of `bench/quality.py gowalla-test RUNS.jsonl recipe=bir batch_size=256 ...`.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from pathlib import Path

import quality
from _data import runs
from _options import parser, run, unless_tiny, written

METRICS = ("recall@20", "ndcg@20")
COLOURS = {"ssl_pop": "#999999", "bir": "#d97706", "xir": "#2563eb"}
TINY_RUNS = [f"recipe=bir batch_size={size}" for size in (128, 256)]

PARSER = parser(__file__, __doc__)
PARSER.add_argument("runs", type=Path, **unless_tiny(None))
PARSER.add_argument("out", **written("in-batch.png"))


def main(given: Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for each in runs(given.runs or quality.tiny_runs("gowalla-test", *TINY_RUNS)):
        options = each["options"]
        plain = options.get("encoder") == "user" and not options.get("smooth")
        if each["benchmark"] == "quality gowalla-test" and each["recipe"] in COLOURS and plain:
            found[each["recipe"]][options["batch_size"]].append(each["metrics"])
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
    figure.savefig(given.out, dpi=130)
    print(f"in_batch_picture: wrote {given.out}")


if __name__ == "__main__":
    run(PARSER, main)
