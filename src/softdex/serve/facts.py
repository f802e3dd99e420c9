"""What the page knows of a model before anything is measured: what it can do, its item columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.index.tree.tree import Tree
from softdex.model.kinds import kind_of
from softdex.model.retriever import Retriever

TITLES, CATEGORIES = ("title", "name"), ("genre", "categ", "topic", "artist", "brand")
FEW = 200  # values of a column that are listed
MOST_VALUES = 2000  # values of a column that is a category


def facts(model: Retriever) -> dict[str, Any]:
    """Return what a model can do, and its item columns."""
    found = (
        []
        if model.item_table is None
        else [_column(model.item_table, name) for name in model.item_table.column_names]
    )
    encoder, index = model.encoder, model.index
    return {
        "recipe": model.recipe,
        "users": len(model.users),
        "items": len(model.items),
        "events": len(model.seen.ids),
        "most_events": int(model.item_counts.max(initial=0)),
        "index": kind_of(index),
        "searches": index.searches,
        "tree": isinstance(index, Tree),
        "product": bool(index.scorer.is_product),
        "reads_history": encoder.reads_history,
        "temperature": model.temperature,
        "columns": found,
        "title": _first(found, TITLES, "title"),
        "category": _first(found, CATEGORIES, "category"),
    }


# inside ------------------------------------------------------------------------------------------


def _column(table: pa.Table, name: str) -> dict[str, Any]:
    """Return a column's kind and, if there are few, its values by falling count."""
    column = table[name].combine_chunks()
    column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
    many = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    flat = pc.list_flatten(column) if many else column
    kind = "number" if _is_number(flat.type) else "text"
    found: dict[str, Any] = {"name": name, "kind": kind, "many": many}
    try:
        counts = flat.drop_null().value_counts()
    except pa.ArrowNotImplementedError:
        return found | {"kind": "other"}
    found["distinct"] = len(counts)
    if len(counts) <= min(MOST_VALUES, max(2, len(flat) / 2)):
        order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")[:FEW]
        few = counts.take(pa.array(order))
        found["values"] = [[each["values"], each["counts"]] for each in few.to_pylist()]
    return found


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _first(columns: list[dict[str, Any]], hints: tuple[str, ...], role: str) -> str | None:
    """Return the column that fits a role: one whose name says so, else the first."""
    fits = [
        each["name"]
        for each in columns
        if each["kind"] == "text"
        and ("values" in each) == (role == "category")
        and not (role == "title" and each["many"])
    ]
    said = [name for name in fits if any(hint in name.lower() for hint in hints)]
    return next(iter([*said, *fits]), None)
