"""Many small systems: all solvers agree, whatever the lengths of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import softdex as sdx
from softdex import messages
from softdex.solve.closed import row_systems
from softdex.solve.closed.normal_equations import (
    Quadratic,
    Shared,
    Side,
    ials,
    rg,
    shared_by_users,
    users_side,
)
from softdex.solve.closed.row_systems import (
    eigenbasis,
    factor,
    solve_by_cg,
    solve_exactly,
    systems_of,
)

LENGTHS = [0, 1, 3, 4, 5, 8, 0, 30, 60, 2]


def double(side: Side) -> Side:
    return Side(*(t.double() if t.is_floating_point() else t for t in side))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Systems:
    """Rows of these lengths over `items` vectors, with a loop as oracle."""

    def __init__(
        self, dim: int, lengths: list[int] = LENGTHS, items: int = 60, lam: float = 0.1
    ) -> None:
        draw = np.random.default_rng(1)
        met = [draw.permutation(items)[:n] for n in lengths]
        data = draw.random(sum(lengths)).astype(np.float32) + 0.5
        indptr = np.append(0, np.cumsum(lengths))
        matrix = sp.csr_matrix((data, np.concatenate(met), indptr), shape=(len(lengths), items))
        self.loss = ials(items, alpha=0.25, lam=lam, nu=1.0)
        self.side = double(users_side(matrix, self.loss))._replace(pull=normal(sum(lengths)).abs())
        self.x = normal(items, dim, seed=2)
        self.shared = shared_by_users(self.loss, self.x)._replace(pull=normal(dim, seed=3))

    def turned(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Eigenvalues, pull and vectors in the eigenbasis, and the basis."""
        values, basis = eigenbasis(self.shared)
        return values, self.shared.pull @ basis, self.x @ basis, basis

    def quick(self, steps: int, solver: Any = solve_by_cg) -> tuple[Tensor, Tensor]:
        """By conjugate gradients, turned back."""
        values, pull, x, basis = self.turned()
        y, part = solver(self.side, values, pull, x, steps)
        return y @ basis.T, part

    def loop(self) -> tuple[Tensor, Tensor]:
        """(w G + sum a x x' + reg) y = w pull + sum t x, one row and one event at a time."""
        side, found, parts = self.side, [], []
        for r in range(len(side.weight)):
            matrix = side.weight[r] * self.shared.gram + side.reg[r] * torch.eye(len(self.x[0]))
            b = side.weight[r] * self.shared.pull
            for e in range(int(side.indptr[r]), int(side.indptr[r + 1])):
                x = self.x[side.other[e]]
                matrix = matrix + side.extra[e] * torch.outer(x, x)
                b = b + side.pull[e] * x
            y = torch.linalg.solve(matrix, b)
            found.append(y)
            parts.append(y @ matrix @ y - 2 * b @ y)
        return torch.stack(found), torch.stack(parts)


def assert_same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore what `set_threads` changes."""
    before = torch.get_num_threads(), numba.get_num_threads(), pa.cpu_count()
    streams = pa.io_thread_count()
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
    pa.set_cpu_count(before[2])
    pa.set_io_thread_count(streams)


# the same from every solver ----------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 5, 8, 13, 16])
def test_the_exact_solver_equals_the_loop(dim: int) -> None:
    systems = Systems(dim)
    assert_same(solve_exactly(systems.side, systems.shared, systems.x), systems.loop())


@pytest.mark.parametrize("cells", [1, 60, 2000])
def test_the_exact_solver_does_not_depend_on_what_it_holds_at_a_time(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows at a time, and a row that is too long in pieces."""
    systems = Systems(5)
    monkeypatch.setattr(row_systems, "GATHERED_FLOATS", cells)
    assert_same(solve_exactly(systems.side, systems.shared, systems.x), systems.loop())
    order = torch.cat([r for r, _, _ in systems_of(systems.side, systems.shared, systems.x)])
    assert sorted(order.tolist()) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("dim", [1, 2, 5, 8, 13, 16])
