"""Catalogue: which items may come back, by key and by what the item table says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.data.arrow import NOT_CONVERTIBLE
from softdex.data.keys import Keys, as_list, find
from softdex.errors import SoftdexError, did_you_mean

RESULT = ("user", "rank", "item", "similar", "score")  # columns of the tables that come back


def allowed(
    items: Keys, table: pa.Table | None, allow: Any, deny: Any, where: Any
) -> torch.Tensor | None:
    """Mask over items of what may come back, or None when everything may."""
    if allow is None and deny is None and where is None:
        return None
    mask = np.ones(len(items), bool)
    if allow is not None:
        mask[:] = False
        mask[find(items, as_list(allow), "recommend", "items in allow")] = True
    if deny is not None:
        mask[find(items, as_list(deny), "recommend", "items in deny")] = False
    if where is not None:
        mask &= _where(table, where)
    return torch.from_numpy(mask)


def check_columns(table: pa.Table | None, columns: Any) -> list[str]:
    """The item columns asked for, each once; those that do not exist are refused."""
    known = [] if table is None else table.column_names
    names = [] if columns is None else as_list(columns)
    for name in names:
        if name not in known:
            raise SoftdexError(f"recommend: no item column {name!r}. {did_you_mean(name, known)}")
        if name in RESULT:
            raise SoftdexError(
                f"recommend: the item column {name!r} would hide the column of that name in the "
                "result. Rename it in the item table."
            )
    return list(dict.fromkeys(names))


def _where(table: pa.Table | None, where: Mapping[str, Any] | pc.Expression) -> np.ndarray:
    if not isinstance(where, (Mapping, pc.Expression)):
        raise SoftdexError(
            "recommend: expected where={column: value, ...} or a pyarrow.compute expression, got "
            f"{where!r}."
        )
    if table is None:
        raise SoftdexError("recommend: where= needs item columns. Read the log with items=table.")
    if isinstance(where, pc.Expression):
        return _satisfies(table, where)
    mask = np.ones(table.num_rows, bool)
    for name, wanted in where.items():
        if name not in table.column_names:
            raise SoftdexError(
                f"recommend: no item column {name!r}. {did_you_mean(name, table.column_names)}"
            )
        mask &= _matches(table[name].combine_chunks(), name, as_list(wanted))
    return mask


def _satisfies(table: pa.Table, where: pc.Expression) -> np.ndarray:
    from pyarrow import dataset  # brings pandas along where there is one, so not before

    try:
        keep = dataset.dataset(table).to_table(columns={"keep": where})["keep"]
        if not pa.types.is_boolean(keep.type):
            raise TypeError(f"it gives {keep.type}, not true or false")
    except NOT_CONVERTIBLE as error:
        raise SoftdexError(
            f"recommend: where= does not fit the item columns ({str(error).splitlines()[0]})."
        ) from None
    return np.asarray(pc.fill_null(keep, False).to_numpy())


def _matches(column: pa.Array, name: str, wanted: Any) -> np.ndarray:
    """Which cells equal one of the wanted values; a list cell matches if it holds one."""
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if lists else column.type
    try:
        values = pa.array(list(wanted)).cast(kind)
        found = pc.is_in(column.flatten() if lists else column, value_set=values)
    except NOT_CONVERTIBLE:
        raise SoftdexError(
            f"recommend: where={{{name!r}: {wanted!r}}}: the column holds {kind}."
        ) from None
    hits = np.asarray(found.to_numpy(zero_copy_only=False))
    if not lists:
        return hits
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    mask = np.zeros(len(column), bool)
    mask[np.repeat(np.arange(len(column)), lengths)[hits]] = True
    return mask
