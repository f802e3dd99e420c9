"""K-means: a fixed number of Lloyd's steps, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from softdex.kernels.dispatch import fused_for

BLOCK_CELLS = 2**24  # distances held at a time


def seeds(points: Tensor, words: int, generator: torch.Generator | None = None) -> Tensor:
    """Return initial codewords (C, D): points, all different while there are enough."""
    order = torch.randperm(len(points), generator=generator, device=points.device)
    return points[order[torch.arange(words, device=points.device) % len(points)]]


def lloyd(points: Tensor, words: Tensor, rounds: int) -> Tensor:
    """Move codewords (C, D) to the means of the points (N, D) nearest to them, `rounds` times.

    A codeword without points moves to the point that is farthest from its own codeword (the second
    such codeword to the second farthest, and so on), unless every point is at its codeword.
    """
    for _ in range(rounds):
        codes = nearest(points, words)
        distance = (points - words[codes]).square().sum(1)
        total, count = _sums(points, codes, len(words))
        means = total / count.clamp(min=1).unsqueeze(1)
        words = torch.where(count.unsqueeze(1) > 0, means, words)
        far = distance.topk(min(len(words), len(points)))
        dead = count == 0
        place = (dead.cumsum(0) - 1).clamp(0, len(far.values) - 1)
        moved = dead & (far.values[place] > 1e-9 * points.square().sum(1).mean())
        words = torch.where(moved[:, None], points[far.indices[place]], words)
    return words


def nearest(points: Tensor, words: Tensor) -> Tensor:
    """Return the nearest codeword of each point, (N,)."""
    if points.dtype == torch.float32 and (fused := fused_for(points)) is not None:
        return fused.nearest(points, words)
    size = max(1, BLOCK_CELLS // len(words))
    length = words.square().sum(1)
    blocks = torch.split(points, size)
    return torch.cat([torch.addmm(length, b, words.T, alpha=-2).argmin(1) for b in blocks])


def _sums(points: Tensor, codes: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Return sums (C, D) and numbers (C,) of the points of each codeword.

    A GPU sorts the points, since atomic additions differ from run to run.
    """
    if not points.is_cuda:
        total = points.new_zeros(words, points.shape[1]).index_add_(0, codes, points)
        return total, codes.bincount(minlength=words)
    ordered, order = codes.int().sort(stable=True)
    every = torch.arange(words + 1, device=codes.device, dtype=torch.int32)
    ends = torch.searchsorted(ordered, every)
    return torch.segment_reduce(points[order], "sum", offsets=ends), ends.diff()
