"""Attend: what each item of a history weighs for each node of a tree, by a small network.

    hidden_bnka = attention_bka + own_bna + sum over d of vectors_bkd nodes_bnd see_da
    weight_bnk = real_bk prelu(sum over a of weigh_a prelu(hidden_bnka) + bias)

Shapes: B histories of L items, N nodes, D numbers a vector, A of the attention. The hidden numbers
are A times as many as the weights, and are never kept: the gradient computes them again.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numba import extending
from numba.core import cgutils, types
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, prelu

from softdex.tables import say_if_compiling

tools: Any = cgutils
ir: Any = tools.ir
intrinsic: Any = extending.intrinsic
FAST = {"contract", "reassoc", "nsz"}
LANES, ROWS = 8, 4  # numbers of an instruction, and rows of a product that share its operands
BLOCK = 64  # nodes at a time: what is computed of them stays in the nearest cache
CHUNKS = 16  # sums over histories have so many parts, whatever the number of threads
WORTH_A_THREAD = 3_000_000  # products that a thread should have to add


def attend(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> Tensor:
    """What each item of a history weighs for each node, 0 where there is no item.

    Args:
        vectors: of the items of histories (B, L, D).
        attention: what they add to the hidden units (B, L, A).
        nodes: vectors (B, N, D), or (N, D) for all histories.
        see: how the products of the two are seen (D, A).
        own: what nodes add to the hidden units, (B, N, A) or (N, A) like `nodes`.
        slope: of each hidden unit below 0 (A,).
        weigh: what it weighs (A,).
        bias: of the weight ().
        last_slope: of the weight below 0 ().
        real: where there is an item (B, L).

    Returns:
        weights (B, N, L).
    """
    given = vectors, attention, nodes, see, own, slope, weigh, bias, last_slope
    kernels = _kernels(given)
    if kernels is None:
        return attend_plain(*given, real)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return _Attend.apply(*given, real)  # type: ignore[no-untyped-call]
    return kernels[0](*given, real)


def attend_plain(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> Tensor:
    """The same step by step, by torch: for any device and any kind of number."""
    (size, length, _), (count, width) = vectors.shape, (nodes.shape[-2], see.shape[1])
    products = (nodes.unsqueeze(-1) * see).transpose(-3, -2)  # (.., D, N, A)
    hidden = vectors @ products.reshape(*products.shape[:-2], count * width)
    hidden = hidden.view(size, length, count, width) + attention.unsqueeze(2)
    hidden = hidden + (own if own.ndim == 2 else own.unsqueeze(1))
    weight = prelu(hidden.flatten(0, 2), slope) @ weigh + bias
    weight = prelu(weight, last_slope).view(size, length, count)
    return (weight * real.unsqueeze(2)).transpose(1, 2)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        kernels = _kernels(given[:-1])
        assert kernels is not None
        weights, ctx.grads = kernels
        return weights(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.grads(grads[0], *ctx.saved_tensors), None


def _kernels(given: tuple[Tensor, ...]) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """What computes weights, and gradients of all that is given, if there is such for it."""
    kinds = {(t.device.type, t.dtype) for t in given}
    if kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)}):
        return _forward, _backward
    fused = _fused() if kinds == {("cuda", torch.float32)} else None
    return (fused.forward, fused.backward) if fused is not None and fused.fits(given[3]) else None


@functools.cache
def _fused() -> Any:
    try:
        return importlib.import_module("softdex.fused_attend")
    except ImportError:  # no Triton on this system
        return None


# on a CPU ----------------------------------------------------------------------------------------
# Of each item of a history, see_da vectors_kd is one matrix for all nodes: hidden units are a
# product of it and the nodes, a 1 added to these to meet the item's own share. Rows are padded to
# whole vector instructions.


def _forward(*given: Tensor) -> Tensor:
    arrays, see = _arrays(*given), given[3]
    (size, length, _), count = given[0].shape, given[2].shape[-2]
    threads = _threads(size * count * length * see.numel())
    least = -(-threads // max(1, size))  # of a history, for each thread to have one
    parts = max(1, -(-count // (BLOCK * least))) * least
    out = np.zeros((size, count, length), arrays[0].dtype)  # torch would wake its own threads
    say_if_compiling(_weights, "attention")
    _spread(lambda first: _weights(*arrays, out, parts, first, threads), threads)  # type: ignore[call-arg]
    return torch.from_numpy(out)


def _backward(grad: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    vectors, attention, nodes, see, own, slope, weigh, *_ = (t.detach() for t in given)
    arrays, (dim, width), shared = _arrays(*given), see.shape, nodes.ndim == 2
    chunks = max(1, min(len(vectors), CHUNKS))
    lead = (chunks,) if shared else ()
    shapes = [vectors.shape, attention.shape, (*lead, *nodes.shape), (*lead, *own.shape)]
    shapes += [(chunks, dim, _whole(width)), (chunks, 2, _whole(width))]
    found = [np.zeros(shape, arrays[0].dtype) for shape in shapes]
    ends = np.zeros((chunks, 2))
    turned = pad(see.T, (0, _whole(dim) - dim)).contiguous()
    arrays += [turned.numpy(), grad.contiguous().numpy()]
    threads = min(chunks, _threads(3 * grad.numel() * see.numel()))
    say_if_compiling(_grads, "the gradient of attention")
    _spread(lambda first: _grads(*arrays, *found, ends, chunks, first, threads), threads)  # type: ignore[call-arg]
    for i in range(2 if shared else 4, len(found)):
        found[i] = found[i].sum(0)
    of_vectors, of_attention, of_nodes, of_own, of_see, of_units = map(torch.from_numpy, found)
    above, below = of_units[:, :width]
    return (
        of_vectors, of_attention, of_nodes, of_see[:, :width], of_own,
        weigh * below, above + slope * below, *torch.from_numpy(ends.sum(0)).to(see),
    )  # fmt: skip


def _arrays(
    vectors: Tensor,
    attention: Tensor,
    nodes: Tensor,
    see: Tensor,
    own: Tensor,
    slope: Tensor,
    weigh: Tensor,
    bias: Tensor,
    last_slope: Tensor,
    real: Tensor,
) -> list[np.ndarray]:
    """As the compiled code takes it: nodes with an axis of histories, units padded."""
    more = _whole(see.shape[1]) - see.shape[1]
    nodes, own = (t if t.ndim == 3 else t.unsqueeze(0) for t in (nodes, own))
    units = torch.stack([weigh, weigh * slope])  # of a hidden unit above 0, and below
    ends = torch.stack([bias, last_slope])
    taken = vectors, attention, nodes, own, pad(see, (0, more)), pad(units, (0, more)), ends, real
    return [t.detach().contiguous().numpy() for t in taken]


def _whole(width: int) -> int:
    return -(-width // LANES) * LANES


def _threads(products: int) -> int:
    return max(1, min(torch.get_num_threads(), products // WORTH_A_THREAD))


def _spread(work: Callable[[int], None], threads: int) -> None:
    """Call for 0, 1, ... as many threads, the last one here."""
    others = [_pool(threads - 1).submit(work, i) for i in range(threads - 1)]
    work(threads - 1)
    for done in others:
        done.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not follow


# lanes: vector instructions, which the compiler does not find by itself for loops as short as these


class Lanes(types.Type):
    """Numbers that one instruction takes."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(name=f"Lanes({dtype})")
        self.dtype = dtype