def test_conjugate_gradients_are_exact_after_as_many_steps_as_dimensions(dim: int) -> None:
    systems = Systems(dim)
    assert_same(systems.quick(dim), systems.loop())


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_a_row_of_n_events_is_exact_after_n_and_one_steps(n: int) -> None:
    """The preconditioned matrix is I plus a matrix of rank n."""
    systems = Systems(12, [n, n])
    assert_same(systems.quick(n + 1), systems.loop())
    if n:
        few, _ = systems.quick(n)
        assert (few - systems.loop()[0]).abs().max() > 1e-6


@pytest.mark.parametrize("steps", [1, 2, 4, 30])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_all_rows_at_once_are_what_one_after_the_other_is(dim: int, steps: int) -> None:
    """The GPU's method on the CPU; also far beyond convergence."""
    systems = Systems(dim)
    assert_same(systems.quick(steps, row_systems._all_at_once), systems.quick(steps))


@pytest.mark.parametrize("long", [0, 4, 29, 60])
def test_long_rows_are_solved_by_themselves_to_the_same(
    long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems, seen = Systems(7), []
    whole, plain = systems.quick(4), row_systems._long_row

    def noted(side: Side, row: int, *more: Any) -> Any:
        seen.append(row)
        return plain(side, row, *more)

    monkeypatch.setattr(row_systems, "LONG_ROW", long)
    monkeypatch.setattr(row_systems, "_long_row", noted)
    assert_same(systems.quick(4), whole)
    assert seen == [r for r, n in enumerate(LENGTHS) if n > long]


@pytest.mark.parametrize("chunk", [1, 9, 50])
def test_chunks_of_rows_make_no_difference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = Systems(7)
    whole = systems.quick(4)
    monkeypatch.setattr(row_systems, "EVENTS_PER_CHUNK", chunk)
    ends = row_systems._chunks(systems.side.indptr.numpy())
    assert len(ends) > 1
    assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
    assert ends[-1][1] == len(LENGTHS)
    for mine, theirs in zip(systems.quick(4), whole, strict=True):
        assert torch.equal(mine, theirs)


def test_the_part_of_the_loss_is_right_after_any_number_of_steps() -> None:
    """y'Ay - 2 b'y, from the residual alone; it falls with every step."""
    systems, before = Systems(9), torch.zeros(len(LENGTHS), dtype=torch.float64)
    for steps in range(1, 6):
        values, pull, x, _ = systems.turned()
        y, part = solve_by_cg(systems.side, values, pull, x, steps)
        shared = Shared(torch.diag(values), pull)
        for at, matrix, b in systems_of(systems.side, shared, x):
            square = (y[at, None] @ matrix @ y[at, :, None])[:, 0, 0]
            assert torch.allclose(part[at], square - 2 * (b * y[at]).sum(1), atol=1e-12)
        assert (part <= before + 1e-12).all()
        before = part


# odd rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [solve_by_cg, row_systems._all_at_once])
def test_rows_without_events_are_drawn_by_what_is_shared_alone(solver: Any) -> None:
    systems = Systems(6, [0, 0, 0])
    assert_same(systems.quick(1, solver), systems.loop())
    assert_same(solve_exactly(systems.side, systems.shared, systems.x), systems.loop())


def test_no_rows_at_all_are_no_solutions() -> None:
    systems = Systems(6, [3])
    none = systems.side._replace(
        indptr=torch.zeros(1, dtype=torch.int64),
        **{n: t[:0] for n, t in systems.side._asdict().items() if n not in ("indptr", "fixed")},
    )
    values, pull, x, _ = systems.turned()
    for y, part in (
        solve_by_cg(none, values, pull, x),
        solve_exactly(none, systems.shared, systems.x),
    ):
        assert y.shape == (0, 6)
        assert part.shape == (0,)


def test_one_item_is_enough() -> None:
    systems = Systems(3, [1, 0, 1], items=1)
    assert_same(systems.quick(3), systems.loop())
    assert_same(systems.quick(3, row_systems._all_at_once), systems.loop())


def test_an_event_that_is_there_twice_counts_twice() -> None:
    """The rows of a CSR matrix whose duplicates were not summed."""
    once, twice = Systems(5, [4, 3]), Systems(5, [4, 3])
    event = slice(0, 1)
    side = twice.side
    doubled = {n: torch.cat([t[event], t]) for n, t in side._asdict().items()}
    names = ("other", "extra", "pull")
    shifted = side.indptr + torch.tensor([0, 1, 1])
    twice.side = side._replace(indptr=shifted, **{n: doubled[n] for n in names})
    extra, pull = once.side.extra.clone(), once.side.pull.clone()
    extra[event] *= 2
    pull[event] *= 2
    once.side = once.side._replace(extra=extra, pull=pull)
    for solver in (solve_by_cg, row_systems._all_at_once):
        assert_same(twice.quick(5, solver), once.quick(5, solver))
    assert_same(
        solve_exactly(twice.side, twice.shared, twice.x),
        solve_exactly(once.side, once.shared, once.x),
    )


def test_a_row_with_very_many_events_is_like_any_other() -> None:
    """More than a single thread takes."""
    many = row_systems.LONG_ROW + 5
    systems = Systems(4, [many, 3], items=many)
    exact = solve_exactly(systems.side, systems.shared, systems.x)
    for solver in (solve_by_cg, row_systems._all_at_once):
        assert_same(systems.quick(4, solver), exact)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 20])
