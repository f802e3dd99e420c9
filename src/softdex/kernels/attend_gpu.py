# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
"""Attention on a GPU: `dispatch.attend` and its gradient as Triton kernels.

A program handles one history and a block of nodes; it holds their hidden units for one history item
at a time. For that item, `see` times its vector is the same matrix for all nodes; its last row is
the item's own share, which meets a 1 appended to every node. Factors are split in two halves of
lower precision. Sums over nodes and histories add per-program parts in a fixed order, so results do
not depend on scheduling.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

NODES, WARPS = 32, 2  # per program: each warp computes 16 rows of a product
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # the interpreter cannot multiply bfloat16
HALF = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)
LEAST, MOST = 16, 4096  # smallest side of a product; entries of `see` that fit a program


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
    """Return the first position of a history that holds an item."""
    place = tl.arange(0, PLACES)
    there = tl.load(real + place, place < length, 0) > 0
    return tl.min(tl.where(there, place, length), 0)


@triton.jit
def _halves(x):
    """Split numbers into a high part and a rest, each of half the digits."""
    high = x.to(HALF)
    return high, (x - high.to(tl.float32)).to(HALF)


@triton.jit
def _product(x, x_rest, y, y_rest, EXACT: tl.constexpr):
    """Multiply two split matrices; the product of the two rests is negligible."""
    total = tl.dot(x, y)
    if EXACT:
        total = tl.dot(x_rest, y, total)
        total = tl.dot(x, y_rest, total)
    return total


@triton.jit
def _item(vectors, attention, see, at, d, a, dim: tl.constexpr, width: tl.constexpr):
    """Return the vector of an item, and the matrix that nodes are multiplied with."""
    v = tl.load(vectors + at * dim + d, d < dim, 0.0)
    t = tl.load(attention + at * width + a, a < width, 0.0)
    return v, see * v[:, None] + tl.where(d == dim, 1.0, 0.0)[:, None] * t[None, :]


@triton.jit
def _weights(
    vectors, attention, nodes, see, own, slope, weigh, bias, last_slope, real, out,
    count, length, EACH: tl.constexpr, dim: tl.constexpr, width: tl.constexpr,
    NODES: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, PLACES: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * NODES + tl.arange(0, NODES)
    d, a = tl.arange(0, DEEP), tl.arange(0, WIDE)
    lead = b * count if EACH else b * 0
    x = _read(nodes + lead * dim, n, d, count, dim)
    x, x_rest = _halves(tl.where((d == dim)[None, :], 1.0, x))
    mine = _read(own + lead * width, n, a, count, width)
    seen = _read(see, d, a, dim, width)
    above = tl.load(weigh + a, a < width, 0.0)
    below = above * tl.load(slope + a, a < width, 0.0)
    base, last = tl.load(bias), tl.load(last_slope)
    for k in range(_first(real + b * length, length, PLACES), length):
        _, right = _item(vectors, attention, seen, b * length + k, d, a, dim, width)
        right, right_rest = _halves(right)
        hidden = _product(x, x_rest, right, right_rest, EXACT) + mine
        each = tl.where(hidden > 0, above[None, :], below[None, :])
        weight = tl.sum(hidden * each, 1) + base
        weight = tl.where(weight > 0, weight, last * weight)
        weight = tl.where(tl.load(real + b * length + k) > 0, weight, 0.0)
        tl.store(out + (b * count + n) * length + k, weight, n < count)


@triton.jit
def _grads(
    grad, vectors, attention, nodes, see, own, slope, weigh, bias, last_slope, real,
    of_vectors, of_attention, of_nodes, of_see, of_own, of_units, of_ends,
    count, length, EACH: tl.constexpr, dim: tl.constexpr, width: tl.constexpr,
    NODES: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr, PLACES: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    part = b * tl.num_programs(1) + tl.program_id(1)
    n = tl.program_id(1) * NODES + tl.arange(0, NODES)
    d, a = tl.arange(0, DEEP), tl.arange(0, WIDE)
    lead = b * count if EACH else b * 0
    x = _read(nodes + lead * dim, n, d, count, dim)
    x, x_rest = _halves(tl.where((d == dim)[None, :], 1.0, x))
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
        v, right = _item(vectors, attention, seen, at, d, a, dim, width)
        right, right_rest = _halves(right)
        hidden = _product(x, x_rest, right, right_rest, EXACT) + mine
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
        turned, turned_rest = _halves(turned)
        by_x += _product(turned, turned_rest, tl.trans(right), tl.trans(right_rest), EXACT)
        by_right = _product(tl.trans(x), tl.trans(x_rest), turned, turned_rest, EXACT)
        by_see += by_right * v[:, None]
        here = part * length + k
        by_item = tl.sum(tl.where((d == dim)[:, None], by_right, 0.0), 0)
        tl.store(of_vectors + here * dim + d, tl.sum(by_right * seen, 1), d < dim)
        tl.store(of_attention + here * width + a, by_item, a < width)
    _write(of_nodes + b * count * dim, n, d, count, dim, by_x)
    _write(of_own + b * count * width, n, a, count, width, by_own)
    _write(of_see + part * dim * width, d, a, dim, width, by_see)
    tl.store(of_units + 2 * part * width + a, tl.sum(by_above, 0), a < width)
    tl.store(of_units + (2 * part + 1) * width + a, tl.sum(by_below, 0), a < width)
    tl.store(of_ends + 2 * part, tl.sum(by_base, 0))
    tl.store(of_ends + 2 * part + 1, tl.sum(by_last, 0))


def fits(see: Tensor) -> bool:
    """Return whether `see` is small enough for one program."""
    return _held(see.shape[0] + 1) * _held(see.shape[1]) <= MOST


def forward(*given: Tensor, exact: bool = True) -> Tensor:
    """Return the weights (B, N, L) for the arguments of `dispatch.attend`."""
    (size, length, _), count = given[0].shape, given[2].shape[-2]
    out = torch.zeros(size, count, length, device=given[0].device)
    grid = size, triton.cdiv(count, NODES)
    if out.numel():
        _weights[grid](*_flat(given), out, count, length, *_shape(given), exact, num_warps=WARPS)
    return out


def backward(grad: Tensor, *given: Tensor, exact: bool = True) -> tuple[Tensor, ...]:
    """Return the gradients of all arguments but `real`, from that of the weights (B, N, L)."""
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
            count, length, *_shape(given), exact, num_warps=WARPS,
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
    """Return whether each history has its own nodes, the sizes, and the padded sizes."""
    vectors, _, nodes, see, *_ = given
    (_, length, dim), width = vectors.shape, see.shape[1]
    held = _held(dim + 1), _held(width), _held(length)
    return nodes.ndim == 3, dim, width, NODES, *held


def _held(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))
