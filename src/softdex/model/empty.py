"""Why a table of recommendations is empty, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.keys import as_list
from softdex.errors import counted, did_you_mean
from softdex.model.filter import satisfying

if TYPE_CHECKING:
    from softdex.model.asking import Asked
    from softdex.model.retriever import Retriever
    from softdex.model.rules import Rules
    from softdex.model.wanted import Wanted

VALUES = 1000  # of a column that a hint looks at
LONG = 200  # characters: no hint lists more


def why_empty(
    model: Retriever, method: str, rules: Rules, like: Wanted, asked: Asked | None
) -> str:
    """Return why no list holds an item."""
    return f"{method}: no recommendation: {_reason(model, method, rules, like, asked)}"


def _reason(model: Retriever, method: str, rules: Rules, like: Wanted, asked: Asked | None) -> str:
    if asked is not None and not len(asked.rows):
        if not asked.given:
            return "no user was asked about"
        return f"{counted(asked.given, 'unknown users')} skipped, and none is left"
    table, where = model.item_table, rules.where
    if table is not None and where is not None and not satisfying(table, where, method).any():
        return _unmatched(table, where, method)
    if like.mask is not None and not bool((like.mask & model.index.alive.cpu()).any()):
        return "allow, deny and where together leave none"
    if like.only is not None and not len(like.only.ids):
        return "allow names no item for these users"
    if asked is not None and like.exclude_seen and asked.history.lengths.any():
        return "the users have seen every item that is allowed; exclude_seen=False keeps seen items"
    return "no item is left that is allowed"


def _unmatched(table: pa.Table, where: object, method: str) -> str:
    """Return which condition no item satisfies, with the nearest value of the column."""
    if not isinstance(where, Mapping):
        return "no item satisfies where"
    for name, wanted in where.items():
        if satisfying(table, {name: wanted}, method).any():
            continue
        column = table[name].combine_chunks()
        cells = column if column.type.num_fields == 0 else column.flatten()
        known = sorted(str(v) for v in pc.unique(cells)[:VALUES].to_pylist() if v is not None)
        values = as_list(wanted)
        hint = did_you_mean(values[0], known) if len(values) else ""
        given = ", ".join(map(str, values))
        return f"no item has {name}={given}. {hint if len(hint) < LONG else ''}".strip()
    return "no item satisfies all conditions of where"
