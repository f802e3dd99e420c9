"""The inverted multi-index: two codebooks of C words make C * C cells, a table of short lists.

A search opens cells in the order of their words' scores. A draw picks a cell, then an item of the
cell, with known probabilities (MIDX).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from softdex.errors import SoftdexError, choose
from softdex.index import methods
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, edited, reordered
from softdex.index.flat import Flat
from softdex.index.imi.books import all_cells, cell_of, trained
from softdex.index.imi.search import in_blocks
from softdex.messages import say
from softdex.score.contract import Product
from softdex.shapes import DOUBLES, FLAGS, FLOATS, INTS, LONGS, Layout, Sizes, Tensors, moderate
from softdex.share import draw

if TYPE_CHECKING:
    from softdex.kernels.scan import Lists

LAST = ("uniform", "popularity", "exact")
ROUNDS, WARM_ROUNDS = 25, 4  # of k-means: for new codebooks, and for a refit
FLOOR = 14.0  # no weight is more than exp(14) = 10^6 times smaller than the largest
BLOCK = 2**24  # (query, cell) scores held at a time


class Law(NamedTuple):
    """The proposal for a batch of queries.

    Attributes:
        cells: log-probability of each cell (B, C * C).
        cumulative: cumulative weight of items in cell order, (I + 1,) or (B, I + 1).
        share: log P(item | cell) per item, (I,) or (B, I).
    """

    cells: Tensor
    cumulative: Tensor
    share: Tensor


@final
class Imi:
    """q(i | u) = exp(u . word0(i) + u . word1(i)) w_i / sum over living items.

    The sum of two codewords approximates the vector of an item. The last stage says what becomes of
    the remainder: `uniform` takes it as 0, with w_i = exp of the scorer's offset (1 where there is
    none); `popularity` takes given weights w_i; `exact` scores every item, which gives the softmax
    itself at a cost that grows with the items.

    Args:
        scorer: an inner product.
        words: codebooks (2, C, D). In a product index the first book is 0 in the second half of
            the coordinates, and the second book in the first half.
        cell: first word * C + second word of each item (I,).
        logw: log w (I,).
        alive: which items are in the index (I,).
        last: the last stage.
        residual: whether the second book describes what the first leaves over.
        effort: items that a search scores at least, by default.
    """

    tensors: ClassVar[Layout] = {
        "words": (FLOATS, "2CD"),
        "cell": (INTS, "I"),
        "logw": (FLOATS, "I"),
        "alive": (FLAGS, "I"),
        "last": (LONGS, ""),
        "residual": (FLAGS, ""),
        "effort": (DOUBLES, ""),
    }
    searches = True
    score, vectors = methods.score, methods.vectors

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

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
        """Refuse cells and settings that do not exist, and an index without a living item."""
        methods.check(tensors, sizes, scorer)
        moderate({name: tensors[name] for name in ("words", "logw")}, sizes)
        cell, last, effort = tensors["cell"], int(tensors["last"]), float(tensors["effort"])
        inside = int(cell.min()) >= 0 and int(cell.max()) < sizes["C"] ** 2
        if not (inside and last in range(len(LAST)) and effort > 0 and scorer.is_product):
            raise ValueError("the index's cells or settings do not exist")

    # draw ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items: a cell by its mass, then an item of the cell by its share."""
        if shared:
            raise SoftdexError(
                "Imi.sample: the proposal depends on the query; draws cannot be shared."
            )
        parts, found = self._parts(query), []
        most = max(map(len, parts))
        points = draw(
            sum(map(len, parts)),
            lambda rows: torch.cat(
                [
                    self._points(len(part), n, generator)
                    for part in torch.arange(rows).split(self._rows_at_a_time)
                ],
                1,
            ),
            dim=1,
        )
        for part, (point, inside) in zip(parts, points.split(most, 1), strict=True):
            law = self._law(part)
            cdf = law.cells.exp().cumsum(1, dtype=torch.float64)
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
        """Return the log-probability of the cell plus that of the item in it, (B, N)."""
        found, start = [], 0
        for part in self._parts(query):
            asked = ids if ids.ndim == 1 else ids[start : start + len(part)]
            start += len(part)
            law = self._law(part)
            cell = self.cell[asked].long().expand(len(part), -1)
            found.append(law.cells.gather(1, cell) + _at(law.share, asked))
        return torch.cat(found)

    def _parts(self, query: Tensor) -> tuple[Tensor, ...]:
        """Return projected queries in blocks of bounded memory."""
        with torch.autocast(query.device.type, enabled=False):
            return torch.split(self.scorer.project(query.float()), self._rows_at_a_time)

    @property
    def _rows_at_a_time(self) -> int:
        widest = max(len(self.logmass), self.num_items if self.last == "exact" else 0)
        return max(1, BLOCK // widest)

    def _points(self, rows: int, n: int, generator: torch.Generator | None) -> Tensor:
        """Return uniform numbers (2, B, N): of cells, and of places in them."""
        shape, device = (2, rows, n), self.words.device
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=device)

    def cell_scores(self, query: Tensor) -> Tensor:
        """Return the scores of all cells, (B, C * C)."""
        with torch.autocast(query.device.type, enabled=False):
            first, second = torch.einsum("bd,kcd->kbc", query, self.words)
            return (first[:, :, None] + second[:, None, :]).flatten(1)

    def _law(self, query: Tensor) -> Law:
        cells = self.cell_scores(query)
        if self.last != "exact":
            law = (cells + self.logmass).log_softmax(1)
            return Law(law, self.cumulative, self.share)
        left, cell = self._left_over(query, cells), self.cell.long().expand(len(query), -1)
        peak = torch.full_like(cells, -torch.inf, dtype=left.dtype)
        peak = peak.scatter_reduce(1, cell, left, "amax")  # per cell, so that none underflows
        level = peak.clamp(min=-1e300)
        cumulative = _summed((left - level.gather(1, cell)).exp()[:, self.order])
        logmass = _within(cumulative, self.starts).log() + level
        share = left - logmass.gather(1, cell)
        law = (cells + logmass).log_softmax(1)
        return Law(law.float(), cumulative, share.masked_fill(~self.alive, -torch.inf).float())

    def _left_over(self, query: Tensor, cells: Tensor) -> Tensor:
        """Return each item's score beyond its words, (B, I) float64; -inf for deleted items."""
        every = slice(0, self.num_items)
        with torch.autocast(query.device.type, enabled=False):
            scores = (query @ self.scorer.vectors(every).float().T).double()
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
        """Return the top k items of the best cells, by exact scores.

        Cells are opened, best words first, until they hold at least k and `effort` allowed items.
        """
        enough = max(self.effort if effort is None else effort, k)
        if enough >= self.num_items:
            flat = Flat(self.scorer, self.alive)
            return flat.search(query, k, filter=filter, max_memory=max_memory)
        if query.device.type != "cpu":
            return in_blocks(self, query, k, enough, filter, max_memory)
        from softdex.kernels.scan import scan  # loads numba

        projected = self.scorer.project(query.detach()).float().numpy()
        exclude, allow = (None, None) if filter is None else (filter.exclude, filter.allow)
        mask = None if allow is None else allow.cpu().numpy()
        found = scan(projected, self._lists(), k, enough, exclude=exclude, allow=mask)
        return Hits(*map(torch.from_numpy, found))

    def _lists(self) -> Lists:
        """Return the items in cell order; they are cached until a vector changes."""
        from softdex.kernels.scan import prepare  # loads numba

        version = self.scorer.version
        if self._kept is None or self._kept[0] != version:
            living = self.order[: int(self.starts[-1])]
            offsets = self.scorer.offsets(living)
            given = None if offsets is None else offsets.float().numpy()
            vectors = self.scorer.vectors(living).float().numpy()
            words, starts = self.words.numpy(), self.starts.numpy()
            self._kept = version, prepare(words, starts, living.numpy(), vectors, given)
        return self._kept[1]

    def tune(self, query: Any, recall: float = 0.95, k: int = 100, *, quiet: bool = False) -> Self:
        """Return the index with the least effort that finds this recall of the exact top k.

        Prints recall and queries per second as the effort grows, for these queries.
        """
        k = min(k, int(self.alive.sum()))
        best = self.search(query, k, effort=math.inf).ids
        effort, found = k / math.sqrt(2), 0.0
        self.search(query, k, effort=k)  # compiles the search, and prepares the lists
        say(f"  {'effort':>10}  {f'recall@{k}':>10}  {'queries/s':>10}", quiet=quiet)
        while found < recall and effort < self.num_items:
            effort *= math.sqrt(2)
            began = time.perf_counter()
            ids = self.search(query, k, effort=effort).ids
            speed = len(ids) / (time.perf_counter() - began)
            found = _overlap(ids, best)
            say(f"  {effort:>10,.0f}  {found:>10.4f}  {speed:>10,.0f}", quiet=quiet)
        return self._with(effort=effort if effort < self.num_items else math.inf)

    # refit and edit -----------------------------------------------------------------------------

    @torch.no_grad()
    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Return the index for the scorer's present vectors, starting at the present codebooks."""
        size = self.words.shape[1]
        words = trained(self.scorer, self.words, size, self.residual, WARM_ROUNDS, generator)
        cell = all_cells(self.scorer, words, self.residual)
        return self._with(words=words, cell=cell, logw=self._weights())

    @torch.no_grad()
    def update(self, ids: Tensor) -> Self:
        """Return the index with these items in the cells of their present vectors."""
        cell = self.cell.clone()
        cell[ids] = cell_of(self.scorer.vectors(ids), self.words, self.residual)
        logw, offsets = self.logw.clone(), self.scorer.offsets(ids)
        if self.last != "popularity" and offsets is not None:
            logw[ids] = torch.maximum(offsets.to(logw), logw.max() - FLOOR)
        return self._with(cell=cell, logw=logw)

    def insert(self, ids: Tensor) -> Self:
        """Return the index with these items, in the cells of their present vectors."""
        alive = edited(self.alive, ids, True)
        return self._with(alive=alive).update(torch.as_tensor(ids, device=alive.device))

    def delete(self, ids: Tensor) -> Self:
        """Return the index without these items."""
        return self._with(alive=edited(self.alive, ids, False))

    def over(self, scorer: Product, order: np.ndarray) -> Self:
        """Return the index over other items; new ones get the least weight, and no cell yet."""
        state = self.state()
        for name, new in (("cell", 0), ("logw", float(self.logw.min())), ("alive", False)):
            state[name] = reordered(state[name], order, new)
        return type(self)(scorer, **state)

    def to(self, device: torch.device | str) -> Self:
        """Return the index with its structure on a device."""
        kept = {n: getattr(self, n).to(device) for n in ("words", "cell", "logw", "alive")}
        return self._with(**kept)

    def state(self) -> dict[str, Tensor]:
        """Return books, cells, weights, which items live, the last stage and the effort."""
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
        """Return log w, which follows the scorer's offsets unless the weights are given."""
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
    """Return an index over all items of a scorer.

    Args:
        scorer: an inner product.
        codewords: words per book; the number of cells is their square.
        last: `uniform`, `popularity` (needs `weight`) or `exact`.
        weight: sampling weight of each item within its cell (I,); see `popularity_weight`.
        residual: the second book describes what the first leaves over, not the second half.
        generator: of the first codewords.
    """
    device = scorer.items.device
    if (weight is None) == (last == "popularity"):
        raise SoftdexError("imi: expected weight= if last='popularity', and only then.")
    codewords = max(1, min(codewords, scorer.num_items))
    dim = scorer.vectors(slice(0, 1)).shape[1]
    if not residual and dim < 2:
        raise SoftdexError("imi: vectors of dimension 1 have no halves. Use residual=True.")
    words = trained(scorer, None, codewords, residual, ROUNDS, generator)
    alive = torch.ones(scorer.num_items, dtype=torch.bool, device=device)
    cell = all_cells(scorer, words, residual)
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


def _floored(logw: Tensor, alive: Tensor) -> Tensor:
    return torch.maximum(logw, torch.where(alive, logw, -torch.inf).max() - FLOOR)


def _summed(weight: Tensor) -> Tensor:
    """Return cumulative sums along the last axis, starting with 0."""
    return torch.nn.functional.pad(weight.cumsum(-1), (1, 0))


def _within(cumulative: Tensor, starts: Tensor) -> Tensor:
    """Return the mass between neighbouring places."""
    at = cumulative[..., starts]
    return at[..., 1:] - at[..., :-1]


def _at(values: Tensor, places: Tensor) -> Tensor:
    """Return values (I,) or (B, I) at places (N,) or (B, N)."""
    return values[places] if values.ndim == 1 else values.gather(1, places.expand(len(values), -1))


def _overlap(found: Tensor, best: Tensor) -> float:
    """Return the share of the best items (B, K) that was found; rows without any do not count."""
    rows = zip(found, best, strict=True)
    hits = sum(int(torch.isin(b[b >= 0], f).sum()) for f, b in rows)
    return hits / max(1, int((best >= 0).sum()))
