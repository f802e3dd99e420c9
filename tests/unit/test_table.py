"""Tables: lookups against autograd through a dense float64 matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from softdex.encode.table import Table, Touched
from softdex.solve.gradient.rowwise import RowAdam

ROWS, DIM, B, N = 12, 4, 3, 7
SEEDS = pytest.mark.parametrize("seed", range(4))


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A matrix, ids with pads and repeats, a weight for each id, queries."""
    generator = torch.Generator().manual_seed(seed)
    make = lambda *s: torch.randn(*s, dtype=torch.float64, generator=generator)  # noqa: E731
    ids = torch.randint(-1, ROWS - 3, (B, N), generator=generator)  # the last rows are nobody's
    ids[0, :2], ids[1, 3] = ids[0, 2], -1
    return make(ROWS, DIM), ids, make(B, N), make(B, DIM)


def gathered(touched: list[Touched], matrix: Tensor) -> Tensor:
    """The gradient of every row of a matrix, one lookup after the other."""
    total = torch.zeros(ROWS, DIM, dtype=torch.float64)
    for t in touched:
        if t.ids is None:
            total += t.grad
            continue
        for m, row in enumerate(t.ids.tolist()):
            grad = t.grad[m if t.source is None else int(t.source[m])]
            if row >= 0:
                total[row] += grad * (1 if t.weight is None else t.weight[m])
                total[row] += 0 if t.pull is None else t.pull[m] * matrix[row]
    return total


def dense_bag(matrix: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    zero = torch.zeros(DIM, dtype=torch.float64)
    bags = []
    for row, each in zip(ids.tolist(), weight, strict=True):
        bags.append(sum((each[j] * matrix[i] for j, i in enumerate(row) if i >= 0), zero))
    return torch.stack(bags)


def dense_dots(matrix: Tensor, ids: Tensor, query: Tensor) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64)
    rows = [
        torch.stack([matrix[i] @ z if i >= 0 else zero for i in row])
        for row, z in zip(ids.tolist(), query, strict=True)
    ]
    return torch.stack(rows)


@SEEDS
def test_a_bag_has_the_value_and_the_gradient_of_the_dense_sum(seed: int) -> None:
    matrix, ids, weight, pull = draw(seed)
    table, dense = Table(matrix.clone()), matrix.clone().requires_grad_()
    ours, theirs = table.bag(ids, weight), dense_bag(dense, ids, weight)
    assert torch.allclose(ours, theirs)
    (ours.sin() * pull).sum().backward()
    (theirs.sin() * pull).sum().backward()
    assert torch.allclose(gathered(table.touched(), table.weight), dense.grad)


@SEEDS
def test_dots_have_the_value_and_both_gradients_of_the_dense_products(seed: int) -> None:
    """To single precision: the query, as the gradient of a row, is kept in it."""
    matrix, ids, pull, query = draw(seed)
    real = ids >= 0
    table, dense = Table(matrix.clone()), matrix.clone().requires_grad_()
    mine, other = query.clone().requires_grad_(), query.clone().requires_grad_()
    ours, theirs = table.dots(mine, ids), dense_dots(dense, ids, other)
    assert torch.allclose(ours[real], theirs[real])
    (ours.sin() * pull)[real].sum().backward()
    (theirs.sin() * pull)[real].sum().backward()
    assert torch.allclose(mine.grad, other.grad)
    assert torch.allclose(gathered(table.touched(), table.weight), dense.grad, rtol=1e-6, atol=1e-6)


@SEEDS
def test_cosines_have_the_value_and_both_gradients_of_products_with_directions(seed: int) -> None:
    """A row of length 0 has no direction: its cosine is 0."""
    matrix, ids, pull, query = draw(seed)
    matrix[5], matrix[6] = 0.0, 1e-14
    real = ids >= 0
    table, dense = Table(matrix.clone()), matrix.clone().requires_grad_()
    mine, other = query.clone().requires_grad_(), query.clone().requires_grad_()
    ours, theirs = table.cosines(mine, ids), dense_dots(normalize(dense, dim=1), ids, other)
    assert torch.allclose(ours[real], theirs[real])
    (ours.sin() * pull)[real].sum().backward()
    (theirs.sin() * pull)[real].sum().backward()
    assert torch.allclose(mine.grad, other.grad)
    assert torch.allclose(gathered(table.touched(), matrix), dense.grad)
    assert torch.allclose(table.eval().cosines(query, ids)[real], theirs[real])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, N])
