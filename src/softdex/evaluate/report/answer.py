"""Answer: which model is the best, by how much and how surely, and the table of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from softdex.drawing import esc
from softdex.errors import counted
from softdex.evaluate.metrics import METRICS
from softdex.evaluate.report.parts import and_, cell, column, folded, name, section, strong, table
from softdex.evaluate.report.study import CEILING, Study
from softdex.evaluate.result import Result
from softdex.tables import cell as plain

WIDTH = 1.96  # standard errors on either side of a 95 % interval


def answer(study: Study) -> str:
    """Return the first section."""
    head, *rows = zip(*_columns(study), strict=True)
    board = table(head, rows, caption=f"Best {study.metric} first", kind="wide board")
    every = folded("Every metric, mean ± standard error", _every(study))
    return section("answer", "The answer", sentence(study), board, _notes(study), every)


def sentence(study: Study) -> str:
    """Return who is best, by how much and how surely, as HTML."""
    names, metric = study.names, esc(study.metric)
    value, users = study.best[study.metric], counted(study.best.num_users, "users")
    first = strong(names[0])
    if len(names) == 1:
        error = WIDTH * study.best.standard_error(study.metric)
        within = "" if math.isnan(error) else f" (95 % {value - error:.4f} to {value + error:.4f})"
        words = f"{first} has {metric} <b>{value:.4f}</b>{within} over {users}."
        return f"<p class='answer'>{words} There is nothing to compare it with.</p>"
    apart = study.pairs.apart[0]
    equal = [n for i, n in enumerate(names) if i and not apart[i]]
    below = [i for i in range(1, len(names)) if apart[i]]
    if not equal:
        words = f"{first} is the best of {len(names)} on {metric}: <b>{value:.4f}</b>, "
    else:
        all_ = "any of the others" if not below and len(equal) > 2 else and_(equal)
        words = f"{first} has the highest {metric}, <b>{value:.4f}</b>, but cannot be told apart "
        words += f"from {all_} on these {users}"
        words += "; it is " if below else "."
    if below:
        gap, margin = study.pairs.difference[0][below[0]], study.pairs.margin[0][below[0]]
        bound = f"95 % {gap - margin:.4f} to {gap + margin:.4f}"
        words += f"{gap:.4f} above {strong(names[below[0]])} ({bound})."
    if study.ceiling is not None:
        share = 100 * value / max(1e-12, study.ceiling[study.metric])
        words += f" It reaches {share:.0f} % of the best possible."
    return f"<p class='answer'>{words}</p>{_choice(study)}"


# inside ------------------------------------------------------------------------------------------


def _choice(study: Study) -> str:
    """Say what validation chose, since figures on test must not choose."""
    if study.chosen is None:
        words = "There is no validation part: the model ranked first was chosen by these figures"
        return f"<p class='note'>{words}, which flatter it.</p>" if study.seconds else ""
    if study.chosen == study.names[0]:
        return f"<p class='lead'>Validation had chosen {strong(study.chosen)}, too.</p>"
    there = study.names.index(study.chosen)
    gap = study.pairs.difference[0, there]
    how = "and can be told apart" if study.pairs.apart[0, there] else "within the noise"
    return (
        f"<p class='note'>Validation had chosen {strong(study.chosen)}, {gap:.4f} below, {how}. "
        f"Take that one: a choice by figures on test flatters what it chooses.</p>"
    )


def _columns(study: Study) -> list[list[str]]:
    """Return the columns of the table: a heading, and a cell per model."""
    rows, ceiling, extra = list(_rows(study)), study.ceiling, study.extra
    highest = 1e-12 + max(_high(study, r) for _, r in rows)
    found = [
        [column("model"), *(name(m, _chips(study, m)) for m, _ in rows)],
        [
            column(study.metric, "bar: 95 % interval", "words"),
            *(_bar(study, m, r, highest) for m, r in rows),
        ],
    ]
    if ceiling is not None:
        best = max(1e-12, ceiling[study.metric])
        shares = (f"{r[study.metric] / best:.0%}" if r is not ceiling else "" for _, r in rows)
        found.append([column("share", "of the best"), *map(cell, shares)])
    for each in _others(study):
        values = (f"{r[each]:.4f}" if each in r else "" for _, r in rows)
        found.append([column(each), *map(cell, values)])
    if study.seconds:
        times = (_seconds(study.seconds.get(m)) for m, _ in rows)
        found.append([column("fit", "seconds"), *map(cell, times)])
    if study.memory:
        sizes = (_megabytes(study.memory.get(m)) for m, _ in rows)
        found.append([column("memory", "MB"), *map(cell, sizes)])
    for each in dict.fromkeys(n for row in extra.values() for n in row):
        told = (plain(extra.get(m, {}).get(each, "")) for m, _ in rows)
        found.append([column(each), *map(cell, told)])
    return found


def _rows(study: Study) -> Iterator[tuple[str, Result]]:
    yield from ((model, study.results[model]) for model in study.names)
    if study.ceiling is not None:
        yield CEILING, study.ceiling


def _high(study: Study, result: Result) -> float:
    error = result.standard_error(study.metric)
    return result[study.metric] + (0.0 if math.isnan(error) else WIDTH * error)


def _bar(study: Study, model: str, result: Result, highest: float) -> str:
    """Return a bar with its interval; quiet where a model is surely not the best."""
    value, error = result[study.metric], result.standard_error(study.metric)
    kind = "bar quiet"
    if result is not study.ceiling and not study.pairs.apart[0, study.names.index(model)]:
        kind = "bar"
    whisker, shown = "", ""
    if not math.isnan(error):
        low, high = (max(0.0, value + side * WIDTH * error) / highest for side in (-1, 1))
        whisker = f"<u style='left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%'></u>"
        shown = f" <span class='error'>±{error:.4f}</span>"
    fill = f"<i style='width:{100 * value / highest:.1f}%'></i>"
    return (
        f"<td class='words'><span class='value'><span class='{kind}'>{fill}{whisker}</span>"
        f"<span>{value:.4f}{shown}</span></span></td>"
    )


def _chips(study: Study, model: str) -> str:
    if model == study.chosen:
        return " <span class='chip on' title='the best on validation'>chosen</span>"
    return ""


def _megabytes(used: int | None) -> str:
    return "" if used is None else f"{used / 1e6:,.0f}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.01:
        return "<0.01"
    return f"{seconds:,.1f}" if seconds >= 1 else f"{seconds:.2f}"


def _others(study: Study) -> list[str]:
    """Return further metrics of the table; those equal to an earlier one are left out."""
    wanted = [f"{m}@{study.k}" for m in ("ndcg", "recall", "mrr", "map", "hit", "coverage")]
    found: dict[tuple[float, ...], str] = {}
    for each in (study.metric, *wanted):
        if all(each in result for result in study.results.values()):
            found.setdefault(tuple(round(r[each], 9) for r in study.results.values()), each)
    return [each for each in found.values() if each != study.metric]


def _every(study: Study) -> str:
    """Return all metrics at all cut-offs."""
    shown = list(dict.fromkeys(n for _, r in _rows(study) for n in r))
    order = {m: i for i, m in enumerate(METRICS)}
    shown.sort(key=lambda n: order.get(n.partition("@")[0], len(order)))
    rows = [[name(m), *(cell(r.shown(n)) for n in shown)] for m, r in _rows(study)]
    return table([column("model"), *(column(n) for n in shown)], rows, caption="Every metric")


def _notes(study: Study) -> str:
    """List warnings about results and trainings, each once."""
    said: dict[str, list[str]] = {}
    for model in study.names:
        for note in (*study.results[model].notes, *filter(None, [study.ends.get(model)])):
            said.setdefault(note, []).append(model)
    lines = [_note(note, models, len(study.names)) for note, models in said.items()]
    lines += [f"<li>{strong(n)}: {esc(why)}</li>" for n, why in study.missing.items()]
    return f"<ul class='notes'>{''.join(lines)}</ul>" if lines else ""


def _note(note: str, models: Sequence[str], number: int) -> str:
    who = "" if len(models) == number > 1 else f"{and_(models)}: "
    return f"<li>{who}{esc(note)}</li>"
