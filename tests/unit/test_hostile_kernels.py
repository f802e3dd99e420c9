"""Compiled code stays inside its arrays whatever arrives: zeros, denormals, infinities, empty rows,
one item, huge rows. All tests of compiled code are run again with numba's bounds checking."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numba.core.dispatcher import Dispatcher

import softdex as sdx
from marks import slow
from softdex.data.ragged import group
from softdex.encode.table import Table
from softdex.index.tree import build
from softdex.kernels.dispatch import attend
from softdex.kernels.lanes import product
from softdex.kernels.scan import prepare, scan
from softdex.objective.resample import resample_counts
from softdex.solve.closed import neighbours
from softdex.solve.closed.neighbours import cosine_neighbours
from softdex.solve.closed.normal_equations import Side
from softdex.solve.closed.row_systems import solve_by_cg
from softdex.solve.gradient.rowwise import RowAdam

TESTS = Path(__file__).parents[1]
DENORMAL, TINY, HUGE = 1e-45, 1e-30, 3e38
HOSTILE = [0.0, 1.0, -1.0, DENORMAL, TINY, HUGE, -HUGE, np.inf, -np.inf, np.nan]
BY_SEED = pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 40))])
SIZES = [(1, 1), (1, 40), (40, 1), (30, 25)]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def hostile(draw: np.random.Generator, *shape: int, share: float = 0.3) -> np.ndarray:
    """Normal numbers, a share of which is hostile."""
    numbers = draw.normal(size=shape)
    odd = draw.choice(HOSTILE[: draw.integers(1, len(HOSTILE) + 1)], shape)
    return np.where(draw.random(shape) < share, odd, numbers).astype(np.float32)


# neighbours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("asymmetry", [0.5, 1.0])
@BY_SEED
def test_neighbours_of_hostile_weights_are_distinct_items_with_similarities_above_0(
    seed: int, asymmetry: float
) -> None:
    draw = np.random.default_rng(seed)
    users, items = SIZES[seed % len(SIZES)]
    there = draw.random((users, items)) < draw.choice([0.1, 0.9])
    weights = hostile(draw, int(there.sum()))
    at = np.flatnonzero(there)
    matrix = sp.csr_matrix((weights, np.divmod(at, items)), shape=(users, items))  # zeros are kept
    n = int(draw.integers(1, items + 1))
    found = cosine_neighbours(matrix, n, asymmetry=asymmetry, user_power=0.5)
    assert found.shape == (items, items)
    for item in range(items):
        own = found.indices[found.indptr[item] : found.indptr[item + 1]]
        assert len(set(own.tolist()) - {item}) == len(own) <= n
    assert (found.data > 0).all()


def test_items_whose_weights_are_all_0_are_nobodys_neighbours() -> None:
    draw = np.random.default_rng(0)
    weights = draw.integers(1, 4, (300, 20)).astype(float)
    matrix = sp.csr_matrix(weights)
    matrix.data[matrix.indices == 7] = 0.0
    without = matrix.copy()
    without.eliminate_zeros()
    found, expected = (cosine_neighbours(m, 19).toarray() for m in (matrix, without))
    assert np.array_equal(found, expected)
    assert not found[7].any()
    assert not found[:, 7].any()
    assert (np.delete(found[0], [0, 7]) > 0).all()


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30])
def test_cosines_do_not_depend_on_the_unit_of_the_weights(scale: float) -> None:
    weights = np.random.default_rng(0).integers(0, 4, (12, 9))
    found = cosine_neighbours(sp.csr_matrix(weights * scale), 4).toarray()
    assert np.allclose(found, cosine_neighbours(sp.csr_matrix(weights), 4).toarray(), rtol=1e-3)


# search ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 3, 400])
@BY_SEED
def test_a_search_with_hostile_queries_finds_items_of_the_lists_at_most_once(
    seed: int, items: int
) -> None:
    draw = np.random.default_rng(seed)
    width, dim, size = int(draw.integers(1, 9)), int(draw.integers(1, 7)), 9
    cell = np.sort(draw.integers(0, width**2, items) if seed % 2 else np.zeros(items, int))
    starts = np.searchsorted(cell, np.arange(width**2 + 1))
    ids = draw.permutation(2 * items)[:items]
    vectors = draw.normal(size=(items, dim)).astype(np.float32) * draw.choice([0.0, 1e-40, 1, 1e30])
    offsets = vectors[:, 0] if seed % 3 else None
    lists = prepare(vectors[: width * 2][:1].repeat(2 * width, 0).reshape(2, width, dim),
                    starts, ids, vectors, offsets)  # fmt: skip
    barred = group(draw.integers(0, size, 50), draw.integers(0, 2 * items, 50), size)
    allow = draw.random(2 * items) < 0.5 if seed % 4 == 3 else None
    query = hostile(draw, size, dim)
    for k in (1, 5, 2 * items + 300):
        for effort in (1, np.inf):
            found, scores = scan(query, lists, k, effort, exclude=barred, allow=allow)
            for row, out in zip(found, barred, strict=True):
                real = row[row >= 0].tolist()
                assert len(set(real)) == len(real)
                assert set(real) <= set(ids.tolist()) - set(out.tolist())
            assert np.isneginf(scores[found < 0]).all()


# draws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 50])
@BY_SEED
def test_as_many_are_drawn_as_asked_for_from_hostile_weights(seed: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    weights = torch.from_numpy(hostile(draw, 20, size, share=0.6) * draw.choice([1, 100]))
    for draws in (1, 33):
        counts = resample_counts(weights, draws, torch.Generator().manual_seed(seed))
        assert counts.sum(1).tolist() == [draws] * 20
        assert int(counts.min()) >= 0


# the optimiser -----------------------------------------------------------------------------------


@pytest.mark.parametrize("per_row", [False, True])
@BY_SEED
def test_hostile_gradients_change_only_the_rows_looked_up(seed: int, per_row: bool) -> None:
    draw = np.random.default_rng(seed)
    rows, dim = [(1, 1), (9, 3), (50, 20)][seed % 3]
    table = Table(torch.ones(rows, dim))
    adam = RowAdam(table, 0.1, per_row=per_row)
    ids = torch.from_numpy(draw.integers(-1, rows, (7, 11)))
    (table(ids) * torch.from_numpy(hostile(draw, 7, 11, dim))).sum().backward()
    adam.step()
    others = sorted(set(range(rows)) - set(ids.flatten().tolist()))
    assert bool((table.weight[others] == 1).all())
    assert adam.age.flatten().tolist() == [float(r not in others) for r in range(rows)]


# products with rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["dots", "cosines"])
@BY_SEED
def test_a_hostile_row_reaches_only_the_queries_that_look_it_up(seed: int, way: str) -> None:
    draw = np.random.default_rng(seed)
    size, columns, rows, dim = (int(n) for n in draw.integers(1, [9, 40, 30, 20]))
    calm = torch.from_numpy(draw.normal(size=(rows, dim)).astype(np.float32))
    odd, bad = calm.clone(), int(draw.integers(rows))
    odd[bad] = torch.from_numpy(hostile(draw, dim, share=1.0))
    ids = torch.from_numpy(draw.integers(-1, rows, (size, columns + 1)))
    query = torch.from_numpy(draw.normal(size=(size, dim)).astype(np.float32))
    found, plain = (getattr(Table(t), way)(query, ids) for t in (odd, calm))
    assert found.shape == ids.shape
    assert torch.equal(found[ids != bad], plain[ids != bad])
    assert not found[ids < 0].any()
    with pytest.raises(IndexError, match=f"of a table of {rows} rows"):
        getattr(Table(calm), way)(query, torch.full_like(ids, 2**40))


# attention ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@BY_SEED
def test_a_hostile_history_does_not_reach_the_attention_to_others(seed: int, shared: bool) -> None:
    draw = np.random.default_rng(seed)
    size, count, length, dim, width = draw.integers(1, [4, 140, 7, 30, 40])
    lead = () if shared else (size,)
    shapes = [
        (size, length, dim), (size, length, width), (*lead, count, dim), (dim, width),
        (*lead, count, width), (width,), (width,), (), (),
    ]  # fmt: skip
    calm = [torch.from_numpy(np.asarray(draw.normal(size=shape), np.float32)) for shape in shapes]
    real = torch.from_numpy(draw.random((size, length)) < 0.7)
    given = [t.clone() for t in calm]
    for i in (0, 1):
        given[i][0] = torch.from_numpy(hostile(draw, *given[i][0].shape, share=0.9))
    found, plain = attend(*given, real), attend(*calm, real)
    assert found.shape == (size, count, length)
    assert torch.equal(found[1:], plain[1:])
    assert not found.transpose(1, 2)[~real].any()
    leaves = [t.requires_grad_() for t in given]
    of_vectors, of_attention, *_ = torch.autograd.grad(attend(*leaves, real).sum(), leaves)
    assert bool(of_vectors[1:].isfinite().all())
    assert bool(of_attention[1:].isfinite().all())


# row systems -------------------------------------------------------------------------------------


@BY_SEED
def test_hostile_rows_do_not_reach_their_neighbours(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, others, dim = SIZES[seed % len(SIZES)][0], SIZES[seed % len(SIZES)][1], 5
    lengths = draw.choice([0, 1, 4, 7, 5000], rows)
    events = int(lengths.sum())
    ends = np.concatenate([[0], lengths.cumsum()])
    extra, lift = (np.abs(draw.normal(size=events)).astype(np.float32) for _ in range(2))
    bad = int(draw.integers(rows))
    extra[ends[bad] : ends[bad + 1]] = hostile(draw, int(lengths[bad]), share=1.0)

    def solved(extra: np.ndarray) -> torch.Tensor:
        side = Side(
            torch.from_numpy(ends), torch.from_numpy(other), torch.from_numpy(extra),
            torch.from_numpy(lift), torch.ones(rows), torch.ones(rows), torch.ones(rows),
        )  # fmt: skip
        return solve_by_cg(side, torch.ones(dim), torch.ones(dim), x, 3)[0]

    other = draw.integers(0, others, events).astype(np.int32)
    x = torch.from_numpy(draw.normal(size=(others, dim)).astype(np.float32))
    same = extra.copy()
    same[ends[bad] : ends[bad + 1]] = 1.0
    found, calm = solved(extra), solved(same)
    rest = torch.arange(rows) != bad
    assert found.shape == (rows, dim)
    assert torch.equal(found[rest], calm[rest])
    assert bool(calm.isfinite().all())


# balance -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 2, 1), (5, 2, 4), (3, 3, 7), (7, 100, 2), (1, 2, 11)])
@BY_SEED
def test_an_order_of_hostile_vectors_has_every_item_once(
    seed: int, shape: tuple[int, int, int]
) -> None:
    draw = np.random.default_rng(seed)
    made = build.Shape(*shape)
    items = int(draw.choice([1, 2, made.slots, draw.integers(1, made.slots + 1)]).clip(1, 1500))
    items = min(items, made.slots)
    vectors = np.nan_to_num(hostile(draw, items, int(draw.integers(1, 6))))
    order = build.by_vectors(vectors, made, seed=seed)
    assert np.array_equal(np.sort(order), np.arange(items))


# everything again, with bounds checking ----------------------------------------------------------


def compiled() -> dict[str, Dispatcher]:
    """Every compiled function of the package, by its name."""
    names = [m.name for m in pkgutil.walk_packages(sdx.__path__, "softdex.")]
    modules = [import_module(n) for n in names if not n.endswith(("__main__", "_gpu"))]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
    }


@pytest.mark.skipif(not numba.config.BOUNDSCHECK, reason="of a process with bounds checking")
def test_the_tests_above_compile_everything_with_bounds_checking() -> None:
    beyond = numba.njit(lambda array: array[len(array)])
    with pytest.raises(IndexError):
        beyond(np.zeros(3))
    with pytest.raises(IndexError):
        product(*np.zeros((4, 4, 8)), 4, 9)  # its vector instructions check by themselves
    found = compiled()
    assert len(found) > 40
    assert [name for name, kernel in found.items() if not kernel.overloads] == []
    assert [name for name, kernel in found.items() if kernel.stats.cache_hits] == []


FILES = [
    "unit/test_hostile_kernels.py",
    "unit/test_scan.py",
    "unit/test_imi.py",
    "unit/test_attend.py",
    "unit/test_rowwise.py",
    "unit/test_table.py",
    "unit/test_row_systems.py",
    "unit/test_tree_build.py",
    "unit/test_recipes.py",
    "theory/test_in_batch.py",
]


def test_neighbours_never_leave_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick one of the tests below, in this process."""
    checked = numba.njit(nogil=True, boundscheck=True)(neighbours._fill.py_func)
    monkeypatch.setattr(neighbours, "_fill", checked)
    for share in (0.0, 0.3, 1.0):
        weights = hostile(np.random.default_rng(0), 30 * 20, share=share)
        matrix = sp.csr_matrix((weights, np.divmod(np.arange(600), 20)), shape=(30, 20))
        assert cosine_neighbours(matrix, 3).nnz <= 60


@pytest.mark.parametrize("file", slow(*FILES))
def test_compiled_code_never_leaves_an_array(file: str, tmp_path: Path) -> None:
    checking = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "-x"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", "not never_leaves", str(TESTS / file)],
        env=os.environ | checking,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
