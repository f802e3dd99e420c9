"""Grow: users and items that come after training, items that go, another index to serve from."""

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
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, as_list, find, merge
from softdex.data.ragged import Ragged, group
from softdex.encode.features.tower import Tower
from softdex.encode.history import Vae
from softdex.encode.table import Table
from softdex.errors import DataError, SoftdexError, choose, first_few
from softdex.index.flat import Flat
from softdex.index.imi.index import build, codewords_for
from softdex.index.tree.tree import Tree
from softdex.messages import say
from softdex.model import grow_tree
from softdex.model.kinds import ENCODERS, kind_of, reading
from softdex.objective.softmax import log_mass
from softdex.options import fits
from softdex.score.product import Cosine, Dot
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import row_sums
from softdex.solve.gradient.new_items import chosen_users, newcomers

MOST_WORDS = 4096
ASKED = 500  # users on whose queries an index is tuned
DRIFT = 0.2  # of the items of a tree: with more it should be learned again


class Model(Protocol):
    """What of a `Retriever` grows."""

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
    """Find vectors for users who were not in training, and put them in their places among the
    keys: from a log of their events, or from their features, if the model reads them."""
    where = "add_users"
    encoder = model.encoder
    if model.user_tower is not None and not isinstance(log, Interactions):
        _users_by_features(model, log)
        return
    if not isinstance(encoder, FoldIn):
        reads = " It reads histories: recommend(history=...) serves new users as they are."
        if model.user_tower is not None:
            raise DataError(
                f"{where}: {model.recipe} makes new users of their features. Give a table of their "
                "columns instead of a log."
            )
        raise SoftdexError(
            f"{where}: {model.recipe} has no closed form to solve for new users with."
            + (reads if encoder.reads_history else " Fit again with start= this model.")
        )
    log = _new(model, log, where, "users", model.users)
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


def add_items(model: Model, given: Any) -> None:
    """Find vectors for items that were not in training, and put them in their places among the
    keys: from a log of their events, or from their features, if the model reads them."""
    where = "add_items"
    if isinstance(given, Interactions):
        log = _new(model, given, where, "items", model.items)
        user = find(model.users, log.users.all(), where, "users")[log.user]
        log = replace(log, users=model.users, user=user.astype(np.int32), user_table=None)
    else:
        log = _unclicked(model, given)
    keys, order = merge(model.items, log.items)
    place = np.argsort(order).astype(model.seen.ids.dtype)
    had = np.append(model.seen.ids, len(model.items) + log.item)
    table = None if model.item_table is None else _rows_below(model.item_table, log).take(order)
    encoder, index = model.encoder, model.index
    if isinstance(index, Tree):
        index = grow_tree.with_items(index, model, log, order)
    else:
        scorer = _extended(index.scorer, _new_rows(model, log), order)
        encoder = _reading(encoder, scorer, log.num_items, order).eval()
        index = _with_room(index, scorer, log.num_items, order)
        index = index.insert(torch.from_numpy(place[-log.num_items :].astype(np.int64)))

    model.items, model.item_table, model.encoder, model.index = keys, table, encoder, index
    model.seen = group(np.append(model.seen.row_of, log.user), place[had], len(model.users))
    model.item_counts = np.append(model.item_counts, log.item_counts)[order]
    _note(model, "items", log.num_items)


def _unclicked(model: Model, table: Any) -> Interactions:
    """New items as a log without an event, from a table of their columns."""
    if model.tower is None and not isinstance(model.index, Tree):
        raise DataError(
            f"add_items: expected a log, got {type(table).__name__}. Use sdx.read(...); a table of "
            "new items is for a model that was fitted with features=, or for a tree."
        )
    keys, columns = read_table(table, "item")
    _refuse_known("add_items", keys, model.items)
    nobody = np.zeros(0, np.int32)
    return Interactions(model.users, keys, nobody, nobody, item_table=columns)


def _new_rows(model: Model, log: Interactions) -> dict[str, Tensor]:
    """New rows of the scorer's tables, for the items of a log."""
    if not len(log):
        return _by_features(model, log)
    if isinstance(model.encoder, FoldIn):
        return {"items": model.encoder.new_items(log.confidences[1])}
    return _by_softmax(model, log)


def edit_items(model: Model, items: Any, where: str, *, living: bool) -> None:
    """Take items out of the index of a model, or put them back."""
    rows = torch.from_numpy(find(model.items, as_list(items), where, "items").astype(np.int64))
    if not living:
        model.index = model.index.delete(rows)
    elif isinstance(model.index, Tree):
        model.index = grow_tree.housed(model.index, rows)
    else:
        model.index = model.index.insert(rows)
    everything = torch.ones(len(model.items), dtype=torch.bool)
    alive = everything if model.index.alive is None else model.index.alive
    model.removed = int((~alive).sum())
    _note_drift(model)


