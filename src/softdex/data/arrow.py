"""Arrow columns: values without their wrapping, and the types that a saved model stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.errors import SoftdexError
from softdex.messages import say

# what conversions raise
NOT_CONVERTIBLE = (pa.ArrowException, OverflowError, TypeError, UnicodeError)


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as a single array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def unwrapped(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """The values under any dictionary, run-end encoding, view or extension type."""
    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        parts = [part.storage for part in column.chunks]
        return unwrapped(pa.chunked_array(parts, kind.storage_type))
    if pa.types.is_dictionary(kind):
        empty = unwrapped(pa.array([], kind.value_type)).type
        parts = [combined(unwrapped(c.dictionary)).take(c.indices) for c in column.chunks]
        return pa.chunked_array(parts, empty)
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(column))
    return without_views(column)


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast string views, which polars exports and few Arrow functions accept, to large strings."""
    kind, wanted = column.type, _without_views(column.type)
    if pa.types.is_dictionary(kind) and _without_views(kind.value_type) != kind.value_type:
        return unwrapped(column)
    return column if kind == wanted else column.cast(wanted)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def flattened(column: Any) -> tuple[pa.Array, np.ndarray] | None:
    """The cells of all lists of an Arrow column, and the length of each, 0 for a null; None if it
    is no column of lists."""
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        return None
    lists = combined(unwrapped(column))
    if not _is_list_like(lists.type):
        return None
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lists.flatten(), lengths.astype(np.int64)


def plain_table(table: pa.Table) -> pa.Table:
    """Cast each column to its plain type; drop columns without one, and say so."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = plain_type(column.type)
        try:
            if kind is None:
                raise TypeError("no plain type")
            columns[name] = column if kind == column.type else _cast(column, kind)
        except NOT_CONVERTIBLE:
            say(f"item column {name} is left out: softdex does not store the type {column.type}")
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column.cast(kind)
    return pa.chunked_array([c.dictionary.cast(kind).take(c.indices) for c in column.chunks], kind)


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a saved model stores columns of this type, or None if it cannot.

    Plain types have no dictionaries, views, run ends or lists of nulls. Every cell is backed by
    its own bytes, so a small file cannot expand into a large table.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if _is_list_like(kind):
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
    no_bytes = types.is_fixed_size_binary(kind) and kind.byte_width == 0
    return None if no_bytes or types.is_nested(kind) or types.is_run_end_encoded(kind) else kind


def _is_list_like(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def to_pandas(where: str, table: pa.Table) -> Any:
    """Return a table as a pandas data frame; pandas is not a dependency."""
    try:
        return table.to_pandas()
    except ImportError:
        raise SoftdexError(
            f"{where}: pandas is not installed. Install it (pip install pandas), or use to_arrow()."
        ) from None
