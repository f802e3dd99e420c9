"""Synthetic worlds: preferences are planted, so the best possible list is known exactly.

Items are the leaves of a tree and have Zipf popularity. A user u draws an item by walking down:
from each node to a child c with probability proportional to mass(c) exp(strength * <z_u, v_c>),
where mass(c) is the popularity below c. The product along the path, mixed with popularity noise,
is eta(y | u). With strength 0 it is the popularity itself.

With `stickiness` an event stays with that probability in the top category of the event before it,
whatever the taste. The world knows that too: its best lists depend on the last event, by
eta(y | u, last).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch

from softdex.data.expect import expect
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged, empty
from softdex.errors import SoftdexError, choose
from softdex.evaluate.evaluate import evaluate
from softdex.evaluate.result import Result
from softdex.index.flat import top_k
from softdex.synthetic.draws import CELLS, drawn

EPOCH = 1_704_067_200  # times span a year from 2024-01-01

WORTH: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "recall": lambda r, k: np.ones(len(r)),
    "hit": lambda r, k: np.ones(len(r)),
    "precision": lambda r, k: np.full(len(r), 1 / k),
    "f": lambda r, k: np.full(len(r), 2 / (k + 1)),
    "ndcg": lambda r, k: 1 / np.log2(r + 1),
    "mrr": lambda r, k: 1 / r,
    "map": lambda r, k: 1 / r,
}
"""Each metric at k of a single target found at rank r."""


def world(
    users: int = 2000,
    items: int = 1000,
    *,
    seed: int = 0,
    events: float = 30.0,
    depth: int = 3,
    dim: int = 8,
    strength: float = 1.0,
    skew: float = 1.0,
    noise: float = 0.05,
    stickiness: float = 0.0,
) -> World:
    """Plant a world.

    Args:
        events: mean number of events per user.
        depth: levels of the item tree; its arity follows from the number of items.
        dim: dimension of the taste vectors.
        strength: weight of taste; 0 leaves popularity alone.
        skew: Zipf exponent of popularity; 0 makes all items equally popular.
        noise: fraction of events drawn by popularity alone.
        stickiness: probability that an event stays in the top category of the event before it, so
            that the order is informative.
    """
    if min(users, items, depth, dim) < 1 or not 0 <= noise <= 1 or not 0 <= stickiness < 1:
        raise SoftdexError(
            "world: expected positive sizes, noise in [0, 1] and stickiness in [0, 1), got "
            f"{users=}, {items=}, {depth=}, {dim=}, {noise=}, {stickiness=}."
        )
    draw = np.random.default_rng(seed)
    arity = next(a for a in range(1, items + 1) if a**depth >= items)
    slot_of = draw.permutation(items)
    popularity = np.arange(1, items + 1, dtype=np.float64) ** -skew
    popularity = draw.permutation(popularity / popularity.sum())
    mass = np.zeros(arity**depth)
    mass[slot_of] = popularity
    levels = [mass.reshape(arity**j, -1).sum(1) for j in range(1, depth + 1)]
    vectors = [draw.normal(size=(len(m), dim)) for m in levels]
    taste = draw.normal(size=(users, dim)) * (strength / math.sqrt(dim)) * math.sqrt(2)
    return World(
        seed, events, arity, noise, stickiness, slot_of, popularity, levels, vectors, taste
    )


@final
@dataclass(frozen=True, eq=False)
class World:
    """Planted preferences; see `world`. Rows of users and items follow the order of their keys."""

    seed: int
    events: float
    arity: int
    noise: float
    stickiness: float
    slot_of: np.ndarray
    popularity: np.ndarray
    levels: list[np.ndarray]
    vectors: list[np.ndarray]
    taste: np.ndarray

    def __repr__(self) -> str:
        return f"World({self.num_users:,} users, {self.num_items:,} items, seed {self.seed})"

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.taste)

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.popularity)

    def user_keys(self) -> Keys:
        """ "u0001", "u0002", ..."""
        return _numbered("u", self.num_users)

    def item_keys(self) -> Keys:
        """ "i0001", "i0002", ..."""
        return _numbered("i", self.num_items)

    def interactions(self, *, seed: int | None = None, repeats: bool = False) -> Interactions:
        """Draw a log; another `seed` draws other events from the same world.

        Without `repeats` each event is drawn from eta over the items new to the user; with
        `stickiness` from eta given the event before it.
        """
        draw = np.random.default_rng([self.seed, 1, 0 if seed is None else seed + 1])
        user, item = drawn(self, draw, repeats=repeats)
        lengths = np.bincount(user, minlength=self.num_users)
        gaps = np.cumsum(draw.exponential(size=len(user)))
        start = np.cumsum(lengths) - lengths
        elapsed = gaps - np.repeat(gaps[start], lengths)
        span = np.repeat(np.maximum.reduceat(elapsed, start), lengths) + 1e-9
        begin = np.repeat(draw.uniform(0, 0.5, self.num_users), lengths)
        time = EPOCH + ((begin + 0.5 * elapsed / span) * 365 * 86_400).astype(np.int64)
        users, items = user.astype(np.int32), item.astype(np.int32)
        return Interactions(
            self.user_keys(), self.item_keys(), users, items, time, item_table=self.item_table()
        )

    def item_table(self) -> pa.Table:
        """Return the planted category and subcategory per item."""
        slots = len(self.levels[-1])
        columns = {}
        for name, j in (("category", 0), ("subcategory", 1)):
            if j < len(self.levels):
                node = self.slot_of // (slots // len(self.levels[j]))
                names = pa.array([f"{name[0]}{i:03d}" for i in range(len(self.levels[j]))])
                columns[name] = names.take(pa.array(node))
        return pa.table(columns)

    def eta(self, users: np.ndarray, last: np.ndarray | None = None) -> np.ndarray:
        """Return eta(y | u) for user rows (B,) as (B, I) float64, or eta(y | u, last) for the item
        rows (B,) of their last events, -1 for none. Rows sum to 1."""
        path = np.ones((len(users), 1))
        for mass, vectors in zip(self.levels, self.vectors, strict=True):
            with np.errstate(divide="ignore"):
                logits = self.taste[users] @ vectors.T + np.log(mass)
            logits = logits.reshape(len(users), -1, self.arity)
            top = logits.max(2, keepdims=True)
            weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
            local = weights / np.maximum(weights.sum(2, keepdims=True), 1e-300)
            if mass is self.levels[0] and self.stickiness and last is not None:
                local[last >= 0, 0] *= 1 - self.stickiness
                rows = np.flatnonzero(last >= 0)
                local[rows, 0, self.category(last[rows])] += self.stickiness
            path = (path[:, :, None] * local).reshape(len(users), -1)
        return (1 - self.noise) * path[:, self.slot_of] + self.noise * self.popularity

    def best(
        self,
        k: int,
        users: np.ndarray | None = None,
        exclude: Ragged | None = None,
        last: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the Bayes-optimal lists: item rows (B, k) and their probabilities (B, k).

        Args:
            k: length of each list.
            users: user rows; all by default.
            exclude: items to exclude, one row per user.
            last: item row of each user's last event, -1 for none; of use with `stickiness`.
        """
        users = np.arange(self.num_users) if users is None else users
        exclude = empty(len(users)) if exclude is None else exclude
        lists = [
            (ids, np.take_along_axis(eta, ids, 1) * (ids >= 0))
            for _, eta, ids in self._lists(k, users, exclude, last)
        ]
        return np.concatenate([i for i, _ in lists]), np.concatenate([p for _, p in lists])

    def ceiling(self, metric: str, k: int, holdout: Holdout | None = None) -> float:
        """Return the expected metric of the best lists on one new event; no model exceeds it.

        With a `holdout`, the mean is over its users and the items it does not mask. A world with
        `stickiness` needs one, whose histories end with the event before.
        """
        return self._expected(metric, k, holdout, None)

    def regret(
        self, model: Any, k: int, *, metric: str = "recall", holdout: Holdout | None = None
    ) -> float:
        """Return how far a model's lists fall below `ceiling`, in the same expectation.

        With a `holdout` the model sees its histories and masks; otherwise the mean is over all
        users, with nothing masked.
        """
        return self.ceiling(metric, k, holdout) - self._expected(metric, k, holdout, model)

    def evaluate(self, holdout: Holdout, k: Any = (10, 20, 50), **rules: Any) -> Result:
        """Evaluate the Bayes-optimal lists on a holdout, as `Retriever.evaluate` does a model."""
        self._check(holdout)
        counts = np.bincount(holdout.history.ids, minlength=self.num_items)

        def search(part: Holdout, most: int, exact: bool) -> np.ndarray:
            return self.best(most, part.users, part.masked, _last(part.history))[0]

        return evaluate(search, holdout, item_counts=counts, k=k, **rules)

    def category(self, item: np.ndarray) -> np.ndarray:
        """Return the top category of each item."""
        return self.slot_of[item] // (len(self.levels[-1]) // len(self.levels[0]))

    # inside --------------------------------------------------------------------------------------

    def _check(self, holdout: Holdout) -> None:
        expect(Holdout, "world", holdout)
        if (len(holdout.user_keys), len(holdout.item_keys)) != (self.num_users, self.num_items):
            raise SoftdexError(
                "world: expected a holdout of this world, got other keys. Split its own log."
            )

    def _lists(
        self, k: int, users: np.ndarray, exclude: Ragged, last: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield blocks of (positions in `users`, eta, best item rows)."""
        size = max(1, CELLS // len(self.levels[-1]))
        for start in range(0, len(users), size):
            at = np.arange(start, min(start + size, len(users)))
            eta = self.eta(users[at], None if last is None else last[at])
            open_, part = eta.copy(), exclude.take(at)
            open_[part.row_of, part.ids] = -np.inf
            hits = top_k(torch.from_numpy(open_), min(k, self.num_items))
            ids = torch.where(hits.scores > -torch.inf, hits.ids, -1).numpy()
            yield at, eta, np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)

    def _expected(self, metric: str, k: int, holdout: Holdout | None, model: Any) -> float:
        """Return the expected metric of a model's lists, of the best ones if it is None."""
        choose("world", "metric", metric, list(WORTH))
        if holdout is None:
            if self.stickiness:
                raise SoftdexError(
                    "world: with stickiness= best lists depend on the last event. Give holdout=."
                )
            users, masked, last = np.arange(self.num_users), empty(self.num_users), None
        else:
            self._check(holdout)
            users, masked, last = holdout.users, holdout.masked, _last(holdout.history)
        worth = WORTH[metric](np.arange(1, k + 1), k)
        total = 0.0
        for at, eta, ids in self._lists(k, users, masked, last):
            seen = masked.take(at)
            if model is not None:
                ids = self._answers(model, k, users[at], holdout, at)
            reachable = 1 - np.bincount(
                seen.row_of, weights=eta[seen.row_of, seen.ids], minlength=len(at)
            )
            gained = np.where(ids >= 0, np.take_along_axis(eta, ids, 1), 0.0)
            total += float((gained @ worth[: ids.shape[1]] / reachable).sum())
        return total / len(users)

    def _answers(
        self, model: Any, k: int, users: np.ndarray, holdout: Holdout | None, at: np.ndarray
    ) -> np.ndarray:
        """Return a model's lists for user rows; `at` are their positions in the holdout."""
        if (len(model.users), len(model.items)) != (self.num_users, self.num_items):
            raise SoftdexError(
                "world: expected a model trained on this world, got other keys. Fit it on its log."
            )
        if holdout is not None:
            part = holdout.take(at)
            return np.asarray(model.search(part.users, part.history, k, part.masked))
        return np.asarray(model.search(users, model.seen.take(users), k))


def _last(history: Ragged) -> np.ndarray:
    """Return the last item of each history, -1 where there is none."""
    end = np.where(history.lengths > 0, history.indptr[1:] - 1, len(history.ids))
    return np.append(history.ids, -1)[end]


def _numbered(letter: str, n: int) -> Keys:
    """Return n keys: a letter and a number of fixed width."""
    width = len(str(n - 1))
    digits = np.char.zfill(np.arange(n).astype(str), width)
    return Keys(pa.array(np.char.add(letter, digits), pa.string()), pa.string())
