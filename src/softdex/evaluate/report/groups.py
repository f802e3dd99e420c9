"""Groups: where models work, by length of history, popularity of the target and category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softdex.data.ragged import group
from softdex.errors import counted
from softdex.evaluate.breakdown import by_category
from softdex.evaluate.report.parts import column, folded, lead, name, section, shaded, table
from softdex.evaluate.report.study import CEILING, Study
from softdex.evaluate.result import Result
from softdex.tables import Rows

MOST = 8  # categories shown, those with the most targets
FEW_ASKED = 30  # a group of fewer users or targets is marked


def groups(study: Study) -> str:
    """Return the section."""
    lenses = [
        _lens(study, "By length of history", "users", study.metric, {
            n: r.by("history", study.k) for n, r in _rows(study)
        }),
        _lens(study, "By popularity of the target", "targets", f"recall@{study.k}", {
            n: r.by("popularity", study.k) for n, r in _rows(study)
        }),
        _categories(study),
    ]  # fmt: skip
    body = "".join(lenses)
    words = (
        "Bars share one scale per table, and the best of each column is bold. Head, middle and "
        "tail are the items that hold a third of the training events each, the most popular first."
    )
    return section("groups", "Where it works", lead(words), body) if body else ""


# inside ------------------------------------------------------------------------------------------


def _rows(study: Study) -> list[tuple[str, Result]]:
    rows = [(model, study.results[model]) for model in study.names]
    return rows if study.ceiling is None else [*rows, (CEILING, study.ceiling)]


def _categories(study: Study) -> str:
    """Return recall per category: those with the most targets."""
    if study.labels is None or study.labels.category is None:
        return ""
    labels, codes = study.labels.categories()
    targets = study.best.item_targets[codes.row_of]
    asked = np.bincount(codes.ids, weights=targets, minlength=len(labels))
    most = np.argsort(-asked, kind="stable")[:MOST]
    most = most[asked[most] > 0]
    items = group(codes.ids, codes.row_of, len(labels)).take(most)
    shown = [labels[i] or "(empty)" for i in most]
    title = f"By {study.labels.category} of the target"
    if len(labels) > len(most):
        title += f", {len(most)} of {len(labels):,}"
    each = {n: by_category(r, study.k, shown, items) for n, r in _rows(study)}
    return _lens(study, title, "targets", f"recall@{study.k}", each) if len(most) else ""


def _lens(study: Study, title: str, of: str, metric: str, each: dict[str, Rows]) -> str:
    """Return a table with a row per model and a bar per group; most models are folded."""
    first = next(iter(each.values()))
    keep = [i for i, row in enumerate(first) if row[of] and metric in row]
    if not keep:
        return ""
    values = {n: [float(rows[i][metric]) for i in keep] for n, rows in each.items()}
    highest = max(v for row in values.values() for v in row)
    tops = [max(group) for group in zip(*(values[n] for n in study.names), strict=True)]
    marks = len(study.names) > 1
    head = [column("model"), *(_head(first[i], of) for i in keep)]

    def lens(models: Sequence[str], caption: str) -> str:
        rows = []
        for n in models:
            best = [
                marks and n != CEILING and v == top > 0
                for v, top in zip(values[n], tops, strict=True)
            ]
            cells = (shaded(v, highest, best=b) for v, b in zip(values[n], best, strict=True))
            rows.append([name(n), *cells])
        return table(head, rows, caption=caption, kind="lenses", wide=len(keep))

    ceiling = [CEILING] if study.ceiling is not None else []
    shown = lens([*study.few, *ceiling], f"{title}: {metric}")
    if not study.rest:
        return shown
    more = counted(len(study.rest), "further models")
    return shown + folded(more, lens(study.rest, f"{title}: {metric}, {more}"))


def _head(row: dict[str, Any], of: str) -> str:
    label, number = next(iter(row.values())), row[of]
    return column(str(label), counted(number, of), "few" if number < FEW_ASKED else "")
