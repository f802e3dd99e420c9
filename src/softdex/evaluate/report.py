"""Report: a comparison as one self-contained HTML page of tables, curves and protocol cards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from softdex.evaluate.result import Result, against_others
from softdex.messages import METRIC
from softdex.tables import cell

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
CEILING, GREY = "best possible", "#6b7280"
PROPOSAL = {"kl": "KL(q || softmax)", "ess": "effective draws", "hits": "accidental hits"}
STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --soft: #9ca3af; --line: #374151; --paper: #111827; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.lead, figcaption, caption { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1rem; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
caption { text-align: left; padding: .3rem 0; white-space: nowrap; }
.scroll { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
figure { margin: 0; } svg { width: 100%; height: auto; } svg text { fill: var(--ink); }
svg .axis { stroke: var(--line); } code { font-size: .9em; }
"""


def build(
    title: str,
    lead: str,
    results: Mapping[str, Result],
    *,
    best: str,
    ceiling: Result | None = None,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    training: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    facts: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> str:
    """Return the page as HTML.

    Args:
        title, lead: the heading and the sentence below it.
        results: one per model, all on one split.
        best: the model to compare the others with.
        ceiling: the result of the best possible lists, where they are known.
        extra: further columns of the main table, per model.
        training: epoch records per model.
        facts: titled tables of facts (data, protocol card, versions).
    """
    lines = dict(results) | ({CEILING: ceiling} if ceiling is not None else {})
    palette = dict(zip(results, itertools.cycle(COLOURS), strict=False)) | {CEILING: GREY}
    cutoffs = next(iter(results.values())).cutoffs
    middle = next(iter(results.values())).middle
    parts = [f"<h1>{escape(title)}</h1><p class='lead'>{escape(lead)}</p>"]
    parts.append(_main_table(lines, middle, extra or {}))
    charts = [_chart(metric, lines, cutoffs, palette) for metric in ("recall", "ndcg")]
    parts.append(f"<h2>Curves</h2><div class='charts'>{''.join(charts)}</div>")
    if len(results) > 1:
        parts.append("<h2>Is the difference real?</h2>" + _comparison(results, best))
    if training:
        parts.append("<h2>Training</h2>" + _training(training, palette))
    parts.append("<h2>Where it works</h2>")
    for name, result in results.items():
        for what in ("popularity", "history"):
            rows = result.by(what, middle)
            parts.append(_table(f"{name}. {rows.title}", rows))
    parts.append("<h2>How it was made</h2>")
    for name, values in facts:
        parts.append(
            _table(
                name, [{"": k, " ": _plain(v)} for k, v in values.items() if v not in ([], None)]
            )
        )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _main_table(lines: Mapping[str, Result], k: int, extra: Mapping[str, Mapping[str, Any]]) -> str:
    names = [f"{m}@{k}" for m in ("recall", "ndcg", "mrr", "coverage")]
    more = list(dict.fromkeys(n for values in extra.values() for n in values))
    rows = []
    for model, result in lines.items():
        row: dict[str, Any] = {"model": model} | {n: result.shown(n) for n in names}
        rows.append(row | {n: extra.get(model, {}).get(n, "") for n in more})
    return _table("Mean over users ± standard error", rows)


def _comparison(results: Mapping[str, Result], best: str) -> str:
    rows = against_others(results, best)
    return _table(rows.title, [{**row, "real": "yes" if row["real"] else "no"} for row in rows])


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(str(n))}</th>" for n in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(v))}</td>" for v in row.values()) + "</tr>"
        for row in rows
    )
    heading = f"<thead><tr>{head}</tr></thead>" if any(str(n).strip() for n in rows[0]) else ""
    return (
        f"<div class='scroll'><table><caption>{escape(caption)}</caption>{heading}"
        f"<tbody>{body}</tbody></table></div>"
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(v) for v in value)
    return cell(value)


