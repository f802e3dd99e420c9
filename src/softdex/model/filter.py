"""Filter items by the columns of the item table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.arrow import NOT_CONVERTIBLE
from softdex.data.keys import as_list, sound
from softdex.encode.features.cells import REFUSED
from softdex.errors import SoftdexError, did_you_mean

RESULT = ("user", "rank", "item", "similar", "score")  # columns of the tables we return


def check_columns(
    table: pa.Table | None, columns: Any, method: str, result: Sequence[str] = RESULT
) -> list[str]:
    """Return the item columns asked for, each once; refuse unknown ones, and names of `result`."""
    known = [] if table is None else table.column_names
    names = [] if columns is None else as_list(columns)
    for name in names:
        if name not in known:
            raise SoftdexError(f"{method}: no item column {name!r}. {did_you_mean(name, known)}")
        if name in result:
            raise SoftdexError(
                f"{method}: the item column {name!r} would hide the column of that name in the "
                "result. Rename it in the item table."
            )
    return list(dict.fromkeys(names))


def satisfying(
    table: pa.Table | None, where: Mapping[str, Any] | pc.Expression, method: str
) -> np.ndarray:
    """Return which items satisfy a condition on the item columns (I,).

    Args:
        table: item columns, or None.
        where: as in `Retriever.recommend`.
        method: the method called, named in errors.
    """
    if not isinstance(where, (Mapping, pc.Expression)):
        raise SoftdexError(
            f"{method}: expected where={{column: value, ...}} or a pyarrow.compute expression, got "
            f"{where!r}."
        )
    if table is None:
        raise SoftdexError(f"{method}: where= needs item columns. Read the log with items=table.")
    if isinstance(where, pc.Expression):
        return _satisfies(table, where, method)
    mask = np.ones(table.num_rows, bool)
    for name, wanted in where.items():
        if name not in table.column_names:
            raise SoftdexError(
                f"{method}: no item column {name!r}. {did_you_mean(name, table.column_names)}"
            )
        mask &= _matches(
            table[name].combine_chunks(),
            name,
            sound(as_list(wanted), method, f"where {name}"),
            method,
        )
    return mask


def _satisfies(table: pa.Table, where: pc.Expression, method: str) -> np.ndarray:
    """Return the rows for which an expression is true; null counts as false."""
    from pyarrow import dataset  # imports pandas if it is installed, so not earlier

    try:
        keep = dataset.dataset(table).to_table(columns={"keep": where})["keep"]
        if not pa.types.is_boolean(keep.type):
            raise TypeError(f"it is {keep.type}, not true or false")
    except REFUSED as error:
        raise SoftdexError(
            f"{method}: where= does not fit the item columns ({str(error).splitlines()[0]})."
        ) from None
    return np.asarray(pc.fill_null(keep, False).to_numpy())


def _matches(column: pa.Array, name: str, wanted: Any, method: str) -> np.ndarray:
    """Return which cells equal one of the values; a list matches if it contains one."""
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if lists else column.type
    try:
        values = pa.array(list(wanted)).cast(kind)
        found = pc.is_in(column.flatten() if lists else column, value_set=values)
    except NOT_CONVERTIBLE:
        raise SoftdexError(
            f"{method}: where={{{name!r}: {wanted!r}}}: the column holds {kind}."
        ) from None
    hits = np.asarray(found.to_numpy(zero_copy_only=False))
    if not lists:
        return hits
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    mask = np.zeros(len(column), bool)
    mask[np.repeat(np.arange(len(column)), lengths)[hits]] = True
    return mask
