"""Catalogue: which items may come back, by key and by what the item table says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.errors import SoftdexError, nearest
from softdex.keys import Keys


def allowed(
    items: Keys, table: pa.Table | None, allow: Any, deny: Any, where: Any
) -> torch.Tensor | None:
    """Mask over items of what may come back, or None when everything may."""
    if allow is None and deny is None and where is None:
        return None
    mask = np.ones(len(items), bool)
    if allow is not None:
        mask[:] = False
        mask[items.rows(listed(allow), "recommend", "items in allow")] = True
    if deny is not None:
        mask[items.rows(listed(deny), "recommend", "items in deny")] = False
    if where is not None:
        mask &= _where(table, where)
    return torch.from_numpy(mask)


def check_columns(table: pa.Table | None, columns: Sequence[str]) -> None:
    """Refuse item columns that do not exist."""
    known = [] if table is None else table.column_names
    for name in columns:
        if name not in known:
            raise SoftdexError(f"recommend: no item column {name!r}. {nearest(name, known)}")


def listed(keys: Any) -> Any:
    """One key as a list of one."""
    return [keys] if isinstance(keys, (str, bytes, int, float)) else keys


def _where(table: pa.Table | None, where: Mapping[str, Any] | pc.Expression) -> np.ndarray:
    if table is None:
        raise SoftdexError("recommend: where= needs item columns. Read the log with items=table.")
    rows = np.arange(table.num_rows)
    if isinstance(where, pc.Expression):
        numbered = table.append_column("__row", pa.array(rows))
        try:
            return np.isin(rows, numbered.filter(where)["__row"].to_numpy())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
            raise SoftdexError(
                f"recommend: where= does not fit the item columns ({error})."
            ) from None
    check_columns(table, list(where))
    mask = np.ones(len(rows), bool)
    for name, wanted in where.items():
        mask &= _matches(table[name].combine_chunks(), name, listed(wanted))
    return mask


def _matches(column: pa.Array, name: str, wanted: Any) -> np.ndarray:
    """Which cells equal one of the wanted values; a list cell matches if it holds one."""
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if lists else column.type
    try:
        values = pa.array(list(wanted)).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise SoftdexError(
            f"recommend: where={{{name!r}: {wanted!r}}}: the column holds {kind}."
        ) from None
    if not lists:
        return np.asarray(pc.fill_null(pc.is_in(column, value_set=values), False).to_numpy(False))
    mask = np.zeros(len(column), bool)
    found = pc.is_in(column.flatten(), value_set=values).to_numpy(zero_copy_only=False)
    mask[pc.list_parent_indices(column).to_numpy()[found]] = True
    return mask
