"""Resample: multinomial counts per row, without storing the draws.

Sorted uniform numbers are made directly, as sums of exponential ones. A draw then needs neither a
search nor memory: it is enough to count how many numbers lie below each step of the distribution.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor

from softdex import group
from softdex.kernels.dispatch import fused_for
from softdex.messages import say_if_compiling
from softdex.share import draw, present

PAIRS_AT_A_TIME = 2**24  # of a row and a candidate, counted on a GPU


def resample_counts(
    log_weight: Tensor,
    draws: int,
    generator: torch.Generator | None = None,
    seeds: Tensor | None = None,
) -> Tensor:
    """Draw candidates with replacement, and count how often each is drawn.

    Args:
        log_weight: log-weights (B, N), at least one finite per row.
        draws: number of draws per row, M.
        generator: the source of randomness.
        seeds: of the rows (B,), see `row_seeds`; None draws them. A GPU has none.

    Returns:
        counts (B, N), int32; each row sums to M.
    """
    if log_weight.dtype in (torch.bfloat16, torch.float16):
        log_weight = log_weight.float()
    if log_weight.device.type == "cpu":
        seeds = _seeds(len(log_weight), generator) if seeds is None else seeds
        return _compiled(log_weight, draws, seeds)
    if present() is not None and generator is not None:
        generator = _of_this_rank(generator)
    counts = torch.empty_like(log_weight, dtype=torch.int32)
    rows = max(1, PAIRS_AT_A_TIME // max(log_weight.shape[1], draws + 1))
    for part, place in zip(torch.split(log_weight, rows), torch.split(counts, rows), strict=True):
        below = _below(part, draws, generator)
        torch.diff(below, dim=1, prepend=torch.zeros_like(below[:, :1]), out=place)
    return counts


def row_seeds(rows: int, generator: torch.Generator | None) -> Tensor:
    """Draw a seed per row (B,)."""
    return torch.randint(2**62, (rows,), generator=generator)


def _seeds(rows: int, generator: torch.Generator | None) -> Tensor:
    return draw(rows, lambda rows: row_seeds(rows, generator))


def _of_this_rank(generator: torch.Generator) -> torch.Generator:
    """Return a generator for the rows of this rank; the given one goes on alike on all ranks."""
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator(generator.device).manual_seed(seed + group.rank())


def _below(log_weight: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    """How many draws fall on a candidate or on one before it (B, N), int32."""
    if (fused := fused_for(log_weight)) is not None:
        seed = torch.randint(2**31, (1,), generator=generator, device=log_weight.device)
        return fused.below(log_weight, seed, draws)
    gaps = torch.empty(len(log_weight), draws + 1, device=log_weight.device)
    ends = gaps.exponential_(generator=generator).cumsum(1, dtype=torch.float64)
    steps = log_weight.exp().cumsum(1, dtype=torch.float64)
    steps = steps / steps[:, -1:] * ends[:, -1:]
    return torch.searchsorted(ends[:, :-1].contiguous(), steps, out_int32=True)


def _compiled(log_weight: Tensor, draws: int, row_seed: Tensor) -> Tensor:
    weight = log_weight.exp().contiguous()
    size = len(weight)
    seeds = row_seed.numpy().astype(np.uint64)
    counts = torch.zeros(weight.shape, dtype=torch.int32)
    say_if_compiling(_count, "draws from a batch")
    threads = max(1, min(torch.get_num_threads(), size))
    cuts = np.linspace(0, size, threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        spans = itertools.pairwise(cuts)
        arrays = weight.numpy(), seeds, draws, counts.numpy()
        for done in [pool.submit(_count, *arrays, *span) for span in spans]:
            done.result()
    return counts


@numba.njit(nogil=True, cache=True)
def _count(weight, seeds, draws, counts, start, end):  # type: ignore[no-untyped-def]
    gaps = np.empty(draws + 1, np.float64)
    for row in range(start, end):
        state, total, last = seeds[row], 0.0, 0
        for j in range(weight.shape[1]):
            total += weight[row, j]
            last = j if weight[row, j] > 0 else last
        length = 0.0
        for n in range(draws + 1):  # splitmix64
            state += np.uint64(0x9E3779B97F4A7C15)
            bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = (bits ^ (bits >> np.uint64(31))) >> np.uint64(11)
            gaps[n] = -np.log((np.float64(bits) + 0.5) * 2.0**-53)
            length += gaps[n]
        scale, at, j = length / total if total > 0 else 0.0, 0.0, 0  # no weight: all the first
        step = weight[row, 0] * scale
        for n in range(draws):
            at += gaps[n]
            while at > step and j < last:
                j += 1
                step += weight[row, j] * scale
            counts[row, j] += 1
