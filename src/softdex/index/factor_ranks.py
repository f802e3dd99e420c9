"""Factor ranks: draw items that rank high on a factor that matters to the query."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from softdex.errors import ShapeError
from softdex.index import methods
from softdex.index.contract import Draws, edited, reordered
from softdex.index.flat import exact_search
from softdex.score.contract import Product
from softdex.shapes import DOUBLES, FLAGS, FLOATS, INTS, Layout
from softdex.share import draw

CELLS = 2**24  # numbers that a tile of draws may hold
TINY = 1e-12  # weight of a factor that does not matter: a query of zeros draws by all of them alike


@final
class FactorRanks:
    """q(i | u) = sum_f p(f | u) exp(-rank_f(i) / scale) / Z,  p(f | u) in proportion to |z_f| s_f.

    z is the projected query, s_f the standard deviation of factor f over living items, and rank_f
    an item's place (from 0) in the order of the factor: from the top where z_f >= 0, else from the
    bottom. Offsets of the scorer are one more factor, whose z is 1. Z is the sum over all ranks, so
    the law is normalised as it stands.

    Ranks and deviations are as of the last `refit`; an edit refits them.

    Args:
        scorer: an inner product.
        alive: which items are in the index (I,); None: all.
        scale: of the ranks, above 0: most draws are among the first few times as many items of a
            factor.
        place: places of living items in the descending order of each factor (I, F); None: by the
            present vectors.
        spread: s of each factor (F,); None: of the present vectors.
    """

    tensors: ClassVar[Layout] = {
        "alive": (FLAGS, "I"),
        "scale": (DOUBLES, ""),
        "place": (INTS, "IF"),
        "spread": (FLOATS, "F"),
    }
    searches = False
    score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors
    check, to = staticmethod(methods.check), methods.to

    @torch.no_grad()
    def __init__(
        self,
        scorer: Product,
        alive: Tensor | None = None,
        *,
        scale: float | Tensor = 500.0,
        place: Tensor | None = None,
        spread: Tensor | None = None,
    ) -> None:
        self.scorer, self.num_items, self.scale = scorer, scorer.num_items, float(scale)
        if not self.scale > 0 or (alive is not None and alive.shape != (self.num_items,)):
            raise ShapeError(
                f"FactorRanks: expected scale > 0 and {self.num_items} flags, got "
                f"scale={self.scale} and {self.num_items if alive is None else len(alive)} flags."
            )
        if alive is None:
            head = scorer.vectors(slice(0, 1))
            alive = torch.ones(self.num_items, dtype=torch.bool, device=head.device)
        self.alive = alive
        living = alive.nonzero()[:, 0]
        if place is None or spread is None:
            place, spread = self._ranked(living)
        self.place, self.spread = place, spread
        self._living = len(living)
        self._order = torch.empty(place.shape[1], len(living), dtype=torch.int32).to(alive.device)
        for row, column in zip(self._order, place.T, strict=True):
            row[column[living].long()] = living.int()

    @torch.no_grad()
    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draw (B, N) items: a factor by its weight, then a rank by the exponential law."""
        if shared:
            raise ShapeError(
                "FactorRanks.sample: the proposal depends on the query; draws cannot be shared."
            )
        z = self._query(query)
        device, double = z.device, torch.float64
        point = draw(
            len(z),
            lambda rows: torch.rand(2, rows, n, generator=generator, dtype=double, device=device),
            dim=1,
        )
        mass = self._weight(z).double().cumsum(1)
        factor = torch.searchsorted(mass, point[0] * mass[:, -1:], right=True)
        factor = factor.clamp_(max=mass.shape[1] - 1)
        last = math.expm1(-self._living / self.scale)
        rank = (-self.scale * torch.log1p(point[1] * last)).long().clamp_(0, self._living - 1)
        place = torch.where(z.gather(1, factor) >= 0, rank, self._living - 1 - rank)
        ids = self._order[factor, place].long()
        return Draws(ids, self._law(z, ids))

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the log of the mixture over factors, (B, N)."""
        z = self._query(query)
        ids = ids.expand(len(z), -1)
        return self._law(z, ids).masked_fill(~self.alive[ids], -torch.inf)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Return the index with the ranks of the present vectors."""
        return type(self)(self.scorer, self.alive, scale=self.scale)

    def insert(self, ids: Tensor) -> Self:
        """Return the index with these items, and the ranks of the present vectors."""
        return type(self)(self.scorer, edited(self.alive, ids, True), scale=self.scale)

    def delete(self, ids: Tensor) -> Self:
        """Return the index without these items, and with the ranks of the present vectors."""
        return type(self)(self.scorer, edited(self.alive, ids, False), scale=self.scale)

    def over(self, scorer: Any, order: np.ndarray) -> Self:
        """Return the index over another scorer's items, with the ranks of its present vectors."""
        return type(self)(scorer, reordered(self.alive, order), scale=self.scale)

    def state(self) -> dict[str, Tensor]:
        """Return which items live, the scale, and places and deviations as of the last refit."""
        scale = torch.tensor(self.scale, dtype=torch.float64)
        return {"alive": self.alive, "scale": scale, "place": self.place, "spread": self.spread}

    def _ranked(self, living: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of living items (I, F) by the present vectors, and deviations (F,)."""
        points = self.scorer.vectors(living).float()
        offsets = self.scorer.offsets(living)
        if offsets is not None:
            points = torch.cat([points, offsets.float()[:, None]], 1)
        place = living.new_zeros(self.num_items, points.shape[1], dtype=torch.int32)
        rank = torch.arange(len(living), dtype=torch.int32, device=living.device)
        for column, values in zip(place.T, points.T, strict=True):
            column[living[values.argsort(descending=True, stable=True)]] = rank
        return place, points.std(0, correction=0)

    def _query(self, query: Any) -> Tensor:
        """Return the projected query, and 1 for the offsets (B, F)."""
        z = self.scorer.project(query).float()
        more = len(self.spread) - z.shape[1]
        return torch.cat([z, z.new_ones(len(z), more)], 1) if more else z

    def _weight(self, z: Tensor) -> Tensor:
        return z.abs() * self.spread + TINY

    def _law(self, z: Tensor, ids: Tensor) -> Tensor:
        """Return log q of living items (B, N), in tiles of bounded memory."""
        weight = self._weight(z)
        share = (weight / weight.sum(1, keepdim=True)).log() - self._log_mass()
        from_top, found = z >= 0, torch.empty(ids.shape, device=ids.device)
        width = max(1, min(ids.shape[1], CELLS // z.shape[1]))
        height = max(1, CELLS // (z.shape[1] * width))
        for top in range(0, len(ids), height):
            rows = slice(top, top + height)
            for left in range(0, ids.shape[1], width):
                tile = rows, slice(left, left + width)
                place = self.place[ids[tile]]
                rank = torch.where(from_top[rows, None], place, self._living - 1 - place)
                found[tile] = (share[rows, None] - rank / self.scale).logsumexp(2)
        return found

    def _log_mass(self) -> float:
        """Return the log of the sum of exp(-rank / scale) over all ranks."""
        every, one = math.expm1(-self._living / self.scale), math.expm1(-1 / self.scale)
        return math.log(every / one)
