"""The score of one item as a linear function of the query. Shapes: D dimension."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

PARALLEL = 1e-4  # share of its length by which a projected query may leave the query's direction


class Slope(NamedTuple):
    """score = query . weights + offset, for one query and item; weights (D,) in float64."""

    weights: np.ndarray
    offset: float


@runtime_checkable
class HasSlope(Protocol):
    """A scorer without item vectors whose score is linear in the query."""

    def slope(self, query: np.ndarray, item: int) -> Slope:
        """Return the linear function that is the score of this item at this query (D,)."""
        ...


@torch.no_grad()
def slope_of(scorer: Any, query: np.ndarray, item: int) -> Slope | None:
    """Return the linear function that is an item's score at a query, None where there is none.

    An inner product that only scales the query, as a cosine does, is linear once the scale is held
    fixed.

    Args:
        scorer: of the model.
        query: (D,), float64.
        item: its row.
    """
    if isinstance(scorer, HasSlope):
        return scorer.slope(query, item)
    if not scorer.is_product:
        return None
    ids = torch.tensor([item], device=scorer.items.device)
    vector, offset = scorer.vectors(ids)[0], scorer.offsets(ids)
    asked = torch.from_numpy(query)[None].to(vector)
    projected = scorer.project(asked)[0].double().cpu().numpy()
    if projected.shape != query.shape:
        return None
    scale = float(projected @ query) / max(float(query @ query), np.finfo(np.float64).tiny)
    if np.linalg.norm(projected - scale * query) > PARALLEL * np.linalg.norm(projected):
        return None
    weights = scale * vector.double().cpu().numpy()
    return Slope(weights, 0.0 if offset is None else float(offset[0]))
