"""The laws of an encoder. A new encoder joins by one `Case`.

1 padding, 2 batch, 3 strangers, 4 bytes, 5 round trip, 6 remade, 7 summands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import part_files
from softdex.data.ragged import Ragged
from softdex.encode.terms import SumsTerms

USERS, ITEMS, NEW, BATCH = 6, 12, 3, 5
EVERYTHING = torch.arange(ITEMS)


@dataclass(frozen=True)
class Case:
    """How to make an encoder for the laws.

    Attributes:
        make: seed -> an encoder of USERS users and ITEMS items, and the scorer that its queries
            are for.
        restore: (encoder, scorer) -> both from a file.
        dense: whether a query's size shows what the encoder holds.
    """

    name: str
    make: Callable[[int], tuple[Any, Any]]
    restore: Callable[[Any, Any], tuple[Any, Any]] = part_files.from_file
    dense: bool = True


def histories(seed: int, least: int = 1) -> Ragged:
    """Of different lengths, the first the shortest and the last the longest."""
    draw = np.random.default_rng(seed)
    lengths = np.sort(draw.integers(least, ITEMS, BATCH))
    lengths[-1] = ITEMS
    lists = [draw.permutation(ITEMS)[:n] for n in lengths]
    return Ragged(np.cumsum([0, *lengths]), np.concatenate(lists).astype(np.int32))


def who(seed: int) -> np.ndarray:
    """Rows of users, -1 among them."""
    return np.random.default_rng(seed).permutation(np.arange(-1, USERS))[:BATCH]


def asked(encoder: Any, seed: int) -> tuple[np.ndarray, Ragged]:
    """Users that this encoder has a query for, and their histories."""
    users = who(seed)
    return users if encoder.reads_history else np.maximum(users, 0), histories(seed)


@torch.no_grad()
def scores(encoder: Any, scorer: Any, users: np.ndarray, history: Ragged) -> Tensor:
    return scorer(encoder(users, history), slice(0, scorer.num_items)).double()


def padding(case: Case, seed: int) -> None:
    """A user scores the same alone and beside users of longer histories."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    together = scores(encoder, scorer, users, history)
    for b in range(BATCH):
        alone = scores(encoder, scorer, users[b : b + 1], history.take(np.array([b])))
        assert torch.allclose(alone[0], together[b], atol=1e-5), b


def batch(case: Case, seed: int) -> None:
    """The order of a batch changes nothing."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    swap = np.random.default_rng(seed).permutation(BATCH)
    moved = scores(encoder, scorer, users[swap], history.take(swap))
    assert torch.allclose(moved, scores(encoder, scorer, users, history)[swap], atol=1e-5)


def strangers(case: Case, seed: int) -> None:
    """A query exists, and is finite, for everybody the encoder says that it serves."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    assert torch.isfinite(scores(encoder, scorer, users, history)).all()
    nobody, nothing = np.full(BATCH, -1), Ragged(np.zeros(BATCH + 1, np.int64), history.ids[:0])
    if encoder.answers_strangers:
        assert torch.isfinite(scores(encoder, scorer, nobody, nothing)).all()
        similar = encoder.similar(np.arange(BATCH)) if not case.dense else None
        assert similar is None or scorer.num_queries(similar) == BATCH
    if encoder.reads_history:
        mine, other = (scores(encoder, scorer, nobody, histories(s)) for s in (seed, seed + 1))
        assert torch.isfinite(mine).all()
        assert encoder.query_bytes == 1 or not torch.allclose(mine, other)


def size(case: Case, seed: int) -> None:
    """The scorer counts a query for each user, and none is larger than was said."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    query = encoder(users, history)
    assert scorer.num_queries(query) == BATCH
    held = query.nbytes if isinstance(query, Tensor) else query.data.nbytes + query.indices.nbytes
    assert held <= BATCH * encoder.query_bytes


def round_trip(case: Case, seed: int) -> None:
    """Saved and loaded, it says the same."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    again = case.restore(encoder, scorer)
    assert type(again[0]) is type(encoder)
    here, there = (scores(*pair, users, history) for pair in ((encoder, scorer), again))
    assert torch.equal(here, there)
    assert again[0].query_bytes == encoder.query_bytes


def remade(case: Case, seed: int) -> None:
    """Over other items it says of the old ones what it said."""
    encoder, scorer = case.make(seed)
    users, history = asked(encoder, seed)
    order = np.random.default_rng(seed).permutation(ITEMS + NEW)
    place = np.argsort(order)
    vectors, offsets = part_files.newly(scorer, order)
    wide = scorer.over(order, torch.zeros_like(vectors), offsets)
    other = encoder.over(wide.items if wide.is_product else None, order)
    moved = Ragged(history.indptr, place[history.ids].astype(history.ids.dtype))
    found = scores(other, wide, users, moved)[:, torch.from_numpy(place[:ITEMS])]
    assert torch.allclose(found, scores(encoder, scorer, users, history), atol=1e-5)
    late = Ragged(np.arange(BATCH + 1), np.full(BATCH, place[-1], np.int32))
    assert torch.isfinite(scores(other, wide, users, late)).all()


def summands(case: Case, seed: int) -> None:
    """If it says what its queries are sums of, they are: of distinct items of the history, and of
    nothing of a user that it does not know."""
    encoder, _ = case.make(seed)
    users, history = asked(encoder, seed)
    if not isinstance(encoder, SumsTerms):
        return
    with torch.no_grad():
        query = encoder(users, history)
    dense = query.double().numpy() if isinstance(query, Tensor) else query.toarray()
    for b, user in enumerate(users.tolist()):
        mine = history.take(np.array([b]))
        terms = encoder.summands(user, mine)
        assert set(terms.ids.tolist()) <= set(mine.ids.tolist())
        assert len(set(terms.ids.tolist())) == terms.items.shape[0] == len(terms.ids)
        assert user >= 0 or terms.own is None
        own = np.zeros_like(terms.rest) if terms.own is None else terms.own
        found = np.asarray(terms.items.sum(0)).ravel() + own + terms.rest
        assert np.allclose(found, dense[b], atol=1e-4), b


LAWS = {
    "padding": padding,
    "batch": batch,
    "strangers": strangers,
    "bytes": size,
    "round trip": round_trip,
    "remade": remade,
    "summands": summands,
}


def check(case: Case, law: str, seed: int) -> None:
    """Raise AssertionError where the case breaks the law."""
    LAWS[law](case, seed)
