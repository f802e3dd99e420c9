"""Grow: users and items that come after training, added to a model by fold-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from softdex.catalogue import find
from softdex.errors import DataError, SoftdexError, some
from softdex.index.flat import Flat
from softdex.interactions import Interactions
from softdex.keys import Keys, merge
from softdex.ragged import Ragged, group
from softdex.score import Dot
from softdex.solve.fold_in import FoldIn
from softdex.solve.normal_equations import row_sums


class Model(Protocol):
    """What of a `Retriever` grows."""

    recipe: str
    users: Keys
    items: Keys
    encoder: Any
    index: Any
    seen: Ragged
    item_counts: np.ndarray
    item_table: pa.Table | None
    info: dict[str, Any]


def add_users(model: Model, log: Interactions) -> None:
    """Solve for users who were not in training, and put them in their places among the keys."""
    where = "add_users"
    encoder, log = _folding(model, log, where, "users", model.users)
    item = find(model.items, log.items.all(), where, "items")[log.item]
    log = replace(log, items=model.items, item=item.astype(np.int32), item_table=None)
    matrix = log.confidences[0]
    vectors = torch.cat([encoder.vectors.weight, encoder.new_users(matrix)])
    total = torch.cat([encoder.total, torch.from_numpy(row_sums(matrix)).to(encoder.total)])
    seen = log.histories
    indptr = np.append(model.seen.indptr, model.seen.indptr[-1] + seen.indptr[1:])
    keys, order = merge(model.users, log.users)

    model.users = keys
    model.encoder = FoldIn(vectors[order], total[order], encoder.terms, encoder.items).eval()
    model.seen = Ragged(indptr, np.append(model.seen.ids, seen.ids)).take(order)
    model.item_counts = model.item_counts + log.item_counts
    _note(model, "users", log.num_users)


def add_items(model: Model, log: Interactions) -> None:
    """Solve for items that were not in training, and put them in their places among the keys."""
    where = "add_items"
    encoder, log = _folding(model, log, where, "items", model.items)
    user = find(model.users, log.users.all(), where, "users")[log.user]
    log = replace(log, users=model.users, user=user.astype(np.int32))
    vectors = torch.cat([encoder.items.weight, encoder.new_items(log.confidences[1])])
    keys, order = merge(model.items, log.items)
    place = np.argsort(order).astype(model.seen.ids.dtype)
    had = np.append(model.seen.ids, len(model.items) + log.item)
    scorer = Dot(vectors[order])
    table = None if model.item_table is None else _rows_below(model.item_table, log).take(order)

    model.items, model.item_table = keys, table
    model.seen = group(np.append(model.seen.row_of, user), place[had], len(model.users))
    model.item_counts = np.append(model.item_counts, log.item_counts)[order]
    model.encoder = FoldIn(encoder.vectors.weight, encoder.total, encoder.terms, scorer.items)
    model.encoder.eval()
    model.index = Flat(scorer.eval())
    _note(model, "items", log.num_items)


def _folding(
    model: Model, log: Interactions, where: str, what: str, known: Keys
) -> tuple[FoldIn, Interactions]:
    """Encoder and log, once it is clear that both will do."""
    if not isinstance(model.encoder, FoldIn):
        raise SoftdexError(
            f"{where}: {model.recipe} has no closed form to solve for new {what} with. Train ials, "
            "rg2 or rgx, or fit again with start= this model."
        )
    if not isinstance(log, Interactions):
        raise DataError(f"{where}: expected a log, got {type(log).__name__}. Use sdx.read(...).")
    log = log.compact()
    if not len(log):
        raise DataError(f"{where}: the log is empty.")
    keys = (log.users if what == "users" else log.items).all()
    old = np.flatnonzero(known.lookup(keys) >= 0)
    if len(old):
        names = some([repr(k) for k in keys.take(pa.array(old)).to_pylist()])
        raise DataError(
            f"{where}: {names} in the model already. Leave them out, or fit again with start= this "
            "model."
        )
    return model.encoder, log


def _rows_below(table: pa.Table, log: Interactions) -> pa.Table:
    """A model's item table with rows for the items of a log: its own columns, or nothing."""
    given = pa.table({}) if log.item_table is None else log.item_table
    columns = []
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        new = [pa.nulls(log.num_items, kind)]
        if name in given.column_names:
            try:
                new = given[name].cast(kind).chunks
            except pa.ArrowException as error:
                raise DataError(
                    f"add_items: the model has the item column {name!r} as {kind}, the log's is "
                    f"another ({error}). Cast it first."
                ) from None
        columns.append(pa.chunked_array([*table[name].chunks, *new], kind))
    return pa.table(columns, names=table.column_names)


def _note(model: Model, what: str, count: int) -> None:
    """Say in the model's card what it was not trained on."""
    added = dict(model.info.get("added", {}))
    model.info["added"] = added | {what: added.get(what, 0) + count}
