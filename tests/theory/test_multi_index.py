"""The multi-index against FastVAE (Chen et al., WWW 2022), by loops in float64 over its equations.

Paper: z the query, q_i an item's vector, c the words, q~_i = q_i - c1 - c2 what they leave over.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from softdex.index.imi import index as imi
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import FLOOR, Imi
from softdex.score.product import Cosine, Dot

ITEMS, DIM, QUERIES = 30, 6, 3
Law = dict[int, float]

SEEDS = pytest.mark.parametrize("seed", range(3))
BOOKS = pytest.mark.parametrize("residual", [False, True], ids=["product", "residual"])
DEATHS = pytest.mark.parametrize("dead", [0, 8], ids=["all alive", "some dead"])
STAGES = pytest.mark.parametrize("last", ["uniform", "popularity", "exact"])


class World(NamedTuple):
    """An index and the paper's quantities in float64, computed by loops and not by the index."""

    index: Imi
    query: torch.Tensor
    z: list[np.ndarray]
    books: np.ndarray  # (2, C, D)
    code: dict[int, tuple[int, int]]  # of each living item
    whole: dict[int, np.ndarray]  # q_i
    left: dict[int, np.ndarray]  # q~_i
    offset: Law  # the bias of an item
    weight: Law  # what the last stage takes for exp(z . q~_i)


def world(
    seed: int,
    residual: bool,
    dead: int = 0,
    *,
    last: str = "uniform",
    scorer: str = "dot",
    words: int = 4,
    counts: torch.Tensor | None = None,
) -> World:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(ITEMS, DIM, generator=generator)
    lift = torch.randn(ITEMS, generator=generator)
    query = torch.randn(QUERIES, DIM, generator=generator)
    seen = torch.randint(0, 50, (ITEMS,), generator=generator) if counts is None else counts
    scored = {
        "dot": lambda: Dot(items),
        "bias": lambda: Dot(items, lift),
        "prior": lambda: Cosine(items, torch.tensor(0.3), lift),
    }[scorer]()
    pop = popularity_weight(seen) if counts is None else seen.double()
    index = imi.build(
        scored,
        codewords=words,
        last=last,
        weight=pop if last == "popularity" else None,
        residual=residual,
        generator=generator,
    )
    if dead:
        index = index.delete(torch.randperm(ITEMS, generator=generator)[:dead])
    books, alive = index.words.double().numpy(), index.alive.nonzero()[:, 0].tolist()
    vectors = items.double().numpy()
    z = list(query.double().numpy())
    if scorer == "prior":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        z = [q / np.linalg.norm(q) / 0.3 for q in z]
    whole = {i: vectors[i] for i in alive}
    code = {i: codes(q, books, residual) for i, q in whole.items()}
    left = {i: q - books[0, code[i][0]] - books[1, code[i][1]] for i, q in whole.items()}
    offset = {i: 0.0 if scorer == "dot" else lift[i].item() for i in alive}
    weight = {i: pop[i].item() if last == "popularity" else math.exp(offset[i]) for i in alive}
    return World(index, query, z, books, code, whole, left, offset, weight)


def codes(q: np.ndarray, books: np.ndarray, residual: bool) -> tuple[int, int]:
    """Return the nearest codewords: of the vector and its residual, or of its two halves."""
    half = len(q) // 2
    parts = [(slice(0, half), slice(half, None)), (slice(None), slice(None))][residual]
    near = [0, 0]
    for book, part in enumerate(parts):
        near[book] = min(
            range(len(books[book])), key=lambda k: sum((q[part] - books[book, k][part]) ** 2)
        )
        q = q - books[book, near[book]]
    return near[0], near[1]


def softmax(scores: Law) -> Law:
    total = sum(math.exp(s) for s in scores.values())
    return {i: math.exp(s) / total for i, s in scores.items()}


def truth(w: World, z: np.ndarray) -> Law:
    """Return Q(i | z), Eq. 2, with item biases."""
    return softmax({i: z @ q + w.offset[i] for i, q in w.whole.items()})


def proposal(w: World, z: np.ndarray) -> Law:
    """Return the closed forms, Eqs. 4 and 5."""
    return softmax({i: z @ (w.whole[i] - w.left[i]) + math.log(w.weight[i]) for i in w.whole})


