"""Pictures of runs: validation by seconds or by epoch, or a metric by an option; a line per recipe.

    python bench/curves.py RUNS.jsonl OUT.png x=seconds                    (RG2, Fig. 1)
    python bench/curves.py RUNS.jsonl OUT.png x=epoch by=index             (FastVAE, Fig. 3)
    python bench/curves.py RUNS.jsonl OUT.png x=epoch by=leaves,rounds     (DTR, Fig. 3)
    python bench/curves.py RUNS.jsonl OUT.png x=negatives y=f@20           (DTR, Fig. 4)
    python bench/curves.py RUNS.jsonl OUT.png x=batch_size y=recall@20,ndcg@20 recipe=bir,xir

RUNS holds lines of `bench/quality.py`, `bench/fastvae_quality.py` or `bench/link_prediction.py`.
Each task is a panel, and each metric of `y`. `x=seconds` is the training seconds so far, without
measuring, which runs with `timed=true` write best. A line is named by its recipe and by the options
in which the runs of that recipe differ; with `by=index` by these alone, with `by=recipe` by none.
By an option, runs with one name are averaged, and a dot marks each. By epoch or seconds, a dot
marks the first epoch after a tree was learned. Further NAME=VALUE,VALUE keep the runs with one of
these values, `task` among them.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quality
import softdex as sdx
from _data import runs
from _options import parser, run, unless_tiny, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONG = {"seconds": "trained", "epoch": "epoch"}  # of a record
TINY_RUNS = [f"recipe={recipe} dim=8 epochs=2" for recipe in ("rg2", "ssm")]


def assignment(text: str) -> tuple[str, list[str]]:
    """The name and the values of NAME=VALUE,VALUE."""
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, values.split(",")


PARSER = parser(__file__, __doc__)
PARSER.add_argument("runs", type=Path, **unless_tiny(None))
PARSER.add_argument("out", **written("curves.png"))
PARSER.add_argument("given", type=assignment, nargs="*", default=[], metavar="NAME=VALUE")


def main(given: Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    asked = dict(given.given)
    x = asked.pop("x", ["epoch"])[0]
    metrics = asked.pop("y", ["ndcg@20, validation" if x in ALONG else "ndcg@20"])
    by = asked.pop("by", None)
    found = kept(runs(given.runs or quality.tiny_runs("ml-1m", *TINY_RUNS)), asked)
    names = [named(line, found, x, by) for line in found]
    order = list(dict.fromkeys(names))
    panels = [(task, m) for task in dict.fromkeys(map(task_of, found)) for m in metrics]
    size = 4.5 * len(panels) + 1.5, 3.6
    figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axis, (task, metric) in zip(axes[0], panels, strict=True):
        lines = [(n, line) for n, line in zip(names, found, strict=True) if task_of(line) == task]
        colours = {name: f"C{order.index(name)}" for name, _ in lines}
        (along if x in ALONG else across)(axis, lines, colours, x, metric)
        axis.set_title(task, fontsize=10)
        axis.set_ylabel(metric)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [plt.Line2D([], [], color=f"C{i}", label=name) for i, name in enumerate(order)]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside right center")
    figure.savefig(given.out, dpi=130)
    print(f"curves: wrote {given.out}")


def kept(lines: list[dict[str, Any]], asked: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The runs that have one of the values of each name."""
    found = [line for line in lines if all(value(line, n) in v for n, v in asked.items())]
    if not found:
        raise sdx.DataError(f"none of {len(lines)} runs is {asked}")
    return found


def value(line: dict[str, Any], name: str) -> str:
    """The task, recipe or option of a run, in words."""
    return task_of(line) if name == "task" else str((line | line["options"]).get(name))


def task_of(line: dict[str, Any]) -> str:
    """The task of a run."""
    task: str = line["benchmark"].partition(" ")[2]
    return task


def named(line: dict[str, Any], lines: list[dict[str, Any]], x: str, by: list[str] | None) -> str:
    """The recipe of a run, and the options `by`, or those in which its like differ."""
    if by is None:
        like = [o for o in lines if (o["recipe"], task_of(o)) == (line["recipe"], task_of(line))]
        options = [n for n in line["options"] if n not in (x, "seed", "device")]
        by = [n for n in options if len({value(other, n) for other in like}) > 1]
    words = [f"{name}={value(line, name)}" for name in by if name in line["options"]]
    return ", ".join([line["recipe"], *words])


def along(
    axis: Axes, lines: list[tuple[str, Any]], colours: dict[str, str], x: str, metric: str
) -> None:
    """Draw validation by epoch or by seconds, a line per run."""
    from matplotlib.ticker import MaxNLocator

    for name, line in lines:
        history = line.get("history", [])
        if not history or not all({ALONG[x], "metric"} <= record.keys() for record in history):
            raise sdx.DataError(
                f"a run of {name} has no {x} or no validation in its history. Write it again, with "
                "a task that has a validation part; timed=true where settings are searched."
            )
        at, height = ([r[n] for r in history] for n in (ALONG[x], "metric"))
        axis.plot(at, height, color=colours[name], marker="." if len(at) < 3 else None)
        learned = [i for i, record in enumerate(history) if "moved" in record]
        places = [at[i] for i in learned], [height[i] for i in learned]
        axis.plot(*places, "o", color=colours[name], markersize=5)
    if x == "seconds":
        axis.set_xscale("log")
        axis.set_xlabel("training seconds")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("epoch")


def across(
    axis: Axes, lines: list[tuple[str, Any]], colours: dict[str, str], x: str, metric: str
) -> None:
    """Draw a metric by an option: the mean of the runs of a name, and each of them as a dot."""
    found: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, line in lines:
        if line["options"].get(x) is None or metric not in line["metrics"]:
            raise sdx.DataError(f"a run of {name} has no {x}= or no {metric}. Leave it out.")
        found[name][line["options"][x]].append(line["metrics"][metric])
    for name, heights in found.items():
        places = sorted(heights)
        means = [sum(heights[at]) / len(heights[at]) for at in places]
        axis.plot(places, means, "-o", color=colours[name], markersize=4)
        for at in places:
            axis.plot([at] * len(heights[at]), heights[at], ".", color=colours[name], markersize=3)
    ticks = sorted({at for heights in found.values() for at in heights})
    if ticks[0] > 0 and ticks[-1] >= 8 * ticks[0]:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{at:,}" for at in ticks])
    axis.set_xlabel(x.replace("_", " "))


if __name__ == "__main__":
    run(PARSER, main)
