"""Grow a model: add users and items after training, remove items, serve from another index."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from torch import Tensor

from softdex.data.attach import read_table
from softdex.data.expect import expect
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, as_list, factorize, find, merge
from softdex.data.ragged import Ragged, group
from softdex.encode.features.tower import Tower
from softdex.encode.table import Table
from softdex.encode.vae import Vae
from softdex.errors import DataError, SoftdexError, choose, first_few
from softdex.index.flat import Flat
from softdex.index.imi.books import codewords_for
from softdex.index.imi.index import build
from softdex.index.tree.tree import as_tree
from softdex.messages import say
from softdex.model import grow_tree
from softdex.objective.softmax import log_mass
from softdex.options import fits
from softdex.score.contract import Product
from softdex.solve.gradient.new_items import chosen_users, fit_new_items

MOST_WORDS = 4096
ASKED = 500  # users whose queries tune an index
DRIFT = 0.2  # fraction of a tree's items that may come or go before it should be learned again
Rows = tuple[Tensor, Tensor | None]
"""Of new items: rows of the item table (M, D), and offsets (M,) where the scorer has any."""


class Model(Protocol):
    """The part of a `Retriever` that grows."""

    users: Keys
    items: Keys
    encoder: Any
    index: Any
    seen: Ragged
    item_counts: np.ndarray
    item_table: pa.Table | None
    tower: Tower | None
    user_tower: Tower | None
    added: dict[str, int]
    removed: int
    drift: float

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        ...


def add_users(model: Model, log: Any) -> None:
    """Add users that were not in training.

    Args:
        model: is changed in place.
        log: events of the new users; or a table of their features, if the model reads any.
    """
    where = "add_users"
    encoder = model.encoder
    if model.user_tower is not None and not isinstance(log, Interactions):
        _users_by_features(model, log)
        return
    if not encoder.history_first:
        reads = " It reads histories: recommend(history=...) serves new users without adding them."
        if model.user_tower is not None:
            raise DataError(
                f"{where}: {model.recipe} makes vectors of new users from their features. Give a "
                "table of their columns instead of a log."
            )
        raise SoftdexError(
            f"{where}: {model.recipe} has no closed form for the vectors of new users."
            + (reads if encoder.reads_history else " Fit again with start= this model.")
        )
    log = _new(model, log, where, "users", model.users)
    item = find(model.items, log.items.all(), where, "items")[log.item]
    log = replace(log, items=model.items, item=item.astype(np.int32), item_table=None)
    seen = log.histories
    indptr = np.append(model.seen.indptr, model.seen.indptr[-1] + seen.indptr[1:])
    keys, order = merge(model.users, log.users)
    encoder = encoder.with_users(log.confidences[0], order)

    model.users, model.encoder = keys, encoder
    model.seen = Ragged(indptr, np.append(model.seen.ids, seen.ids)).take(order)
    model.item_counts = model.item_counts + log.item_counts
    _note(model, "users", log.num_users)


def add_items(model: Model, given: Any) -> None:
    """Add items that were not in training.

    Args:
        model: is changed in place.
        given: a log of events of the new items; or a table of their columns, if the model was
            trained with features, or has a tree.
    """
    where = "add_items"
    if isinstance(given, Interactions):
        log = _new(model, given, where, "items", model.items)
        user = find(model.users, log.users.all(), where, "users")[log.user]
        log = replace(log, users=model.users, user=user.astype(np.int32), user_table=None)
    else:
        log = _unclicked(model, given)
        if not log.num_items:
            return
    keys, order = merge(model.items, log.items)
    place = np.argsort(order).astype(model.seen.ids.dtype)
    had = np.append(model.seen.ids, len(model.items) + log.item)
    table = None if model.item_table is None else _rows_below(model.item_table, log).take(order)
    encoder, index = model.encoder, model.index
    if tree := as_tree(model.index):
        index = grow_tree.with_items(tree, model, log, order)
    else:
        scorer = index.scorer.over(order, *_new_rows(model, log))
        encoder = encoder.over(scorer.items, order)
        new = torch.from_numpy(place[-log.num_items :].astype(np.int64))
        index = index.over(scorer, order).insert(new)

    model.items, model.item_table, model.encoder, model.index = keys, table, encoder, index
    model.seen = group(np.append(model.seen.row_of, log.user), place[had], len(model.users))
    model.item_counts = np.append(model.item_counts, log.item_counts)[order]
    _note(model, "items", log.num_items)


def _unclicked(model: Model, table: Any) -> Interactions:
    """Return new items as a log without events, from a table of their columns; known ones are
    skipped."""
    if model.tower is None and not as_tree(model.index):
        raise DataError(
            f"add_items: expected a log, got {type(table).__name__}. Use sdx.read(...); a table "
            "serves models that were fitted with features=, and trees."
        )
    keys, columns = read_table(table, "item")
    new = np.flatnonzero(model.items.lookup(keys.all()) < 0)
    if known := len(keys) - len(new):
        say(f"add_items: {known:,} of {len(keys):,} items are in the model already and stay as is")
        keys, columns = factorize(keys.take(new), "item")[0], columns.take(pa.array(new))
    nobody = np.zeros(0, np.int32)
    return Interactions(model.users, keys, nobody, nobody, item_table=columns)


def _new_rows(model: Model, log: Interactions) -> Rows:
    """Return what the scorer needs of the items of a log."""
    if not len(log):
        return _by_features(model, log)
    if model.encoder.history_first:
        return model.encoder.new_items(log.confidences[1]), None
    return _by_softmax(model, log)


def edit_items(model: Model, items: Any, where: str, *, living: bool) -> None:
    """Delete items (keys) from the index of a model, or insert them again if `living`."""
    rows = torch.from_numpy(find(model.items, as_list(items), where, "items").astype(np.int64))
    if not living:
        model.index = model.index.delete(rows)
    elif tree := as_tree(model.index):
        model.index = grow_tree.reinserted(tree, rows)
    else:
        model.index = model.index.insert(rows)
    model.removed = int((~model.index.alive).sum())
    _note_drift(model)


def build_index(model: Model, kind: str, recall: float, k: int, codewords: int | None) -> None:
    """Serve a model from another index over the same vectors.

    Args:
        model: is changed in place.
        kind: `flat`, `imi`, or `tree` for models that have one.
        recall: of the exact top k, which the index is tuned to on queries of training users.
        k: items per query.
        codewords: per book of an `imi`; None: by the number of items.
    """
    scorer, alive, tree = model.index.scorer, model.index.alive, as_tree(model.index)
    choose("build_index", "index", kind, ("flat", "tree" if tree else "imi"))
    if kind == "flat":
        model.index = tree.with_beam(math.inf) if tree else Flat(scorer, alive)
        return
    if not tree and not scorer.is_product:
        raise SoftdexError(f"build_index: {model.recipe} has no item vectors. Serve it flat.")
    if not fits(recall, float) or not 0 < recall <= 1:
        raise SoftdexError(f"build_index: expected recall above 0 and up to 1, got {recall}.")
    users = np.flatnonzero(model.seen.lengths)
    users = np.random.default_rng(0).permutation(users)[:ASKED]
    with torch.inference_mode():
        query = model.encoder(users, model.seen.take(users))
    if tree:
        model.index = tree.tune(query, recall, k)
        return
    words = codewords_for(len(model.items)) if codewords is None else codewords
    if not fits(words, int) or not 1 <= words <= MOST_WORDS:
        raise SoftdexError(f"build_index: expected codewords from 1 to {MOST_WORDS}, got {words}.")
    generator = torch.Generator(scorer.items.weight.device).manual_seed(0)
    index = build(scorer, codewords=words, residual=True, generator=generator)
    if not alive.all():
        index = index.delete((~alive).nonzero()[:, 0])
    model.index = index.tune(query, recall, k)


def _users_by_features(model: Model, table: Any) -> None:
    assert model.user_tower is not None
    keys, columns = read_table(table, "user")
    _refuse_known("add_users", keys, model.users)
    old = model.encoder.vectors.weight
    vectors = torch.cat([old, model.user_tower.of(columns).to(old)])
    indptr = np.append(model.seen.indptr, np.full(len(keys), model.seen.indptr[-1]))
    merged, order = merge(model.users, keys)

    model.users = merged
    model.encoder.vectors = Table(vectors[order]).eval()
    model.seen = Ragged(indptr, model.seen.ids).take(order)
    _note(model, "users", len(keys))


def _by_features(model: Model, log: Interactions) -> Rows:
    """Return vectors of the items' features, and the mean offset: their popularity is unknown."""
    scorer = model.index.scorer
    assert model.tower is not None
    assert log.item_table is not None
    vectors = model.tower.of(log.item_table).to(scorer.items.weight)
    known = scorer.offsets(slice(0, scorer.num_items))
    return vectors, None if known is None else known.mean().expand(log.num_items)


