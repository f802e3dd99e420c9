"""Retriever: what `fit` returns. Keys in, keys out; encode, then search with filters."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy
import torch
from torch import Tensor

from softdex.data.arrow import plain_table
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys, as_list, find, restore
from softdex.data.ragged import Ragged, empty, offsets
from softdex.encode.counting import Neighbours, Unpersonalised
from softdex.encode.features.tower import Tower
from softdex.encode.history import Mixed, Recent
from softdex.encode.sequence import Dnn
from softdex.encode.sequence import Sequence as HistorySequence
from softdex.encode.table import Users
from softdex.encode.vae import Vae
from softdex.errors import DataError, SoftdexError, choose, some
from softdex.evaluate.evaluate import Result, evaluate
from softdex.files import write_atomically
from softdex.index.contract import MAX_MEMORY, Filter, Hits
from softdex.index.flat import Flat
from softdex.index.imi.index import Imi
from softdex.index.tree.tree import Tree
from softdex.machine import parse_bytes
from softdex.messages import progress
from softdex.model import artifact, estimate, grow
from softdex.model.filter import allowed, check_columns
from softdex.model.kinds import (
    NOT_INFO,
    kind_of,
    rebuild,
    rebuilt_tower,
    saved_index,
    saved_tensors,
    saved_tower,
)
from softdex.model.recommendations import Recommendations
from softdex.score.counting import Constant, Sparse
from softdex.score.din import Din
from softdex.score.product import Cosine, Dot
from softdex.shapes import not_finite
from softdex.solve.closed.fold_in import FoldIn

Encoder = (
    Unpersonalised | Neighbours | Users | Mixed | Vae | Recent | HistorySequence | Dnn | FoldIn
)
AnyScorer = Constant | Dot | Cosine | Sparse | Din
BATCH = 1024
MODEL_FILE = "model.sdx"


@final
class Retriever:
    """A fitted model with its keys, its index and what it was trained on.

    Attributes:
        recipe, options: how it was made.
        users, items: keys. `seen` holds each user's training history, `item_counts` the events of
            each item, `item_table` the columns of each item or None.
        info: data hash, split card, metrics and versions; saved with the model.
        tower, user_tower: what makes vectors of the features of new items and users, if it was
            trained on features.
    """

    def __init__(
        self,
        recipe: str,
        options: Mapping[str, Any],
        users: Keys,
        items: Keys,
        encoder: Encoder,
        scorer: AnyScorer,
        seen: Ragged,
        item_counts: np.ndarray,
        item_table: pa.Table | None = None,
        info: dict[str, Any] | None = None,
        index: Flat | Imi | Tree | None = None,
        tower: Tower | None = None,
        user_tower: Tower | None = None,
    ) -> None:
        self.recipe, self.options = recipe, dict(options)
        self.users, self.items = users, items
        self.encoder = encoder.eval()
        scorer.eval()
        self.index: Flat | Imi | Tree = Flat(scorer) if index is None else index
        self.seen, self.item_counts = seen, item_counts
        table = None if item_table is None else plain_table(item_table)
        self.item_table = table if table is not None and table.num_columns else None
        self.info, self.tower, self.user_tower = info or {}, tower, user_tower

    def __repr__(self) -> str:
        return f"Retriever({self.recipe}, {len(self.users):,} users, {len(self.items):,} items)"

    # recommend -----------------------------------------------------------------------------------

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        history: Sequence[Sequence[Any]] | None = None,
        exclude_seen: bool = True,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        columns: str | Sequence[str] = (),
        unknown: str = "error",
        max_memory: int | str = MAX_MEMORY,
    ) -> Recommendations:
        """The best k items of each user, as a table (user, rank, item, score, columns...).

        Args:
            users: user keys (one, or a list).
            history: item keys per user, oldest first: for users never seen in training, or in the
                place of what is stored. Alone, the users are numbered 0, 1, ...
            exclude_seen: leave out what the user has had (in training, or in `history`).
            allow, deny: item keys that alone may, or must not, come back.
            where: item columns to match, as {"genre": "Comedy", "year": [1999, 2000]} (a list
                column matches if it holds the value), or a pyarrow.compute expression.
            columns: item columns to add to the table.
            unknown: users or history items that are not known: `error`, `skip` them, or give such
                users what is `popular`.
            max_memory: bytes (or "2GB") of scores held at a time.
        """
        choose("recommend", "rule for unknown users", unknown, ("error", "popular", "skip"))
        columns, k = check_columns(self.item_table, columns), self._length("recommend", k)
        names, rows, past = self._who("recommend", users, history, unknown)
        mask = allowed(self.items, self.item_table, allow, deny, where)
        limit = parse_bytes(max_memory)
        tables = []
        for part in _blocks(len(rows), self._batch(limit, k)):
            seen = past.take(part)
            filter = Filter(seen if exclude_seen else None, mask)
            strangers = (rows[part] < 0) & (history is None)
            if unknown == "popular":
                strangers |= seen.lengths == 0
            hits = self._answer(rows[part], seen, k, filter, strangers, limit)
            tables.append(self._table("user", names.take(pa.array(part)), hits, columns))
        return Recommendations(pa.concat_tables(tables))

    def recommend_all(
        self,
        path: str | Path,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        columns: str | Sequence[str] = (),
        max_memory: int | str = MAX_MEMORY,
    ) -> int:
        """Recommend for every user into a Parquet file, streamed; returns the number of rows."""
        columns, k = check_columns(self.item_table, columns), self._length("recommend_all", k)
        limit = parse_bytes(max_memory)
        mask = allowed(self.items, self.item_table, allow, deny, where)
        blocks = _blocks(len(self.users), self._batch(limit, k))

        def tables() -> Iterator[pa.Table]:
            for part in progress(blocks, "recommending", len(blocks)):
                seen = self.seen.take(part)
                filter = Filter(seen if exclude_seen else None, mask)
                hits = self._answer(part, seen, k, filter, ~self._trained(part), limit)
                yield self._table("user", self.users.take(part), hits, columns)

        count = 0

        def fill(file: Any) -> None:
            nonlocal count
            stream = tables()
            table = next(stream)
            with pq.ParquetWriter(file, table.schema) as writer:
                while True:
                    writer.write_table(table)
                    count += table.num_rows
                    following = next(stream, None)
                    if following is None:
                        return
                    table = following

        write_atomically(Path(path), fill)
        return count

    def similar(
        self,
        items: Any,
        k: int = 10,
        *,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        columns: str | Sequence[str] = (),
    ) -> Recommendations:
        """The k items most like each of these, as a table (item, rank, similar, score, ...)."""
        columns, k = check_columns(self.item_table, columns), self._length("similar", k)
        rows = find(self.items, as_list(items), "similar", "items")
        mask = allowed(self.items, self.item_table, allow, deny, where)
        tables = []
        for part in _blocks(len(rows), self._batch(MAX_MEMORY, k)):
            asked = rows[part]
            itself = Ragged(np.arange(len(asked) + 1), asked)
            hits = self._like(asked, k, Filter(itself, mask))
            names = self.items.take(asked)
            tables.append(self._table("item", names, hits, columns, found="similar"))
        return Recommendations(pa.concat_tables(tables))

    def evaluate(
        self,
        holdout: Holdout,
        k: int | Sequence[int] = (10, 20, 50),
        *,
        index: str = "served",
        empty: str | None = None,
        repeats: str | None = None,
        ideal: str | None = None,
        max_memory: int | str = MAX_MEMORY,
    ) -> Result:
        """Metrics on a holdout; see `softdex.evaluate.evaluate` for the arguments."""
        self.check(holdout)
        limit, cutoffs = parse_bytes(max_memory), [_whole("evaluate", c) for c in as_list(k)]
        most = max(1000, len(self.items))
        if max(cutoffs, default=1) > most:
            raise SoftdexError(f"evaluate: expected k of at most {most:,}, got {max(cutoffs):,}.")

        def search(part: Holdout, most: int, exact: bool) -> np.ndarray:
            effort = np.inf if exact else None
            filter = Filter(part.masked)
            hits = self._search(part.users, part.history, most, filter, effort, max_memory=limit)
            return hits.ids.cpu().numpy()

        return evaluate(
            search, holdout, item_counts=self.item_counts, k=cutoffs, index=index,
            empty=empty, repeats=repeats, ideal=ideal,
            batch=self._batch(limit, max(cutoffs, default=1)),
        )  # fmt: skip

    def check(self, holdout: Holdout, where: str = "evaluate") -> None:
        """Refuse a holdout that this model cannot be asked."""
        if not isinstance(holdout, Holdout):
            raise DataError(
                f"{where}: expected a holdout made by a split, got {type(holdout).__name__}. "
                "Split the log: train, valid, test = sdx.split.per_user(log)."
            )
        if "added" in self.info:
            raise DataError(
                f"{where}: users or items were added to this model, so it no longer fits a split "
                "made before. Measure it before it grows."
            )
        if (holdout.user_keys, holdout.item_keys) != (self.users, self.items):
            raise DataError(
                f"{where}: the holdout is of another log (its users or items differ from the "
                "model's). Use the split that the model was trained on."
            )
        strangers = ~self._trained(holdout.users) & (holdout.targets.lengths > 0)
        if strangers.any() and not self.encoder.reads_history:
            raise DataError(
                f"{where}: {int(strangers.sum()):,} users of the holdout have no event in "
                f"training, and {self.recipe} knows users by a vector of their own. Train it with "
                "encoder='history', or split each user's events."
            )

    def search(
        self, users: np.ndarray, history: Ragged, k: int, masked: Ragged | None = None
    ) -> np.ndarray:
        """By row numbers: the best k item rows (B, k) of each user, -1 where the list ends."""
        return self._search(users, history, _whole("search", k), Filter(masked)).ids.cpu().numpy()

    def build_index(
        self, kind: str = "imi", *, recall: float = 0.95, k: int = 100, codewords: int | None = None
    ) -> None:
        """Serve from another index over the same vectors.

        Args:
            kind: `flat` scores every item; `imi` opens the best cells of a multi-index, until on
                average this share of the true best `k` items is found; it prints recall and
                queries a second as the effort grows. Models that have a tree take `tree`: its
                beam as narrow as that share allows.
            recall: of the `imi` or the `tree`.
            k: of the lists that it is measured on.
            codewords: of each of its two books; None goes by the number of items.
        """
        grow.build_index(self, kind, recall, self._length("build_index", k), codewords)

    def add_users(self, given: Any) -> None:
        """Add users who were not in training, from a log of what they have had, or from a table.

        From a log, their vectors are solved for as in training, with the items as they are: for
        closed forms (ials, rg2, rgx). From a table, they are made of their features: for models
        trained with user_features=. Saved with the model.
        """
        grow.add_users(self, given)

    def add_items(self, given: Any) -> None:
        """Add items that were not in training, from a log of who has had them, or from a table.

        From a log, their vectors are solved for as in training, with the users as they are. Closed
        forms (ials, rg2, rgx) solve their equations; other models with item vectors fit the
        softmax of these users. From a table (path or Arrow-speaking, with a key column), they are
        made of their features: for models trained with features=. Columns that the model knows
        are taken over.
        """
        grow.add_items(self, given)

    def remove_items(self, items: Any) -> None:
        """Never recommend these items (keys) again; saved with the model.

        They stay in histories, and their vectors in the model: `restore_items` brings them back.
        """
        grow.edit_items(self, items, "remove_items", living=False)

    def restore_items(self, items: Any) -> None:
        """Recommend these items (keys) again."""
        grow.edit_items(self, items, "restore_items", living=True)

    def export_faiss(self, path: str | Path, factory: str = "Flat") -> int:
        """Write the item vectors as a faiss index, to be served without softdex.

        An id of the index is an item's row; its key is in that row of `path` + ".keys.parquet".
        Queries come from `query_vectors`. Returns the number of items.

        Args:
            path: of the index.
            factory: the kind of index, as faiss writes it: `Flat`, `IVF1024,Flat`, `HNSW32` ...
        """
        from softdex.model.export import to_faiss

        return to_faiss(self, Path(path), factory)

    def query_vectors(
        self, users: Any = None, *, history: Sequence[Sequence[Any]] | None = None
    ) -> np.ndarray:
        """Vectors (B, D), float32, to ask an exported index with: one for each user or history.

        Their inner products with the vectors of the index are the scores of `recommend`.
        """
        from softdex.model import export

        scorer = export.with_vectors(self, "query_vectors")
        _, rows, past = self._who("query_vectors", users, history, "error")
        queries = self._queries(rows, past, self._batch(MAX_MEMORY, 1))
        return np.concatenate([export.query_vectors(scorer, query) for _, query in queries])

    def log_prob(
        self,
        users: Any = None,
        items: Any = None,
        *,
        history: Sequence[Sequence[Any]] | None = None,
    ) -> np.ndarray:
        """log p(item | user), (B, N) float32: the softmax of score / temperature over all items.

        Items that the user has had count like any other; removed items have no probability. The
        temperature is 1 until `calibrate` finds a better one.

        Args:
            users: user keys (one, or a list).
            items: item keys: a list for everybody, or one list per user, all of the same length.
                None asks for every item, in the order of `items`.
            history: item keys per user, as in `recommend`.
        """
        softmax = estimate.softmax_of(self, "log_prob")
        _, rows, past = self._who("log_prob", users, history, "error")
        ids = estimate.asked(self.items, items, len(rows))
        cells = ids.shape[-1] * (1 if ids.ndim == 1 else softmax.living.items.dim)
        queries = self._queries(rows, past, self._batch(MAX_MEMORY, cells))
        return estimate.log_prob(softmax, queries, ids)

    def distributions(
        self,
        users: Any = None,
        *,
        history: Sequence[Sequence[Any]] | None = None,
        max_memory: int | str = MAX_MEMORY,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`log_prob` of every item, in blocks of users: (rows, log-probabilities (b, I)).

        Rows count the users (or histories) as they were asked about: 0, 1, ...; columns are items
        in the order of `items`.

        Args:
            users: user keys (one, or a list).
            history: item keys per user, as in `recommend`.
            max_memory: bytes (or "2GB") held at a time; a block has one user at least.
        """
        softmax, limit = estimate.softmax_of(self, "distributions"), parse_bytes(max_memory)
        _, rows, past = self._who("distributions", users, history, "error")
        size = self._batch(limit, len(self.items))
        return estimate.distributions(softmax, self._queries(rows, past, size))

    def calibrate(self, valid: Holdout) -> float:
        """Find the temperature of `log_prob` at which the targets of a holdout are likeliest.

        It is kept in `info` and saved with the model; lists of `recommend` stay as they are.
        """
        softmax = estimate.softmax_of(self, "calibrate", 1.0)
        self.check(valid, "calibrate")
        part = estimate.sample(valid, self.index.alive)
        blocks = self._queries(part.users, part.history, self._batch(MAX_MEMORY, 1))
        query = torch.cat([query for _, query in blocks])
        temperature = estimate.likeliest(softmax, query, part.targets, part.masked)
        self.info["temperature"] = temperature
        return temperature

    # inside --------------------------------------------------------------------------------------

    def _search(
        self,
        users: np.ndarray,
        history: Ragged,
        k: int,
        filter: Filter,
        effort: float | None = None,
        *,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        query = self._query(users, history)
        return self.index.search(query, k, filter=filter, effort=effort, max_memory=max_memory)

    def _query(self, users: np.ndarray, history: Ragged) -> Any:
        """What the index is asked for these users."""
        if self.encoder.reads_history and self.user_tower is None:  # strangers have no vector
            users = np.where(np.append(self.seen.lengths, 0)[users] > 0, users, -1)
        with torch.inference_mode():
            return self.encoder(users, history)

    def _queries(
        self, users: np.ndarray, history: Ragged, size: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """So many queries at a time, and which of these users they are of."""
        for part in _blocks(len(users), size):
            yield part, self._query(users[part], history.take(part))

    def _like(self, items: np.ndarray, k: int, filter: Filter) -> Hits:
        """Items like these: by the cosine of their vectors, or by what the encoder counted."""
        scorer = self.index.scorer
        if isinstance(scorer, (Dot, Cosine, Din)):
            vectors = self._vectors()
            likeness = Cosine(vectors, torch.ones((), device=vectors.device))
            index = Flat(likeness, self.index.alive)
            return index.search(vectors[torch.from_numpy(items)], k, filter=filter)
        if not isinstance(self.encoder, (Unpersonalised, Neighbours)):
            raise SoftdexError(f"similar: {self.recipe} has no vectors of items to compare.")
        hits = self.index.search(self.encoder.similar(items), k, filter=filter)
        return Hits(torch.where(hits.scores > 0, hits.ids, -1), hits.scores)

    def _vectors(self) -> Tensor:
        """The vectors of all items: rows of a table, or leaves of a tree."""
        scorer: Any = self.index.scorer
        if isinstance(self.index, Tree):
            every = torch.arange(len(self.items), device=self.index.slot_of.device)
            found: Tensor = scorer.nodes(self.index.rows(self.index.depth)(every))
            return found
        weight: Tensor = scorer.items.weight
        return weight

    def _trained(self, rows: np.ndarray) -> np.ndarray:
        """Which users something is known of: who has no event is a stranger to any vector."""
        lengths = np.append(self.seen.lengths, 0)  # the row -1 is nobody's
        always = self._counts or self.user_tower is not None
        return (rows >= 0) & (always | (lengths[rows] > 0))

    @property
    def _counts(self) -> bool:
        """Whether the encoder only counts, and knows what to say of a user without events."""
        return isinstance(self.encoder, (Unpersonalised, Neighbours))

    def _answer(
        self,
        users: np.ndarray,
        history: Ragged,
        k: int,
        filter: Filter,
        strangers: np.ndarray,
        max_memory: int,
    ) -> Hits:
        """The model's lists; strangers get what is popular."""
        hits = self._search(users, history, k, filter, max_memory=max_memory)
        if not strangers.any():
            return hits
        counts = Constant(torch.from_numpy(self.item_counts.astype(np.float32)))
        queries = torch.empty(int(strangers.sum()), 0)
        alive = None if self.index.alive is None else self.index.alive.cpu()
        popular = Flat(counts, alive).search(queries, k, filter=Filter(None, filter.allow))
        ids, scores = hits.ids.cpu().clone(), hits.scores.cpu().clone()
        ids[strangers], scores[strangers] = popular
        return Hits(ids, scores)

    def _length(self, where: str, k: Any) -> int:
        """The length of lists: what was asked for, or every item."""
        return min(_whole(where, k), len(self.items))

    def _batch(self, max_memory: int, k: int) -> int:
        """Users searched at a time: their queries, and k ids and scores a few times over."""
        return int(np.clip(max_memory // (2 * self.encoder.query_bytes + 32 * k), 1, BATCH))

    def _who(
        self, where: str, users: Any, history: Sequence[Sequence[Any]] | None, unknown: str
    ) -> tuple[pa.Array, np.ndarray, Ragged]:
        """Names, rows (-1: not in training) and past of the users asked about."""
        if users is None and history is None:
            raise SoftdexError(f"{where}: expected users, or history=[[item, ...], ...].")
        if history is not None and not self.encoder.reads_history:
            raise SoftdexError(
                f"{where}: {self.recipe} knows users by a vector of their own and cannot read a "
                "history. Train it with encoder='history' or encoder='mix'."
            )
        past = None if history is None else self._past(where, history, unknown)
        if past is not None and unknown == "error" and not self._counts and not past.lengths.all():
            place = int(np.argmin(past.lengths))
            raise SoftdexError(
                f"{where}: history {place} is empty, and {self.recipe} knows nothing of such a "
                "user. recommend(unknown='popular') answers them."
            )
        if users is None:
            assert past is not None
            return pa.array(np.arange(len(past))), np.full(len(past), -1), past
        keys = as_list(users)
        known = unknown == "error" and past is None
        rows = find(self.users, keys, where, "users", known=known)
        if past is not None:
            if len(past) != len(rows):
                raise SoftdexError(f"{where}: {len(rows)} users but {len(past)} histories.")
            if isinstance(self.encoder, FoldIn):  # a history stands in the place of the vector
                rows = np.full(len(rows), -1)
            return self._names(keys), rows, past
        rows = np.where(self._trained(rows), rows, -1)
        if unknown == "error" and (rows < 0).any():
            some_key = list(keys)[int(np.argmin(rows))]
            raise SoftdexError(
                f"{where}: user {some_key!r} has no event in training, and {self.recipe} knows "
                "users by their events alone. recommend() takes unknown='popular' or 'skip'."
            )
        if unknown == "skip":
            rows = rows[rows >= 0]
        if (rows >= 0).all():
            return self.users.take(rows), rows, self.seen.take(rows)
        stored = Ragged(np.append(self.seen.indptr, self.seen.indptr[-1]), self.seen.ids)
        return self._names(keys), rows, stored.take(rows)

    def _names(self, keys: Any) -> pa.Array:
        """Users as they were asked for, in the type of the known ones where they fit it."""
        cells = keys.to_pylist() if isinstance(keys, (pa.Array, pa.ChunkedArray)) else list(keys)
        try:
            return Keys(pa.array(cells).cast(self.users.values.type), self.users.type).all()
        except pa.ArrowException:
            return pa.array([str(cell) for cell in cells])

    def _past(self, where: str, history: Sequence[Sequence[Any]], unknown: str) -> Ragged:
        lists = as_list(history)
        if not all(isinstance(h, Iterable) and not isinstance(h, (str, bytes)) for h in lists):
            raise SoftdexError(f"{where}: expected history=[[item, ...], ...], one list per user.")
        lists = [list(h) for h in lists]
        flat = [item for h in lists for item in h]
        if not flat:
            return empty(len(lists))
        rows = find(self.items, flat, where, "items in history", known=unknown == "error")
        lengths = np.array([len(h) for h in lists], dtype=np.int64)
        return Ragged(offsets(lengths), rows).where(rows >= 0)

    def _table(
        self, asked: str, names: pa.Array, hits: Hits, columns: list[str], found: str = "item"
    ) -> pa.Table:
        ids, scores = hits.ids.cpu().numpy(), hits.scores.float().cpu().numpy()
        real = ids >= 0
        at = pa.array(np.nonzero(real)[0])
        table = {
            asked: names.take(at),
            "rank": np.nonzero(real)[1].astype(np.int32) + 1,
            found: self.items.take(ids[real]),
            "score": scores[real],
        }
        if columns and self.item_table is not None:
            extra = self.item_table.select(columns).take(pa.array(ids[real]))
            table |= {name: extra[name] for name in columns}
        return pa.table(table)

    # save and load -------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model as one file, whole or not at all."""
        encoder, scorer = self.encoder, self.index.scorer
        tensors = saved_tensors(encoder, scorer) | saved_index(self.index)
        card: dict[str, Any] = {}
        for what, tower in (("tower", self.tower), ("user_tower", self.user_tower)):
            found, columns = saved_tower(tower, what)
            tensors, card = tensors | found, card | columns
        tensors["seen.indptr"] = torch.tensor(self.seen.indptr.astype(np.int64))
        tensors["seen.ids"] = torch.tensor(self.seen.ids.astype(np.int32))
        tensors["item_counts"] = torch.tensor(self.item_counts.astype(np.int64))
        manifest = {
            **self.info,
            **card,
            "recipe": self.recipe,
            "options": self.options,
            "encoder": kind_of(encoder),
            "scorer": kind_of(scorer),
            "index": kind_of(self.index),
            "softdex": versions(),
        }
        items = pa.table({"key": self.items.all()})
        for name in [] if self.item_table is None else self.item_table.column_names:
            items = items.append_column(name, self.item_table[name])  # type: ignore[index]
        users = pa.table({"key": self.users.all()})
        artifact.write(Path(path), artifact.Contents(manifest, tensors, users, items))


def load(path: str | Path) -> Retriever:
    """Load a model saved with `save`, or the model of a run folder."""
    path = Path(path)
    with artifact.refused(path):
        contents = artifact.read(path / MODEL_FILE if path.is_dir() else path)
        encoder, index = rebuild(contents)
        manifest, tensors, users, items = contents
        model = Retriever(
            manifest["recipe"],
            manifest["options"],
            restore(users["key"]),
            restore(items.column(0)),
            encoder,
            index.scorer,
            Ragged(tensors["seen.indptr"].numpy(), tensors["seen.ids"].numpy()),
            tensors["item_counts"].numpy(),
            items.remove_column(0),
            {name: value for name, value in manifest.items() if name not in NOT_INFO},
            index,
            rebuilt_tower(contents, "tower"),
            rebuilt_tower(contents, "user_tower"),
        )
        model.search(np.zeros(1, np.int64), empty(1), 1)  # encoder and scorer fit together
    return model


def from_training(
    recipe: str,
    options: Mapping[str, Any],
    train: Interactions,
    encoder: Encoder,
    scorer: AnyScorer,
) -> Retriever:
    """Wrap what a recipe made with the keys and histories of its training log."""
    wrong = not_finite(dict(encoder.state_dict()) | dict(scorer.state_dict()))
    if wrong:
        raise SoftdexError(
            f"fit: {recipe} with {dict(options)} gave {some(wrong)} that are not finite. "
            "Choose less extreme options."
        )
    info = {"data": train.sha256, "card": train.card, "metrics": {}}
    items, users = getattr(scorer, "items", None), getattr(encoder, "vectors", None)
    return Retriever(
        recipe, options, train.users, train.items, encoder, scorer,
        train.histories, train.item_counts, train.item_table, info,
        tower=items if isinstance(items, Tower) else None,
        user_tower=users if isinstance(users, Tower) else None,
    )  # fmt: skip


def versions() -> dict[str, str]:
    """What this model was made with."""
    from softdex import __version__

    return {
        "softdex": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pyarrow": pa.__version__,
    }


def _whole(where: str, k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
        raise SoftdexError(f"{where}: expected k as a whole number of at least 1, got {k!r}.")
    return int(k)


def _blocks(n: int, size: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + size, n)) for start in range(0, max(n, 1), size)]
