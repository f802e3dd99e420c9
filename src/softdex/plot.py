"""Plots: trainings, breakdowns, comparisons and proposals, as matplotlib axes.

Each function draws on `ax=`, or on a new figure, and returns the axes. Functions rather than
methods: what is drawn is mostly several models or results beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from softdex.compare import Comparison
from softdex.data.expect import expect
from softdex.errors import SoftdexError, choose
from softdex.evaluate.result import Result
from softdex.index.divergence import divergence
from softdex.index.flat import Flat
from softdex.index.popularity import Popularity
from softdex.index.proposals import ProposalOptions
from softdex.index.uniform import Uniform
from softdex.messages import METRIC
from softdex.model.asking import query_of, who
from softdex.model.retriever import Retriever
from softdex.score.counting import Constant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = ("#2563c9", "#c2570c", "#0f7a5a", "#a3327f", "#6b4fd0", "#0e7490", "#8a6d00", "#b42318")
DARK = ("#7aa7ff", "#f2a15f", "#4cc79c", "#e58bc4", "#b3a1ff", "#5cc6dd", "#d9bd52", "#ff8f84")
WIDE = 1.96  # standard errors of a 95 % interval
BINS = 60  # of ranks
NOBODY = torch.empty(1, 0)  # a query that nothing reads


def training(
    models: Retriever | Mapping[str, Retriever] | Comparison,
    figure: str | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw a figure of each epoch; a dot marks the epoch that was kept.

    Args:
        models: one, or several by name; those that are found in one step are left out.
        figure: of the epoch records: `metric` (NDCG@20 on validation), `loss`, and for samplers
            `kl` and `ess`. None: `metric` if all have it, else `loss`. The losses of different
            objectives cannot be compared.
        ax: to draw on; None makes a figure.
    """
    histories = _histories(models)
    everywhere = set.intersection(*(set(history[0]) for history, _ in histories.values()))
    known = sorted(everywhere - {"epoch", "trained"})
    if figure is None:
        figure = "metric" if "metric" in known else "loss"
    choose("plot.training", "figure", figure, known)
    ax = _axes(ax)
    from matplotlib.ticker import MaxNLocator

    for (name, (history, best)), colour in zip(histories.items(), _colours(ax), strict=False):
        epochs, values = [r["epoch"] for r in history], [r[figure] for r in history]
        ax.plot(epochs, values, color=colour, label=name)
        if best in epochs:
            ax.plot(best, values[epochs.index(best)], "o", color=colour, markersize=5)
    label = f"{METRIC} on validation" if figure == "metric" else figure
    ax.set(xlabel="epoch", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finished(ax, len(histories))


def breakdown(
    results: Result | Mapping[str, Result],
    by: str = "popularity",
    *,
    metric: str = "ndcg",
    k: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric per group of users or items, bars of several results beside each other.

    Args:
        results: one, or several by name.
        by: `history`, by the number of events before; or `popularity`, which is always recall.
        metric: of `by="history"`.
        k: cut-off; by default the one that summaries quote.
        ax: to draw on; None makes a figure.
    """
    given = {"": results} if isinstance(results, Result) else dict(results)
    if not given:
        raise SoftdexError("plot.breakdown: expected a result, or several by name, got none.")
    for name, result in given.items():
        expect(Result, "plot.breakdown", result, f"results[{name!r}]" if name else "results")
    k = next(iter(given.values())).middle if k is None else k
    rows = {name: result.by(by, k) for name, result in given.items()}
    shown = f"{'recall' if by == 'popularity' else metric}@{k}"
    first = next(iter(rows.values()))
    choose("plot.breakdown", "metric", shown, [n for n in first[0] if "@" in n])
    label, count = ("history", "users") if by == "history" else ("items", "targets")
    groups = {str(row[label]): row[count] for row in first}
    ax = _axes(ax)
    place, width = np.arange(len(groups)), 0.8 / len(rows)
    for i, ((name, each), colour) in enumerate(zip(rows.items(), _colours(ax), strict=False)):
        found = {str(row[label]): row[shown] for row in each}
        heights = [found.get(group, math.nan) for group in groups]
        ax.bar(place + (i - (len(rows) - 1) / 2) * width, heights, 0.92 * width, color=colour,
               label=name)  # fmt: skip
    ax.set_xticks(place, [f"{group}\n{n:,} {count}" for group, n in groups.items()])
    ax.set(ylabel=shown, xlabel="events before" if by == "history" else "popularity of the target")
    return _finished(ax, len(rows), grid="y")


def comparison(
    found: Comparison | Mapping[str, Result],
    metric: str | None = None,
    *,
    ceiling: Result | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric of several models as bars with 95 % intervals, the best on top.

    Args:
        found: what `sdx.compare` returned, or results by name.
        metric: None takes that of the comparison, or NDCG.
        ceiling: of the best possible lists, where they are known: a line.
        ax: to draw on; None makes a figure.
    """
    results = found.results if isinstance(found, Comparison) else dict(found)
    if not results:
        raise SoftdexError("plot.comparison: expected results by name, got none.")
    for name, result in results.items():
        expect(Result, "plot.comparison", result, f"found[{name!r}]")
    if metric is None:
        own = f"ndcg@{next(iter(results.values())).middle}"
        metric = found.metric if isinstance(found, Comparison) else own
    for result in results.values():
        choose("plot.comparison", "metric", metric, list(result))
    order = sorted(results, key=lambda name: results[name][metric])
    values = [results[name][metric] for name in order]
    errors = [WIDE * results[name].standard_error(metric) for name in order]
    ax = _axes(ax, height=1.2 + 0.34 * len(order))
    drawn = {"ecolor": ax.xaxis.label.get_color(), "elinewidth": 1, "capsize": 2}
    ax.barh(order, values, 0.7, xerr=np.nan_to_num(errors), color=_colours(ax)[0], error_kw=drawn)
    for at, (value, error) in enumerate(zip(values, errors, strict=True)):
        ax.annotate(f"{value:.4f}", (value + np.nan_to_num(error), at), (5, 0),
                    textcoords="offset points", va="center", fontsize="small")  # fmt: skip
    if ceiling is not None:
        expect(Result, "plot.comparison", ceiling, "ceiling")
        ax.axvline(ceiling[metric], color=_colours(ax)[1], linewidth=1.2)
        ax.annotate("best possible", (ceiling[metric], 1), (-4, -2), va="top", ha="right",
                    xycoords=("data", "axes fraction"), textcoords="offset points",
                    color=_colours(ax)[1], fontsize="small")  # fmt: skip
    ax.margins(x=0.15)
    ax.set(xlabel=metric)
    return _finished(ax, 1, grid="x")


@torch.inference_mode()
def sampler(
    model: Retriever,
    user: Any = None,
    *,
    history: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw for one user how likely items are under the softmax of the model and under proposals.

    Items are ordered by the softmax, with temperature 1 as in training. The proposals are the
    model's own index, if it is not exact, draws by popularity, and uniform draws. The legend has
    KL(q || p), and what a draw is worth beside one from the softmax: 1 / sum_i p(i)^2 / q(i).

    Args:
        model: with any index.
        user: a key.
        history: of a new user, item keys, oldest first.
        ax: to draw on; None makes a figure.
    """
    expect(Retriever, "plot.sampler", model)
    asked = who(model, "plot.sampler", None if user is None else [user],
                None if history is None else [list(history)])  # fmt: skip
    index: Any = model.index
    query, alive = query_of(model, asked.rows, asked.history), index.alive
    every = torch.arange(index.num_items, device=alive.device)
    scores = index.score(query, every)[0].double().masked_fill(~alive, -torch.inf).cpu()
    logp, nobody = scores.log_softmax(0), Constant(torch.zeros(len(scores)))
    laws = {} if isinstance(index, Flat) else {model.recipe: index.log_prob(query, every)[0].cpu()}
    counts = torch.from_numpy(model.item_counts.astype(np.int64))
    living = alive.cpu()
    popular = Popularity(nobody, counts, living, power=ProposalOptions.power)
    for name, drawn in (("popularity", popular), ("uniform", Uniform(nobody, living))):
        laws[name] = drawn.log_prob(NOBODY, every.cpu())[0]
    order = logp.argsort(descending=True)[: int(torch.isfinite(logp).sum())]
    ax = _axes(ax)
    edges = np.unique(np.append(0, np.geomspace(1, len(order), BINS).round().astype(int)))
    place = np.sqrt((edges[:-1] + 1) * edges[1:])
    curves = {"softmax": logp, **{n: q.double() for n, q in laws.items()}}
    for (name, log), colour in zip(curves.items(), _colours(ax), strict=False):
        kl, worth = divergence(log, logp)
        label = name if name == "softmax" else f"{name}: KL {kl:.2f}, a draw is worth {worth:.0%}"
        ax.plot(place, _means(log.exp()[order].numpy(), edges), color=colour, label=label,
                linewidth=2.2 if name == "softmax" else 1.5)  # fmt: skip
    ax.set(xscale="log", yscale="log", ylabel="probability")
    ax.set_xlabel(f"rank of the item for {'a history' if user is None else user}")
    return _finished(ax, len(curves))


# inside ------------------------------------------------------------------------------------------


def _histories(models: Any) -> dict[str, tuple[list[dict[str, Any]], int]]:
    """Return the records of the epochs and the epoch that was kept, per model that has any."""
    if isinstance(models, Comparison):
        models = {name: models.model(name) for name in models.training}
    elif isinstance(models, Retriever):
        models = {models.recipe: models}
    found = {}
    for name, model in dict(models).items():
        expect(Retriever, "plot.training", model, f"models[{name!r}]")
        record = model.card.training or {}
        if record.get("history"):
            found[name] = record["history"], record["best_epoch"]
    if not found:
        raise SoftdexError("plot.training: expected models that are trained in epochs, got none.")
    return found


def _means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean of the values in each bin."""
    return np.diff(np.concatenate([[0.0], np.cumsum(values)])[edges]) / np.diff(edges)


def _axes(ax: Axes | None, height: float = 3.6) -> Axes:
    """Return axes without what is not needed."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SoftdexError(
            f"plot: matplotlib cannot be imported ({error}). Run pip install 'softdex[plot]'"
        ) from None
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6.4, height), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _colours(ax: Axes) -> list[Any]:
    """Return colours that can be told apart on the axes' own, and shades beyond these."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    is_dark = sum(to_rgb(ax.get_facecolor())) < 1.5
    return [*(DARK if is_dark else LIGHT), *colormaps["tab20"].colors]  # type: ignore[attr-defined]


def _finished(ax: Axes, curves: int, grid: Any = "both") -> Axes:
    """Add a grid, and a legend where there is more than one curve."""
    ax.grid(visible=True, axis=grid, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    if curves > 1:
        ax.legend(frameon=False, fontsize="small")
    return ax
