"""Scan: a loop over its definition is the oracle; whole numbers make sums exact, ties are ties."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softdex.data.ragged import Ragged, empty, group
from softdex.errors import ShapeError
from softdex.kernels import scan as module
from softdex.kernels.scan import Lists, prepare, scan


class World(NamedTuple):
    lists: Lists
    query: np.ndarray


def world(
    seed: int = 0,
    items: int = 300,
    width: int = 8,
    dim: int = 6,
    queries: int = 5,
    *,
    span: int = 4,
    offsets: bool = False,
    crowded: float = 0.3,
) -> World:
    """Small whole numbers; a share of cells is empty, ids are in no order and have gaps."""
    draw = np.random.default_rng(seed)
    cells = np.flatnonzero(draw.random(width * width) > crowded)
    cell = np.sort(draw.choice(cells if len(cells) else np.zeros(1, int), items))
    starts = np.searchsorted(cell, np.arange(width * width + 1))
    ids = draw.permutation(2 * items)[:items]
    whole = [
        draw.integers(-span, span + 1, shape).astype(np.float32)
        for shape in ((2, width, dim), (items, dim), (queries, dim), items)
    ]
    words, vectors, query, lift = whole
    return World(prepare(words, starts, ids, vectors, lift if offsets else None), query)


def oracle(
    w: World, k: int, effort: float, exclude: Ragged | None, allow: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Cells by priority, then number; items until enough; the best by score, then id."""
    lists, (_, width, _) = w.lists, w.lists.words.shape
    found = np.full((len(w.query), k), -1)
    scores = np.full((len(w.query), k), -np.inf, np.float32)
    for i, z in enumerate(w.query):
        barred = set() if exclude is None else set(exclude[i].tolist())
        norm = np.sqrt(np.square(z).sum())
        reach = np.where(lists.reach > -np.inf, lists.reach, 0)
        priority = (lists.words[0] @ z)[:, None] + lists.words[1] @ z + norm * reach
        if len(lists.bias):
            priority = priority + lists.bias
        taken: list[tuple[float, int]] = []
        for cell in sorted(range(width * width), key=lambda c: (-priority.flat[c], c)):
            if len(taken) >= max(effort, k):
                break
            for p in range(lists.starts[cell], lists.starts[cell + 1]):
                item = int(lists.ids[p])
                if item in barred or (allow is not None and not allow[i, item]):
                    continue
                score = lists.vectors[p] @ z + (lists.offsets[p] if len(lists.offsets) else 0)
                taken.append((-float(score), item))
        for j, (score, item) in enumerate(sorted(taken)[:k]):
            found[i, j], scores[i, j] = item, -score
    return found, scores


def check(
    w: World,
    k: int,
    effort: float,
    exclude: Ragged | None = None,
    allow: np.ndarray | None = None,
) -> None:
    found = scan(w.query, w.lists, k, effort, exclude=exclude, allow=allow)
    mask = None if allow is None else np.broadcast_to(allow, (len(w.query), allow.shape[-1]))
    expected = oracle(w, k, effort, exclude, mask)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def some(w: World, seed: int, share: float) -> tuple[Ragged, np.ndarray]:
    """Excluded items of each query, unsorted and with repeats, and a mask."""
    draw, ids = np.random.default_rng(seed), w.lists.ids
    count = int(share * len(ids)) * len(w.query)
    rows = np.sort(draw.integers(0, len(w.query), count))
    exclude = group(rows, draw.choice(2 * len(ids), count), len(w.query))
    return exclude, draw.random(2 * len(ids)) > share


@given(
    seed=st.integers(0, 10_000),
    items=st.integers(1, 400),
    width=st.integers(1, 20),
    dim=st.integers(1, 70),
    span=st.sampled_from([0, 1, 4]),
    k=st.integers(1, 40),
    effort=st.sampled_from([0.0, 1.0, 17.5, 60.0, 250.0, math.inf]),
    offsets=st.booleans(),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)
def test_scan_equals_a_loop_over_its_definition(
    seed: int,
    items: int,
    width: int,
    dim: int,
    span: int,
    k: int,
    effort: float,
    offsets: bool,
    share: float,
) -> None:
    w = world(seed, items, width, dim, span=span, offsets=offsets)
    exclude, allow = some(w, seed, share)
    check(w, k, effort)
    check(w, k, effort, exclude)
    check(w, k, effort, None, allow)
    check(w, k, effort, exclude, allow)
    each = np.random.default_rng(seed).random((len(w.query), 2 * items)) > share
    check(w, k, effort, None, each)
    check(w, k, effort, exclude, each)


@pytest.mark.parametrize("effort", [0, 1000, math.inf])
def test_many_items_of_equal_score_are_ranked_by_id(effort: float) -> None:
    check(world(items=3000, span=1, dim=2), 20, effort)
    check(world(items=3000, span=0), 20, effort)


