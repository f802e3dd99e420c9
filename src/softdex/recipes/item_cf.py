"""Item-CF: items whose users overlap with those of the history's items."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from softdex.data.interactions import Interactions
from softdex.encode.counting import Neighbours
from softdex.options import count, from_0_to_1, up_to
from softdex.recipes.variant import Guide, Variant
from softdex.score.counting import Sparse
from softdex.solve.closed.neighbours import cosine_neighbours

SPACE = {
    "neighbours": [20, 50, 100, 200, 500, 1000],
    "user_power": [0.0, 0.25, 0.5, 0.75, 1.0],
    "asymmetry": [0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8],
    "shrink": [0.0, 1.0, 10.0],
}
VARIANTS = {
    "item_cf": Variant(
        "Score an item by its cosine to the items of the history.",
        space=SPACE,
        guide=Guide("log", "items like those of the history", "seconds", "yes", "no", "no"),
    )
}


def item_cf(
    train: Interactions,
    *,
    neighbours: Annotated[int, count] = 200,
    user_power: Annotated[float, up_to(10)] = 0.5,
    asymmetry: Annotated[float, from_0_to_1] = 0.6,
    shrink: Annotated[float, up_to(1e9)] = 0.0,
) -> tuple[Neighbours, Sparse]:
    """Score an item by the sum of its weighted cosines to the items of the history.

    Items in no neighbour list rank last, by popularity. The defaults were chosen on validation
    splits; `user_power=0, asymmetry=0.5` is the plain cosine.

    Args:
        neighbours: length of the neighbour list per item.
        user_power: a user of n events has weight n^-user_power.
        asymmetry: above 0.5 favours popular neighbours, below 0.5 rare ones.
        shrink: added to the denominator, so that similarities based on few users shrink.
    """
    lists = cosine_neighbours(
        train.csr(binary=train.weight is None),
        min(neighbours, train.num_items),
        shrink=shrink,
        user_power=user_power,
        asymmetry=asymmetry,
    )
    counts = train.item_counts.astype(np.float32)
    fallback = counts / max(1.0, counts.max()) - 2.0
    arrays = (lists.indptr.astype(np.int64), lists.indices.astype(np.int32), lists.data)
    return Neighbours(*map(torch.from_numpy, arrays)), Sparse(torch.from_numpy(fallback))
