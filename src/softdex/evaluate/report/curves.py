"""Curves: the training of each model, on axes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softdex.drawing import esc, line, path, text
from softdex.errors import counted
from softdex.evaluate.report.parts import (
    bdi,
    cell,
    column,
    figure,
    folded,
    lead,
    name,
    section,
    table,
)
from softdex.evaluate.report.study import Study
from softdex.messages import METRIC

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300.0, 96.0, 52.0, 20.0, 8.0
PROPOSAL = {"kl": "KL(q || softmax)", "ess": "effective draws", "hits": "accidental hits"}
LINES = {"metric": (f"{METRIC} on validation", "s1"), "loss": ("loss", "s0")}


def curves(study: Study) -> str:
    """Return the section; models that are found in one step have no curves."""
    drawn = {n: r for n in study.names if (r := study.training.get(n))}
    if not drawn:
        return ""
    words = (
        "Each model has its own axes: losses of different objectives cannot be compared. The mark "
        "is the epoch that was kept."
    )
    few = {n: r for n, r in drawn.items() if n in study.few}
    shown, rest = few or drawn, {n: r for n, r in drawn.items() if n not in (few or drawn)}
    more = folded(counted(len(rest), "further models"), _grid(study, rest)) if rest else ""
    return section(
        "training", "Training", lead(words), _grid(study, shown), more, _proposals(drawn)
    )


# inside ------------------------------------------------------------------------------------------


def _grid(study: Study, drawn: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    cards = (_card(n, records, study.ends.get(n)) for n, records in drawn.items())
    return f"<div class='cards curves'>{''.join(cards)}</div>"


def _card(model: str, records: Sequence[Mapping[str, Any]], end: str | None) -> str:
    """Return the curves of a model, one above the other."""
    kept = kept_epoch(records)
    pictures = "".join(
        figure(_curve([float(r[n]) for r in records], kept, title, kind), WIDTH, HEIGHT,
               f"{title} of {model} per epoch")
        for n, (title, kind) in LINES.items()
        if all(n in r for r in records)
    )  # fmt: skip
    words = f"epoch {kept + 1} of {len(records)}" + (f", {end}" if end else "")
    return (
        f"<div class='card'><h3><span class='cut' title='{esc(model)}'>{bdi(model)}</span>"
        f"<small>{esc(words)}</small></h3>{pictures}</div>"
    )


def kept_epoch(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the place of the epoch that was kept: the first of the best metric, else the last."""
    if not all("metric" in r for r in records):
        return len(records) - 1
    return max(range(len(records)), key=lambda i: (float(records[i]["metric"]), -i))


def _curve(values: Sequence[float], kept: int, title: str, kind: str) -> str:
    """Draw values between their least and their greatest, which the axis names."""
    low, high = min(values), max(values)
    span = high - low or abs(high) or 1.0
    step = (WIDTH - LEFT - 8) / max(1, len(values) - 1)

    def at(i: int) -> tuple[float, float]:
        share = (values[i] - low) / span if high > low else 0.5
        return LEFT + 4 + i * step, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    x, y = at(kept)
    ends = "text-anchor='end'"
    axis = [line(LEFT, TOP - 2, LEFT, HEIGHT - BOTTOM + 2), text(LEFT, 9, title)]
    axis.append(text(LEFT - 6, TOP + 4, _three(high), ends))
    if high > low:
        axis.append(text(LEFT - 6, HEIGHT - BOTTOM + 3, _three(low), ends))
    curve = path([at(i) for i in range(len(values))], "class='series'")
    mark = f"<circle class='dot' cx='{x:.1f}' cy='{y:.1f}' r='3.5'/>"
    return f"{''.join(axis)}<g class='{kind}'>{curve}{mark}</g>"


def _three(value: float) -> str:
    """Format a value with three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _proposals(drawn: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Tabulate the quality of proposals after the last epoch, where models have one."""
    last = {n: records[-1] for n, records in drawn.items() if PROPOSAL.keys() & records[-1].keys()}
    if not last:
        return ""
    head = [column("model"), *(column(what) for what in PROPOSAL.values())]
    form = {"kl": "{:.3f}", "ess": "{:.1%}", "hits": "{:.2%}"}
    rows = [
        [name(n), *(cell(form[each].format(r[each]) if each in r else "") for each in PROPOSAL)]
        for n, r in last.items()
    ]
    caption = "Proposals after the last epoch, on a sample of users"
    return table(head, rows, caption=caption)