def _training(
    training: Mapping[str, Sequence[Mapping[str, Any]]], palette: Mapping[str, str]
) -> str:
    """Plot loss and metric per epoch; tabulate the proposal's quality after the last one."""
    charts = []
    for name, caption in (("loss", "loss per epoch"), ("metric", f"{METRIC} on validation")):
        lines = {
            m: [float(r[name]) for r in records]
            for m, records in training.items()
            if records and name in records[0]
        }
        if lines:
            longest = max(len(v) for v in lines.values())
            ticks = [str(i + 1) for i in range(longest)]
            charts.append(_curves(lines, ticks, "epoch", caption, palette))
    rows = [
        {
            "model": model,
            "epochs": len(records),
            "loss": records[-1]["loss"],
            **{what: records[-1].get(short, "") for short, what in PROPOSAL.items()},
        }
        for model, records in training.items()
        if records
    ]
    caption = "Proposal after the last epoch, on a sample of users"
    return f"<div class='charts'>{''.join(charts)}</div>{_table(caption, rows)}"


def _chart(
    metric: str,
    lines: Mapping[str, Result],
    cutoffs: Sequence[int],
    palette: Mapping[str, str],
) -> str:
    """Plot a metric against k, one line per model, with bars of two standard errors."""
    values = {name: [r[f"{metric}@{k}"] for k in cutoffs] for name, r in lines.items()}
    errors = {
        name: [2 * r.standard_error(f"{metric}@{k}") for k in cutoffs] for name, r in lines.items()
    }
    caption = f"{metric}@k, bars are two standard errors"
    return _curves(values, [str(k) for k in cutoffs], "k", caption, palette, errors)


def _curves(
    values: Mapping[str, Sequence[float]],
    ticks: Sequence[str],
    axis: str,
    caption: str,
    palette: Mapping[str, str],
    errors: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Return an SVG figure with one line per name."""
    width, height, left, right, top, bottom = 460, 280, 46, 110, 12, 34
    highest = max(max(v) for v in values.values()) * 1.08 or 1.0
    step = (width - left - right) / max(1, len(ticks) - 1)
    xs = [left + i * step for i in range(len(ticks))]

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / highest

    svg = []
    for level in (highest * i / 4 for i in range(5)):
        svg.append(_line(left, width - right, y(level), y(level), "class='axis'"))
        svg.append(_text(left - 6, y(level) + 4, f"{level:.2f}", "text-anchor='end'"))
    every = max(1, len(ticks) // 8)
    for x, tick in list(zip(xs, ticks, strict=True))[::every]:
        svg.append(_text(x, height - bottom + 16, tick, "text-anchor='middle'"))
    svg.append(_text((left + width - right) / 2, height - 4, axis, "text-anchor='middle'"))
    labels = _spread({name: y(v[-1]) for name, v in values.items()}, 14)
    for name, ys in values.items():
        colour = palette[name]
        ink = f"stroke='{colour}'"
        path = " ".join(f"{x:.1f},{y(v):.1f}" for x, v in zip(xs, ys, strict=False))
        dash = " stroke-dasharray='6 4'" if name == CEILING else ""
        svg.append(f"<polyline points='{path}' fill='none' stroke-width='2' {ink}{dash}/>")
        for x, v, error in zip(xs, ys, (errors or {}).get(name, ()), strict=False):
            svg.append(f"<circle cx='{x:.1f}' cy='{y(v):.1f}' r='2.5' fill='{colour}'/>")
            if error == error:
                svg.append(_line(x, x, y(v - error), y(v + error), ink))
        svg.append(_text(xs[len(ys) - 1] + 8, labels[name] + 4, name, f"style='fill:{colour}'"))
    return (
        f"<figure><svg viewBox='0 0 {width} {height}' role='img' aria-label='{escape(caption)}'>"
        f"{''.join(svg)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _line(x1: float, x2: float, y1: float, y2: float, style: str) -> str:
    return f"<line x1='{x1:.1f}' x2='{x2:.1f}' y1='{y1:.1f}' y2='{y2:.1f}' {style}/>"


def _text(x: float, y: float, words: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='11' {style}>{escape(words)}</text>"


def _spread(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """Move labels down until no two overlap."""
    placed: dict[str, float] = {}
    last = float("-inf")
    for name in sorted(places, key=lambda n: places[n]):
        last = placed[name] = max(places[name], last + gap)
    return placed
