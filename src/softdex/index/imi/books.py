"""Codebooks of a multi-index: trained on a scorer's vectors, and the cells they put items in."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softdex.errors import choose
from softdex.index.kmeans import lloyd, nearest, seeds
from softdex.score.contract import Product

SAMPLE = 256  # points per codeword that the books are trained on
ITEMS = 2**20  # items assigned to cells at a time


def codewords_for(items: int) -> int:
    """Return the codewords per book, a power of two, for cells of about a dozen items."""
    return 2 ** min(9, max(2, round(math.log2(max(items, 12) / 12) / 2)))


def popularity_weight(counts: Tensor, kind: str = "log", power: float = 0.5) -> Tensor:
    """Return a sampling weight above 0 per item of a cell (I,), from its count.

    Args:
        counts: events per item (I,); an item without events counts as half an event.
        kind: `count`, `log` for log(1 + count), or `power` for count^power.
        power: the exponent of `power`.
    """
    choose("imi", "popularity", kind, ("count", "log", "power"))
    seen = counts.double().clamp(min=0.5)
    return {"count": seen, "log": seen.log1p(), "power": seen**power}[kind]


def log_popularity(counts: Tensor, kind: str = "count", power: float = 0.5) -> Tensor:
    """Return the logarithm of `popularity_weight`, finite for any power."""
    if kind == "power":
        return power * popularity_weight(counts, "count").log()
    return popularity_weight(counts, kind).log()


def trained(
    scorer: Product,
    words: Tensor | None,
    size: int,
    residual: bool,
    rounds: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Train two books (2, C, D) on the scorer's vectors.

    Args:
        scorer: an inner product.
        words: books to start from; None: from some of the points.
        size: codewords per book, C.
        residual: the second book describes what the first leaves over, not the second half.
        rounds: Lloyd's steps.
        generator: of the sample and of the first codewords.
    """
    points = scorer.vectors(_sample(scorer, SAMPLE * size, generator)).float()
    books = points.new_zeros(2, size, points.shape[1])
    for number, own in enumerate(_columns(points.shape[1], residual)):
        part = points[:, own]
        start = seeds(part, size, generator) if words is None else words[number, :, own]
        books[number, :, own] = lloyd(part, start, rounds)
        if residual:
            points = points - books[0][nearest(points, books[0])]
    return books


def all_cells(scorer: Product, words: Tensor, residual: bool) -> Tensor:
    """Return the cell of every item (I,)."""
    starts = range(0, scorer.num_items, ITEMS)
    parts = (scorer.vectors(slice(start, start + ITEMS)) for start in starts)
    return torch.cat([cell_of(part, words, residual) for part in parts])


def cell_of(points: Tensor, words: Tensor, residual: bool) -> Tensor:
    """Return the cell of each point (N,)."""
    points = points.float()
    one, two = _columns(points.shape[1], residual)
    first = nearest(points[:, one], words[0, :, one])
    left = points - words[0][first] if residual else points
    return (first * words.shape[1] + nearest(left[:, two], words[1, :, two])).int()


def _sample(scorer: Product, most: int, generator: torch.Generator | None) -> Tensor | slice:
    """Return all items, or `most` random ones where there are more."""
    if scorer.num_items <= most:
        return slice(0, scorer.num_items)
    device = scorer.items.device
    return torch.randint(scorer.num_items, (most,), generator=generator, device=device)


def _columns(dim: int, residual: bool) -> tuple[slice, slice]:
    """Return the coordinates that each book describes: a half, or all of them."""
    low = dim if residual else dim // 2
    return slice(0, low), slice(0 if residual else low, dim)