@pytest.mark.parametrize("effort", [0, 100, 2000, math.inf])
def test_more_cells_than_the_first_look_expects(effort: float) -> None:
    """Nearly all are forbidden: lower and lower priorities are asked for."""
    w = world(items=4000, width=30, queries=3)
    allow = np.random.default_rng(1).random(8000) > 0.99
    check(w, 10, effort, allow=allow)
    check(w, 10, effort, allow=np.zeros(8000, bool))


def test_the_candidates_do_not_depend_on_k() -> None:
    w = world(items=2000, width=12)
    ids, scores = scan(w.query, w.lists, 50, 200)
    fewer = scan(w.query, w.lists, 7, 200)
    np.testing.assert_array_equal(fewer[0], ids[:, :7])
    np.testing.assert_array_equal(fewer[1], scores[:, :7])


@pytest.mark.parametrize("dim", [1, 3, 16, 64, 100, 700])
def test_scores_of_real_numbers_are_exact_and_none_is_missed(dim: int) -> None:
    draw = np.random.default_rng(dim)
    vectors = draw.normal(size=(2000, dim)) * np.exp(draw.normal(size=(2000, 1)))
    query = draw.normal(size=(4, dim))
    starts = np.arange(0, 2001, 500)
    offsets = draw.normal(size=2000)
    ids = np.arange(2000)
    lists = prepare(draw.normal(size=(2, 2, dim)), starts, ids, vectors, offsets)
    found, scores = scan(query, lists, 30, math.inf)
    exact = query @ vectors.T + offsets
    best = np.argsort(-exact, axis=1)[:, :30]
    np.testing.assert_array_equal(found, best)
    np.testing.assert_allclose(scores, np.take_along_axis(exact, best, 1), rtol=1e-4, atol=1e-4)


def test_several_threads_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(items=2000, width=12, queries=300)
    exclude, allow = some(w, 3, 0.05)
    one = scan(w.query, w.lists, 10, 100, exclude=exclude, allow=allow)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    four = scan(w.query, w.lists, 10, 100, exclude=exclude, allow=allow)
    single = [
        scan(w.query[i : i + 1], w.lists, 10, 100, exclude=exclude.take(np.array([i])), allow=allow)
        for i in range(20)
    ]
    for j in range(2):
        np.testing.assert_array_equal(one[j], four[j])
        np.testing.assert_array_equal(one[j][:20], np.concatenate([s[j] for s in single]))


def test_reach_is_how_far_a_cell_s_items_lie_from_its_words() -> None:
    words = np.zeros((2, 2, 4), np.float32)
    words[0, 1, 0] = words[1, 0, 1] = 1.0
    vectors = np.array([[1, 1, 0, 3], [1, 1, 0, -1], [0, 0, 0, 5]], np.float32)
    lists = prepare(words, np.array([0, 0, 0, 2, 3]), np.arange(3), vectors, np.array([1, 3, 7]))
    spread = np.array([[-np.inf, -np.inf], [np.sqrt(5), np.sqrt(26)]])
    np.testing.assert_allclose(lists.reach, module.REACH * spread / 2, rtol=1e-6)
    np.testing.assert_allclose(lists.bias, [[0, 0], [2, 7]])


def test_bytes_bound_every_score() -> None:
    draw = np.random.default_rng(5)
    vectors = (draw.normal(size=(500, 33)) ** 3).astype(np.float32)
    lists = prepare(np.zeros((2, 1, 33), np.float32), np.array([0, 500]), np.arange(500), vectors)
    z = draw.normal(size=(50, 33))
    rough = z @ (lists.margins[:, :1] * lists.codes).T
    most = np.linalg.norm(z, axis=1)[:, None] * lists.margins[:, 1]
    assert (np.abs(rough - z @ vectors.T.astype(float)) <= most).all()


def test_odd_queries_are_answered() -> None:
    w = world(queries=2)
    none = scan(w.query[:0], w.lists, 3, 10)
    assert none[0].shape == none[1].shape == (0, 3)
    check(World(w.lists, np.zeros((1, 6), np.float32)), 5, 40)
    assert (scan(np.full((1, 6), np.nan), w.lists, 3, 10)[0] == -1).all()
    with pytest.raises(ShapeError, match=r"expected query \(B, 6\) and k >= 1, got \(6,\) and 3"):
        scan(w.query[0], w.lists, 3, 10)
    with pytest.raises(ShapeError, match="expected 2 rows of exclude, got 1"):
        scan(w.query, w.lists, 3, 10, exclude=empty(1))
    with pytest.raises(ShapeError, match="expected 2 rows of allow, got 3"):
        scan(w.query, w.lists, 3, 10, allow=np.ones((3, 80), bool))
    with pytest.raises(ShapeError, match="k >= 1"):
        scan(w.query, w.lists, 0, 10)


def test_large_offsets_do_not_hide_an_item() -> None:
    """Sums with 2^24 round to even numbers: many scores are equal, ids decide."""
    w = world(items=3000, dim=8, offsets=True)
    lists = w.lists._replace(offsets=np.full(3000, 2.0**24, np.float32))
    check(World(lists, w.query), 30, math.inf)
