"""Arrow columns in the plain types that a model stores them in."""

from __future__ import annotations

import pyarrow as pa

from softdex.data.keys import REFUSED
from softdex.messages import say


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