def test_products_are_the_same_compiled_and_in_plain_torch(
    columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, ids, pull, query = draw(0)
    table, query = Table(matrix.to(dtype)), query.to(dtype).requires_grad_()
    ids, real = ids[:, :columns], ids[:, :columns] >= 0

    def found(way: str) -> list[Tensor]:
        products = getattr(table, way)(query, ids)
        assert products.dtype == dtype
        (products * pull[:, :columns])[real].sum().backward()
        gradient, query.grad = query.grad, None
        assert gradient is not None
        kept = [t for t in table.touched()[0] if t is not None]
        return [products[real].detach(), gradient, *kept]

    for way in ("dots", "cosines"):
        with monkeypatch.context() as patch:
            patch.setattr("softdex.encode.table.products_for", lambda tensor: None)
            plain = found(way)
        for ours, theirs in zip(found(way), plain, strict=True):
            assert torch.allclose(ours.double(), theirs.double(), atol=1e-5)


@pytest.mark.parametrize("way", ["dots", "cosines"])
def test_an_id_beyond_the_table_is_refused(way: str) -> None:
    matrix, ids, _, query = draw(0)
    ids[1, 2] = ROWS
    with pytest.raises(IndexError, match=r"12|out of bounds"):
        getattr(Table(matrix), way)(query, ids)


@SEEDS
def test_a_pad_has_no_part_in_a_bag_nor_an_update_whatever_its_weight(seed: int) -> None:
    """Row 0, the last row and the rows that nobody looked up keep their bits, ages and moments."""
    matrix, ids, weight, query = draw(seed)
    ids = torch.where(ids == 0, -1, ids)
    table = Table(matrix.clone())
    optimizer = RowAdam(table, 0.1, decay=0.5)
    for _ in range(2):
        bag = table.bag(ids, weight)
        assert torch.allclose(bag, dense_bag(table.weight, ids, weight))
        products = table.dots(query.clone().requires_grad_(), ids)
        (bag.sum() + products.sum() + table(ids).sum()).backward()
        optimizer.step()
    met = set(ids.flatten().tolist()) - {-1}
    assert 0 not in met
    assert ROWS - 1 not in met
    for row in range(ROWS):
        assert torch.equal(table.weight[row], matrix[row]) == (row not in met)
        assert optimizer.age[row].item() == (2 if row in met else 0)


def test_the_query_gets_nothing_from_a_pad() -> None:
    matrix, _, _, query = draw(0)
    table, query = Table(matrix), query.requires_grad_()
    table.dots(query, torch.full((B, 2), -1)).sum().backward()
    assert (query.grad == 0).all()
    assert (gathered(table.touched(), table.weight) == 0).all()


def test_only_pads_change_nothing() -> None:
    matrix, _, weight, query = draw(0)
    table, nobody = Table(matrix.clone()), torch.full((B, N), -1)
    optimizer = RowAdam(table, 0.1, decay=0.5)
    bag = table.bag(nobody, weight)
    assert (bag == 0).all()
    (bag.sum() + table.dots(query.requires_grad_(), nobody).sum()).backward()
    optimizer.step()
    assert torch.equal(table.weight, matrix)
    assert (optimizer.age == 0).all()


def test_the_graph_of_dots_keeps_the_queries_and_the_ids_and_nothing_larger() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, 8, generator=generator, requires_grad=True)
    ids = torch.randint(50, (5, 40), generator=generator)
    table, kept = Table(torch.randn(50, 8, generator=generator)), []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        products = table.dots(query, ids)
    assert sorted(kept) == [query.numel(), ids.numel()]
    products.sum().backward()
    assert [t.grad.numel() for t in table.touched()] == [query.numel()]


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["some rows", "all rows as well"])
@SEEDS
def test_lookups_of_every_kind_in_one_step_add_up_to_one_step_of_a_dense_adam(
    seed: int, whole: bool, per_row: bool
) -> None:
    """A row steps once, with the sum of its gradients, at its own age."""
    matrix, _, _, _ = draw(seed)
    table, lr = Table(matrix.clone()), 0.0625  # the same in any precision
    optimizer = RowAdam(table, lr, per_row=per_row, decay=0.1)
    weight, first, second = matrix.clone(), torch.zeros_like(matrix), torch.zeros_like(matrix)
    age = [0] * ROWS
    for step in range(4):
        _, ids, each, query = draw(100 * seed + step)
        alone = ids[:, 0]
        # single precision of the query in `dots` is not what is tested here
        query, real = query.float().double(), (ids >= 0).double()

        q = query.clone().requires_grad_()
        loss = (table.bag(ids, each) * query).sum() + (table.dots(q, ids) * each * real).sum()
        loss = loss + (table(ids).square().sum(2) * real).sum()
        loss = loss + (table(alone).sum(1) * real[:, 0]).sum()
        loss = loss + (table.all().square().sum() if whole else 0)
        loss.backward()
        optimizer.step()

        dense = weight.clone().requires_grad_()
        loss = (dense_bag(dense, ids, each) * query).sum()
        loss = loss + (dense_dots(dense, ids, query) * each).sum()
        loss = loss + sum(dense[i].square().sum() for i in ids.flatten().tolist() if i >= 0)
        loss = loss + sum(dense[i].sum() for i in alone.tolist() if i >= 0)
        loss = loss + (dense.square().sum() if whole else 0)
        loss.backward()
        for row in range(ROWS) if whole else sorted(set(ids.flatten().tolist()) - {-1}):
            g = dense.grad[row]
            age[row] += 1
            first[row] = 0.9 * first[row] + 0.1 * g
            square = g.square().mean() if per_row else g.square()
            second[row] = 0.999 * second[row] + 0.001 * square
            mean = first[row] / (1 - 0.9 ** age[row])
            spread = (second[row] / (1 - 0.999 ** age[row])).sqrt() + 1e-8
            weight[row] -= lr * (mean / spread + 0.1 * weight[row])
        assert torch.allclose(table.weight, weight, atol=1e-10)


