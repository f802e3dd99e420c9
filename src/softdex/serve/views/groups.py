"""Groups of items: the values of a column, and bins of popularity."""

from __future__ import annotations

import numpy as np

from softdex.data.labels import coded
from softdex.data.ragged import Ragged, offsets
from softdex.errors import did_you_mean
from softdex.evaluate.breakdown import bin_labels
from softdex.serve.problems import Problem
from softdex.serve.study import Study

EVENTS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


def by_column(study: Study, name: str) -> tuple[str, list[str], Ragged]:
    """Return a column, its values, and the values of each item as a ragged array.

    Args:
        study: of the model.
        name: the column; "" takes the one that the page calls a category.
    """
    name, table = name or study.facts["category"] or "", study.model.item_table
    known = [] if table is None else table.column_names
    if table is None or name not in known:
        hint = did_you_mean(name, known) if name else "The model has no column of categories."
        raise Problem(422, f"groups: no item column {name!r}. {hint}", field="column")
    values, codes = coded(table[name])
    return name, values, codes


def by_events(counts: np.ndarray) -> tuple[list[str], Ragged]:
    """Return bins of items by their number of training events, and the bin of each item."""
    place = np.digitize(counts, EVENTS) - 1
    return bin_labels(EVENTS), Ragged(offsets(np.ones(len(counts), np.int64)), place)
