"""Flat search: exact, filtered, stable under ties and block sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softdex.data.ragged import Ragged
from softdex.errors import ShapeError
from softdex.index.contract import Filter
from softdex.index.flat import Flat, top_k
from softdex.score.counting import Constant, Sparse
from softdex.score.product import Dot

TINY = 12 * 40  # bytes: forces blocks of a few items


def oracle(scores: np.ndarray, k: int) -> list[list[int]]:
    """Sort each row by score, then by column."""
    return [sorted(range(len(r)), key=lambda i: (-r[i], i))[:k] for r in scores]


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    width=st.integers(1, 40),
    k=st.integers(1, 12),
)
def test_top_k_ranks_equal_scores_by_column(seed: int, rows: int, width: int, k: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 5, (rows, width)).astype(np.float32)
    k = min(k, width)
    hits = top_k(torch.from_numpy(scores), k)
    assert hits.ids.tolist() == oracle(scores, k)
    assert torch.equal(hits.scores, torch.from_numpy(scores).gather(1, hits.ids))


@given(seed=st.integers(0, 10**6), k=st.integers(1, 20), memory=st.sampled_from([TINY, 2**20]))
def test_search_is_the_exact_top_k_of_score_whatever_the_blocks(
    seed: int, k: int, memory: int
) -> None:
    draw = np.random.default_rng(seed)
    query, items = (draw.integers(-2, 3, (n, 3)).astype(np.float32) for n in (4, 50))
    index = Flat(Dot(torch.from_numpy(items)))
    hits = index.search(torch.from_numpy(query), k, max_memory=memory)
    assert hits.ids.tolist() == oracle(query @ items.T, k)


@given(seed=st.integers(0, 10**6), k=st.integers(1, 50), memory=st.sampled_from([TINY, 2**20]))
def test_filtered_items_never_come_back_and_k_come_back_while_there_are_k(
    seed: int, k: int, memory: int
) -> None:
    draw = np.random.default_rng(seed)
    items = draw.normal(size=(40, 4)).astype(np.float32)
    query = draw.normal(size=(3, 4)).astype(np.float32)
    allow = draw.random(40) < 0.7
    lists = [np.flatnonzero(draw.random(40) < 0.3) for _ in range(3)]
    exclude = Ragged(np.cumsum([0, *map(len, lists)]), np.concatenate(lists))
    filter = Filter(exclude, torch.from_numpy(allow))
    hits = Flat(Dot(torch.from_numpy(items))).search(
        torch.from_numpy(query), k, filter=filter, max_memory=memory
    )
    for row, banned in enumerate(lists):
        free = [i for i in oracle(query @ items.T, 40)[row] if allow[i] and i not in banned]
        expected = free[:k] + [-1] * max(0, k - len(free))
        assert hits.ids[row].tolist() == expected
        assert (hits.scores[row][hits.ids[row] == -1] == -torch.inf).all()


def test_a_list_longer_than_the_catalogue_is_padded() -> None:
    hits = Flat(Constant(torch.tensor([1.0, 3.0]))).search(torch.empty(1, 0), 4)
    assert hits.ids.tolist() == [[1, 0, -1, -1]]
    assert hits.scores.tolist() == [[3.0, 1.0, -torch.inf, -torch.inf]]


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ShapeError, match="k >= 1"):
        Flat(Constant(torch.ones(3))).search(torch.empty(1, 0), 0)


def test_searching_does_not_change_the_scores_of_the_scorer() -> None:
    scorer = Constant(torch.tensor([1.0, 2.0, 3.0]))
    exclude = Filter(Ragged(np.array([0, 1]), np.array([2])))
    assert Flat(scorer).search(torch.empty(1, 0), 1, filter=exclude).ids.tolist() == [[1]]
    assert scorer.weight.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("kind", ["dot", "constant", "sparse"])
def test_score_agrees_for_a_slice_shared_ids_and_ids_per_query(kind: str) -> None:
    import scipy.sparse as sp

    draw = np.random.default_rng(0)
    if kind == "dot":
        scorer, query = Dot(torch.randn(9, 3)), torch.randn(2, 3)
    elif kind == "constant":
        scorer, query = Constant(torch.randn(9)), torch.empty(2, 0)
    else:
        scorer = Sparse(-torch.rand(9) - 1)
        query = sp.csr_matrix(draw.random((2, 9)).astype(np.float32) * (draw.random((2, 9)) < 0.4))
    whole = scorer(query, slice(0, 9))
    ids = torch.tensor([[3, 1], [8, 0]])
    index = Flat(scorer)
    assert whole.shape == (2, 9)
    assert torch.allclose(index.score(query, torch.arange(9)), whole)
    if kind != "constant":
        assert torch.allclose(index.score(query, ids), whole.gather(1, ids))


def test_items_a_sparse_query_does_not_name_come_last_by_their_fallback() -> None:
    import scipy.sparse as sp

    scorer = Sparse(torch.tensor([-1.5, -1.1, -1.9, -1.2]))
    query = sp.csr_matrix(np.array([[0, 0, 0.01, 0]], dtype=np.float32))
    assert Flat(scorer).search(query, 4).ids.tolist() == [[2, 1, 3, 0]]
