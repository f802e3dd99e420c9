"""Inner products: the score is a product of a query's and an item's vector, plus an offset."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softdex.encode.table import Table, table_of
from softdex.encode.version import version_of
from softdex.errors import ShapeError
from softdex.score.contract import Product, extended
from softdex.shapes import FLOATS, MOST, Layout, Sizes, Tensors, moderate


@final
class Dot(nn.Module):
    """Inner product of a query (B, D) and item vectors (I, D), plus a bias (I,) if there is one.

    Args:
        items: vectors (I, D). A Parameter, an `nn.Embedding`, or any module that makes vectors of
            ids is trained by autograd and any torch optimiser.
        bias: (I,), a Parameter to be trained; None: no bias.
        num_items: number of items I of a module; a Parameter and an Embedding know it.
    """

    tensors: ClassVar[Layout] = {"items.weight": (FLOATS, "ID"), "bias.weight": (FLOATS, "I1?")}
    is_product = True
    pair_bytes = 0
    check = staticmethod(moderate)

    def __init__(
        self,
        items: Tensor | nn.Module,
        bias: Tensor | None = None,
        *,
        num_items: int | None = None,
    ) -> None:
        super().__init__()
        self.items = _table_of(items, num_items)
        _check_offsets("bias", bias, len(self.items))
        learned = isinstance(bias, nn.Parameter)
        self.bias = None if bias is None else table_of(bias if learned else bias.reshape(-1, 1))
        self.num_items = len(self.items)

    def num_queries(self, query: Tensor) -> int:
        """Return the number of rows of the query."""
        return len(query)

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of vectors and bias."""
        return self.items.version, None if self.bias is None else self.bias.version

    def project(self, query: Tensor) -> Tensor:
        """Return the query itself."""
        return query

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Return rows of the item table."""
        return self.items(ids)

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """Return the bias of these items."""
        return None if self.bias is None else self.bias(ids).squeeze(-1)

    def directions(self, rows: Tensor) -> Tensor:
        """Return the rows themselves."""
        return rows

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Return both tables."""
        return self.items.all(), None if self.bias is None else self.bias.all()[:, 0]

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N)."""
        if isinstance(ids, Tensor) and ids.ndim == 2:
            return _plus(self.items.dots(query, ids), self.offsets(ids))
        return _scores(self, query, ids)

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items."""
        items = extended(self.items.weight, vectors, order)
        if self.bias is None:
            return type(self)(items).eval()
        return type(self)(items, extended(self.bias.weight[:, 0], offsets, order)).eval()


@final
class Cosine(nn.Module):
    """Cosine of a query (B, D) and item vectors (I, D), over a temperature, plus a prior (I,).

    A cosine cannot express popularity. The prior, where there is one, is the log of how likely an
    item is before anything is known of the user; it is given, not learned.

    Args:
        items: vectors (I, D). A Parameter, an `nn.Embedding`, or any module that makes vectors of
            ids is trained by autograd and any torch optimiser.
        temperature: (), above 0; a Parameter is trained.
        prior: (I,); None: no prior. A Parameter is trained.
        num_items: number of items I of a module; a Parameter and an Embedding know it.
    """

    tensors: ClassVar[Layout] = {
        "items.weight": (FLOATS, "ID"),
        "temperature": (FLOATS, ""),
        "prior": (FLOATS, "I?"),
    }
    is_product = True
    pair_bytes = 0
    temperature: Tensor
    prior: Tensor | None

    def __init__(
        self,
        items: Tensor | nn.Module,
        temperature: Tensor,
        prior: Tensor | None = None,
        *,
        num_items: int | None = None,
    ) -> None:
        super().__init__()
        self.items = _table_of(items, num_items)
        _check_offsets("prior", prior, len(self.items))
        _hold(self, "temperature", temperature)
        _hold(self, "prior", prior)
        self.num_items = len(self.items)

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse a temperature that nothing can be divided by, and numbers that could overflow."""
        moderate(tensors, sizes)
        if not float(tensors["temperature"]) >= 1 / MOST:
            raise ValueError(f"the scorer's temperature is below {1 / MOST:g}")

    def num_queries(self, query: Tensor) -> int:
        """Return the number of rows of the query."""
        return len(query)

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of vectors and prior."""
        return self.items.version, None if self.prior is None else version_of(self.prior)

    def project(self, query: Tensor) -> Tensor:
        """Return the query, normalised, over the temperature."""
        return normalize(query, dim=-1) / self.temperature

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Return normalised rows of the item table."""
        return self.directions(self.items(ids))

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """Return the prior of these items."""
        return None if self.prior is None else self.prior[ids]

    def directions(self, rows: Tensor) -> Tensor:
        """Return the rows, normalised."""
        return normalize(rows, dim=-1)

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Return all directions, and the prior."""
        return self.directions(self.items.all()), self.prior

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N)."""
        if isinstance(self.items, Table) and isinstance(ids, Tensor) and ids.shape[1:] > (1,):
            return _plus(self.items.cosines(self.project(query), ids), self.offsets(ids))
        return _scores(self, query, ids)

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items."""
        items = extended(self.items.weight, vectors, order)
        prior = None if self.prior is None else extended(self.prior.detach(), offsets, order)
        return type(self)(items, self.temperature.detach(), prior).eval()


