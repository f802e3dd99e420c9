"""Row-wise optimisers equal a dense reference that leaves untouched rows alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from softdex.encode.table import Table
from softdex.solve.gradient.rowwise import RowAdam, dense, sorted_by_row, summed

ROWS, DIM = 11, 3


class DenseAdam:
    """Adam over the whole table, row by row in a loop; rows without a gradient are skipped."""

    def __init__(self, weight: Tensor, lr: float, decay: float, per_row: bool) -> None:
        self.weight, self.lr, self.decay, self.per_row = weight.clone(), lr, decay, per_row
        self.m, self.v = torch.zeros_like(weight), torch.zeros_like(weight)
        self.t = [0] * len(weight)

    def step(self, grad: Tensor, touched: set[int]) -> None:
        for r in touched:
            self.t[r] += 1
            g = grad[r]
            square = (g**2).mean().expand(DIM) if self.per_row else g**2
            self.m[r] = 0.9 * self.m[r] + 0.1 * g
            self.v[r] = 0.999 * self.v[r] + 0.001 * square
            up = self.m[r] / (1 - 0.9 ** self.t[r])
            down = (self.v[r] / (1 - 0.999 ** self.t[r])).sqrt() + 1e-8
            self.weight[r] -= self.lr * up / down + self.lr * self.decay * self.weight[r]


@given(seed=st.integers(0, 10**6), per_row=st.booleans(), decay=st.sampled_from([0.0, 0.1]))
def test_row_adam_equals_the_dense_reference(seed: int, per_row: bool, decay: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    table = Table(start.clone())
    ours = RowAdam(table, 0.05, decay=decay, per_row=per_row)
    reference = DenseAdam(start, 0.05, decay, per_row)
    for _ in range(6):
        ids = torch.randint(ROWS, (4, 2), generator=generator)
        more = torch.randint(ROWS, (3,), generator=generator)
        target = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
        loss = ((table(ids) - target[ids]) ** 2).sum() + (table(more) * target[more]).sum()
        loss.backward()
        ours.step()
        whole = reference.weight.clone().requires_grad_()
        dense = ((whole[ids] - target[ids]) ** 2).sum() + (whole[more] * target[more]).sum()
        dense.backward()
        assert whole.grad is not None
        reference.step(whole.grad, set(ids.flatten().tolist()) | set(more.tolist()))
        assert torch.allclose(table.weight, reference.weight, atol=1e-12)


def test_row_adam_on_all_rows_equals_torch_adam() -> None:
    start = torch.randn(ROWS, DIM, dtype=torch.float64)
    table, dense = Table(start.clone()), start.clone().requires_grad_()
    ours, theirs = RowAdam(table, 0.1), torch.optim.Adam([dense], 0.1)
    target = torch.randn(ROWS, DIM, dtype=torch.float64)
    for _ in range(5):
        ((table.all() - target) ** 2).sum().backward()
        ours.step()
        theirs.zero_grad()
        ((dense - target) ** 2).sum().backward()
        theirs.step()
    assert torch.allclose(table.weight, dense)


def test_repeated_rows_are_summed_before_the_step_and_not_stepped_twice() -> None:
    table = Table(torch.zeros(3, 2))
    (table(torch.tensor([1, 1, 2])) * torch.tensor([[1.0], [2.0], [4.0]])).sum().backward()
    rows, grads = summed(sorted_by_row(table.touched(), len(table)), table.weight)
    assert rows is not None
    assert rows.tolist() == [1, 2, -1]
    assert grads.tolist() == [[3, 3], [4, 4], [0, 0]]


def test_rows_that_were_not_touched_do_not_change_at_all() -> None:
    table = Table(torch.randn(ROWS, DIM))
    before = table.weight.clone()
    optimizer = RowAdam(table, 0.1, decay=0.5)
    for _ in range(3):
        table(torch.tensor([4, 7])).sum().backward()
        optimizer.step()
    same = (table.weight == before).all(1)
    assert same.tolist() == [i not in (4, 7) for i in range(ROWS)]
    assert optimizer.age[:, 0].tolist() == [3.0 if i in (4, 7) else 0.0 for i in range(ROWS)]


def test_row_zero_is_an_ordinary_row_although_unused_places_point_at_it() -> None:
    table = Table(torch.randn(ROWS, DIM))
    before = table.weight.clone()
    optimizer = RowAdam(table, 0.1)
    table(torch.tensor([5, 5, 5, 5])).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight[0], before[0])
    assert optimizer.first[0].abs().sum() == 0


def test_lookups_leave_no_trace_outside_training() -> None:
    table = Table(torch.randn(ROWS, DIM))
    with torch.no_grad():
        assert not table(torch.tensor([1])).requires_grad
    table.eval()
    assert not table(torch.tensor([1])).requires_grad
    assert table.all() is table.weight
    assert table.touched() == []


def test_an_optimiser_goes_on_from_its_state_bit_by_bit() -> None:
    def run(stop: int | None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        table = Table(torch.randn(ROWS, DIM, generator=generator))
        optimizer = RowAdam(table, 0.1, per_row=True)
        for step in range(6):
            if step == stop:
                table = Table(table.weight.clone())
                state = {n: t.clone() for n, t in optimizer.state().items()}
                optimizer = RowAdam(table, 0.1, per_row=True)
                optimizer.load(state)
            ids = torch.randint(ROWS, (5,), generator=generator)
            (table(ids) ** 2).sum().backward()
            optimizer.step()
        return table.weight

    assert torch.equal(run(None), run(3))


def test_cosines_beside_a_sum_over_all_rows_are_learned_from() -> None:
    start, query = (torch.randn(n, DIM, dtype=torch.float64) for n in (ROWS, 3))
    ids = torch.randint(-1, ROWS, (3, 5))
    table, plain = Table(start.clone()), start.clone().requires_grad_()
    (table.all().square().sum() + (table.cosines(query, ids) * (ids >= 0)).sum()).backward()
    products = torch.einsum("bd,bnd->bn", query, torch.nn.functional.normalize(plain, dim=1)[ids])
    (plain.square().sum() + (products * (ids >= 0)).sum()).backward()
    assert torch.allclose(dense(table.touched(), table.weight), plain.grad)


@pytest.mark.parametrize("per_row", [False, True])
def test_the_state_of_a_row_statistic_is_one_number_a_row(per_row: bool) -> None:
    table = Table(torch.zeros(ROWS, DIM))
    assert RowAdam(table, 0.1, per_row=per_row).second.shape == (ROWS, 1 if per_row else DIM)


@pytest.mark.parametrize("per_row", [False, True])
def test_the_plain_update_is_that_of_the_compiled_one(per_row: bool) -> None:
    """What runs where neither compiled code nor fused kernels do."""
    start = torch.randn(ROWS, DIM, dtype=torch.float64)
    tables = [Table(start.clone()) for _ in range(2)]
    compiled, plain = (RowAdam(t, 0.1, decay=0.2, per_row=per_row) for t in tables)
    for seed in range(4):
        ids = torch.randint(-1, ROWS, (3, 5), generator=torch.Generator().manual_seed(seed))
        query = torch.randn(3, DIM, dtype=torch.float64)
        for table in tables:
            loss = (table(ids) * (ids >= 0).unsqueeze(2)).square().sum()
            if seed % 2:  # gradients that point along the row, too
                loss = loss + (table.cosines(query, ids.flip(1)) * (ids >= 0).flip(1)).sum()
            loss.backward()
        compiled.step()
        lookups = sorted_by_row(plain.table.touched(), ROWS)
        with torch.no_grad():
            plain._update(*summed(lookups, plain.table.weight))
    for ours, theirs in zip(compiled._tables(), plain._tables(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-7)