@pytest.mark.parametrize(("loss", "event", "rest"), [
    (ials(5, alpha=0.1, lam=0.0, nu=1.0), 1 / 1.1, 0.0),
    (ials(5, alpha=0.0, lam=0.0, nu=1.0), 1.0, None),
    (rg(5, alpha=0.1, lam=0.0, nu=1.0), 2.5, -1.0),  # (1/2 + alpha - w) / (w + alpha), w = 1/10
    (rg(5, alpha=0.0, lam=0.0, nu=1.0), 4.0, -1.0),
])  # fmt: skip
def test_systems_without_full_rank_give_finite_vectors(
    loss: Quadratic, event: float, rest: float | None, dim: int, kind: torch.dtype
) -> None:
    """lam = 0, and fewer items than dimensions; in float32 a Gram matrix is not even positive."""
    side = users_side(sp.csr_matrix(np.eye(6, 5, dtype=np.float32)), loss)
    side = double(side) if kind == torch.float64 else side
    x = normal(5, dim).to(kind)
    shared = shared_by_users(loss, x)
    values, basis = eigenbasis(shared)
    turned = side, values, shared.pull @ basis, x @ basis, 4
    exact = solve_exactly(side, shared, x)[0]
    for y in (exact, solve_by_cg(*turned)[0], row_systems._all_at_once(*turned)[0]):
        assert torch.isfinite(y).all()
        assert (y[5] == 0).all()  # who has no events
    if dim > 5:  # then every score is what is wanted of it
        scores = (exact @ x.T)[:5]
        assert torch.allclose(scores.diagonal(), torch.tensor(event).to(kind), atol=1e-3)
        if rest is not None:
            assert torch.allclose(scores[0, 1:], torch.tensor(rest).to(kind), atol=1e-3)


def test_the_least_ridge_is_added_and_only_where_it_is_needed() -> None:
    good = torch.eye(3, dtype=torch.float64) * 2
    flat = torch.ones(3, 3, dtype=torch.float64)
    below = flat - 1e-7 * torch.eye(3, dtype=torch.float64)
    systems = torch.stack([good, flat, below])
    found = factor(systems)
    again = found @ found.transpose(1, 2)
    assert torch.allclose(again[0], good, rtol=1e-15, atol=0)
    assert torch.allclose(again[1], flat, atol=1e-9)
    assert torch.allclose(again[2], flat, atol=2e-6)
    with pytest.raises(sdx.SoftdexError, match=r"beyond all bounds. Raise lam"):
        factor(torch.full((1, 2, 2), torch.nan, dtype=torch.float64))


def test_vectors_that_are_not_finite_are_one_clear_error() -> None:
    bad = Shared(torch.full((2, 2), torch.inf), torch.zeros(2))
    with pytest.raises(sdx.SoftdexError, match=r"beyond all bounds. Raise lam"):
        eigenbasis(bad)


# float32, threads, and the compiler --------------------------------------------------------------


@pytest.fixture(scope="module")
def realistic() -> sdx.Split:
    world = sdx.synthetic.world(users=600, items=400, seed=3, events=30, strength=2.0)
    return sdx.split.leave_last(world.interactions())


