"""Kernel: draw items by the squared inner product of query and item, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softdex.errors import ShapeError
from softdex.index import methods
from softdex.index.contract import Draws, edited, reordered
from softdex.index.flat import exact_search
from softdex.score.contract import Product
from softdex.shapes import (
    DOUBLES,
    FLAGS,
    FLOATS,
    LONGS,
    MOST,
    Layout,
    Sizes,
    Tensors,
    check_made,
    most_of,
)
from softdex.share import draw

GATHER = 24  # fetching one item's vector costs about as much as scoring this many in a row
CELLS = 2**24  # numbers that a tile of draws may hold


@final
class Kernel:
    """q(i | u) proportional to alpha * (z . x_i)^2 + 1 over living items, z and x_i the vectors.

    Items lie in blocks of neighbouring ids. The kernel is quadratic, so the mass of a block follows
    from its number of living items and the sum of x x^T over them, as of the last `refit`; inside
    the block the present vectors count. The law therefore stays normalised while they change, and
    is exact right after `refit`. An edit refits the blocks it changes.

    Biases and priors of the scorer do not enter. By default a block has 2 D items, so that all sums
    take a quarter of the memory of the item table.

    Args:
        scorer: an inner product.
        alive: which items are in the index (I,); None: all.
        alpha: weight of the squared product, at least 0.
        block: items per block; None: 2 D.
        gram: sums of x x^T per block, upper triangles; None: of the present vectors.
    """

    tensors: ClassVar[Layout] = {
        "alive": (FLAGS, "I"),
        "gram": (FLOATS, "GT"),
        "alpha": (DOUBLES, ""),
        "block": (LONGS, ""),
    }
    searches = False
    score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors

    @torch.no_grad()
    def __init__(
        self,
        scorer: Product,
        alive: Tensor | None = None,
        *,
        alpha: float | Tensor = 100.0,
        block: int | Tensor | None = None,
        gram: Tensor | None = None,
    ) -> None:
        head = scorer.vectors(slice(0, 1))
        self._dim = int(head.shape[1])
        self.scorer, self.num_items = scorer, scorer.num_items
        self.alpha = float(alpha)
        self.block = min(2 * self._dim if block is None else int(block), self.num_items)
        if alive is None:
            alive = torch.ones(self.num_items, dtype=torch.bool, device=head.device)
        if self.alpha < 0 or self.block < 1 or alive.shape != (self.num_items,):
            raise ShapeError(
                f"Kernel: expected alpha >= 0, block >= 1 and {self.num_items} flags, got "
                f"alpha={self.alpha}, block={self.block} and {len(alive)} flags."
            )
        self.alive = alive
        self._living = pad(alive, (0, -self.num_items % self.block)).view(-1, self.block)
        self._count = self._living.sum(1).double()
        self._pairs = torch.triu_indices(self._dim, self._dim, device=alive.device)
        self.gram = self._grams(slice(None)) if gram is None else gram
        expected = (len(self._living), self._pairs.shape[1])
        if self.gram.shape != expected:
            raise ShapeError(f"Kernel: expected gram {expected}, got {tuple(self.gram.shape)}.")

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
        """Refuse an index without vectors or without a living item, and masses that overflow."""
        methods.check(tensors, sizes, scorer)
        check_made("the index", most_of(tensors["gram"]))
        if not 0 <= float(tensors["alpha"]) <= MOST or int(tensors["block"]) < 1:
            raise ValueError("the index's alpha or block does not exist")
        if not scorer.is_product:
            raise ValueError("the index draws by item vectors, and the scorer has none")

    @torch.no_grad()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items: a block by its mass, then an item of the block by its kernel."""
        if shared:
            raise ShapeError(
                "Kernel.sample: the proposal depends on the query; draws cannot be shared."
            )
        z = self.scorer.project(query).float()
        mass = self._masses(z)
        device, double = mass.device, torch.float64
        point = draw(
            len(z),
            lambda rows: torch.rand(2, rows, n, generator=generator, dtype=double, device=device),
            dim=1,
        )
        block = _pick(mass.cumsum(1), point[0])
        ids, share = torch.empty_like(block), torch.empty_like(point[0])
        for tile in self._tiles(len(z), n, self.block):
            cells = self._inside(z[tile[0]], block[tile])
            cdf = cells.cumsum(2)
            at = _pick(cdf, point[1][tile].unsqueeze(2))
            ids[tile] = block[tile] * self.block + at.squeeze(2)
            share[tile] = (cells.gather(2, at) / cdf[..., -1:]).squeeze(2)
        return Draws(ids, (share.log() + _log_shares(mass).gather(1, block)).float())

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the log-probability of the block plus that of the item in the block, (B, N)."""
        z = self.scorer.project(query).float()
        mass = self._masses(z)
        ids = ids.expand(len(z), -1)
        each_once = ids.shape[1] > mass.shape[1]  # every block, not one for each id
        every = torch.arange(mass.shape[1], device=ids.device).expand_as(mass)
        block = every if each_once else ids // self.block
        scale = _log_shares(mass).gather(1, block) - self._totals(z, block).log()
        logq = torch.empty(ids.shape, device=ids.device)
        for tile in self._tiles(len(z), ids.shape[1], 1):
            mine = scale[tile[0]].gather(1, ids[tile] // self.block) if each_once else scale[tile]
            logq[tile] = (self._kernels(z[tile[0]], ids[tile]).log() + mine).float()
        return logq

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Return the index with the masses of the present vectors."""
        return type(self)(self.scorer, self.alive, alpha=self.alpha, block=self.block)

    def insert(self, ids: Tensor) -> Self:
        """Return the index with these items."""
        return self._edited(ids, True)

    def delete(self, ids: Tensor) -> Self:
        """Return the index without these items."""
        return self._edited(ids, False)

    def over(self, scorer: Product, order: np.ndarray) -> Self:
        """Return the index over other items, refitted."""
        alive = reordered(self.alive, order)
        return type(self)(scorer, alive, alpha=self.alpha, block=self.block)

    def to(self, device: torch.device | str) -> Self:
        """Return the index with its structure on a device."""
        return self._with(self.alive.to(device), self.gram.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return which items live, the sums per block, alpha and the block size."""
        alpha = torch.tensor(self.alpha, dtype=torch.float64)
        size = torch.tensor(self.block)
        return {"alive": self.alive, "gram": self.gram, "alpha": alpha, "block": size}

    def _with(self, alive: Tensor, gram: Tensor) -> Self:
        return type(self)(self.scorer, alive, alpha=self.alpha, block=self.block, gram=gram)

    def _edited(self, ids: Tensor, living: bool) -> Self:
        changed = self._with(edited(self.alive, ids, living), self.gram.clone())
        touched = (changed._living != self._living).any(1)
        changed.gram[touched] = changed._grams(touched)
        return changed

    @torch.no_grad()
    def _grams(self, blocks: Tensor | slice) -> Tensor:
        """Return sums of x x^T over the living items of each block, upper triangles."""
        living = self._living[blocks]
        ids = torch.arange(self._living.numel(), device=living.device).view_as(self._living)
        vectors = self.scorer.vectors(ids[blocks].clamp(max=self.num_items - 1)).float()
        vectors = vectors.masked_fill(~living.unsqueeze(2), 0.0)
        return (vectors.mT @ vectors)[:, self._pairs[0], self._pairs[1]]

    def _masses(self, z: Tensor) -> Tensor:
        """Return the kernel's sum over each block as of the last refit, (B, blocks)."""
        left, right = self._pairs
        products = z[:, left] * z[:, right] * torch.where(left == right, 1.0, 2.0)
        squares = (products @ self.gram.T).double().clamp(min=0)  # rounding can go below
        return self.alpha * squares + self._count

    def _totals(self, z: Tensor, block: Tensor) -> Tensor:
        """Return the kernel's present sum over these blocks (B, N); 1 for an empty block."""
        total = torch.empty(block.shape, dtype=torch.float64, device=block.device)
        for tile in self._tiles(len(z), block.shape[1], self.block):
            total[tile] = self._inside(z[tile[0]], block[tile]).sum(2)
        return total.clamp(min=1)

    def _inside(self, z: Tensor, block: Tensor) -> Tensor:
        """Return the kernel of every place in these blocks (B, N): (B, N, places)."""
        ids = block.unsqueeze(2) * self.block + torch.arange(self.block, device=block.device)
        return self._kernels(z, ids.flatten(1)).view_as(ids)

    def _kernels(self, z: Tensor, ids: Tensor) -> Tensor:
        """Return alpha * (z . x)^2 + 1 of these items (B, N), 0 where none lives."""
        row = ids.clamp(max=self.num_items - 1)
        if self._by_product(ids.shape[1]):
            products = (z @ self.scorer.vectors(slice(None)).float().T).gather(1, row)
        else:
            products = torch.einsum("bd,bnd->bn", z, self.scorer.vectors(row).float())
        kernel = self.alpha * products.double().square() + 1
        return kernel.masked_fill(~self._living.view(-1)[ids], 0.0)

    def _by_product(self, n: int) -> bool:
        """Return whether fetching n items per query costs more than multiplying all items."""
        return n * GATHER >= self.num_items

    def _tiles(self, rows: int, columns: int, places: int) -> Iterator[tuple[slice, slice]]:
        """Yield pieces of bounded memory of (rows, columns) cells with `places` numbers each."""
        width = max(1, min(columns, CELLS // (8 * places)))
        cells = width * places
        row = max(8 * cells, self.num_items) if self._by_product(cells) else self._dim * cells
        height = max(1, CELLS // row)
        for top in range(0, rows, height):
            for left in range(0, columns, width):
                yield slice(top, top + height), slice(left, left + width)


def _pick(cdf: Tensor, point: Tensor) -> Tensor:
    """Return where points of [0, 1) fall in a cumulative sum (..., C), never on mass 0."""
    total = cdf[..., -1:]
    below = torch.minimum(point * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, below, right=True).clamp_(max=cdf.shape[-1] - 1)


def _log_shares(mass: Tensor) -> Tensor:
    return (mass / mass.sum(1, keepdim=True)).log()
