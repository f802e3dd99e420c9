"""Methods to borrow: functions of an index that a class takes as its own.

    class Uniform:
        score, search, tune, vectors = methods.score, exact_search, methods.tune, methods.vectors

Search is `flat.exact_search`. The other ones suit an index that `state` determines, and whose
structure does not depend on the scorer.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from softdex.index.contract import Index, edited, reordered
from softdex.shapes import Sizes, Tensors

Some = TypeVar("Some", bound=Index)


def score(index: Index, query: Any, ids: Tensor) -> Tensor:
    """Return the scorer's scores (B, N)."""
    return index.scorer(query, ids)


def vectors(index: Index) -> Tensor | None:
    """Return the scorer's item vectors (I, D), None where it has none."""
    return index.scorer.items(slice(None)) if index.scorer.is_product else None


def tune(index: Some, query: Any, recall: float = 0.95, k: int = 100) -> Some:
    """Return the index itself: an exact search has nothing to tune."""
    return index


def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
    """Refuse an index without a living item."""
    if not bool(tensors["alive"].any()):
        raise ValueError("the index holds no living item")


def refit(index: Some, *, generator: torch.Generator | None = None) -> Some:
    """Return the index itself: its structure does not depend on the scorer."""
    return index


def insert(index: Some, ids: Tensor) -> Some:
    """Return the index with these items."""
    return _with(index, alive=edited(index.alive, ids, True))


def delete(index: Some, ids: Tensor) -> Some:
    """Return the index without these items."""
    return _with(index, alive=edited(index.alive, ids, False))


def to(index: Some, device: torch.device | str) -> Some:
    """Return the index with its structure on a device."""
    return _with(index, **{name: tensor.to(device) for name, tensor in index.state().items()})


def over(index: Some, scorer: Any, order: np.ndarray) -> Some:
    """Return the index over other items; values of new ones are 0."""
    state = index.state()
    for name, (_, letters) in index.tensors.items():
        if letters == "I":
            state[name] = reordered(state[name], order)
    return type(index)(scorer, **state)  # type: ignore[call-arg]


def _with(index: Some, **changed: Tensor) -> Some:
    return type(index)(index.scorer, **(index.state() | changed))  # type: ignore[call-arg]