def test_a_lookup_without_a_gradient_is_forgotten_and_one_step_takes_what_there_is() -> None:
    matrix, ids, weight, query = draw(0)
    table = Table(matrix)
    table.bag(ids, weight)
    table(ids)
    table.dots(query.requires_grad_(), ids)
    assert table.touched() == []
    table.bag(ids, weight).sum().backward()
    assert len(table.touched()) == 1
    assert table.touched() == []


def test_outside_training_nothing_is_remembered() -> None:
    matrix, ids, weight, query = draw(0)
    table = Table(matrix).eval()
    query.requires_grad_()
    assert not table.bag(ids, weight).requires_grad
    real = ids >= 0
    assert torch.allclose(table.dots(query, ids)[real], dense_dots(matrix, ids, query)[real])
    table.dots(query, ids).sum().backward()
    assert table.touched() == []


def test_the_rows_of_dots_learn_from_a_query_that_does_not() -> None:
    matrix, ids, _, query = draw(0)
    table, dense = Table(matrix.clone()), matrix.clone().requires_grad_()
    table.dots(query, ids).square().sum().backward()
    dense_dots(dense, ids, query).square().sum().backward()
    assert torch.allclose(gathered(table.touched(), table.weight), dense.grad, atol=1e-5)


def test_the_gradient_of_dots_has_the_precision_of_the_table() -> None:
    matrix, ids, _, query = draw(0)
    table, dense = Table(matrix.clone()), matrix.clone().requires_grad_()
    ids = ids.clamp(min=0)
    table.dots(query.clone().requires_grad_(), ids).sum().backward()
    dense_dots(dense, ids, query).sum().backward()
    assert torch.allclose(
        gathered(table.touched(), table.weight), dense.grad, rtol=1e-12, atol=1e-12
    )