def _by_softmax(model: Model, log: Interactions) -> Rows:
    """Fit new items to the softmax of the users; every event counts, for a VAE every pair once."""
    scorer, encoder = model.index.scorer, model.encoder
    if not scorer.is_product:
        raise SoftdexError(f"add_items: {model.recipe} has no item vectors. Fit it again.")
    shape = (log.num_items, len(model.users))
    events = sp.csr_matrix((np.ones(len(log), np.float32), (log.item, log.user)), shape)
    had = model.seen.lengths
    if isinstance(encoder, Vae):
        events.data[:] = 1
        had = np.diff(model.seen.csr(len(model.items)).indptr)
    users, share = chosen_users(events, len(model.users))
    count = torch.from_numpy(had[users] * share).float()
    offsets = _new_offsets(scorer, model.item_counts, log.item_counts)
    device = scorer.items.weight.device
    with torch.no_grad():
        query = scorer.project(encoder(users, model.seen.take(users)))
        blocks = torch.split(query, 1024)
        mass = torch.cat([log_mass(block, *scorer.everything()) for block in blocks])
    given = None if offsets is None else offsets.to(device)
    return fit_new_items(scorer, query, count.to(device), mass, events[:, users], given), offsets


def _new_offsets(scorer: Product, counts: np.ndarray, new: np.ndarray) -> Tensor | None:
    """Return offsets of new items, linear in log(1 + count) as fitted to the known items."""
    with torch.no_grad():
        known = scorer.offsets(slice(0, len(counts)))
    if known is None:
        return None
    slope, level = 0.0, float(known.mean())
    if np.ptp(counts):
        slope, level = np.polyfit(np.log1p(counts), known.cpu().numpy(), 1)
    return torch.from_numpy((slope * np.log1p(new) + level).astype(np.float32))


