"""The laws of a scorer. A new scorer joins by one `Case`.

1 padding, 2 batch, 3 ids, 4 memory, 5 product, 6 round trip, 7 remade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import part_files

ITEMS, NEW, BATCH = 12, 3, 5


@dataclass(frozen=True)
class Case:
    """How to make a scorer for the laws.

    Attributes:
        make: seed -> a scorer of ITEMS items, BATCH queries for it, and an encoder to save it with.
        take: (queries, rows) -> those of these rows.
        padded: queries -> the same, padded to be longer.
        moved: (queries, place) -> the same after item i has come to place[i].
        restore: (encoder, scorer) -> both from a file.
    """

    name: str
    make: Callable[[int], tuple[Any, Any, Any]]
    take: Callable[[Any, Any], Any] = lambda query, rows: query[rows]
    padded: Callable[[Any], Any] = lambda query: query
    moved: Callable[[Any, np.ndarray], Any] = lambda query, place: query
    restore: Callable[[Any, Any], tuple[Any, Any]] = part_files.from_file


@torch.no_grad()
def scores(scorer: Any, query: Any) -> Tensor:
    return scorer(query, slice(0, scorer.num_items)).double()


def padding(case: Case, seed: int) -> None:
    """Padding of a query changes nothing."""
    scorer, query, _ = case.make(seed)
    assert torch.allclose(scores(scorer, case.padded(query)), scores(scorer, query), atol=1e-5)


def batch(case: Case, seed: int) -> None:
    """The order of a batch changes nothing; every query is counted."""
    scorer, query, _ = case.make(seed)
    swap = np.random.default_rng(seed).permutation(BATCH)
    assert torch.allclose(
        scores(scorer, case.take(query, swap)), scores(scorer, query)[swap], atol=1e-5
    )
    for rows in (swap, swap[:2]):
        some = case.take(query, rows)
        assert scorer.num_queries(some) == len(scores(scorer, some)) == len(rows)


@torch.no_grad()
def ids(case: Case, seed: int) -> None:
    """Ids for all queries, or for each, or a slice of them: the score is the same."""
    scorer, query, _ = case.make(seed)
    every, draw = scores(scorer, query), np.random.default_rng(seed)
    some = torch.from_numpy(draw.choice(ITEMS, 4, replace=False))
    own = torch.from_numpy(draw.integers(0, ITEMS, (BATCH, 6)))
    assert torch.allclose(scorer(query, slice(3, 8)).double(), every[:, 3:8], atol=1e-5)
    assert torch.allclose(scorer(query, some).double(), every[:, some], atol=1e-5)
    assert torch.allclose(scorer(query, own).double(), every.gather(1, own), atol=1e-5)


@torch.no_grad()
def memory(case: Case, seed: int) -> None:
    """Scores are in memory of their own: whoever asked may write to it."""
    scorer, query, _ = case.make(seed)
    before = scores(scorer, query)
    for asked in (slice(None), torch.arange(ITEMS), torch.arange(ITEMS).repeat(BATCH, 1)):
        scorer(query, asked).fill_(0.0)
    assert torch.equal(scores(scorer, query), before)
    assert scorer.pair_bytes >= 0


@torch.no_grad()
def product(case: Case, seed: int) -> None:
    """A product is one: of projected queries and vectors, plus offsets; versions tell of change."""
    scorer, query, _ = case.make(seed)
    if not scorer.is_product:
        return
    vectors, offsets = scorer.everything()
    every = torch.arange(ITEMS)
    assert torch.allclose(vectors, scorer.vectors(every), atol=1e-6)
    assert torch.allclose(vectors, scorer.directions(scorer.items(every)), atol=1e-6)
    found = scorer.project(query) @ vectors.T
    if offsets is not None:
        assert torch.equal(offsets, scorer.offsets(every))
        found = found + offsets
    assert torch.allclose(found.double(), scores(scorer, query), atol=1e-5)
    version = scorer.version
    assert scorer.version == version
    scorer.items.weight.mul_(1.5)
    assert scorer.version != version


def round_trip(case: Case, seed: int) -> None:
    """Saved and loaded, it scores the same."""
    scorer, query, encoder = case.make(seed)
    again = case.restore(encoder, scorer)[1]
    assert type(again) is type(scorer)
    assert torch.equal(scores(again, query), scores(scorer, query))


def remade(case: Case, seed: int) -> None:
    """Over other items it scores the old ones as it did."""
    scorer, query, _ = case.make(seed)
    order = np.random.default_rng(seed).permutation(ITEMS + NEW)
    place = np.argsort(order)
    vectors, offsets = part_files.newly(scorer, order)
    other = scorer.over(order, vectors, offsets)
    assert other.num_items == ITEMS + NEW
    found = scores(other, case.moved(query, place))[:, torch.from_numpy(place)]
    assert torch.allclose(found[:, :ITEMS], scores(scorer, query), atol=1e-5)
    assert torch.isfinite(found).all()
    if scorer.is_product:
        late = scorer.project(query) @ scorer.directions(vectors).T
        late = late if scorer.offsets(slice(None)) is None else late + offsets
        assert torch.allclose(found[:, ITEMS:].float(), late, atol=1e-5)
    assert scorer.num_items == ITEMS, "the scorer it came from has changed"


LAWS = {
    "padding": padding,
    "batch": batch,
    "ids": ids,
    "memory": memory,
    "product": product,
    "round trip": round_trip,
    "remade": remade,
}


def check(case: Case, law: str, seed: int) -> None:
    """Raise AssertionError where the case breaks the law."""
    LAWS[law](case, seed)
