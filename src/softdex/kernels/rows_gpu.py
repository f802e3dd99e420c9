"""Lookups and updates of table rows as single Triton kernels, without intermediate tensors.

Each computes what its plain form does on a CPU: `Table.dots`, `Table.bag`, `RowAdam._update`,
`kmeans.nearest`, and the counts of `objective/resample.py`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # rows per program at a time
REPEATS = 8  # lookups of one row that are added at a time
POINTS, WORDS, COLUMNS = 128, 64, 32  # tile of a product of points and codewords
CELLS = 1024  # cells of a row that are summed at a time


@triton.jit
def _dots(
    query, table, ids, out, lengths, n, dim,
    MEASURED: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    item = tl.load(ids + row * n + place, place < n, 0)
    real = (place < n)[:, None] & (item >= 0)[:, None] & (column < dim)[None, :]
    vectors = tl.load(table + item[:, None] * dim + column[None, :], real, 0.0)
    own = tl.load(query + row * dim + column, column < dim, 0.0)
    tl.store(out + row * n + place, tl.sum(vectors * own[None, :], 1), place < n)
    if MEASURED:
        length = tl.sqrt(tl.sum(vectors * vectors, 1))
        tl.store(lengths + row * n + place, length, place < n)


@triton.jit
def _bags(
    table, ids, weights, out, n, dim, STEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDE)
    total = tl.zeros((WIDE,), tl.float32)
    for start in range(0, STEP, ROWS):
        place = part * STEP + start + tl.arange(0, ROWS)
        item = tl.load(ids + row * n + place, place < n, -1)
        weight = tl.load(weights + row * n + place, place < n, 0.0)
        real = (item >= 0)[:, None] & (column < dim)[None, :]
        vectors = tl.load(table + item[:, None] * dim + column[None, :], real, 0.0)
        total += tl.sum(vectors * weight[:, None], 0)
    tl.store(out + (row * tl.num_programs(1) + part) * dim + column, total, column < dim)


@triton.jit
def _adam(
    ids, source, weights, pulls, grads, table, age, first, second, n, dim, missing,
    lr, log_b1, log_b2, eps, decay,
    WEIGHTED: tl.constexpr, PULLED: tl.constexpr, PER_ROW: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    here, column = tl.program_id(0), tl.arange(0, WIDE)
    row = tl.load(ids + here)
    before = tl.load(ids + here - 1, here > 0, -1)
    if (row != before) & (row < missing):
        inside = column < dim
        base = row.to(tl.int64) * dim + column
        t = tl.load(age + row) + 1
        w = tl.load(table + base, inside, 0.0)
        m = tl.load(first + base, inside, 0.0)
        v = tl.load(second + (row + column * 0 if PER_ROW else base), inside, 0.0)
        total = tl.zeros((WIDE,), tl.float32)
        pull = tl.zeros((), tl.float32)
        going = 1
        place = here + tl.arange(0, ROWS)
        while going > 0:
            mine = (tl.load(ids + place, place < n, -1) == row) & (place < n)
            at = tl.load(source + place, mine, 0)
            each = tl.load(
                grads + at[:, None] * dim + column[None, :], mine[:, None] & inside[None, :], 0.0
            )
            if WEIGHTED:
                each = each * tl.load(weights + place, mine, 0.0)[:, None]
            total += tl.sum(each, 0)
            if PULLED:
                pull += tl.sum(tl.load(pulls + place, mine, 0.0), 0)
            going = tl.min(mine.to(tl.int32), 0)
            place += ROWS
        if PULLED:
            total += pull * w
        square = total * total
        if PER_ROW:
            square = square * 0 + tl.sum(square, 0) / dim
        b1, b2 = tl.exp(log_b1), tl.exp(log_b2)
        m = m * b1 + total * (1 - b1)
        v = v * b2 + square * (1 - b2)
        aged = t.to(tl.float64)
        spread = tl.sqrt(v / (1 - tl.exp(aged * log_b2)).to(tl.float32)) + eps
        mean = m / (1 - tl.exp(aged * log_b1)).to(tl.float32)
        tl.store(age + row, t)
        tl.store(first + base, m, inside)
        if PER_ROW:
            tl.store(second + row, tl.max(v, 0))
        else:
            tl.store(second + base, v, inside)
        tl.store(table + base, w - tl.load(lr) * (mean / spread + decay * w), inside)


@triton.jit
def _nearest(
    points, words, length, out, n, size,
    dim: tl.constexpr, stride: tl.constexpr, word_stride: tl.constexpr,
    POINTS: tl.constexpr, WORDS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    least = tl.full((POINTS,), float("inf"), tl.float32)
    code = tl.zeros((POINTS,), tl.int32)
    for first in range(0, size, WORDS):
        word = first + tl.arange(0, WORDS)
        dot = tl.zeros((POINTS, WORDS), tl.float32)
        for start in range(0, dim, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < dim
            x = tl.load(
                points + row[:, None] * stride + column[None, :],
                (row < n)[:, None] & inside[None, :],
                0.0,
            )
            w = tl.load(
                words + word[None, :] * word_stride + column[:, None],
                (word < size)[None, :] & inside[:, None],
                0.0,
            )
            dot += tl.dot(x, w, input_precision="tf32x3")
        far = tl.load(length + word, word < size, float("inf"))[None, :] - 2 * dot
        far = tl.where(far == far, far, float("inf"))  # an argmin with NaN may be a pad
        here = tl.min(far, 1)
        code = tl.where(here < least, first + tl.argmin(far, 1), code)
        least = tl.minimum(least, here)
    tl.store(out + row, code.to(tl.int64), row < n)


@triton.jit
def _below(logs, seed, ends, out, size, draws, STEPS: tl.constexpr, CELLS: tl.constexpr):
    """For one row, write sorted points to `ends`, and how many lie below each step to `out`."""
    row = tl.program_id(0).to(tl.int64)
    key, place = tl.load(seed), tl.arange(0, CELLS)
    line = tl.zeros((), tl.float64)
    for first in range(0, draws + 1, CELLS):
        n = first + place
        chance = tl.rand(key, row * (draws + 1) + n) + 2.0**-33
        gap = tl.where(n <= draws, -tl.log(chance), 0.0).to(tl.float64)
        tl.store(ends + row * (draws + 1) + n, tl.cumsum(gap, 0) + line, n <= draws)
        line += tl.sum(gap, 0)
    mass = tl.zeros((), tl.float64)
    for first in range(0, size, CELLS):
        j = first + place
        log = tl.load(logs + row * size + j, j < size, -float("inf"))
        mass += tl.sum(tl.exp(log).to(tl.float64), 0)
    tl.debug_barrier()  # every thread sees the whole line
    done = tl.zeros((), tl.float64)
    for first in range(0, size, CELLS):
        j = first + place
        log = tl.load(logs + row * size + j, j < size, -float("inf"))
        weight = tl.exp(log).to(tl.float64)
        step = (tl.cumsum(weight, 0) + done) / mass * line
        done += tl.sum(weight, 0)
        low, high = tl.zeros((CELLS,), tl.int32), tl.full((CELLS,), draws, tl.int32)
        for _ in range(STEPS):
            middle = (low + high) // 2
            end = tl.load(ends + row * (draws + 1) + middle, low < high, 0.0)
            before = (end < step) & (low < high)
            low = tl.where(before, middle + 1, low)
            high = tl.where(before, high, middle)
        tl.store(out + row * size + j, tl.where(j == size - 1, draws, low), j < size)


def dots(query: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Return the inner products (B, N) of queries (B, D) with the rows `ids` (B, N)."""
    return _products(query, table, ids, lengths=False)[0]