def test_four_steps_in_float32_are_close_to_exact_solutions_in_float64(
    realistic: sdx.Split,
) -> None:
    """Scores agree within a percent; the metric in its third digit."""
    matrix, by_item = realistic.train.confidences
    loss = rg(realistic.train.num_items, alpha=0.03, lam=0.1, nu=1.0)
    x = torch.from_numpy(by_item @ normal(by_item.shape[1], 32).numpy()) / 32
    side = users_side(matrix, loss)
    wide = solve_exactly(double(side), shared_by_users(loss, x), x)[0] @ x.T
    x = x.float()
    shared = shared_by_users(loss, x)
    values, basis = eigenbasis(shared)
    y, _ = solve_by_cg(side, values, shared.pull @ basis, x @ basis)
    quick = y.double() @ (x @ basis).double().T
    assert (quick - wide).norm() < 0.01 * wide.norm()
    narrow = solve_exactly(side, shared, x)[0].double() @ x.double().T
    assert (narrow - wide).norm() < 1e-5 * wide.norm()


def test_a_model_of_four_steps_ranks_like_one_of_exact_solutions(realistic: sdx.Split) -> None:
    options: dict[str, Any] = {"dim": 16, "epochs": 4, "patience": 0, "device": "cpu"}
    exact, quick = (
        sdx.fit("rg2", realistic.train, steps=s, **options).evaluate(realistic.test, 20)["ndcg@20"]
        for s in (0, 4)
    )
    assert exact > 0.1
    assert abs(exact - quick) < 0.003


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_no_bit(realistic: sdx.Split) -> None:
    loss = ials(realistic.train.num_items, alpha=0.1, lam=0.01, nu=1.0)
    side = users_side(realistic.train.confidences[0], loss)
    x = normal(realistic.train.num_items, 24).float()
    values = torch.linspace(0.1, 3, 24)
    found = []
    for n in (1, 2):
        sdx.set_threads(n)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_systems, "EVENTS_PER_CHUNK", 500)
            found.append(solve_by_cg(side, values, torch.zeros(24), x))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_solving_leaves_the_threads_of_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking numba for its number of threads starts its pool, which resets that of torch."""

    def started() -> int:
        raise AssertionError("numba's pool was started")

    monkeypatch.setattr(numba, "get_num_threads", started)
    Systems(3).quick(2)


class Compiled:
    """Stands for the compiled function: its compiled versions, and where they are cached."""

    def __init__(self, place: Path | None, signatures: list[Any]) -> None:
        self.py_func = row_systems._cg_rows.py_func
        self.stats = SimpleNamespace(cache_path=None if place is None else str(place))
        self.signatures = signatures


def test_compiling_is_said_when_nothing_is_kept_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(messages, "say", said.append)
    monkeypatch.setattr(row_systems, "_cg_rows", compiled := Compiled(tmp_path, []))
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 1
    assert "compiling the solver for this machine, once" in said[0]
    compiled.signatures.append("compiled by now")
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 1
    line = compiled.py_func.__code__.co_firstlineno
    kept = tmp_path / f"row_systems._cg_rows-{line}.py311.nbi"
    earlier = tmp_path / f"row_systems._cg_rows-{line - 1}.py311.nbi"
    earlier.touch()
    monkeypatch.setattr(row_systems, "_cg_rows", Compiled(tmp_path, []))
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 2
    kept.touch()
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 2
    os.utime(kept, (0, 0))  # older than the source: it will be compiled again
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 3
    monkeypatch.setattr(row_systems, "_cg_rows", Compiled(None, []))
    messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert len(said) == 4


def test_what_was_compiled_is_kept_on_disk_and_found_there() -> None:
    Systems(3).quick(2)
    place = Path(row_systems._cg_rows.stats.cache_path or "")
    line = row_systems._cg_rows.py_func.__code__.co_firstlineno
    assert list(place.glob(f"row_systems._cg_rows-{line}.*.nbi"))
    assert list(place.glob(f"row_systems._cg_rows-{line}.*.nbc"))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "say", said.append)
        patch.setattr(row_systems, "_cg_rows", Compiled(place, []))
        messages.say_if_compiling(row_systems._cg_rows, "the solver")
    assert said == []