def chain(w: World, z: np.ndarray, rest: Law) -> tuple[dict[tuple[int, int], float], Law]:
    """P1(k1) P2(k2 | k1) of every cell and P1 P2 P3(i | k1, k2) of every item: Eq. 6 (Eq. 3
    without the psi that strayed into P3). `rest` stands for exp(z . q~_i)."""
    words = range(len(w.books[0]))
    first, second = ([math.exp(z @ c) for c in book] for book in w.books)
    omega = {(a, b): 0.0 for a in words for b in words}
    for i, cell in w.code.items():
        omega[cell] += rest[i]
    psi = [sum(omega[a, b] * second[b] for b in words) for a in words]
    total = sum(psi[a] * first[a] for a in words)
    cells = {
        (a, b): (psi[a] * first[a] / total) * (omega[a, b] * second[b] / psi[a] if psi[a] else 0.0)
        for a, b in omega
    }
    return cells, {i: cells[cell] * rest[i] / omega[cell] for i, cell in w.code.items()}


def asked(w: World) -> list[Law]:
    """Return the index's probabilities of its living items; other items must have none."""
    logq = w.index.log_prob(w.query, torch.arange(ITEMS)).double()
    gone = [i for i in range(ITEMS) if i not in w.code]
    assert (logq[:, gone] == -math.inf).all()
    return [{i: math.exp(row[i]) for i in w.code} for row in logq.tolist()]


def same(ours: Law, theirs: Law) -> bool:
    return ours.keys() == theirs.keys() and all(
        math.isclose(ours[i], theirs[i], rel_tol=1e-4, abs_tol=1e-9) for i in ours
    )


def kl(q: Law, p: Law) -> float:
    return sum(q[i] * math.log(q[i] / p[i]) for i in q)


def spread(values: list[float]) -> float:
    return max(values) - min(values)


# sampling --------------------------------------------------------------------------------------


@SEEDS
@BOOKS
@DEATHS
@pytest.mark.parametrize("scorer", ["dot", "bias", "prior"])
def test_code_by_code_and_then_the_item_is_the_softmax_itself(
    seed: int, residual: bool, dead: int, scorer: str
) -> None:
    """Theorem 4.1."""
    w = world(seed, residual, dead, last="exact", scorer=scorer)
    for z, ours in zip(w.z, asked(w), strict=True):
        rest = {i: math.exp(z @ q + w.offset[i]) for i, q in w.left.items()}
        exact = truth(w, z)
        assert same(chain(w, z, rest)[1], exact)
        assert same(ours, exact)


@SEEDS
@BOOKS
@DEATHS
@STAGES
def test_cells_drawn_at_once_have_the_probability_of_code_after_code(
    seed: int, residual: bool, dead: int, last: str
) -> None:
    """P1(k1) P2(k2 | k1) of Eq. 3 is the mass of the items of cell (k1, k2), whatever P3 is."""
    w = world(seed, residual, dead, last=last)
    for z, ours in zip(w.z, asked(w), strict=True):
        exact = {i: math.exp(z @ q) for i, q in w.left.items()}
        cells, items = chain(w, z, exact if last == "exact" else w.weight)
        assert sum(cells.values()) == pytest.approx(1)
        assert same(ours, items)
        for cell, mass in cells.items():
            inside = [ours[i] for i in w.code if w.code[i] == cell]
            assert sum(inside) == pytest.approx(mass, rel=1e-4)


@SEEDS
@BOOKS
@DEATHS
def test_a_uniform_last_stage_is_the_softmax_of_the_words(
    seed: int, residual: bool, dead: int
) -> None:
    """Theorem 5.1: Q_uni is proportional to exp(z . (q_i - q~_i))."""
    w = world(seed, residual, dead)
    assert all(weight == 1 for weight in w.weight.values())
    for z, ours in zip(w.z, asked(w), strict=True):
        assert same(ours, proposal(w, z))


@SEEDS
@BOOKS
@DEATHS
@pytest.mark.parametrize("scorer", ["dot", "bias"])
def test_a_popularity_last_stage_adds_the_log_of_the_weight(
    seed: int, residual: bool, dead: int, scorer: str
) -> None:
    """Theorem 5.2: Q_pop is proportional to exp(z . (q_i - q~_i) + log pop(i)), bias or not."""
    w = world(seed, residual, dead, last="popularity", scorer=scorer)
    for z, ours in zip(w.z, asked(w), strict=True):
        assert same(ours, proposal(w, z))


@SEEDS
@BOOKS
@DEATHS
@pytest.mark.parametrize("scorer", ["bias", "prior"])
def test_what_an_item_scores_for_everybody_enters_a_uniform_last_stage_exactly(
    seed: int, residual: bool, dead: int, scorer: str
) -> None:
    """Q is proportional to exp(z . (q_i - q~_i) + b_i): only the residual is lost."""
    w = world(seed, residual, dead, scorer=scorer)
    for z, ours in zip(w.z, asked(w), strict=True):
        assert same(ours, softmax({i: z @ (w.whole[i] - w.left[i]) + w.offset[i] for i in w.code}))


