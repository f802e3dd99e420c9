"""Recommend in batches: one callable from an Arrow table of users to an Arrow table of lists.

Ray Data, Spark and others send tables to processes that have nothing in common. The callable holds
a path and options, all plain values; each process loads the model at its first table.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.arrow import combined
from softdex.data.fingerprint import key_hashes
from softdex.data.keys import Keys, find
from softdex.data.roles import find_key_column
from softdex.data.sources import Source
from softdex.errors import SoftdexError, did_you_mean
from softdex.index.contract import MAX_MEMORY
from softdex.machine import parse_bytes, set_threads
from softdex.model.answer import parts_of, tables
from softdex.model.asking import who, whole
from softdex.model.retriever import Retriever
from softdex.model.rules import Rules
from softdex.model.sampling import BITS, sampling
from softdex.model.saving import MODEL_FILE, load
from softdex.model.wanted import wanted

ROWS = 4096  # users per table that is asked for
WHERE = "Recommend"


@final
@dataclass(frozen=True)
class Recommend:
    """Recommend to the users of Arrow tables: a callable that other processes can be sent.

    A call takes a table, or a record batch, with a column of users, and returns a table with one
    row per user and item, as `Retriever.recommend` does: `user` as given, `rank`, `item`, `score`,
    and the item columns asked for. A user's list does not depend on how users were divided into
    tables; lists that are drawn neither.

    Attributes:
        model: path of a saved model or of a run folder, which every process can read.
        k: items per user.
        user: the column of user keys; by default found by its usual name.
        history: a column of lists of item keys, oldest first, which replace stored histories; the
            users need not be known then.
        exclude_seen, allow, deny, where, at_most, columns, unknown, mode, temperature, max_memory:
            as in `Retriever.recommend_all`.
        seed: of lists that are drawn; None chooses one, the same for all tables.
        threads: CPU threads of each process; None leaves them as they are.

    Example:
        >>> Recommend("runs/first", k=20, columns="title").k
        20
    """

    model: str | Path
    k: int = 10
    _: KW_ONLY
    user: str | None = None
    history: str | None = None
    exclude_seen: bool = True
    allow: Any = None
    deny: Any = None
    where: Mapping[str, Any] | pc.Expression | None = None
    at_most: Mapping[str, int] | None = None
    columns: str | Sequence[str] = ()
    unknown: str = "popular"
    mode: str = "best"
    temperature: float | None = None
    seed: int | None = None
    max_memory: int | str = MAX_MEMORY
    threads: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, os.PathLike)):
            raise SoftdexError(
                f"{WHERE}: expected the path of a saved model, got {type(self.model).__name__}. "
                "Save the model where every process can read it, and pass the path."
            )
        whole(WHERE, self.k)
        parse_bytes(self.max_memory)
        object.__setattr__(self, "model", str(Path(self.model).absolute()))
        if self.mode == "sample" and self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(BITS))

    def __call__(self, users: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return the lists of the users of a table."""
        table = pa.table(users)
        keys = combined(table[self._user_column(table.column_names)])
        model = loaded(str(self.model), self.threads)
        rules = Rules(self.allow, self.deny, self.where, self.at_most, self.exclude_seen)
        how = sampling(model, WHERE, self.mode, self.temperature, self.seed, self.at_most)
        past = None if self.history is None else _column(table, self.history)
        asked = who(model, WHERE, keys, past, self.unknown)
        limit = parse_bytes(self.max_memory)
        like = wanted(model, WHERE, self.k, self.columns, rules, asked, limit, how)
        names = keys.take(pa.array(asked.places))
        asked = asked._replace(names=names, places=_places(model, names))
        return pa.concat_tables(tables(model, asked, parts_of(model, asked, like), like))

    def schema(self, users: pa.DataType | None = None) -> pa.Schema:
        """Return the columns of the answers; it loads the model.

        Args:
            users: the type of the column of users; None: that of the model's keys.
        """
        kind = loaded(str(self.model), self.threads).users.type if users is None else users
        empty = {self.user or "user": pa.array([], kind)}
        if self.history is not None:
            empty[self.history] = pa.array([], pa.list_(pa.string()))
        return self(pa.table(empty)).schema

    def batches(self, users: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer record batches one after another, as Spark's `mapInArrow` calls it."""
        for batch in users:
            for start in range(0, len(batch), ROWS):
                yield from self(batch.slice(start, ROWS)).to_batches()

    def on_ray(self, users: Any, **options: Any) -> Any:
        """Return the lists of a Ray Dataset of users, as a Dataset that is computed when it is
        read.

        Args:
            users: a `ray.data.Dataset`.
            options: of `map_batches`, such as `batch_size`, `num_cpus` or `concurrency`.
        """
        given = {"batch_size": ROWS, "batch_format": "pyarrow"} | options
        return users.map_batches(self, **given)

    def on_spark(self, users: Any) -> Any:
        """Return the lists of a Spark DataFrame of users, as a DataFrame that is computed when it
        is read. The model must be readable here too, for the types of its keys and columns.

        Args:
            users: a `pyspark.sql.DataFrame`.
        """
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

        kind = to_arrow_type(users.schema[self._user_column(users.columns)].dataType)
        return users.mapInArrow(self.batches, from_arrow_schema(self.schema(kind)))

    def _user_column(self, names: list[str]) -> str:
        """Return the column of users among those of a table."""
        if self.user is None:
            return find_key_column(Source("given", names, [], []), "user", None)
        _check_column(names, self.user)
        return self.user


def loaded(path: str, threads: int | None = None) -> Retriever:
    """Load a model, once per process as long as the file stays the same.

    Args:
        path: a saved model or a run folder.
        threads: CPU threads to use from then on; None changes nothing.
    """
    file = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
    stamp = file.stat() if file.exists() else None  # `load` says what is missing
    return _load(path, threads, stamp and (stamp.st_ino, stamp.st_size, stamp.st_mtime_ns))


# inside ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _load(path: str, threads: int | None, stamp: object) -> Retriever:
    if threads is not None:
        set_threads(threads)
    return load(path)


def _places(model: Retriever, names: pa.Array) -> np.ndarray:
    """Return the place of each user among all of them, which chooses the random numbers of lists
    that are drawn; of unknown users a hash of the key."""
    rows = find(model.users, names, WHERE, "users", known=False)
    unknown = np.flatnonzero(rows < 0)
    if len(unknown):
        texts = pa.array([str(names[i]) for i in unknown], pa.string())
        hashes = key_hashes(Keys(texts, texts.type)) >> np.uint64(2)
        rows[unknown] = len(model.users) + hashes.astype(np.int64)
    return rows


def _column(table: pa.Table, name: str) -> pa.Array:
    _check_column(table.column_names, name)
    return combined(table[name])


def _check_column(names: list[str], name: str) -> None:
    if name not in names:
        raise SoftdexError(f"{WHERE}: no column {name!r}. {did_you_mean(name, names)}")
