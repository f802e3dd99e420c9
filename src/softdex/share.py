"""Share: the rows of a batch that this rank computes.

Every rank makes the draws of the whole batch, from generators in the same state, and keeps its own
rows of them. A group of any size therefore trains with the draws of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from softdex import group


class Share(NamedTuple):
    """The rows of a batch that are this rank's: a block, or row numbers (R,), of `total`."""

    rows: slice | Tensor
    total: int

    @property
    def size(self) -> int:
        """Number of rows."""
        if isinstance(self.rows, slice):
            return int(self.rows.stop - self.rows.start)
        return len(self.rows)

    @property
    def places(self) -> Tensor:
        """The row numbers (R,)."""
        return torch.arange(self.total)[self.rows] if isinstance(self.rows, slice) else self.rows

    def of(self, whole: Tensor, dim: int = 0, times: int = 1) -> Tensor:
        """Return this rank's part of a tensor with `times` entries per row along a dimension."""
        if isinstance(self.rows, slice):
            return whole.narrow(dim, self.rows.start * times, self.size * times)
        return whole.index_select(dim, self.rows)


_SHARE = ContextVar[Share | None]("_SHARE", default=None)


def share_of(rows: int) -> Share | None:
    """Return this rank's block of a batch. None: all of it, alone or with fewer rows than ranks."""
    if group.size() == 1 or rows < group.size():
        return None
    return Share(group.own_rows(rows), rows)


def present() -> Share | None:
    """Return the share of the present step; None: all rows."""
    return _SHARE.get()


def take(share: Share | None) -> None:
    """Compute these rows from here to the end of the step."""
    _SHARE.set(share)


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Compute only these rows of batches, while this lasts."""
    before = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(before)


def own(whole: Tensor, dim: int = 0) -> Tensor:
    """Return the rows of this rank of a tensor with a row per row of the batch."""
    share = _SHARE.get()
    return whole if share is None else share.of(whole, dim)


def draw(rows: int, make: Callable[[int], Tensor], dim: int = 0) -> Tensor:
    """Draw for the whole batch, and keep this rank's part.

    Args:
        rows: entries along `dim` here: a multiple of the rows of this rank.
        make: draws for so many.
        dim: along which rows lie.
    """
    share = _SHARE.get()
    if share is None:
        return make(rows)
    times = rows // share.size if share.size else 1
    return share.of(make(share.total * times), dim, times)
