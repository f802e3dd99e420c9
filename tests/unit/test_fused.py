"""The fused kernels equal the plain path, in Triton's interpreter: a process of its own, since
Triton must know from its import on that it is to interpret."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from softdex.encode.table import Table
from softdex.solve.gradient.rowwise import RowAdam, sorted_by_row

Kernels = Callable[..., list[Tensor]]
ROWS, DIM = 50, 20  # a width that is no power of two
# lookups a row, width: one of each; whole blocks; parts of blocks; more than a program sums up
SHAPES = pytest.mark.parametrize(("n", "dim"), [(1, 1), (16, 16), (37, 20), (150, 3)])


def interpreted(name: str, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    """In the other process: call a kernel; its result, and the tensors it may have written to."""
    fused = importlib.import_module("softdex.kernels.rows_gpu")
    given = [_tensors(a) for a in arguments]
    if name == "nearest":
        given = [torch.cat([a, a], 1)[:, : a.shape[1]] for a in given]  # rows that lie apart
    result = getattr(fused, name)(*given)
    if result is not None:
        return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]
    return [t.numpy() for a in given if isinstance(a, tuple) for t in a]


def _tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_arrays, value))
    return value.detach().numpy() if isinstance(value, Tensor) else value


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: there are no fused kernels to test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:

            def call(name: str, *arguments: Any) -> list[Tensor]:
                found = pool.submit(interpreted, name, _arrays(arguments)).result()
                return [torch.from_numpy(array) for array in found]

            yield call


def draw(seed: int, dim: int = DIM) -> tuple[torch.Generator, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return generator, torch.randn(ROWS, dim, generator=generator)


@SHAPES
def test_dots_equal_the_plain_products_and_are_0_at_pads(
    kernels: Kernels, n: int, dim: int
) -> None:
    generator, matrix = draw(n, dim)
    query = torch.randn(4, dim, generator=generator)
    ids = torch.randint(-1, ROWS, (4, n), generator=generator)
    (ours,) = kernels("dots", query, matrix, ids)
    plain = torch.einsum("bd,bnd->bn", query.double(), matrix.double()[ids]) * (ids >= 0)
    assert torch.allclose(ours.double(), plain, atol=1e-5)


@SHAPES
def test_lengths_beside_the_products_are_those_of_the_rows(
    kernels: Kernels, n: int, dim: int
) -> None:
    generator, matrix = draw(n, dim)
    query = torch.randn(4, dim, generator=generator)
    ids = torch.randint(-1, ROWS, (4, n), generator=generator)
    products, lengths = kernels("dots_and_lengths", query, matrix, ids)
    (alone,) = kernels("dots", query, matrix, ids)
    assert torch.equal(products, alone)
    plain = torch.linalg.vector_norm(matrix.double()[ids], dim=2) * (ids >= 0)
    assert torch.allclose(lengths.double(), plain, atol=1e-5)


@SHAPES
def test_bags_equal_the_plain_sums_and_pass_over_pads(kernels: Kernels, n: int, dim: int) -> None:
    generator, matrix = draw(n, dim)
    ids = torch.randint(-1, ROWS, (4, n), generator=generator)
    weights = torch.randn(4, n, generator=generator)
    (ours,) = kernels("bags", matrix, ids, weights)
    real = weights.double() * (ids >= 0)
    plain = torch.einsum("bn,bnd->bd", real, matrix.double()[ids])
    assert torch.allclose(ours.double(), plain, atol=1e-5)


def test_lookups_that_lie_oddly_in_memory_are_read_right(kernels: Kernels) -> None:
    generator, matrix = draw(0)
    query = torch.randn(DIM, 4, generator=generator).T
    ids = torch.randint(-1, ROWS, (9, 4), generator=generator).T
    weights = torch.randn(9, 4, generator=generator).T
    straight = [t.contiguous() for t in (query, ids, weights)]
    for name, crooked, even in (
        ("dots", (query, matrix, ids), (straight[0], matrix, straight[1])),
        ("bags", (matrix, ids, weights), (matrix, *straight[1:])),
    ):
        assert torch.equal(kernels(name, *crooked)[0], kernels(name, *even)[0])


@pytest.mark.parametrize("kind", ["plain", "weighted", "pulled"])
@pytest.mark.parametrize("per_row", [False, True])
def test_adam_equals_the_plain_optimiser_over_steps(
    kernels: Kernels, kind: str, per_row: bool
) -> None:
    """With pads, rows met once, and rows met more often than a program adds at a time; with weights
    of the gradients, and with gradients that point along the row, too."""
    _, matrix = draw(0)
    tables = [Table(matrix.clone()) for _ in range(2)]
    plain, other = (RowAdam(t, 0.1, decay=0.3, per_row=per_row) for t in tables)
    most = 0
    for step in range(3):
        for optimizer in (plain, other):
            generator, table = torch.Generator().manual_seed(step), optimizer.table
            many = torch.randint(-1, 3 + 15 * step, (6, 9), generator=generator)
            few = torch.randint(-1, ROWS, (7,), generator=generator)
            pull = torch.randn(7, DIM, generator=generator)
            loss = (table(few) * pull).sum()
            if kind == "pulled":
                each = torch.randn(6, 9, generator=generator)
                loss = loss + (table.cosines(pull[:6], many) * each).sum()
            elif kind == "weighted":
                each = torch.randn(6, 9, generator=generator)
                loss = loss + (table.bag(many, each) * pull[:6]).sum()
            else:
                loss = loss + (table(many) * pull[:6, None]).sum()
            loss.backward()
        plain.step()
        lookups = sorted_by_row(tables[1].touched(), ROWS)
        assert (lookups.weight is not None) == (kind != "plain")
        assert (lookups.pull is not None) == (kind == "pulled")
        most = max(most, int(lookups.ids[lookups.ids < ROWS].bincount().max()))
        law = other.lr, *other.betas, other.eps, other.decay
        written = kernels("adam", *lookups, other._tables(), *law)
        for kept, new in zip(other._tables(), written, strict=True):
            kept.copy_(new)
        for ours, theirs in zip(plain._tables(), other._tables(), strict=True):
            assert torch.allclose(ours, theirs, rtol=2e-4, atol=1e-5)
    assert most > 16


def test_adam_of_pads_alone_changes_nothing(kernels: Kernels) -> None:
    _, matrix = draw(0)
    table = Table(matrix.clone())
    optimizer = RowAdam(table, 0.1, decay=0.3)
    table(torch.full((5,), -1)).sum().backward()
    lookups = sorted_by_row(table.touched(), ROWS)
    law = optimizer.lr, *optimizer.betas, optimizer.eps, optimizer.decay
    written = kernels("adam", *lookups, optimizer._tables(), *law)
    for before, after in zip(optimizer._tables(), written, strict=True):
        assert torch.equal(before, after)


def test_adam_at_a_great_age_still_equals_the_plain_one(kernels: Kernels) -> None:
    """1 - b^t in single precision would be off for young rows, and must be 1 for old ones."""
    _, matrix = draw(0)
    table = Table(matrix.clone())
    optimizer = RowAdam(table, 0.1)
    optimizer.age[:25] = 100_000
    optimizer.second[:] = 0.5
    table(torch.arange(ROWS)).square().sum().backward()
    lookups = sorted_by_row(table.touched(), ROWS)
    law = optimizer.lr, *optimizer.betas, optimizer.eps, optimizer.decay
    written = kernels("adam", *lookups, optimizer._tables(), *law)
    table(torch.arange(ROWS)).square().sum().backward()
    optimizer.step()
    for ours, theirs in zip(optimizer._tables(), written, strict=True):
        assert torch.allclose(ours, theirs, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "size", "dim"), [(1, 1, 1), (300, 64, 32), (130, 70, 37)])
def test_the_nearest_word_is_the_nearest_also_where_rows_lie_apart(
    kernels: Kernels, n: int, size: int, dim: int
) -> None:
    generator = torch.Generator().manual_seed(n)
    points, words = (torch.randn(rows, dim, generator=generator) for rows in (n, size))
    (codes,) = kernels("nearest", points, words)
    assert torch.equal(codes, torch.cdist(points.double(), words.double()).argmin(1))


@pytest.mark.parametrize(("size", "draws"), [(1, 1), (6, 300), (1500, 1100)])
def test_draws_follow_their_law_and_are_as_many_as_asked(
    kernels: Kernels, size: int, draws: int
) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = 4
    weight = torch.rand(size, generator=generator) * (torch.rand(size, generator=generator) > 0.3)
    weight[0] = 1.0
    weight /= weight.sum()
    logs = weight.log().repeat(rows, 1)
    (below,) = kernels("below", logs, torch.tensor([5]), draws)
    counts = below.diff(dim=1, prepend=torch.zeros_like(below[:, :1]))
    assert (counts.sum(1) == draws).all()
    assert (counts >= 0).all()
    assert (counts[:, weight == 0] == 0).all()
    error = (weight * (1 - weight) / (rows * draws)).sqrt()
    assert ((counts.double().mean(0) / draws - weight).abs() <= 5 * error + 1e-9).all()
    (again,) = kernels("below", logs, torch.tensor([5]), draws)
    (other,) = kernels("below", logs, torch.tensor([6]), draws)
    assert torch.equal(below, again)
    assert size == 1 or not torch.equal(below, other)
    assert size == 1 or not torch.equal(counts[0], counts[1])


@pytest.mark.parametrize("value", [0.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan")])
def test_hostile_numbers_are_written_only_where_they_belong(kernels: Kernels, value: float) -> None:
    generator, matrix = draw(1)
    matrix[7] = value
    ids = torch.randint(8, ROWS, (4, 37), generator=generator)
    (products,) = kernels("dots", matrix[:4], matrix, ids)
    (sums,) = kernels("bags", matrix, ids, torch.ones(4, 37))
    assert bool(products.isfinite().all())
    assert bool(sums.isfinite().all())

    table = Table(torch.ones(ROWS, DIM))
    optimizer = RowAdam(table, 0.1)
    (table(ids % 20) * value).sum().backward()
    lookups = sorted_by_row(table.touched(), ROWS)
    law = optimizer.lr, *optimizer.betas, optimizer.eps, optimizer.decay
    *_, weights = kernels("adam", *lookups, optimizer._tables(), *law)
    assert bool((weights[20:] == 1).all())

    points = torch.full((5, DIM), value)
    points[0] = matrix[1]
    for words in (matrix[:7], matrix[:8]):  # without and with a hostile word
        (codes,) = kernels("nearest", points, words)
        assert int(codes[0]) == 1
        assert bool(((codes >= 0) & (codes < len(words))).all())

    logs = torch.full((3, 70), -1.0)
    logs[0], logs[1, 4], logs[2, 69] = value, value, value
    (below,) = kernels("below", logs, torch.tensor([5]), 30)
    assert bool(((below >= 0) & (below <= 30)).all())
    assert below[:, -1].tolist() == [30] * 3