def build_index(model: Model, kind: str, recall: float, k: int, codewords: int | None) -> None:
    """Another index over the same vectors, tuned on queries of the users of training."""
    scorer, alive = model.index.scorer, model.index.alive
    in_tree = isinstance(model.index, Tree)
    choose("build_index", "index", kind, ("flat", "tree" if in_tree else "imi"))
    if in_tree and kind == "flat":
        model.index = model.index.with_beam(math.inf)
        return
    if kind == "flat":
        model.index = Flat(scorer, alive)
        return
    if not in_tree and not isinstance(scorer, (Dot, Cosine)):
        raise SoftdexError(f"build_index: {model.recipe} has no vectors of items to put in cells.")
    if not fits(recall, float) or not 0 < recall <= 1:
        raise SoftdexError(f"build_index: expected recall above 0 and up to 1, got {recall}.")
    users = np.flatnonzero(model.seen.lengths)
    users = np.random.default_rng(0).permutation(users)[:ASKED]
    with torch.inference_mode():
        query = model.encoder(users, model.seen.take(users))
    if in_tree:
        model.index = model.index.tune(query, recall, k)
        return
    words = codewords_for(len(model.items)) if codewords is None else codewords
    if not fits(words, int) or not 1 <= words <= MOST_WORDS:
        raise SoftdexError(f"build_index: expected codewords from 1 to {MOST_WORDS}, got {words}.")
    generator = torch.Generator(scorer.items.weight.device).manual_seed(0)
    index = build(scorer, codewords=words, residual=True, generator=generator)
    if alive is not None and not alive.all():
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


def _by_features(model: Model, log: Interactions) -> dict[str, Tensor]:
    scorer = model.index.scorer
    assert model.tower is not None
    assert log.item_table is not None
    rows = {"items": model.tower.of(log.item_table).to(scorer.items.weight)}
    known = scorer.offsets(slice(0, scorer.num_items))
    if known is not None:  # nobody knows how popular they will be: as the others are on average
        rows["bias" if isinstance(scorer, Dot) else "prior"] = known.mean().expand(log.num_items)
    return rows


def _by_softmax(model: Model, log: Interactions) -> dict[str, Tensor]:
    """New rows of the scorer's tables; an event counts once, and for a VAE a pair does."""
    scorer, encoder = model.index.scorer, model.encoder
    if not isinstance(scorer, (Dot, Cosine)):
        raise SoftdexError(f"add_items: {model.recipe} has no vectors of items. Fit it again.")
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
    vectors = newcomers(scorer, query, count.to(device), mass, events[:, users], given)
    rows = {"items": vectors}
    if offsets is not None:
        rows["bias" if isinstance(scorer, Dot) else "prior"] = offsets
    return rows


def _new_offsets(scorer: Dot | Cosine, counts: np.ndarray, new: np.ndarray) -> Tensor | None:
    """Offsets of new items: a line in the log of their counts, as it fits the known items."""
    with torch.no_grad():
        known = scorer.offsets(slice(0, len(counts)))
    if known is None:
        return None
    slope, level = 0.0, float(known.mean())
    if np.ptp(counts):
        slope, level = np.polyfit(np.log1p(counts), known.cpu().numpy(), 1)
    return torch.from_numpy((slope * np.log1p(new) + level).astype(np.float32))


def _extended(scorer: Dot | Cosine, rows: dict[str, Tensor], order: np.ndarray) -> Dot | Cosine:
    """A scorer with new rows, in a new order."""

    def joined(name: str, old: Tensor) -> Tensor:
        return torch.cat([old, rows[name].to(old)])[order]

    items = joined("items", scorer.items.weight)
    if isinstance(scorer, Dot):
        bias = None if scorer.bias is None else joined("bias", scorer.bias.weight[:, 0])
        return Dot(items, bias).eval()
    prior = None if scorer.prior is None else joined("prior", scorer.prior)
    return Cosine(items, scorer.temperature, prior).eval()


def _reading(encoder: Any, scorer: Dot | Cosine, new: int, order: np.ndarray) -> Any:
    """The encoder over the new items; as a part of a history a new item says nothing yet."""
    if ENCODERS[kind_of(encoder)].shares_items:
        return reading(encoder, scorer.items)
    if isinstance(encoder, Vae):
        bag = torch.nn.functional.pad(encoder.bag.weight, (0, 0, 0, new))[order]
        rest = (encoder.bias, encoder.mix, encoder.mix_bias, encoder.out, encoder.out_bias)
        return Vae(bag, *(t.detach() for t in rest))
    return encoder


def _with_room(index: Any, scorer: Dot | Cosine, new: int, order: np.ndarray) -> Any:
    """The index over the new items, none of them in it yet."""
    state = index.state()
    for name, tensor in state.items():
        if tensor.ndim == 1 and len(tensor) == index.num_items:
            least = tensor.min().expand(new) if name == "logw" else tensor.new_zeros(new)
            state[name] = torch.cat([tensor, least])[order]
    return type(index)(scorer, **state)


def _new(model: Model, log: Interactions, where: str, what: str, known: Keys) -> Interactions:
    """The log, once it is clear that all of its users or items are new."""
    if not isinstance(log, Interactions):
        raise DataError(f"{where}: expected a log, got {type(log).__name__}. Use sdx.read(...).")
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
            f"{where}: {names} in the model already. Leave them out, or fit again with start= this "
            "model."
        )


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
    """Count the users or items that were added after training."""
    model.added = model.added | {what: model.added.get(what, 0) + count}
    _note_drift(model)


def _note_drift(model: Model) -> None:
    """Of a tree, the share of its items that have come or gone since it was learned."""
    if not isinstance(model.index, Tree) or model.index.depth == 1:
        return
    drift = (model.added.get("items", 0) + model.removed) / len(model.items)
    model.drift = round(drift, 4)
    if drift > DRIFT:
        say(
            f"{drift:.0%} of the tree's items have come or gone since it was learned: fit it "
            "again, with leaves='MODEL.sdx' from the order it has"
        )