@final
class Euclidean(nn.Module):
    """Negative squared distance of a query (B, D) and item points (I, D), up to the query's part.

        score(u, i) = 2 q . x_i - |x_i|^2 = |q|^2 - |q - x_i|^2

    q and x are projected onto the unit ball where they are read: longer ones are shortened. As an
    inner product with offsets it is searched and sampled like any other.

    Args:
        items: points (I, D). A Parameter, an `nn.Embedding`, or any module that makes vectors of
            ids is trained by autograd and any torch optimiser.
        num_items: number of items I of a module; a Parameter and an Embedding know it.
    """

    tensors: ClassVar[Layout] = {"items.weight": (FLOATS, "ID")}
    is_product = True
    check = staticmethod(moderate)

    def __init__(self, items: Tensor | nn.Module, *, num_items: int | None = None) -> None:
        super().__init__()
        self.items = _table_of(items, num_items)
        self.num_items = len(self.items)
        self.pair_bytes = 8 * self.items.dim

    def num_queries(self, query: Tensor) -> int:
        """Return the number of rows of the query."""
        return len(query)

    @property
    def version(self) -> tuple[Any, ...]:
        """Version of the points."""
        return (self.items.version,)

    def project(self, query: Tensor) -> Tensor:
        """Return twice the query, in the unit ball."""
        return 2 * in_unit_ball(query)

    def vectors(self, ids: Tensor | slice) -> Tensor:
        """Return the points of these items, in the unit ball."""
        return self.directions(self.items(ids))

    def offsets(self, ids: Tensor | slice) -> Tensor | None:
        """Return -|x|^2 of these items."""
        return self.offsets_of(self.items(ids))

    def offsets_of(self, rows: Tensor) -> Tensor:
        """Return -|x|^2 of items with these rows of the item table."""
        return -self.directions(rows).square().sum(-1)

    def directions(self, rows: Tensor) -> Tensor:
        """Return the rows, in the unit ball."""
        return in_unit_ball(rows)

    def everything(self) -> tuple[Tensor, Tensor | None]:
        """Return all points and -|x|^2."""
        points = self.directions(self.items.all())
        return points, -points.square().sum(-1)

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N)."""
        query, points = self.project(query), self.vectors(ids)
        offsets = -points.square().sum(-1)
        if points.ndim == 2:
            return query @ points.T + offsets
        return torch.einsum("bd,bnd->bn", query, points) + offsets

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other items."""
        return type(self)(extended(self.items.weight, vectors, order)).eval()


def in_unit_ball(rows: Tensor) -> Tensor:
    """Return vectors (..., D), those longer than 1 shortened to length 1."""
    return rows / rows.norm(dim=-1, keepdim=True).clamp(min=1)


def _table_of(items: Tensor | nn.Module, num_items: int | None) -> Any:
    """Return a table of item vectors; refuse tensors that hold none."""
    if isinstance(items, Tensor) and (items.ndim != 2 or not items.is_floating_point()):
        raise ShapeError(
            f"item vectors: expected floats (I, D), got {items.dtype} {tuple(items.shape)}."
        )
    return table_of(items, num_items)


def _check_offsets(name: str, offsets: Any, items: int) -> None:
    """Refuse offsets that are not one number per item."""
    if offsets is None or (isinstance(offsets, Tensor) and offsets.shape in ((items,), (items, 1))):
        return
    got = tuple(offsets.shape) if isinstance(offsets, Tensor) else type(offsets).__name__
    raise ShapeError(f"{name}: expected a tensor or a Parameter ({items},), got {got}.")


def _hold(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Register a tensor of a module: a Parameter is trained, any other tensor is not."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _scores(scorer: Product, query: Tensor, ids: Tensor | slice) -> Tensor:
    query, vectors = scorer.project(query), scorer.vectors(ids)
    if vectors.ndim == 2:
        return _plus(query @ vectors.T, scorer.offsets(ids))
    return _plus(torch.einsum("bd,bnd->bn", query, vectors), scorer.offsets(ids))


def _plus(scores: Tensor, offsets: Tensor | None) -> Tensor:
    return scores if offsets is None else scores + offsets
