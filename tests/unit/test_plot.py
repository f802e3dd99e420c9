"""Plots: what is drawn is what was measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch

import softdex as sdx
from softdex.model.asking import query_of, who

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.colors import to_rgb

SMALL: dict[str, dict[str, Any]] = {
    "popular": {},
    "rg2": {"dim": 8, "epochs": 4},
    "fastvae": {"dim": 8, "hidden": 8, "epochs": 3, "negatives": 20, "codewords": 4},
}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def found() -> sdx.Comparison:
    log = sdx.synthetic.world(users=300, items=50, seed=7, events=15).interactions()
    return sdx.compare(sdx.split.leave_last(log), SMALL, k=(5, 20), quiet=True)


def lines(ax: Any) -> dict[str, tuple[list[float], list[float]]]:
    """The curves by name."""
    known = [line for line in ax.lines if not line.get_label().startswith("_")]
    return {x.get_label(): (x.get_xdata().tolist(), list(x.get_ydata())) for x in known}


def dots(ax: Any) -> list[tuple[float, float]]:
    return [tuple(x.get_xydata()[0]) for x in ax.lines if x.get_label().startswith("_")]


# training ----------------------------------------------------------------------------------------


def test_a_training_is_its_validation_per_epoch_with_a_dot_where_it_was_best(
    found: sdx.Comparison,
) -> None:
    ax = sdx.plot.training(found)
    drawn = lines(ax)
    assert drawn.keys() == {"rg2", "fastvae"}  # popular has no epochs
    for name, (epochs, values) in drawn.items():
        records = found.training[name]
        assert epochs == [record["epoch"] for record in records]
        assert values == [record["metric"] for record in records]
    best = [max(found.training[n], key=lambda r: r["metric"]) for n in drawn]
    assert dots(ax) == [(record["epoch"], record["metric"]) for record in best]
    assert ax.get_ylabel() == "ndcg@20 on validation"


def test_other_figures_are_asked_for_and_losses_are_drawn_where_nothing_is_measured(
    found: sdx.Comparison,
) -> None:
    model = found.model("fastvae")
    assert lines(sdx.plot.training(model, "kl"))["fastvae"][1] == [
        record["kl"] for record in found.training["fastvae"]
    ]
    unmeasured = sdx.fit("rg2", found.split.train, dim=4, epochs=2, patience=0)
    ax = sdx.plot.training({"a": unmeasured, "b": model})
    assert ax.get_ylabel() == "loss"
    assert lines(ax).keys() == {"a", "b"}
    with pytest.raises(sdx.SoftdexError, match=r"plot\.training: unknown figure 'kll'.*'kl'"):
        sdx.plot.training(model, "kll")
    with pytest.raises(sdx.SoftdexError, match="expected models that are trained in epochs"):
        sdx.plot.training(found.model("popular"))


# breakdowns and comparisons ----------------------------------------------------------------------


@pytest.mark.parametrize(("by", "metric"), [("popularity", "recall"), ("history", "ndcg")])
def test_bars_of_a_breakdown_are_its_rows(found: sdx.Comparison, by: str, metric: str) -> None:
    results = {name: found.results[name] for name in ("rg2", "popular")}
    ax = sdx.plot.breakdown(results, by)
    for bars, result in zip(ax.containers, results.values(), strict=True):
        rows = result.by(by, 20)
        heights = [row[f"{metric}@20"] for row in rows]
        np.testing.assert_array_equal([bar.get_height() for bar in bars], heights)
    label = "items" if by == "popularity" else "history"
    count = "targets" if by == "popularity" else "users"
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        f"{row[label]}\n{row[count]:,} {count}" for row in rows
    ]
    one = sdx.plot.breakdown(results["rg2"], by, k=5)
    assert [bar.get_height() for bar in one.containers[0]] == [
        row[f"{metric}@5"] for row in results["rg2"].by(by, 5)
    ]


def test_bars_of_a_comparison_are_sorted_and_have_95_percent_intervals(
    found: sdx.Comparison,
) -> None:
    ax = sdx.plot.comparison(found, "recall@5", ceiling=found.results["rg2"])
    order = sorted(found.results, key=lambda name: found.results[name]["recall@5"])
    assert [text.get_text() for text in ax.get_yticklabels()] == order  # the best on top
    errors, bars = ax.containers
    assert [bar.get_width() for bar in bars] == [found.results[n]["recall@5"] for n in order]
    for (start, end), name in zip(errors.lines[2][0].get_segments(), order, strict=True):
        half = 1.96 * found.results[name].standard_error("recall@5")
        value = found.results[name]["recall@5"]
        np.testing.assert_allclose([start[0], end[0]], [value - half, value + half])
    assert any(line.get_xdata()[0] == found.results["rg2"]["recall@5"] for line in ax.lines)
    assert sdx.plot.comparison(dict(found.results)).get_xlabel() == "ndcg@20"


# the sampler -------------------------------------------------------------------------------------


def test_the_curves_of_a_sampler_are_the_softmax_and_the_proposals_of_the_user(
    found: sdx.Comparison,
) -> None:
    model = found.model("fastvae")
    user = model.users.values[3].as_py()
    asked = who(model, "test", [user], None)
    query = query_of(model, asked.rows, asked.history)
    every = torch.arange(len(model.items))
    p = model.index.score(query, every)[0].double().softmax(0)
    order = p.argsort(descending=True)
    laws = {
        "softmax": p,
        "fastvae": model.index.log_prob(query, every)[0].double().exp(),
        "uniform": torch.full((50,), 1 / 50, dtype=torch.float64),
        "popularity": torch.from_numpy((model.item_counts + 1.0) ** 0.5),
    }
    laws["popularity"] /= laws["popularity"].sum()
    drawn = lines(sdx.plot.sampler(model, user))
    for label, (place, values) in drawn.items():
        q = laws[label.split(":")[0]]
        single = [i for i, at in enumerate(place) if at == round(at)]  # bins of one item
        assert len(single) >= 10
        at = [round(place[i]) - 1 for i in single]
        np.testing.assert_allclose([values[i] for i in single], q[order][at], rtol=1e-4)
        if label != "softmax":
            kl = float((q * (q / p).log()).sum())
            worth = float(1 / (p**2 / q).sum())
            assert label.endswith(f"KL {kl:.2f}, a draw is worth {worth:.0%}")


def test_an_exact_index_has_no_curve_of_its_own_and_histories_are_new_users(
    found: sdx.Comparison,
) -> None:
    model = found.model("rg2")
    items = model.items.values[:3].to_pylist()
    ax = sdx.plot.sampler(model, history=items)
    assert [name.split(":")[0] for name in lines(ax)] == ["softmax", "popularity", "uniform"]
    assert ax.get_xlabel().endswith("a history")
    with pytest.raises(sdx.SoftdexError, match="unknown user"):
        sdx.plot.sampler(model, "nobody")


# all ---------------------------------------------------------------------------------------------


def test_everything_is_drawn_on_the_axes_that_are_given(found: sdx.Comparison) -> None:
    figure, axes = pyplot.subplots(2, 2)
    model = found.model("rg2")
    user = model.users.values[0].as_py()
    for ax, draw in zip(
        axes.flat,
        (
            lambda ax: sdx.plot.training(found, ax=ax),
            lambda ax: sdx.plot.breakdown(found.results, ax=ax),
            lambda ax: sdx.plot.comparison(found, ax=ax),
            lambda ax: sdx.plot.sampler(model, user, ax=ax),
        ),
        strict=True,
    ):
        assert draw(ax) is ax
        assert ax.has_data()
    assert pyplot.get_fignums() == [figure.number]
    figure.canvas.draw()


def test_colours_stand_out_from_light_and_dark_axes(found: sdx.Comparison) -> None:
    for style, bright in (("default", False), ("dark_background", True)):
        with pyplot.style.context(style):
            ax = sdx.plot.training(found)
        assert all((sum(to_rgb(line.get_color())) > 1.5) is bright for line in ax.lines)


def test_without_matplotlib_one_sentence_says_what_to_install(
    found: sdx.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(sdx.SoftdexError, match=r"pip install 'softdex\[plot\]'"):
        sdx.plot.comparison(found)


@pytest.mark.parametrize("draw", ["training", "breakdown", "comparison", "sampler"])
def test_what_cannot_be_drawn_is_refused(draw: str) -> None:
    with pytest.raises((sdx.SoftdexError, sdx.DataError), match=rf"plot\.{draw}: expected"):
        getattr(sdx.plot, draw)({"a": math.pi} if draw != "sampler" else math.pi)
