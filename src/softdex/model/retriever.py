"""Retriever: the model that `fit` returns. Keys in, keys out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex import notebook
from softdex.data.arrow import plain_table
from softdex.data.holdout import Holdout
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged
from softdex.encode.contract import Encoder
from softdex.encode.features.tower import Tower
from softdex.errors import DataError, counted
from softdex.evaluate.result import Result
from softdex.index.contract import MAX_MEMORY, Filter, Index
from softdex.machine import parse_bytes
from softdex.model import answer, asking, estimate, export, grow, measure, scoring, shares
from softdex.model.card import Card, as_html
from softdex.model.explanation import Explanation
from softdex.model.parts import Known, Parts
from softdex.model.recommendations import Recommendations
from softdex.model.rules import Rules
from softdex.model.sampling import Drawing


@final
class Retriever:
    """A trained model: an encoder makes queries of users, an index finds items for them.

    Attributes:
        card: how the model was made and what it scored.
        encoder: makes queries of users and their histories.
        index: searches and samples items; `index.scorer` scores them.
        users, items: keys, in the order of their rows.
        seen: item rows of each user's training events, oldest first.
        item_counts: training events per item (I,).
        item_table: columns of each item, or None.
        tower, user_tower: make vectors of new items and users from their features; None unless
            the model was trained on features.
        temperature: divides the scores in `log_prob`; 1.0 until `calibrate` is called.
        added: number of users and items added after training.
        removed: number of items removed from the index.
        drift: share of a tree's items that were added or removed since the tree was learned.
    """

    def __init__(self, card: Card, parts: Parts, known: Known) -> None:
        self.card = card
        self.encoder: Encoder = parts.encoder
        self.index: Index = parts.index
        self.tower: Tower | None = parts.tower
        self.user_tower: Tower | None = parts.user_tower
        self.users: Keys = known.users
        self.items: Keys = known.items
        self.seen: Ragged = known.seen
        self.item_counts: np.ndarray = known.item_counts
        table = None if known.item_table is None else plain_table(known.item_table)
        self.item_table: pa.Table | None = (
            table if table is not None and table.num_columns else None
        )
        self.temperature = 1.0
        self.added: dict[str, int] = {}
        self.removed, self.drift = 0, 0.0

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.card.recipe

    @property
    def options(self) -> Mapping[str, Any]:
        """Value of every option of the recipe."""
        return self.card.options

    def __repr__(self) -> str:
        users, items = counted(len(self.users), "users"), counted(len(self.items), "items")
        return f"Retriever({self.recipe}, {users}, {items})"

    def _repr_html_(self) -> str:
        return notebook.page(notebook.title(repr(self)), as_html(self.card))

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
        at_most: Mapping[str, int] | None = None,
        columns: str | Sequence[str] = (),
        unknown: str = "error",
        mode: str = "best",
        temperature: float | None = None,
        seed: int | None = None,
        max_memory: int | str = MAX_MEMORY,
    ) -> Recommendations:
        """Recommend the best k items per user, or draw k items per user.

        Returns a table with one row per user and item: `user`, `rank` (from 1), `item`, `score`,
        and the item columns asked for. Lists are shorter than k where the rules leave fewer items.
        Lists that are drawn also have `log_prob`, of the item given those above it (their sum is
        the log-probability of the list), and `propensity`, to weight the item by 1 / propensity.

        Args:
            users: one user key, or a list of them.
            k: items per user.
            history: item keys per user, oldest first. With `users` it replaces their stored
                history; alone it stands for users 0, 1, ... who need not be known.
            exclude_seen: exclude items the user has already interacted with, in training or in
                `history`.
            allow: item keys; only these are recommended. Per user: `{user: [item, ...]}`, a table
                of users and items, or one list per user; who is not named is allowed nothing.
            deny: item keys, or keys per user as in `allow`; these are not recommended.
            where: condition on item columns: `{"genre": "Comedy", "year": [1999, 2000]}` matches
                any of the values (a list column matches if it contains one), or a
                pyarrow.compute expression.
            at_most: `{column: n}`: at most n items per value of an item column in a list, the best
                of them. With an approximate index: the best that it finds.
            columns: item columns to add to the table.
            unknown: what to do about unknown users, users without events, and unknown items in a
                history: raise an `error`; `skip` such users and items; or `popular`: skip such
                items, and give users without events the most popular items.
            mode: `best` items, or a `sample`: k items drawn one after another, without
                replacement, from the softmax of score / temperature over the items allowed.
            temperature: of the sample; None: that of the model.
            seed: of the sample; None: another one in each call. `sampling` of the answer says it.
            max_memory: bytes (or "2GB") of scores held at a time.
        """
        rules = Rules(allow, deny, where, at_most, exclude_seen)
        drawing = Drawing(mode, temperature, seed)
        return answer.recommend(
            self, users, k, history, rules, columns, unknown, max_memory, drawing
        )

    def recommend_all(
        self,
        path: str | Path,
        k: int = 10,
        *,
        users: Any = None,
        shard: tuple[int, int] | None = None,
        exclude_seen: bool = True,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        at_most: Mapping[str, int] | None = None,
        columns: str | Sequence[str] = (),
        unknown: str = "popular",
        mode: str = "best",
        temperature: float | None = None,
        seed: int | None = None,
        max_memory: int | str = MAX_MEMORY,
    ) -> int:
        """Recommend k items per user, for every user, into a file.

        Returns the number of rows written; a failure leaves an older file as it was.

        Args:
            path: file to write, `.parquet`, `.arrow`, `.csv`, `.tsv` or `.jsonl`, the last three
                also with `.gz`; its columns are those of `recommend`.
            users: user keys; None means every user.
            shard: `(i, n)`: only the users of shard i of n, from 0 to n - 1. The files of all
                shards, one after another, hold what the file without shards does.
            k, exclude_seen, allow, deny, where, at_most, columns, unknown, mode, temperature, seed,
                max_memory: as in `recommend`.
        """
        rules = Rules(allow, deny, where, at_most, exclude_seen)
        drawing = Drawing(mode, temperature, seed)
        return answer.recommend_all(
            self, Path(path), k, users, rules, columns, unknown, max_memory, drawing, shard
        )

    def similar(
        self,
        items: Any,
        k: int = 10,
        *,
        allow: Any = None,
        deny: Any = None,
        where: Mapping[str, Any] | pc.Expression | None = None,
        at_most: Mapping[str, int] | None = None,
        columns: str | Sequence[str] = (),
    ) -> Recommendations:
        """Find the k most similar items per item, by the cosine of their vectors.

        Models that count (`item_cf`) use their own similarity. Returns a table with one row per
        pair: `item`, `rank` (from 1), `similar`, `score`, and the item columns asked for.

        Args:
            items: one item key, or a list of them.
            k: similar items per item.
            allow, deny: item keys, as in `recommend`.
            where, at_most, columns: as in `recommend`.
        """
        return answer.similar(self, items, k, Rules(allow, deny, where, at_most), columns)

    def score(
        self,
        users: Any = None,
        items: Any = None,
        *,
        history: Sequence[Sequence[Any]] | None = None,
        exclude_seen: bool = True,
        columns: str | Sequence[str] = (),
    ) -> Recommendations:
        """Score given items, in the order given, to rank again what others found.

        Returns a table with one row per user and item: `user`, `rank` among all items that
        `recommend` could return (null for others), `item`, `score`, for models with item vectors
        `log_prob`, and the item columns asked for.

        Args:
            users, items, history: as in `log_prob`.
            exclude_seen: exclude items the user has already interacted with from the ranks.
            columns: item columns to add to the table.
        """
        return scoring.score(self, users, items, history, exclude_seen, columns)

    def explain(
        self,
        user: Any = None,
        item: Any = None,
        *,
        history: Sequence[Any] | None = None,
        k: int | None = None,
        columns: str | Sequence[str] = (),
    ) -> Explanation:
        """Explain the score of an item: the share of each item of the user's history in it.

        Args:
            user: one user key.
            item: one item key.
            history: item keys of the user, oldest first, used as in `recommend`.
            k: number of shares to list, the largest; None lists all.
            columns: item columns to add to the table.
        """
        return shares.explain(self, user, item, history, k, columns)

    def search(
        self, users: np.ndarray, history: Ragged, k: int, masked: Ragged | None = None
    ) -> np.ndarray:
        """Find the best k items per user, by rows instead of keys.

        Returns item rows (B, k), -1 after the end of a shorter list.

        Args:
            users: user rows (B,), -1 for users who were not in training.
            history: item rows per user, oldest first.
            k: items per user.
            masked: item rows per user to exclude.
        """
        k = asking.whole("search", k, max(measure.MOST_PLACES, len(self.items)))
        return answer.search(self, users, history, k, Filter(masked)).ids.cpu().numpy()

    # measure -------------------------------------------------------------------------------------

    def evaluate(
        self,
        holdout: Holdout,
        k: int | Sequence[int] = (10, 20, 50),
        *,
        index: str = "served",
        empty: str | None = None,
        repeats: str | None = None,
        ideal: str | None = None,
        metrics: str | Sequence[str] | None = None,
        leak: str = "refuse",
        known_users: str = "history",
        max_memory: int | str = MAX_MEMORY,
    ) -> Result:
        """Measure the model on a holdout: precision, recall, NDCG and more at each cut-off.

        Args:
            holdout: the validation or test part of the split that the model was trained on.
            k: one cut-off, or several.
            index: `served` ranks as `recommend` does, `exact` scores every item, `both` reports
                the two and their overlap.
            empty, repeats, ideal: conventions; see `softdex.evaluate.evaluate`. None takes those
                of the split's protocol.
            metrics: names such as "recall" or ["ndcg", "mrr"]; None reports all.
            leak: `refuse` targets that the model was trained on, or `allow` them with a note.
            known_users: whether users in training are ranked by the `history` of the holdout, with
                their validation events, by recipes that can; or as `trained`.
            max_memory: bytes (or "2GB") of scores held at a time.
        """
        return measure.evaluated(
            self, holdout, k, index=index, empty=empty, repeats=repeats, ideal=ideal,
            metrics=metrics, leak=leak, known_users=known_users, max_memory=max_memory,
        )  # fmt: skip

    def check(self, holdout: Holdout, where: str = "evaluate") -> None:
        """Refuse a holdout this model cannot be measured on, with the reason.

        Args:
            holdout: the validation or test part of a split.
            where: name to start the error with.
        """
        if self.added:
            raise DataError(
                f"{where}: users or items were added to this model, so it no longer fits a split "
                "made before. Measure a model before adding to it."
            )
        by_features = self.user_tower is not None
        asking.check(where, self, holdout, self.encoder, self.recipe, by_features=by_features)

    def query_vectors(
        self, users: Any = None, *, history: Sequence[Sequence[Any]] | None = None
    ) -> np.ndarray:
        """Return query vectors (B, D), float32, one per user or history.

        Their inner products with the vectors that `export_faiss` writes are the scores of
        `recommend`.

        Args:
            users: one user key, or a list of them.
            history: item keys per user, as in `recommend`.
        """
        return export.query_vectors(self, users, history)

    def log_prob(
        self,
        users: Any = None,
        items: Any = None,
        *,
        history: Sequence[Sequence[Any]] | None = None,
    ) -> np.ndarray:
        """Return log p(item | user), (B, N) float32: the softmax of score / temperature.

        The softmax is over all items, including those the user has interacted with; removed items
        have probability 0. The temperature is 1.0 until `calibrate` is called.

        Args:
            users: one user key, or a list of them.
            items: item keys: one list for all users, or one list per user, all of the same
                length. None means every item, in the order of `items`.
            history: item keys per user, as in `recommend`.
        """
        return estimate.log_prob(self, users, items, history)

    def distributions(
        self,
        users: Any = None,
        *,
        history: Sequence[Sequence[Any]] | None = None,
        max_memory: int | str = MAX_MEMORY,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over `log_prob` of every item, in blocks of users.

        Yields pairs: the places of the users in the request (b,), counted from 0, and their
        log-probabilities (b, I), float32, with columns in the order of `items`.

        Args:
            users: one user key, or a list of them.
            history: item keys per user, as in `recommend`.
            max_memory: bytes (or "2GB") held at a time; a block has at least one user.
        """
        return estimate.distributions(self, users, history, parse_bytes(max_memory))

    def calibrate(self, valid: Holdout, *, leak: str = "refuse") -> float:
        """Fit the temperature of `log_prob` to a holdout, by maximum likelihood.

        Returns the temperature, which is kept as `temperature` and saved with the model.
        Recommendations do not change.

        Args:
            valid: the validation part of the split that the model was trained on.
            leak: `refuse` targets that the model was trained on, or `allow` them.
        """
        self.temperature = estimate.calibrated(self, valid, leak)
        return self.temperature

    # change --------------------------------------------------------------------------------------

    def build_index(
        self, kind: str = "imi", *, recall: float = 0.95, k: int = 100, codewords: int | None = None
    ) -> None:
        """Replace the index; vectors and scores stay as they are.

        Args:
            kind: `flat` scores every item. `imi` is an inverted multi-index that opens the best
                cells only. `tree`, for models that have one, is a beam search. The latter two are
                tuned to `recall`, and print recall and queries per second as the effort grows.
            recall: share of the exact best k items to find, on average.
            k: length of the lists that recall is measured on.
            codewords: codewords per codebook of `imi`; None chooses by the number of items.
        """
        k = min(asking.whole("build_index", k), len(self.items))
        grow.build_index(self, kind, recall, k, codewords)

    def add_users(self, given: Any) -> None:
        """Add users who were not in training; they are saved with the model.

        Args:
            given: a log of the users' events: their vectors are solved for as in training, with
                the item vectors fixed (`ials`, `rg2`, `rgx`). Or a table with a key column and
                feature columns, for models trained with user_features=.
        """
        grow.add_users(self, given)

    def add_items(self, given: Any) -> None:
        """Add items that were not in training; they are saved with the model.

        Args:
            given: a log of the items' events: their vectors are solved for with the user vectors
                fixed (`ials`, `rg2`, `rgx`), or fitted to the softmax of these users (other
                models with item vectors). Or a table (path or Arrow-speaking) with a key column
                and feature columns, for models trained with features=. Columns that the model's
                item table has are taken over.
        """
        grow.add_items(self, given)

    def remove_items(self, items: Any) -> None:
        """Stop recommending these items; saved with the model.

        They stay in histories and keep their vectors, so `restore_items` can undo it.

        Args:
            items: one item key, or a list of them.
        """
        grow.edit_items(self, items, "remove_items", living=False)

    def restore_items(self, items: Any) -> None:
        """Recommend removed items again.

        Args:
            items: one item key, or a list of them.
        """
        grow.edit_items(self, items, "restore_items", living=True)

    # write ---------------------------------------------------------------------------------------

    def export_faiss(self, path: str | Path, factory: str = "Flat") -> int:
        """Write the item vectors as a faiss index, to be served without softdex.

        An id in the index is an item row, whose key is in that row of `path` + ".keys.parquet".
        Search it with `query_vectors`. Returns the number of items written.

        Args:
            path: file to write.
            factory: faiss factory string, such as `Flat`, `IVF1024,Flat` or `HNSW32`.
        """
        return export.to_faiss(self, Path(path), factory)

    def save(self, path: str | Path) -> None:
        """Write the model as one file, which `softdex.load` reads.

        A failure leaves an older file as it was. The file holds no code and no pickle.

        Args:
            path: file to write.
        """
        from softdex.model import saving  # it makes retrievers

        saving.save(self, Path(path))