def _new(model: Model, log: Interactions, where: str, what: str, known: Keys) -> Interactions:
    """Return the log; refuse one with a user or item that the model has already."""
    expect(Interactions, where, log)
    log = log.compact()
    if not len(log):
        raise DataError(f"{where}: the log is empty.")
    _refuse_known(where, log.users if what == "users" else log.items, known)
    return log


def _refuse_known(where: str, new: Keys, known: Keys) -> None:
    keys = new.all()
    old = np.flatnonzero(known.lookup(keys) >= 0)
    if len(old):
        names = first_few([repr(k) for k in keys.take(pa.array(old)).to_pylist()])
        raise DataError(
            f"{where}: {names} in the model already. Drop them, or fit again with start= this "
            "model."
        )


def _rows_below(table: pa.Table, log: Interactions) -> pa.Table:
    """Append rows for the items of a log to a model's item table, null where it has no value."""
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
    """Count the users or items that were added after training."""
    model.added = model.added | {what: model.added.get(what, 0) + count}
    _note_drift(model)


def _note_drift(model: Model) -> None:
    """Note the fraction of a tree's items that have come or gone since it was learned."""
    tree = as_tree(model.index)
    if tree is None or tree.depth == 1:
        return
    drift = (model.added.get("items", 0) + model.removed) / len(model.items)
    model.drift = round(drift, 4)
    if drift > DRIFT:
        say(
            f"{drift:.0%} of the tree's items have come or gone since it was learned: fit it "
            "again, with leaves='MODEL.sdx' from the order it has"
        )
