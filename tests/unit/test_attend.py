"""The fused attention equals the plain one: compiled for a CPU, and for a GPU in Triton's
interpreter, which needs a process of its own, since Triton must know of it from its import on."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from softdex.kernels import attend_cpu as module
from softdex.kernels.dispatch import attend, attend_plain

Kernels = Callable[..., list[Tensor]]
NAMES = (
    "vectors", "attention", "nodes", "see", "own", "slope", "weigh", "bias", "last_slope",
)  # fmt: skip
# histories, nodes, items of a history, numbers of a vector, units: one of each; as in training;
# more nodes than a block; units that fill whole instructions; many
SHAPES = [
    (1, 1, 1, 1, 1),
    (5, 21, 9, 24, 36),
    (2, 150, 4, 7, 5),
    (3, 4, 5, 8, 16),
    (40, 3, 2, 3, 50),
]
BY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)
SHARED = pytest.mark.parametrize("shared", [False, True], ids=["own nodes", "shared nodes"])


def draw(
    shape: tuple[int, ...], shared: bool, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], Tensor]:
    """Random arguments of `attend`, and histories with a beginning and gaps; the first is full."""
    size, count, length, dim, width = shape
    generator = torch.Generator().manual_seed(size + count)
    lead = () if shared else (size,)
    sizes = [
        (size, length, dim), (size, length, width), (*lead, count, dim), (dim, width),
        (*lead, count, width), (width,), (width,), (), (),
    ]  # fmt: skip
    given = [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in sizes]
    real = torch.rand(size, length, generator=generator) > 0.2
    real &= torch.arange(length) >= torch.randint(length, (size, 1), generator=generator)
    real[0] = True
    return given, real


def pulled(function: Callable[..., Tensor], given: list[Tensor], real: Tensor) -> list[Tensor]:
    """Weights, and the gradients of all that is given."""
    weight = function(*given, real)
    pull = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return [weight.detach(), *torch.autograd.grad(weight, given, pull.to(weight.dtype))]


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for name, mine, other in zip(("weight", *NAMES), ours, theirs, strict=True):
        assert mine.shape == other.shape, name
        assert mine.dtype == other.dtype, name
        scale = 1 + float(other.abs().max())
        assert torch.allclose(mine / scale, other / scale, rtol=0, atol=tolerance), name


@BY_SHAPE
@SHARED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_and_gradients_equal_the_plain_ones(
    shape: tuple[int, ...], shared: bool, dtype: torch.dtype
) -> None:
    given, real = draw(shape, shared, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    agree(pulled(attend, given, real), pulled(attend_plain, given, real), tolerance)


@SHARED
def test_gradients_are_those_of_small_differences(shared: bool) -> None:
    given, real = draw((3, 5, 4, 3, 2), shared, torch.float64)
    assert torch.autograd.gradcheck(lambda *given: attend(*given, real), given)


def test_a_weight_is_what_the_loops_of_the_equation_give() -> None:
    given, real = draw((2, 3, 4, 3, 5), False, torch.float64)
    weight = attend(*given, real).detach().numpy()
    vectors, attention, nodes, see, own, slope, weigh, bias, last = (
        t.detach().numpy() for t in given
    )
    for b, n, k in np.ndindex(weight.shape):
        total = float(bias)
        for a in range(5):
            hidden = attention[b, k, a] + own[b, n, a]
            hidden += sum(vectors[b, k, d] * nodes[b, n, d] * see[d, a] for d in range(3))
            total += weigh[a] * (hidden if hidden > 0 else slope[a] * hidden)
        total = total if total > 0 else last * total
        assert weight[b, n, k] == pytest.approx(total if real[b, k] else 0.0)


@SHARED
def test_padding_is_not_looked_at_and_has_no_gradient(shared: bool) -> None:
    given, real = draw((5, 21, 9, 24, 36), shared)
    clean = pulled(attend, given, real)
    for i in (0, 1):
        given[i] = torch.where(real.unsqueeze(2), given[i], torch.nan).detach().requires_grad_()
    dirty = pulled(attend, given, real)
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before, after)
    assert (dirty[0].transpose(1, 2)[~real] == 0).all()
    assert (dirty[1][~real] == 0).all()
    assert (dirty[2][~real] == 0).all()


def test_an_empty_history_gives_0_and_no_gradient() -> None:
    given, real = draw((3, 4, 5, 8, 16), False)
    for found in pulled(attend, given, torch.zeros_like(real)):
        assert (found == 0).all()


@pytest.mark.parametrize("shape", [(0, 3, 4, 2, 2), (2, 0, 4, 2, 2), (2, 3, 0, 2, 2)], ids=str)
def test_without_histories_nodes_or_items_there_is_nothing_to_weigh(shape: tuple[int, ...]) -> None:
    size, count, length, dim, width = shape
    sizes = [(size, length, dim), (size, length, width), (size, count, dim), (dim, width)]
    sizes += [(size, count, width), (width,), (width,), (), ()]
    given = [torch.ones(s, requires_grad=True) for s in sizes]
    weight, *grads = pulled(attend, given, torch.ones(size, length, dtype=torch.bool))
    assert weight.shape == (size, count, length)
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("shape", [(1, 300, 9, 24, 36), (37, 70, 5, 24, 36)], ids=str)
@SHARED
def test_any_number_of_threads_gives_the_same_bits(
    shape: tuple[int, ...], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_A_THREAD", 1)
    given, real = draw(shape, shared)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(pulled(attend, given, real))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert torch.equal(mine, theirs)


def test_arguments_that_lie_oddly_in_memory_are_read_right() -> None:
    given, real = draw((5, 21, 9, 24, 36), False)
    crooked = [t.detach().mT.contiguous().mT if t.ndim > 1 else t.detach() for t in given]
    crooked[5] = torch.stack([given[5].detach()] * 2, 1)[:, 0]
    crooked = [t.requires_grad_() for t in crooked]
    agree(pulled(attend, crooked, real.T.contiguous().T), pulled(attend, given, real), 0.0)


def test_nothing_is_kept_where_no_gradient_is_needed() -> None:
    given, real = draw((3, 4, 5, 8, 16), False)
    with torch.no_grad():
        assert attend(*given, real).grad_fn is None
    with torch.inference_mode():
        assert attend(*given, real).is_inference()
    assert attend(*(t.detach() for t in given), real).grad_fn is None


def test_numbers_of_several_kinds_become_one() -> None:
    given, real = draw((3, 4, 5, 8, 16), False)
    mixed = [
        t.bfloat16() if name in ("attention", "own") else t
        for name, t in zip(NAMES, given, strict=True)
    ]
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(*mixed, real)
    assert torch.equal(found, attend(*(t.float() for t in mixed), real))


# in Triton's interpreter -------------------------------------------------------------------------


def interpreted(name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """In the other process: call a kernel."""
    fused = importlib.import_module("softdex.kernels.attend_gpu")
    found = getattr(fused, name)(*map(torch.from_numpy, arguments))
    return [t.numpy() for t in ([found] if isinstance(found, Tensor) else found)]


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: there are no fused kernels to test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:

            def call(name: str, *arguments: Tensor) -> list[Tensor]:
                arrays = [a.detach().numpy() for a in arguments]
                return [
                    torch.from_numpy(a) for a in pool.submit(interpreted, name, arrays).result()
                ]

            yield call


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (3, 21, 4, 24, 36), (2, 40, 3, 7, 17)], ids=str)
@SHARED
def test_the_kernels_of_a_gpu_equal_the_plain_path(
    kernels: Kernels, shape: tuple[int, ...], shared: bool
) -> None:
    given, real = draw(shape, shared)
    (weight,) = kernels("forward", *given, real)
    pull = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    grads = kernels("backward", pull, *given, real)
    agree([weight, *grads], pulled(attend_plain, given, real), 1e-5)


def test_the_kernels_of_a_gpu_give_an_empty_history_0_and_no_gradient(kernels: Kernels) -> None:
    given, real = draw((2, 5, 4, 3, 2), False)
    nothing = torch.zeros_like(real)
    (weight,) = kernels("forward", *given, nothing)
    for found in (weight, *kernels("backward", torch.ones_like(weight), *given, nothing)):
        assert (found == 0).all()
