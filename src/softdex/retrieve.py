"""Retriever: what `fit` returns. Keys in, keys out; encode, then search with filters."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy
import torch

from softdex import artifact
from softdex.catalogue import allowed, check_columns, listed
from softdex.encode.counting import Anyone, Neighbours
from softdex.errors import ArtifactError, DataError, SoftdexError, choose
from softdex.evaluate import Result, evaluate
from softdex.holdout import Holdout
from softdex.index.contract import MAX_MEMORY, Filter, Hits
from softdex.index.flat import Flat
from softdex.interactions import Interactions
from softdex.keys import Keys, restore
from softdex.ragged import Ragged, empty, offsets
from softdex.recommendations import Recommendations
from softdex.score import Constant, Dot, Sparse
from softdex.tables import parse_bytes, progress

ENCODERS: dict[str, Any] = {"anyone": Anyone, "neighbours": Neighbours}
SCORERS: dict[str, Any] = {"constant": Constant, "dot": Dot, "sparse": Sparse}
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
    """

    def __init__(
        self,
        recipe: str,
        options: Mapping[str, Any],
        users: Keys,
        items: Keys,
        encoder: Anyone | Neighbours,
        scorer: Constant | Dot | Sparse,
        seen: Ragged,
        item_counts: np.ndarray,
        item_table: pa.Table | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.recipe, self.options = recipe, dict(options)
        self.users, self.items = users, items
        self.encoder, self.index = encoder, Flat(scorer)
        self.seen, self.item_counts, self.item_table = seen, item_counts, item_table
        self.info = info or {}

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
        columns: Sequence[str] = (),
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
        check_columns(self.item_table, columns)
        names, rows, past = self._who(users, history, unknown)
        mask = allowed(self.items, self.item_table, allow, deny, where)
        limit = parse_bytes(max_memory)
        tables = []
        for part in _blocks(len(rows), self._batch(limit)):
            seen = past.take(part)
            filter = Filter(seen if exclude_seen else None, mask)
            hits = self._search(rows[part], seen, k, filter, max_memory=limit)
            lost = rows[part] == -1
            if history is None and lost.any():
                ids, scores = hits.ids.clone(), hits.scores.clone()
                ids[lost], scores[lost] = self._popular(int(lost.sum()), k, Filter(None, mask))
                hits = Hits(ids, scores)
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
        columns: Sequence[str] = (),
        max_memory: int | str = MAX_MEMORY,
    ) -> int:
        """Recommend for every user into a Parquet file, streamed; returns the number of rows."""
        check_columns(self.item_table, columns)
        limit = parse_bytes(max_memory)
        mask = allowed(self.items, self.item_table, allow, deny, where)
        blocks = list(_blocks(len(self.users), self._batch(limit)))

        def tables() -> Iterator[pa.Table]:
            for part in progress(blocks, "recommending", len(blocks)):
                seen = self.seen.take(part)
                filter = Filter(seen if exclude_seen else None, mask)
                hits = self._search(part, seen, k, filter, max_memory=limit)
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

        artifact.write_atomically(Path(path), fill)
        return count

    def similar(
        self,
        items: Any,
        k: int = 10,
        *,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        columns: Sequence[str] = (),
    ) -> Recommendations:
        """The k items most like each of these, as a table (item, rank, similar, score, ...)."""
        check_columns(self.item_table, columns)
        rows = self.items.rows(listed(items), "similar", "items")
        query = self.encoder.similar(rows)
        itself = Ragged(np.arange(len(rows) + 1), rows)
        filter = Filter(itself, allowed(self.items, self.item_table, allow, deny, where))
        hits = self.index.search(query, k, filter=filter)
        table = self._table("item", self.items.take(rows), hits, columns, found="similar")
        return Recommendations(table)

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
        if not isinstance(holdout, Holdout):
            raise DataError(
                f"evaluate: expected a holdout made by a split, got {type(holdout).__name__}. "
                "Split the log: train, valid, test = sdx.split.per_user(log)."
            )
        if (holdout.user_keys, holdout.item_keys) != (self.users, self.items):
            raise DataError(
                "evaluate: the holdout is of another log (its users or items differ from the "
                "model's). Use the split that the model was trained on."
            )
        limit = parse_bytes(max_memory)

        def search(part: Holdout, most: int, exact: bool) -> np.ndarray:
            effort = np.inf if exact else None
            filter = Filter(part.masked)
            hits = self._search(part.users, part.history, most, filter, effort, max_memory=limit)
            return hits.ids.cpu().numpy()

        return evaluate(
            search, holdout, item_counts=self.item_counts, k=k, index=index,
            empty=empty, repeats=repeats, ideal=ideal, batch=self._batch(limit),
        )  # fmt: skip

    def search(
        self, users: np.ndarray, history: Ragged, k: int, masked: Ragged | None = None
    ) -> np.ndarray:
        """By row numbers: the best k item rows (B, k) of each user, -1 where the list ends."""
        return self._search(users, history, k, Filter(masked)).ids.cpu().numpy()

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
        if k < 1:
            raise SoftdexError(f"recommend: expected k of at least 1, got {k}.")
        query = self.encoder(users, history)
        return self.index.search(query, k, filter=filter, effort=effort, max_memory=max_memory)

    def _popular(self, n: int, k: int, filter: Filter) -> Hits:
        counts = Constant(torch.from_numpy(self.item_counts.astype(np.float32)))
        return Flat(counts).search(torch.empty(n, 0), k, filter=filter)

    def _batch(self, max_memory: int) -> int:
        return int(np.clip(max_memory // (2 * self.encoder.query_bytes), 1, BATCH))

    def _who(
        self, users: Any, history: Sequence[Sequence[Any]] | None, unknown: str
    ) -> tuple[pa.Array, np.ndarray, Ragged]:
        """Names, rows (-1: not in training) and past of the users asked about."""
        if users is None and history is None:
            raise SoftdexError("recommend: expected users, or history=[[item, ...], ...].")
        past = None if history is None else self._past(history, unknown)
        if users is None:
            assert past is not None
            return pa.array(np.arange(len(past))), np.full(len(past), -1), past
        keys = listed(users)
        rows = self.users.lookup(keys)
        if past is not None:
            if len(past) != len(rows):
                raise SoftdexError(f"recommend: {len(rows)} users but {len(past)} histories.")
            return pa.array([str(key) for key in keys]), rows, past
        if unknown == "error":
            rows = self.users.rows(keys, "recommend", "users")
        elif unknown == "skip":
            rows = rows[rows >= 0]
        if (rows >= 0).all():
            return self.users.take(rows), rows, self.seen.take(rows)
        stored = Ragged(np.append(self.seen.indptr, self.seen.indptr[-1]), self.seen.ids)
        return pa.array([str(key) for key in keys]), rows, stored.take(rows)

    def _past(self, history: Sequence[Sequence[Any]], unknown: str) -> Ragged:
        if isinstance(history, str) or any(isinstance(h, (str, bytes)) for h in history):
            raise SoftdexError("recommend: expected history=[[item, ...], ...], one list per user.")
        lengths = np.array([len(h) for h in history], dtype=np.int64)
        flat = [item for h in history for item in h]
        if not flat:
            return empty(len(history))
        if unknown == "error":
            rows = self.items.rows(flat, "recommend", "items in history")
        else:
            rows = self.items.lookup(flat)
        return Ragged(offsets(lengths), rows).where(rows >= 0)

    def _table(
        self, asked: str, names: pa.Array, hits: Hits, columns: Sequence[str], found: str = "item"
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
            extra = self.item_table.select(list(columns)).take(pa.array(ids[real]))
            table |= {name: extra[name] for name in columns}
        return pa.table(table)

    # save and load -------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model as one file, whole or not at all."""
        encoder, scorer = self.encoder, self.index.scorer
        tensors = {f"encoder.{n}": t for n, t in encoder.state_dict().items()}
        tensors |= {f"scorer.{n}": t for n, t in scorer.state_dict().items()}  # type: ignore[attr-defined]
        tensors["seen.indptr"] = torch.tensor(self.seen.indptr)
        tensors["seen.ids"] = torch.tensor(self.seen.ids.astype(np.int32))
        tensors["item_counts"] = torch.tensor(self.item_counts.astype(np.int64))
        manifest = {
            "recipe": self.recipe,
            "options": self.options,
            "encoder": type(encoder).__name__.lower(),
            "scorer": type(scorer).__name__.lower(),
            **self.info,
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
    if path.is_dir():
        path = path / MODEL_FILE
    manifest, tensors, users, items = artifact.read(path)
    try:
        return _rebuild(manifest, tensors, users, items)
    except ArtifactError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        pa.ArrowException,
    ) as error:
        raise ArtifactError(
            f"load: {path} does not fit together ({type(error).__name__}: {str(error)[:200]}). "
            "Save the model again."
        ) from None


def _rebuild(
    manifest: dict[str, Any], tensors: dict[str, torch.Tensor], users: pa.Table, items: pa.Table
) -> Retriever:
    def parts(prefix: str) -> dict[str, torch.Tensor]:
        return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

    for kind, known in (("encoder", ENCODERS), ("scorer", SCORERS)):
        if manifest[kind] not in known:
            raise ArtifactError(f"load: unknown {kind} {manifest[kind]!r}. Upgrade softdex.")
    encoder = ENCODERS[manifest["encoder"]](**parts("encoder."))
    scorer = SCORERS[manifest["scorer"]](**parts("scorer."))
    seen = Ragged(tensors["seen.indptr"].numpy(), tensors["seen.ids"].numpy())
    counts = tensors["item_counts"].numpy()
    user_keys, item_keys = restore(users.column(0)), restore(items.column(0))
    sizes = (scorer.num_items, len(counts), len(seen))
    if sizes != (len(item_keys), len(item_keys), len(user_keys)):
        raise ValueError(f"sizes {sizes} for {len(user_keys)} users and {len(item_keys)} items")
    seen.csr(len(item_keys)).check_format(full_check=True)
    fixed = ("recipe", "options", "encoder", "scorer", "softdex", "format", "version")
    info = {n: v for n, v in manifest.items() if n not in (*fixed, "tensors", "users", "items")}
    table = items.remove_column(0) if items.num_columns > 1 else None
    return Retriever(
        manifest["recipe"], manifest["options"], user_keys, item_keys, encoder, scorer,
        seen, counts, table, info,
    )  # fmt: skip


def from_training(
    recipe: str,
    options: Mapping[str, Any],
    train: Interactions,
    encoder: Anyone | Neighbours,
    scorer: Constant | Dot | Sparse,
) -> Retriever:
    """Wrap what a recipe made with the keys and histories of its training log."""
    info = {"data": train.sha256, "card": train.card, "metrics": {}}
    return Retriever(
        recipe, options, train.users, train.items, encoder, scorer,
        train.histories, train.item_counts, train.item_table, info,
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


def _blocks(n: int, size: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + size, n)) for start in range(0, max(n, 1), size)]
