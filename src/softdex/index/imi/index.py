"""The inverted multi-index: two codebooks of C words make C * C cells, a table of short lists.

Asked for the best items it opens cells in the order of their words' scores; asked for random items
it draws a cell, then an item of the cell, and knows the probability of both (MIDX).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from softdex.errors import SoftdexError, choose
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, edited, item_vectors
from softdex.index.flat import Flat, ranked
from softdex.index.kmeans import lloyd, nearest, seeds
from softdex.kernels.scan import REACH, Lists, prepare, scan
from softdex.messages import say
from softdex.score.product import Product

LAST = ("uniform", "popularity", "exact")
SAMPLE = 256  # points a word that the codebooks are trained on
ROUNDS, WARM_ROUNDS = 25, 4
FLOOR = 14.0  # no weight is more than exp(14) = 10^6 times smaller than the largest
CELL_BYTES = 28  # what a (query, cell) pair takes while cells are ranked
BLOCK = 2**24  # (query, cell) scores held at a time
ITEMS = 2**20  # items assigned to cells at a time


class Law(NamedTuple):
    """The proposal for a batch: log-probability of each cell (B, C * C), the cumulative weight of
    items in cell order, (I + 1,) or (B, I + 1), and log P(item | cell) by item, (I,) or (B, I)."""

    cells: Tensor
    cumulative: Tensor
    share: Tensor


@final
class Imi:
    """q(i | u) = exp(u . word0(i) + u . word1(i)) w_i / sum over living items.

    The vector of an item stands as the sum of two words. What the words leave over is the last
    stage: `uniform` takes it as 0 (w_i = exp of the scorer's offset, 1 where it has none);
    `popularity` has w_i given; `exact` scores every item, and the law is the softmax itself: an
    oracle, whose cost grows with the items.

    Args:
        scorer: an inner product.
        words: (2, C, D). Of a product index, the first book is 0 in the second half of the
            coordinates and the second book in the first half.
        cell: of each item (I,), first word * C + second word.
        logw: log w (I,).
        alive: which items are in it (I,).
        last: the last stage.
        residual: whether the second book describes what the first leaves over.
        effort: how many items a search scores at least, unless told otherwise.
    """

    searches = True

    def __init__(
        self,
        scorer: Product,
        words: Tensor,
        cell: Tensor,
        logw: Tensor,
        alive: Tensor,
        *,
        last: str | Tensor = "uniform",
        residual: bool | Tensor = False,
        effort: float | Tensor = math.inf,
    ) -> None:
        self.scorer, self.num_items = scorer, scorer.num_items
        self.words, self.cell, self.logw, self.alive = words, cell, logw, alive
        self.last = LAST[int(last)] if isinstance(last, Tensor) else last
        choose("imi", "last stage", self.last, LAST)
        self.residual, self.effort = bool(residual), float(effort)
        cells = words.shape[1] ** 2
        ordered, self.order = torch.where(alive, cell, cells).sort(stable=True)
        every = torch.arange(cells + 1, device=cell.device, dtype=ordered.dtype)
        self.starts = torch.searchsorted(ordered, every)
        logw = torch.where(alive, logw, -torch.inf).double()
        logw = logw - logw.max()
        self.cumulative = _summed(logw.exp()[self.order])
        mass = _within(self.cumulative, self.starts)
        share = logw - mass.log()[cell.long()]
        self.logmass = mass.log().float()
        self.share = torch.where(alive, share, -torch.inf).float()
        self.filled = torch.where(mass > 0, every[:-1], 0).max()
        self._kept: tuple[tuple[Any, ...], Lists] | None = None

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Scores (B, N)."""
        return self.scorer(query, ids)

    # draw ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draws (B, N): a cell by its mass, then an item of the cell by its share."""
        if shared:
            raise SoftdexError("Imi.sample: its law depends on the query; draws cannot be shared.")
        found = []
        for part in self._parts(query):
            law = self._law(part)
            cdf = law.cells.exp().cumsum(1, dtype=torch.float64)
            point, inside = torch.rand(
                2, len(cdf), n, generator=generator, dtype=torch.float64, device=cdf.device
            )
            cell = torch.searchsorted(cdf, point * cdf[:, -1:], right=True)
            cell = torch.minimum(cell, self.filled)
            start, end = self.starts[cell], self.starts[cell + 1]
            low, high = _at(law.cumulative, start), _at(law.cumulative, end)
            place = torch.searchsorted(law.cumulative, low + inside * (high - low), right=True) - 1
            ids = self.order[torch.minimum(torch.maximum(place, start), end - 1)]
            logq = law.cells.gather(1, cell) + _at(law.share, ids)
            found.append(Draws(ids, logq))
        return Draws(torch.cat([f.ids for f in found]), torch.cat([f.logq for f in found]))

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Log-probability of the cell and of the item in its cell, (B, N)."""
        found, start = [], 0
        for part in self._parts(query):
            asked = ids if ids.ndim == 1 else ids[start : start + len(part)]
            start += len(part)
            law = self._law(part)
            cell = self.cell[asked].long().expand(len(part), -1)
            found.append(law.cells.gather(1, cell) + _at(law.share, asked))
        return torch.cat(found)

    def _parts(self, query: Tensor) -> tuple[Tensor, ...]:
        """Queries in blocks of bounded memory, as the scorer multiplies them."""
        with torch.autocast(query.device.type, enabled=False):
            widest = max(len(self.logmass), self.num_items if self.last == "exact" else 0)
            return torch.split(self.scorer.project(query.float()), max(1, BLOCK // widest))

    def _cells(self, query: Tensor) -> Tensor:
        """Scores of the words' sums, (B, C * C)."""
        with torch.autocast(query.device.type, enabled=False):
            first, second = torch.einsum("bd,kcd->kbc", query, self.words)
            return (first[:, :, None] + second[:, None, :]).flatten(1)

    def _law(self, query: Tensor) -> Law:
        cells = self._cells(query)
        if self.last != "exact":
            law = (cells + self.logmass).log_softmax(1)
            return Law(law, self.cumulative, self.share)
        left, cell = self._left_over(query, cells), self.cell.long().expand(len(query), -1)
        peak = torch.full_like(cells, -torch.inf, dtype=left.dtype)
        peak = peak.scatter_reduce(1, cell, left, "amax")  # of each cell: none must vanish
        level = peak.clamp(min=-1e300)
        cumulative = _summed((left - level.gather(1, cell)).exp()[:, self.order])
        logmass = _within(cumulative, self.starts).log() + level
        share = left - logmass.gather(1, cell)
        law = (cells + logmass).log_softmax(1)
        return Law(law.float(), cumulative, share.masked_fill(~self.alive, -torch.inf).float())

    def _left_over(self, query: Tensor, cells: Tensor) -> Tensor:
        """What each item scores beyond its words, (B, I) in float64; -inf if it does not live."""
        every = slice(0, self.num_items)
        with torch.autocast(query.device.type, enabled=False):
            scores = (query @ self.scorer.vectors(every).T).double()
        offsets = self.scorer.offsets(every)
        scores = scores if offsets is None else scores + offsets
        left = scores - cells.gather(1, self.cell.long().expand(len(query), -1))
        return left.masked_fill(~self.alive, -torch.inf)

    # search --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def search(
        self,
        query: Any,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        """Top k among the items of the best cells, by exact scores.

        Cells are opened, best words first, until they hold `effort` allowed items, and k; -1 pads
        where fewer are allowed.
        """
        enough = max(self.effort if effort is None else effort, k)
        flat = Flat(self.scorer, self.alive)
        if enough >= self.num_items:
            return flat.search(query, k, filter=filter, max_memory=max_memory)
        projected = self.scorer.project(query).float()
        if projected.device.type == "cpu":
            exclude, allow = (None, None) if filter is None else (filter.exclude, filter.allow)
            mask = None if allow is None else allow.cpu().numpy()
            lists = self._lists()
            found = scan(projected.numpy(), lists, k, enough, exclude=exclude, allow=mask)
            return Hits(*map(torch.from_numpy, found))
        rows = max(1, max_memory // (CELL_BYTES * len(self.logmass)))
        if len(projected) > rows:
            starts = range(0, len(projected), rows)
            parts = [
                self.search(
                    query[i : i + rows], k, filter=_of_rows(filter, i, i + rows), effort=effort,
                    max_memory=max_memory,
                )
                for i in starts
            ]  # fmt: skip
            return Hits(*(torch.cat(found) for found in zip(*parts, strict=True)))
        opened = self._opened(projected, enough, filter)

        def blocks() -> Iterator[tuple[int, Tensor]]:
            for start, scores in flat.blocks(query, max_memory, least=k):
                cell = self.cell[start : start + scores.shape[1]].long()
                yield start, scores.masked_fill_(~opened[:, cell], -torch.inf)

        return ranked(blocks(), k, filter)

    def _opened(self, query: Tensor, enough: float, filter: Filter | None) -> Tensor:
        """Which cells are opened, (B, C * C)."""
        reach, bias = self._lift()
        cells = self._cells(query) + query.norm(dim=1, keepdim=True) * reach + bias
        free = self.alive
        if filter is not None and filter.allow is not None:
            free = free & filter.allow.to(free.device)
        count = torch.zeros_like(cells[0]).index_add_(0, self.cell.long(), free.float())
        count = count.expand_as(cells)
        if filter is not None and filter.exclude is not None:
            pairs = torch.from_numpy(np.unique(filter.exclude.cells(self.num_items)))
            rows, ids = (
                p.to(free.device) for p in (pairs // self.num_items, pairs % self.num_items)
            )
            taken = torch.zeros_like(cells)
            taken.index_put_((rows, self.cell[ids].long()), free[ids].float(), accumulate=True)
            count = count - taken
        order = cells.masked_fill(count == 0, -torch.inf).sort(dim=1, descending=True, stable=True)
        count = count.gather(1, order.indices)
        before = count.cumsum(1) - count
        return torch.zeros_like(cells, dtype=torch.bool).scatter(1, order.indices, before < enough)

    def _lists(self) -> Lists:
        """The items in the order of their cells, kept until a vector changes."""
        version = self.scorer.version
        if self._kept is None or self._kept[0] != version:
            living = self.order[: int(self.starts[-1])]
            offsets = self.scorer.offsets(living)
            given = None if offsets is None else offsets.numpy()
            vectors = self.scorer.vectors(living).numpy()
            words, starts = self.words.numpy(), self.starts.numpy()
            self._kept = version, prepare(words, starts, living.numpy(), vectors, given)
        return self._kept[1]

    def _lift(self) -> tuple[Tensor, Tensor]:
        """What raises a cell's priority, as `scan` has it: reach and bias, (C * C,)."""
        cell, size = self.cell.long(), self.words.shape[1]
        far, offset = (torch.zeros(self.num_items, device=cell.device) for _ in range(2))
        for start in range(0, self.num_items, ITEMS):
            part = slice(start, start + ITEMS)
            x = self.scorer.vectors(part)
            words = self.words[0][cell[part] // size] + self.words[1][cell[part] % size]
            far[part] = (x - words).square().mean(1)
            given = self.scorer.offsets(part)
            offset[part] = 0.0 if given is None else given
        count = self.starts.diff().clamp(min=1)

        def mean(of: Tensor) -> Tensor:
            return torch.zeros_like(self.logmass).index_add_(0, cell, of * self.alive) / count

        return REACH * mean(far).sqrt(), mean(offset)

    def tune(self, query: Any, recall: float = 0.95, k: int = 100, *, quiet: bool = False) -> Self:
        """The same index with the least effort that finds this share of the best k items.

        Prints recall and queries a second as the effort grows, for these queries.
        """
        k = min(k, int(self.alive.sum()))
        best = self.search(query, k, effort=math.inf).ids
        effort, found = k / math.sqrt(2), 0.0
        self.search(query, k, effort=k)  # compiles, and puts the lists in order
        say(f"  {'effort':>10}  {f'recall@{k}':>10}  {'queries/s':>10}", quiet=quiet)
        while found < recall and effort < self.num_items:
            effort *= math.sqrt(2)
            began = time.perf_counter()
            ids = self.search(query, k, effort=effort).ids
            speed = len(ids) / (time.perf_counter() - began)
            found = _overlap(ids, best)
            say(f"  {effort:>10,.0f}  {found:>10.4f}  {speed:>10,.0f}", quiet=quiet)
        return self._with(effort=effort if effort < self.num_items else math.inf)

    # follow and edit -----------------------------------------------------------------------------

    @torch.no_grad()
    def vectors(self) -> Tensor | None:
        """Vectors of all items (I, D), None where the scorer has none."""
        return item_vectors(self.scorer)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Codebooks and cells for the scorer's present vectors, from the present codebooks on."""
        size = self.words.shape[1]
        words = _trained(self.scorer, self.words, size, self.residual, WARM_ROUNDS, generator)
        cell = _all_cells(self.scorer, words, self.residual)
        return self._with(words=words, cell=cell, logw=self._weights())

    @torch.no_grad()
    def update(self, ids: Tensor) -> Self:
        """The index with these items in the cells where their present vectors belong."""
        cell = self.cell.clone()
        cell[ids] = _cell_of(self.scorer.vectors(ids), self.words, self.residual)
        logw, offsets = self.logw.clone(), self.scorer.offsets(ids)
        if self.last != "popularity" and offsets is not None:
            logw[ids] = torch.maximum(offsets.to(logw), logw.max() - FLOOR)
        return self._with(cell=cell, logw=logw)

    def insert(self, ids: Tensor) -> Self:
        """With these items, in the cells of their present vectors."""
        alive = edited(self.alive, ids, True)
        return self._with(alive=alive).update(torch.as_tensor(ids, device=alive.device))

    def delete(self, ids: Tensor) -> Self:
        """Without these items."""
        return self._with(alive=edited(self.alive, ids, False))

    def to(self, device: torch.device | str) -> Self:
        """On another device."""
        kept = {n: getattr(self, n).to(device) for n in ("words", "cell", "logw", "alive")}
        return self._with(**kept)

    def state(self) -> dict[str, Tensor]:
        """Books, cells and weights, which items live, the last stage and the effort."""
        return {
            "words": self.words,
            "cell": self.cell,
            "logw": self.logw,
            "alive": self.alive,
            "last": torch.tensor(LAST.index(self.last)),
            "residual": torch.tensor(self.residual),
            "effort": torch.tensor(self.effort, dtype=torch.float64),
        }

    def _weights(self) -> Tensor:
        """log w: follows the scorer's offsets in a uniform last stage."""
        offsets = self.scorer.offsets(slice(0, self.num_items))
        if self.last == "popularity" or offsets is None:
            return self.logw
        return _floored(offsets, self.alive)

    def _with(self, **changed: Any) -> Self:
        kept = {n: getattr(self, n) for n in ("words", "cell", "logw", "alive")}
        kept |= {n: getattr(self, n) for n in ("last", "residual", "effort")}
        return type(self)(self.scorer, **(kept | changed))


@torch.no_grad()
def build(
    scorer: Product,
    *,
    codewords: int = 64,
    last: str = "uniform",
    weight: Tensor | None = None,
    residual: bool = False,
    generator: torch.Generator | None = None,
) -> Imi:
    """An index over all items of a scorer.

    Args:
        scorer: an inner product.
        codewords: words a book; cells are their square.
        last: `uniform`, `popularity` (needs `weight`) or `exact`.
        weight: how likely an item is among those of its cell (I,): see `popularity_weight`.
        residual: the second book describes what the first leaves over, not the second half.
        generator: of the first words.
    """
    device = scorer.items.device
    if (weight is None) == (last == "popularity"):
        raise SoftdexError("imi: a popularity last stage, and only that one, needs weight=.")
    codewords = max(1, min(codewords, scorer.num_items))
    dim = scorer.vectors(slice(0, 1)).shape[1]
    if not residual and dim < 2:
        raise SoftdexError("imi: vectors of one coordinate have no halves. Use residual=True.")
    words = _trained(scorer, None, codewords, residual, ROUNDS, generator)
    alive = torch.ones(scorer.num_items, dtype=torch.bool, device=device)
    cell = _all_cells(scorer, words, residual)
    logw = torch.zeros(scorer.num_items, device=device)
    if weight is not None:
        if len(weight) != scorer.num_items or not bool(
            (weight > 0).any() & weight.isfinite().all()
        ):
            raise SoftdexError(
                f"imi: expected {scorer.num_items} finite weights, some above 0, got {len(weight)}."
            )
        logw = _floored(weight.to(device).double().log().float(), alive)
    made = Imi(scorer, words, cell, logw, alive, last=last, residual=residual)
    return made._with(logw=made._weights())


def codewords_for(items: int) -> int:
    """Words a book for cells of about a dozen items, a power of two."""
    return 2 ** min(9, max(2, round(math.log2(max(items, 12) / 12) / 2)))


def popularity_weight(counts: Tensor, kind: str = "log", power: float = 0.5) -> Tensor:
    """How likely an item is among those of its cell, from its count: above 0 for every item.

    `count` is the count itself, `log` is log(1 + count), `power` is count^power; an item that
    was never seen counts as half an event.
    """
    choose("imi", "popularity", kind, ("count", "log", "power"))
    seen = counts.double().clamp(min=0.5)
    return {"count": seen, "log": seen.log1p(), "power": seen**power}[kind]


def log_popularity(counts: Tensor, kind: str = "count", power: float = 0.5) -> Tensor:
    """The logarithm of `popularity_weight`, finite for any power."""
    if kind == "power":
        return power * popularity_weight(counts, "count").log()
    return popularity_weight(counts, kind).log()


def _trained(
    scorer: Product,
    words: Tensor | None,
    size: int,
    residual: bool,
    rounds: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Two books (2, C, D) for the scorer's vectors, from `words` on, or from some of the points."""
    points = scorer.vectors(_some(scorer, SAMPLE * size, generator)).float()
    books = points.new_zeros(2, size, points.shape[1])
    for number, own in enumerate(_columns(points.shape[1], residual)):
        part = points[:, own]
        start = seeds(part, size, generator) if words is None else words[number, :, own]
        books[number, :, own] = lloyd(part, start, rounds)
        if residual:
            points = points - books[0][nearest(points, books[0])]
    return books


def _some(scorer: Product, most: int, generator: torch.Generator | None) -> Tensor | slice:
    """All items, or so many drawn ones."""
    if scorer.num_items <= most:
        return slice(0, scorer.num_items)
    device = scorer.items.device
    return torch.randint(scorer.num_items, (most,), generator=generator, device=device)


def _columns(dim: int, residual: bool) -> tuple[slice, slice]:
    """The coordinates that each book describes: a half, or all of them."""
    low = dim if residual else dim // 2
    return slice(0, low), slice(0 if residual else low, dim)


def _all_cells(scorer: Product, words: Tensor, residual: bool) -> Tensor:
    """The cell of every item (I,)."""
    starts = range(0, scorer.num_items, ITEMS)
    parts = (scorer.vectors(slice(start, start + ITEMS)) for start in starts)
    return torch.cat([_cell_of(part, words, residual) for part in parts])


def _cell_of(points: Tensor, words: Tensor, residual: bool) -> Tensor:
    """The cell of each point (N,)."""
    points = points.float()
    one, two = _columns(points.shape[1], residual)
    first = nearest(points[:, one], words[0, :, one])
    left = points - words[0][first] if residual else points
    return (first * words.shape[1] + nearest(left[:, two], words[1, :, two])).int()


def _floored(logw: Tensor, alive: Tensor) -> Tensor:
    return torch.maximum(logw, torch.where(alive, logw, -torch.inf).max() - FLOOR)


def _summed(weight: Tensor) -> Tensor:
    """Cumulative sums from 0 on, along the last axis."""
    return torch.nn.functional.pad(weight.cumsum(-1), (1, 0))


def _within(cumulative: Tensor, starts: Tensor) -> Tensor:
    """What lies between neighbouring places."""
    at = cumulative[..., starts]
    return at[..., 1:] - at[..., :-1]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Values (I,) or (B, I) at places (N,) or (B, N)."""
    return values[places] if values.ndim == 1 else values.gather(1, places.expand(len(values), -1))


def _of_rows(filter: Filter | None, start: int, stop: int) -> Filter | None:
    """The filter of some of the queries."""
    if filter is None or filter.exclude is None:
        return filter
    rows = np.arange(start, min(stop, len(filter.exclude)))
    return Filter(filter.exclude.take(rows), filter.allow)


def _overlap(found: Tensor, best: Tensor) -> float:
    """The share of the best (B, K) that was found, rows without any left out."""
    rows = zip(found, best, strict=True)
    hits = sum(int(torch.isin(b[b >= 0], f).sum()) for f, b in rows)
    return hits / max(1, int((best >= 0).sum()))
