"""Tables of vectors, whose rows are looked up and updated one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from softdex.data.ragged import Ragged
from softdex.encode.contract import Vectors
from softdex.encode.learned import Learned, Lookup
from softdex.encode.terms import Terms, as_double
from softdex.encode.version import Version, version_of
from softdex.errors import ShapeError
from softdex.kernels.dispatch import fused_for, products_for
from softdex.shapes import FLOATS, Layout, moderate

SHORTEST = 1e-12  # length that a row is divided by at least


class Touched(NamedTuple):
    """Rows that were looked up; the gradient of lookup m is weight_m * grad[source_m], plus pull_m
    times the row itself.

    Attributes:
        ids: rows (M,), -1 for no row; None: `grad` covers all rows.
        grad: gradients (R, D).
        source: row of `grad` per lookup (M,); None: M = R, in order. Each row has as many lookups.
        weight: per lookup (M,); None: 1.
        pull: per lookup (M,); None: 0.
    """

    ids: Tensor | None
    grad: Tensor
    source: Tensor | None = None
    weight: Tensor | None = None
    pull: Tensor | None = None


@final
class Table(nn.Module):
    """Vectors (rows, D). A lookup in training records its rows, so that only they are updated.

    The table is a buffer, not a parameter: autograd sees only the looked-up rows, never a gradient
    of the table's size. `RowAdam` (solve/gradient/rowwise.py) collects them with `touched`.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self._lookups: list[Callable[[], Touched | None]] = []

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return int(self.weight.shape[1])

    @property
    def device(self) -> torch.device:
        """Device of the vectors."""
        return self.weight.device

    @property
    def version(self) -> Version:
        """Version of the vectors: a cache of what they determine is valid while it is equal."""
        return version_of(self.weight)

    @property
    def _learns(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def forward(self, ids: Tensor | slice) -> Tensor:
        """Return the rows of these ids, (..., D); -1 gives an arbitrary vector and no update."""
        rows = self.weight[ids]
        if not self._learns or isinstance(ids, slice):
            return rows
        rows = rows.requires_grad_()
        self._remember(rows, lambda grad: Touched(ids.reshape(-1), grad.reshape(-1, self.dim)))
        return rows

    def all(self) -> Tensor:
        """Return all rows, for objectives that sum over them."""
        if not self._learns:
            return self.weight
        rows = self.weight.detach().requires_grad_()
        self._remember(rows, lambda grad: Touched(None, grad))
        return rows

    def bag(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Return weighted sums of rows (B, D), for ids (B, L), -1 for none, and weights (B, L)."""
        weight = (weight * (ids >= 0)).to(self.weight.dtype)
        sums = _bags(self.weight, ids, weight)
        if not self._learns:
            return sums
        sums = sums.requires_grad_()
        source = _rows_of(ids)
        self._remember(
            sums, lambda grad: Touched(ids.reshape(-1), grad, source, weight.reshape(-1))
        )
        return sums

    def dots(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return inner products (B, N) of queries (B, D) with the rows `ids` (B, N).

        Training stores nothing of size (B, N, D): the gradient of a row is a number times the
        query.
        """
        if not self._learns:
            return torch.einsum("bd,bnd->bn", query, self.weight[ids])
        leaf = torch.empty(0, requires_grad=True)  # rows learn even if the query does not
        return _Dots.apply(query, leaf, self, ids)  # type: ignore[no-untyped-call]

    def cosines(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return inner products (B, N) of queries (B, D) with the directions of rows (B, N).

        Training stores nothing of size (B, N, D) here either: the gradient of a row's length is a
        number times the row.
        """
        if not self._learns:
            return torch.einsum("bd,bnd->bn", query, normalize(self.weight[ids], dim=-1))
        leaf = torch.empty(0, requires_grad=True)
        return _Cosines.apply(query, leaf, self, ids)  # type: ignore[no-untyped-call]

    def touched(self) -> list[Touched]:
        """Return the lookups since the last call that have a gradient."""
        seen, self._lookups = self._lookups, []
        return [found for look in seen if (found := look()) is not None]

    def put(self, lookups: list[Touched]) -> None:
        """Count these as lookups since the last call of `touched`."""
        self._lookups += [lambda found=found: found for found in lookups]  # type: ignore[misc]

    def _remember(self, rows: Tensor, touched: Callable[[Tensor], Touched]) -> None:
        self._lookups.append(lambda: None if rows.grad is None else touched(rows.grad))


def tables_in(module: nn.Module) -> list[Table]:
    """All tables in a module, each once."""
    return list(dict.fromkeys(m for m in module.modules() if isinstance(m, Table)))


def table_of(vectors: Tensor | nn.Module, rows: int | None = None) -> Any:
    """Return what stands for a table of these vectors.

    Args:
        vectors: a tensor (rows, D): a `Table`, whose rows the library's own training updates. A
            Parameter, an Embedding, or any module that makes vectors (..., D) of ids (...,): any
            torch optimiser trains it. A module that stands for a table is returned as it is.
        rows: number of vectors of a module; a Parameter and an Embedding know it.
    """
    known = vectors.num_embeddings if isinstance(vectors, nn.Embedding) else rows
    known = len(vectors) if isinstance(vectors, Tensor) else known
    if rows is not None and known != rows:
        raise ShapeError(
            f"item vectors: num_items={rows:,} contradicts the {known:,} vectors given. Leave it "
            "out: only other modules need it."
        )
    if isinstance(vectors, nn.Parameter):
        return Learned(Lookup(vectors), len(vectors))
    if isinstance(vectors, Tensor):
        if vectors.requires_grad:
            raise ShapeError(
                "item vectors: expected a Parameter, a module, or a tensor without a gradient; got "
                "a tensor that requires one, and would not be trained. Wrap it in nn.Parameter, or "
                "give the module that computes it and num_items=."
            )
        return Table(vectors)
    if isinstance(vectors, nn.Embedding):
        return Learned(vectors, vectors.num_embeddings)
    if isinstance(vectors, Vectors):
        return vectors
    if not isinstance(vectors, nn.Module) or rows is None:
        raise ShapeError(
            "item vectors: expected vectors (I, D), a Parameter, an Embedding, or any module and "
            f"num_items=, got {type(vectors).__name__} alone."
        )
    return Learned(vectors, rows)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, leaf: Tensor, table: Table, ids: Tensor) -> Tensor:
        ctx.save_for_backward(query, ids)
        ctx.table = table
        kernels_of = products_for if ids.shape[1] > 1 else fused_for  # a CPU copies one row as fast
        if (compiled := kernels_of(table.weight)) is not None:
            products: Tensor = compiled.dots(query.to(table.weight.dtype), table.weight, ids)
            return products
        return torch.einsum("bd,bnd->bn", query, table.weight[ids].to(query.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        query, ids = ctx.saved_tensors
        own = _learn(ctx, query, ids, grads[0].to(ctx.table.weight.dtype), None)
        return own, None, None, None


class _Cosines(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, leaf: Tensor, table: Table, ids: Tensor) -> Tensor:
        ctx.table, weight = table, table.weight
        if (compiled := products_for(weight)) is not None:
            products, length = compiled.dots_and_lengths(query.to(weight.dtype), weight, ids)
        else:
            rows = weight[ids]
            products = torch.einsum("bd,bnd->bn", query.to(weight.dtype), rows)
            length = torch.linalg.vector_norm(rows, dim=-1)
        cosines = products / length.clamp(min=SHORTEST)
        ctx.save_for_backward(query, ids, cosines, length)
        return cosines

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        query, ids, cosines, length = ctx.saved_tensors
        weight = grads[0].to(length.dtype) / length.clamp(min=SHORTEST)
        pull = -weight * cosines / length
        own = _learn(ctx, query, ids, weight, torch.where(length < SHORTEST, 0, pull))
        return own, None, None, None


def _learn(
    ctx: Any, query: Tensor, ids: Tensor, weight: Tensor, pull: Tensor | None
) -> Tensor | None:
    """Remember gradients of rows, `weight` (B, N) times the query and `pull` (B, N) times the row;
    return that of the query, if it has one."""
    table, real = ctx.table, ids >= 0
    weight = weight * real
    found = Touched(
        ids.reshape(-1),
        query.to(table.weight.dtype),
        _rows_of(ids),
        weight.reshape(-1),
        None if pull is None else torch.where(real, pull, 0).reshape(-1),
    )
    table._lookups.append(lambda: found)
    if not ctx.needs_input_grad[0]:
        return None
    return _bags(table.weight, ids, weight).to(query.dtype)


def _bags(table: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    """Return sums (B, D) of rows `ids` (B, L) times `weight` (B, L), which is 0 for no row."""
    if (fused := fused_for(table)) is not None:
        return fused.bags(table, ids, weight)
    return embedding_bag(ids.clamp(min=0), table, per_sample_weights=weight, mode="sum")


def _rows_of(ids: Tensor) -> Tensor:
    """Return the row number of each id (B, L), flat."""
    return torch.arange(len(ids), device=ids.device).repeat_interleave(ids.shape[1])


@final
class Users(nn.Module):
    """Look up the vector of a user; users that were not in training have none."""

    tensors: ClassVar[Layout] = {"vectors.weight": (FLOATS, "UD")}
    reads_items = False
    reads_history = False
    answers_strangers = False
    history_first = False
    check = staticmethod(moderate)

    def __init__(self, vectors: Tensor | nn.Module) -> None:
        super().__init__()
        self.vectors = table_of(vectors)
        self.query_bytes = 4 * self.vectors.dim

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, D)."""
        found: Tensor = self.vectors(torch.as_tensor(users, device=self.vectors.device))
        return found

    def summands(self, user: int, history: Ragged) -> Terms:
        """Return the user's own vector as the only term."""
        own = as_double(self.vectors(torch.tensor([user], device=self.vectors.device)))[0]
        nothing = np.zeros((0, len(own)))
        return Terms("own vector", np.zeros(0, np.int64), nothing, own, np.zeros(len(own)))

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder itself: it knows no items."""
        return self