@SEEDS
def test_the_first_book_of_a_product_index_knows_one_half_and_the_second_the_other(
    seed: int,
) -> None:
    """So z . c1 is the z1 . c1 of Eq. 3."""
    books = world(seed, residual=False).books
    assert (books[0, :, DIM // 2 :] == 0).all()
    assert (books[1, :, : DIM // 2] == 0).all()


# distance to the softmax -------------------------------------------------------------------------


@SEEDS
@BOOKS
@DEATHS
@pytest.mark.parametrize("scorer", ["dot", "bias", "prior"])
def test_the_divergence_of_a_uniform_last_stage_is_bounded_by_what_the_words_leave_over(
    seed: int, residual: bool, dead: int, scorer: str
) -> None:
    """Theorem 5.3, 0 <= KL <= 2 C |z|, and sharper: KL <= range(z . q~)^2 / 8 <= (C |z|)^2 / 2."""
    w = world(seed, residual, dead, scorer=scorer)
    longest = max(np.linalg.norm(q) for q in w.left.values())
    for z, ours in zip(w.z, asked(w), strict=True):
        far = kl(ours, truth(w, z))
        reach = longest * np.linalg.norm(z)
        sharp = spread([z @ q for q in w.left.values()]) ** 2 / 8
        assert far + 1e-6 >= 0
        assert far <= 2 * reach
        assert far <= sharp + 1e-6
        assert sharp <= reach**2 / 2 + 1e-6


@SEEDS
@BOOKS
@DEATHS
def test_the_divergence_of_a_popularity_last_stage_is_bounded_by_that_and_the_weights(
    seed: int, residual: bool, dead: int
) -> None:
    """Theorem 5.4, 0 <= KL <= 2 C |z| + log(max pop / min pop), and sharper:
    KL <= range(z . q~ - log pop)^2 / 8."""
    w = world(seed, residual, dead, last="popularity")
    longest = max(np.linalg.norm(q) for q in w.left.values())
    weights = list(w.weight.values())
    for z, ours in zip(w.z, asked(w), strict=True):
        far = kl(ours, truth(w, z))
        reach = longest * np.linalg.norm(z)
        sharp = spread([z @ q - math.log(w.weight[i]) for i, q in w.left.items()]) ** 2 / 8
        assert far + 1e-6 >= 0
        assert far <= 2 * reach + math.log(max(weights) / min(weights))
        assert far <= sharp + 1e-6


@SEEDS
@BOOKS
def test_an_item_of_popularity_zero_could_never_be_drawn_and_the_floor_lets_it(
    seed: int, residual: bool
) -> None:
    """As printed Theorem 5.4 is infinite where pop(i) = 0, and Q_pop(i) = 0 < softmax(i): draws
    never show i, however many. Floored, every item has a share and log(max / min) <= FLOOR."""
    counts = torch.arange(ITEMS)
    w = world(seed, residual, last="popularity", counts=counts)
    longest = max(np.linalg.norm(q) for q in w.left.values())
    for z, ours in zip(w.z, asked(w), strict=True):
        exact = truth(w, z)
        heavy = {i: math.exp(z @ (w.whole[i] - w.left[i])) * w.weight[i] for i in w.code}
        printed = {i: h / sum(heavy.values()) for i, h in heavy.items()}
        assert printed[0] == 0 < exact[0]
        assert ours[0] > 0
        floored = {**w.weight, 0: (ITEMS - 1) * math.exp(-FLOOR)}
        assert same(ours, proposal(w._replace(weight=floored), z))
        assert math.isfinite(kl(exact, ours))
        assert kl(ours, exact) <= 2 * longest * np.linalg.norm(z) + FLOOR


@BOOKS
@pytest.mark.parametrize("scorer", ["dot", "bias"])
def test_more_words_bring_the_proposal_closer_to_the_softmax(residual: bool, scorer: str) -> None:
    """After Theorem 5.3: on average over worlds each doubling of the words lowers KL."""
    means = []
    for words in (1, 2, 4, 8, 16):
        worlds = [world(seed, residual, scorer=scorer, words=words) for seed in range(8)]
        far = [kl(ours, truth(w, z)) for w in worlds for z, ours in zip(w.z, asked(w), strict=True)]
        means.append(sum(far) / len(far))
    assert means == sorted(means, reverse=True)


@SEEDS
@BOOKS
@pytest.mark.parametrize("scorer", ["dot", "bias", "prior"])
def test_with_as_many_words_as_items_the_proposal_is_the_softmax(
    seed: int, residual: bool, scorer: str
) -> None:
    w = world(seed, residual, scorer=scorer, words=ITEMS)
    for z, ours in zip(w.z, asked(w), strict=True):
        assert max(abs(q).max() for q in w.left.values()) < 1e-6
        assert kl(ours, truth(w, z)) < 1e-6
        assert same(ours, truth(w, z))