@extending.register_model(Lanes)
class _LanesModel(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        number = manager[kind.dtype].get_value_type()
        super().__init__(manager, kind, ir.VectorType(number, LANES))  # type: ignore[no-untyped-call]


class _Code:
    """Writes instructions on lanes of numbers of a kind."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder, self.dtype = context, builder, dtype
        number = context.get_value_type(dtype)
        self.kind, self.bytes = ir.VectorType(number, LANES), context.get_abi_sizeof(number)

    def place(self, kind: Any, array: Any, row: Any, column: Any) -> Any:
        """The address in an array of two axes without gaps."""
        held = self.context.make_array(kind)(self.context, self.builder, array)
        stride = self.builder.extract_value(held.shape, 1)
        at = self.builder.add(self.builder.mul(row, stride), column)
        return self.builder.gep(held.data, [at])

    def load(self, place: Any) -> Any:
        place = self.builder.bitcast(place, self.kind.as_pointer())
        return self.builder.load(place, align=self.bytes)

    def store(self, value: Any, place: Any) -> None:
        place = self.builder.bitcast(place, self.kind.as_pointer())
        self.builder.store(value, place, align=self.bytes)

    def all(self, value: Any, kind: Any) -> Any:
        """Lanes as they are, or a number in each of them."""
        if isinstance(kind, Lanes):
            return value
        value = self.context.cast(self.builder, value, kind, self.dtype)
        whole, first = ir.Constant(self.kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(
            self.builder.insert_element(whole, value, first), whole, every
        )

    def add_product(self, total: Any, x: Any, y: Any) -> Any:
        flags = ("contract", "nsz")
        return self.builder.fadd(total, self.builder.fmul(x, y, flags=flags), flags=flags)


@intrinsic
def _load(typing, array, row, column):  # type: ignore[no-untyped-def]
    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        return code.load(code.place(signature.args[0], *args))

    return Lanes(array.dtype)(array, types.intp, types.intp), write


@intrinsic
def _store(typing, array, row, column, lanes):  # type: ignore[no-untyped-def]
    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        code.store(args[3], code.place(signature.args[0], *args[:3]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, lanes), write


@intrinsic
def _mul_add(typing, x, y, total):  # type: ignore[no-untyped-def]
    """x y + total, of lanes, or a number for all of them; the last are lanes."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.return_type.dtype)
        x, y, total = (code.all(a, kind) for a, kind in zip(args, signature.args, strict=True))
        return code.add_product(total, x, y)

    lanes = next(kind for kind in (x, y, total) if isinstance(kind, Lanes))
    return lanes(x, y, total), write


@intrinsic
def _bend(typing, lanes, above, below):  # type: ignore[no-untyped-def]
    """One of two where lanes are above 0, the other one elsewhere."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        code = _Code(context, builder, signature.args[0].dtype)
        _, above, below = (code.all(a, kind) for a, kind in zip(args, signature.args, strict=True))
        up = builder.fcmp_ordered(">", args[0], ir.Constant(code.kind, None))
        return builder.select(up, above, below)

    return lanes(lanes, above, below), write


@intrinsic
def _total(typing, lanes):  # type: ignore[no-untyped-def]
    """The sum of lanes."""

    def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
        number = context.get_value_type(signature.return_type)
        name = f"llvm.vector.reduce.fadd.v{LANES}f{8 * context.get_abi_sizeof(number)}"
        kind = ir.FunctionType(number, [number, args[0].type])
        adds = tools.get_or_insert_function(builder.module, kind, name)
        return builder.call(adds, [ir.Constant(number, 0.0), args[0]], fastmath=("reassoc",))

    return lanes.dtype(lanes), write


def _tile(columns: int) -> Any:
    """out += left @ right of ROWS rows and so many times LANES columns, all in registers."""

    @intrinsic
    def tile(typing, out, start, left, right, terms, row, column):  # type: ignore[no-untyped-def]
        def write(context, builder, signature, args):  # type: ignore[no-untyped-def]
            out, start, left, right = zip(signature.args[:4], args[:4], strict=True)
            terms, row, column = args[4:]
            code = _Code(context, builder, out[0].dtype)
            rows = [builder.add(row, row.type(i)) for i in range(ROWS)]
            cells = [builder.add(column, column.type(LANES * j)) for j in range(columns)]
            sums = {(i, j): tools.alloca_once(builder, code.kind) for i in rows for j in cells}
            for (i, j), total in sums.items():
                builder.store(code.load(code.place(*start, i, j)), total)
            with tools.for_range(builder, terms) as loop:
                theirs = {j: code.load(code.place(*right, loop.index, j)) for j in cells}
                for i in rows:
                    mine = builder.load(code.place(*left, i, loop.index))
                    mine = code.all(mine, code.dtype)
                    for j in cells:
                        total = builder.load(sums[i, j])
                        builder.store(code.add_product(total, mine, theirs[j]), sums[i, j])
            for (i, j), total in sums.items():
                code.store(builder.load(total), code.place(*out, i, j))
            return context.get_dummy_value()

        where = types.intp, types.intp, types.intp
        return types.void(out, start, left, right, *where), write

    return tile


_one, _two, _three = _tile(1), _tile(2), _tile(3)


@numba.njit(nogil=True, cache=True)
def _product(out, start, left, right, rows, terms):  # type: ignore[no-untyped-def]
    """out = start + left @ right, so many rows and terms."""
    width = out.shape[1]
    for row in range(0, rows, ROWS):
        column = 0
        while width - column >= 3 * LANES:
            _three(out, start, left, right, terms, row, column)
            column += 3 * LANES
        if width - column == 2 * LANES:
            _two(out, start, left, right, terms, row, column)
        elif width - column == LANES:
            _one(out, start, left, right, terms, row, column)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _weights(vectors, attention, nodes, own, see, units, ends, real, out, parts, first, step):  # type: ignore[no-untyped-def]
    """Weights of every step-th of the parts of the nodes of each history."""
    (size, count, length), (dim, width) = out.shape, see.shape
    most = _up(-(-count // parts))
    left, start = np.empty((most, dim + 1), see.dtype), np.empty((most, width), see.dtype)
    hidden, right = np.empty_like(start), np.zeros((dim + 1, width), see.dtype)
    sums = np.empty(most, see.dtype)
    for item in range(first, size * parts, step):
        b, part = item // parts, item % parts
        low, high = part * count // parts, (part + 1) * count // parts
        rows = _lay(nodes[b % len(nodes)], own[b % len(own)], low, high, left, start)
        for k in range(length):
            if real[b, k]:
                _scale(vectors[b, k], attention[b, k], see, right)
                _product(hidden, start, left, right, rows, dim + 1)
                _sum(hidden, units, sums, rows)
                for n in range(high - low):
                    weight = sums[n] + ends[0]
                    out[b, low + n, k] = weight if weight > 0 else ends[1] * weight


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _grads(  # type: ignore[no-untyped-def]
    vectors, attention, nodes, own, see, units, ends, real, turned, grad,
    of_vectors, of_attention, of_nodes, of_own, of_see, of_units, of_ends, chunks, first, step,
):  # fmt: skip
    """Gradients by every step-th chunk of the histories."""
    (size, count, length), (dim, width) = grad.shape, see.shape
    most, deep, long = min(BLOCK, _up(count)), _up(dim + 1), turned.shape[1]
    left, start = np.empty((most, dim + 1), see.dtype), np.empty((most, width), see.dtype)
    hidden, right = np.empty_like(start), np.zeros((dim + 1, width), see.dtype)
    sums, across = np.empty(most, see.dtype), np.zeros((deep, most), see.dtype)
    of_right, nothing = np.empty((deep, width), see.dtype), np.zeros((deep, width), see.dtype)
    by_nodes, by_own = np.empty((most, long), see.dtype), np.empty((most, width), see.dtype)
    vector, other = np.zeros((1, long), see.dtype), np.empty_like(turned)
    for chunk in range(first, chunks, step):
        of_bias = of_slope = 0.0  # not in place: the next chunk's would be in the same cache line
        for b in range(chunk, size, chunks):
            lead = chunk if len(nodes) == 1 else b
            for low in range(0, count, BLOCK):
                high = min(low + BLOCK, count)
                rows = _lay(nodes[b % len(nodes)], own[b % len(own)], low, high, left, start)
                across[: dim + 1, :rows] = left[:rows].T
                by_nodes[:rows], by_own[:rows] = 0, 0
                for k in range(length):
                    if real[b, k]:
                        vector[0, :dim] = vectors[b, k]
                        _scale(vectors[b, k], attention[b, k], see, right)
                        _product(hidden, start, left, right, rows, dim + 1)
                        _sum(hidden, units, sums, rows)
                        x, y = _pull(grad[b, low:high, k], ends, sums, rows)
                        of_bias, of_slope = of_bias + x, of_slope + y
                        _turn(hidden, units, sums, rows, by_own, of_units[chunk])
                        _product(of_right, nothing, across, hidden, deep, rows)
                        _fold(of_right, see, vectors[b, k], of_vectors[b, k], of_see[chunk])
                        _add(of_right[dim], of_attention[b, k])
                        _stretch(turned, vector, other)
                        _product(by_nodes, by_nodes, hidden, other, rows, len(other))
                for n in range(high - low):
                    _add(by_nodes[n], of_nodes[lead, low + n])
                    _add(by_own[n], of_own[lead, low + n])
        of_ends[chunk, 0], of_ends[chunk, 1] = of_bias, of_slope


@numba.njit(nogil=True, cache=True)
def _up(rows):  # type: ignore[no-untyped-def]
    """The next multiple of what a tile has."""
    return -(-rows // ROWS) * ROWS


@numba.njit(nogil=True, cache=True)
def _lay(nodes, own, low, high, left, start):  # type: ignore[no-untyped-def]
    """Nodes with a 1 behind each, and their own share, padded by zeros; how many rows."""
    rows, dim, width = _up(high - low), nodes.shape[1], own.shape[1]
    left[:rows], start[:rows] = 0, 0
    for n in range(high - low):
        for d in range(dim):
            left[n, d] = nodes[low + n, d]
        left[n, dim] = 1
        for a in range(width):
            start[n, a] = own[low + n, a]
    return rows


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _scale(vector, attention, see, right):  # type: ignore[no-untyped-def]
    """What nodes are multiplied with for an item of a history, its own share in the last row."""
    for d in range(len(see)):
        for w in range(0, see.shape[1], LANES):
            _store(right, d, w, _mul_add(vector[d], _load(see, d, w), 0))
    for a in range(len(attention)):
        right[len(see), a] = attention[a]


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _stretch(turned, vector, out):  # type: ignore[no-untyped-def]
    """The same, turned, without the share."""
    for w in range(0, turned.shape[1], LANES):
        by = _load(vector, 0, w)
        for a in range(len(turned)):
            _store(out, a, w, _mul_add(by, _load(turned, a, w), 0))


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _sum(hidden, units, sums, rows):  # type: ignore[no-untyped-def]
    """What the hidden units of each row weigh together."""
    for n in range(0, rows, 2):
        above, below = _load(units, 0, 0), _load(units, 1, 0)
        x, y = _load(hidden, n, 0), _load(hidden, n + 1, 0)
        p = _mul_add(x, _bend(x, above, below), 0)
        q = _mul_add(y, _bend(y, above, below), 0)
        for w in range(LANES, hidden.shape[1], LANES):
            above, below = _load(units, 0, w), _load(units, 1, w)
            x, y = _load(hidden, n, w), _load(hidden, n + 1, w)
            p = _mul_add(x, _bend(x, above, below), p)
            q = _mul_add(y, _bend(y, above, below), q)
        sums[n], sums[n + 1] = _total(p), _total(q)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _pull(grad, ends, sums, rows):  # type: ignore[no-untyped-def]
    """In the place of sums their gradients; and those of what follows them."""
    of_bias = of_slope = 0.0
    for n in range(len(grad)):
        weight, pull = sums[n] + ends[0], grad[n]
        if weight <= 0:
            of_slope += pull * weight
            pull *= ends[1]
        of_bias += pull
        sums[n] = pull
    sums[len(grad) : rows] = 0
    return of_bias, of_slope


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _turn(hidden, units, pull, rows, by_own, of_units):  # type: ignore[no-untyped-def]
    """In the place of hidden units their gradients."""
    for w in range(0, hidden.shape[1], LANES):
        above, below = _load(units, 0, w), _load(units, 1, w)
        up, down = _load(of_units, 0, w), _load(of_units, 1, w)
        for n in range(rows):
            x = _load(hidden, n, w)
            up = _mul_add(pull[n], _bend(x, x, 0), up)
            down = _mul_add(pull[n], _bend(x, 0, x), down)
            x = _mul_add(pull[n], _bend(x, above, below), 0)
            _store(hidden, n, w, x)
            _store(by_own, n, w, _mul_add(1, x, _load(by_own, n, w)))
        _store(of_units, 0, w, up)
        _store(of_units, 1, w, down)


@numba.njit(nogil=True, cache=True, fastmath=FAST)
def _fold(of_right, see, vector, of_vector, of_see):  # type: ignore[no-untyped-def]
    """From the gradient of a product of the two those of an item's vector and of `see`."""
    for d in range(len(see)):
        x = _load(of_right, d, 0)
        total = _mul_add(x, _load(see, d, 0), 0)
        _store(of_see, d, 0, _mul_add(vector[d], x, _load(of_see, d, 0)))
        for w in range(LANES, see.shape[1], LANES):
            x = _load(of_right, d, w)
            total = _mul_add(x, _load(see, d, w), total)
            _store(of_see, d, w, _mul_add(vector[d], x, _load(of_see, d, w)))
        of_vector[d] += _total(total)


@numba.njit(nogil=True, cache=True)
def _add(more, total):  # type: ignore[no-untyped-def]
    for i in range(len(total)):
        total[i] += more[i]
