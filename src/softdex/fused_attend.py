# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
"""Fused attention: what `attend_plain` does, and its gradient, as GPU kernels (Triton).

A program has a history and a block of nodes, whose hidden units it holds for one item of the
history at a time. Sums over nodes and histories are sums of parts, so they never depend on the
order in which programs end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NODES = 16  # of a program
LEAST, MOST = 16, 4096  # rows and columns that a product wants; cells of `see` that fit a program


@triton.jit
def _read(at, rows, columns, height, width: tl.constexpr):
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(at + rows[:, None] * width + columns[None, :], inside, 0.0)


@triton.jit
def _write(at, rows, columns, height, width: tl.constexpr, values):
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    tl.store(at + rows[:, None] * width + columns[None, :], values, inside)


@triton.jit
def _first(real, length, PLACES: tl.constexpr):
    """The first place of a history that has an item."""
    place = tl.arange(0, PLACES)
    there = tl.load(real + place, place < length, 0) > 0
    return tl.min(tl.where(there, place, length), 0)


@triton.jit
def _weights(
    vectors, attention, nodes, see, own, slope, weigh, bias, last_slope, real, out,
    count, length, EACH: tl.constexpr, dim: tl.constexpr, width: tl.constexpr,
    NODES: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NODES + tl.arange(0, NODES)
    d, a = tl.arange(0, DEEP), tl.arange(0, WIDE)
    lead = b * count if EACH else b * 0
    x = _read(nodes + lead * dim, n, d, count, dim)
    mine = _read(own + lead * width, n, a, count, width)
    seen = _read(see, d, a, dim, width)
    above = tl.load(weigh + a, a < width, 0.0)
    below = above * tl.load(slope + a, a < width, 0.0)
    base, last = tl.load(bias), tl.load(last_slope)
    for k in range(_first(real + b * length, length, PLACES), length):
        at = b * length + k
        v = tl.load(vectors + at * dim + d, d < dim, 0.0)
        t = tl.load(attention + at * width + a, a < width, 0.0)
        hidden = tl.dot(x * v[None, :], seen, input_precision="tf32x3") + mine + t[None, :]
        each = tl.where(hidden > 0, above[None, :], below[None, :])
        weight = tl.sum(hidden * each, 1) + base
        weight = tl.where(weight > 0, weight, last * weight)
        weight = tl.where(tl.load(real + at) > 0, weight, 0.0)
        tl.store(out + (b * count + n) * length + k, weight, n < count)


@triton.jit
def _grads(
    grad, vectors, attention, nodes, see, own, slope, weigh, bias, last_slope, real,
    of_vectors, of_attention, of_nodes, of_see, of_own, of_units, of_ends,
    count, length, EACH: tl.constexpr, dim: tl.constexpr, width: tl.constexpr,
    NODES: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    part = b * tl.num_programs(1) + tl.program_id(1)
    n = tl.program_id(1) * NODES + tl.arange(0, NODES)
    d, a = tl.arange(0, DEEP), tl.arange(0, WIDE)
    lead = b * count if EACH else b * 0
    x = _read(nodes + lead * dim, n, d, count, dim)
    mine = _read(own + lead * width, n, a, count, width)
    seen = _read(see, d, a, dim, width)
    above = tl.load(weigh + a, a < width, 0.0)
    below = above * tl.load(slope + a, a < width, 0.0)
    base, last = tl.load(bias), tl.load(last_slope)
    by_x, by_see = tl.zeros((NODES, DEEP), tl.float32), tl.zeros((DEEP, WIDE), tl.float32)
    by_own = tl.zeros((NODES, WIDE), tl.float32)
    by_above, by_below = tl.zeros((NODES, WIDE), tl.float32), tl.zeros((NODES, WIDE), tl.float32)
    by_base, by_last = tl.zeros((NODES,), tl.float32), tl.zeros((NODES,), tl.float32)
    for k in range(_first(real + b * length, length, PLACES), length):
        at = b * length + k
        v = tl.load(vectors + at * dim + d, d < dim, 0.0)
        t = tl.load(attention + at * width + a, a < width, 0.0)
        both = x * v[None, :]
        hidden = tl.dot(both, seen, input_precision="tf32x3") + mine + t[None, :]
        each = tl.where(hidden > 0, above[None, :], below[None, :])
        weight = tl.sum(hidden * each, 1) + base
        pull = tl.load(grad + (b * count + n) * length + k, n < count, 0.0)
        pull = tl.where(tl.load(real + at) > 0, pull, 0.0)
        by_last += tl.where(weight > 0, 0.0, pull * weight)
        pull = tl.where(weight > 0, pull, pull * last)
        by_base += pull
        by_above += pull[:, None] * tl.where(hidden > 0, hidden, 0.0)
        by_below += pull[:, None] * tl.where(hidden > 0, 0.0, hidden)
        turned = pull[:, None] * each
        by_own += turned
        by_see = tl.dot(tl.trans(both), turned, by_see, input_precision="tf32x3")
        by_both = tl.dot(turned, tl.trans(seen), input_precision="tf32x3")
        by_x += by_both * v[None, :]
        here = part * length + k
        tl.store(of_vectors + here * dim + d, tl.sum(by_both * x, 0), d < dim)
        tl.store(of_attention + here * width + a, tl.sum(turned, 0), a < width)
    _write(of_nodes + b * count * dim, n, d, count, dim, by_x)
    _write(of_own + b * count * width, n, a, count, width, by_own)
    _write(of_see + part * dim * width, d, a, dim, width, by_see)
    tl.store(of_units + 2 * part * width + a, tl.sum(by_above, 0), a < width)
    tl.store(of_units + (2 * part + 1) * width + a, tl.sum(by_below, 0), a < width)
    tl.store(of_ends + 2 * part, tl.sum(by_base, 0))
    tl.store(of_ends + 2 * part + 1, tl.sum(by_last, 0))


def fits(see: Tensor) -> bool:
    """Whether a program can hold what it needs, given how products are seen."""
    return _held(see.shape[0]) * _held(see.shape[1]) <= MOST


def forward(*given: Tensor) -> Tensor:
    """Weights (B, N, L), of what `attend` is given."""
    (size, length, _), count = given[0].shape, given[2].shape[-2]
    out = torch.zeros(size, count, length, device=given[0].device)
    grid = size, triton.cdiv(count, NODES)
    if out.numel():
        _weights[grid](*_flat(given), out, count, length, *_shape(given))
    return out


def backward(grad: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    """Gradients of all but the last that `attend` is given, by that of the weights."""
    vectors, _, nodes, see, _, slope, weigh, *_ = given
    (size, length, dim), count, width = vectors.shape, nodes.shape[-2], see.shape[1]
    parts = triton.cdiv(count, NODES)
    empty, zeros = see.new_empty, see.new_zeros
    of_vectors = zeros(size, parts, length, dim)
    of_attention = zeros(size, parts, length, width)
    of_nodes, of_own = empty(size, count, dim), empty(size, count, width)
    of_see, of_units = empty(size * parts, dim, width), empty(size * parts, 2, width)
    of_ends = empty(size * parts, 2)
    if size * parts:
        _grads[size, parts](
            grad.contiguous(), *_flat(given),
            of_vectors, of_attention, of_nodes, of_see, of_own, of_units, of_ends,
            count, length, *_shape(given),
        )  # fmt: skip
    above, below = of_units.sum(0)
    if nodes.ndim == 2:
        of_nodes, of_own = of_nodes.sum(0), of_own.sum(0)
    return (
        of_vectors.sum(1), of_attention.sum(1), of_nodes, of_see.sum(0), of_own,
        weigh * below, above + slope * below, *of_ends.sum(0),
    )  # fmt: skip


def _flat(given: tuple[Tensor, ...]) -> list[Tensor]:
    *numbers, real = (t.detach().contiguous() for t in given)
    return [*numbers, real.view(torch.uint8)]


def _shape(given: tuple[Tensor, ...]) -> tuple[bool | int, ...]:
    """Whether each history has its own nodes, and sizes, also of what a program holds."""
    vectors, _, nodes, see, *_ = given
    (_, length, dim), width = vectors.shape, see.shape[1]
    return nodes.ndim == 3, dim, width, NODES, _held(dim), _held(width), _held(length)


def _held(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))
