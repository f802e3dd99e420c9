"""Catalogue: which items may come back, by key and by what the item table says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.errors import SoftdexError, nearest
from softdex.keys import Keys
from softdex.tables import say

RESULT = ("user", "rank", "item", "similar", "score")  # columns of the tables that come back
REFUSED = (pa.ArrowException, OverflowError, TypeError)


def allowed(
    items: Keys, table: pa.Table | None, allow: Any, deny: Any, where: Any
) -> torch.Tensor | None:
    """Mask over items of what may come back, or None when everything may."""
    if allow is None and deny is None and where is None:
        return None
    mask = np.ones(len(items), bool)
    if allow is not None:
        mask[:] = False
        mask[find(items, listed(allow), "recommend", "items in allow")] = True
    if deny is not None:
        mask[find(items, listed(deny), "recommend", "items in deny")] = False
    if where is not None:
        mask &= _where(table, where)
    return torch.from_numpy(mask)


def listed(keys: Any) -> Any:
    """Keys that can be gone through more than once; one key as a list of one."""
    if isinstance(keys, (str, bytes, pa.Scalar)) or not isinstance(keys, Iterable):
        return [keys]
    return list(keys) if isinstance(keys, Iterator) else keys


def find(keys: Keys, given: Any, where: str, what: str, *, known: bool = True) -> np.ndarray:
    """The row of each key; one that is not known is an error, or -1 where `known` is False."""
    try:
        return keys.rows(given, where, what) if known else keys.lookup(given)
    except REFUSED as error:
        raise SoftdexError(
            f"{where}: expected {what} as a list of keys, got {type(given).__name__} ({error})."
        ) from None


def check_columns(table: pa.Table | None, columns: Any) -> list[str]:
    """The item columns asked for, each once; those that do not exist are refused."""
    known = [] if table is None else table.column_names
    names = [] if columns is None else listed(columns)
    for name in names:
        if name not in known:
            raise SoftdexError(f"recommend: no item column {name!r}. {nearest(name, known)}")
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
                f"recommend: no item column {name!r}. {nearest(name, table.column_names)}"
            )
        mask &= _matches(table[name].combine_chunks(), name, listed(wanted))
    return mask


def _satisfies(table: pa.Table, where: pc.Expression) -> np.ndarray:
    from pyarrow import dataset  # brings pandas along where there is one, so not before

    try:
        keep = dataset.dataset(table).to_table(columns={"keep": where})["keep"]
        if not pa.types.is_boolean(keep.type):
            raise TypeError(f"it gives {keep.type}, not true or false")
    except REFUSED as error:
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
    except REFUSED:
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


# the types of item columns -----------------------------------------------------------------------


def plain_table(table: pa.Table) -> pa.Table:
    """The same columns in plain types; one whose type has no plain form is left out, and said."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = plain_type(column.type)
        try:
            if kind is None:
                raise TypeError("no plain form")
            columns[name] = column if kind == column.type else _cast(column, kind)
        except REFUSED:
            say(f"item column {name} is left out: softdex does not store the type {column.type}")
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column.cast(kind)
    return pa.chunked_array([c.dictionary.cast(kind).take(c.indices) for c in column.chunks], kind)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type a column of this type is kept in, None when it cannot be.

    Cells of plain types are backed by bytes of their own, so a small file cannot unfold into a
    large table: no dictionaries, views, runs or lists of nothing.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if _is_listed(kind):
        inside = plain_type(kind.value_type)
        if inside is None or types.is_null(inside):
            return None
        wide = types.is_large_list(kind) or types.is_large_list_view(kind)
        field = kind.value_field.with_type(inside)
        return pa.large_list(field) if wide else pa.list_(field)
    if types.is_struct(kind):
        found = [plain_type(field.type) for field in kind]
        if not found or None in found:
            return None
        return pa.struct([f.with_type(t) for f, t in zip(kind, found, strict=True)])
    if isinstance(kind, pa.BaseExtensionType):
        inside = plain_type(kind.storage_type)
        return kind if inside == kind.storage_type else inside
    nothing = types.is_fixed_size_binary(kind) and kind.byte_width == 0
    return None if nothing or types.is_nested(kind) or types.is_run_end_encoded(kind) else kind


def _is_listed(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