def dots_and_lengths(query: Tensor, table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inner products, and the lengths of the rows (B, N)."""
    return _products(query, table, ids, lengths=True)


def _products(query: Tensor, table: Tensor, ids: Tensor, *, lengths: bool) -> tuple[Tensor, Tensor]:
    size, n = ids.shape
    out = torch.empty(size, n, device=query.device)
    measured = torch.empty_like(out) if lengths else out
    dim = table.shape[1]
    grid = (size, triton.cdiv(n, ROWS))
    query, ids = query.float().contiguous(), ids.contiguous()
    wide = triton.next_power_of_2(dim)
    _dots[grid](query, table, ids, out, measured, n, dim, lengths, ROWS, wide)
    return out, measured


def bags(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums (B, D) of the rows `ids` (B, N), -1 for none."""
    (size, n), dim, step = ids.shape, table.shape[1], 8 * ROWS
    parts = triton.cdiv(n, step)
    out = torch.empty(size, parts, dim, device=table.device)
    ids, weights = ids.contiguous(), weights.contiguous()
    wide = triton.next_power_of_2(dim)
    _bags[size, parts](table, ids, weights, out, n, dim, step, ROWS, wide)
    return out.sum(1)


def nearest(points: Tensor, words: Tensor) -> Tensor:
    """Return the nearest codeword (C, D) of each point (N, D), (N,); rows may be strided."""
    out = torch.empty(len(points), dtype=torch.int64, device=points.device)
    _nearest[(triton.cdiv(len(points), POINTS),)](
        points, words, words.square().sum(1), out, len(points), *words.shape,
        points.stride(0), words.stride(0), POINTS, WORDS, COLUMNS,
    )  # fmt: skip
    return out


def below(log_weight: Tensor, seed: Tensor, draws: int) -> Tensor:
    """Draw multinomial samples per row and return their cumulative counts, (B, N) int32.

    Args:
        log_weight: unnormalised log-probabilities (B, N).
        seed: one number on the device; equal seeds give equal draws.
        draws: samples per row.
    """
    rows, size = log_weight.shape
    ends = torch.empty(rows, draws + 1, dtype=torch.float64, device=log_weight.device)
    out = torch.empty(rows, size, dtype=torch.int32, device=log_weight.device)
    steps = (draws + 1).bit_length()
    _below[(rows,)](log_weight.contiguous(), seed, ends, out, size, draws, steps, CELLS)
    return out


def adam(
    ids: Tensor,
    source: Tensor,
    weights: Tensor | None,
    pulls: Tensor | None,
    grads: Tensor,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    lr: Tensor,
    b1: float,
    b2: float,
    eps: float,
    decay: float,
) -> None:
    """Update table rows by Adam, each with the sum of its weighted gradients.

    Args:
        ids: sorted rows (M,), repeated once per lookup; the table's length stands for no row.
        source: row of `grads` per id (M,).
        weights: factor of the gradient per id (M,); None: 1.
        pulls: factor of the row itself, which is added, per id (M,); None: 0.
        grads: gradients (R, D).
        tables: age, first moment, second moment and weights.
        lr, b1, b2, eps, decay: of AdamW.
    """
    age, first, second, table = tables
    wide = triton.next_power_of_2(table.shape[1])
    per_row = second.shape[1] == 1 and first.shape[1] > 1
    _adam[(len(ids),)](
        ids, source, ids if weights is None else weights, ids if pulls is None else pulls,
        grads.contiguous(),
        table, age, first, second, len(ids), table.shape[1], len(table),
        lr, math.log(b1), math.log(b2), eps, decay,
        weights is not None, pulls is not None, per_row, REPEATS, wide,
        num_warps=max(1, wide // 128),
    )  # fmt: skip
