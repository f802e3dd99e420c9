"""Popular: the items with the most events, or the most recent ones."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from softdex.data.interactions import Interactions
from softdex.encode.counting import Unpersonalised
from softdex.errors import SoftdexError
from softdex.options import positive
from softdex.recipes.variant import Guide, Variant
from softdex.score.counting import Constant

VARIANTS = {
    "popular": Variant(
        "Rank items by their number of events, the same for every user.",
        guide=Guide("log", "the items with the most events", "seconds", "yes", "no", "no"),
    )
}


def popular(
    train: Interactions, *, half_life: Annotated[float | None, positive] = None
) -> tuple[Unpersonalised, Constant]:
    """Rank items by their number of events, the same for every user.

    Args:
        half_life: age at which an event counts half, in the unit of the log's time (86400 is a day
            of Unix seconds). None: all events count the same.
    """
    weight = np.ones(len(train)) if train.weight is None else train.weight.astype(np.float64)
    if half_life is not None:
        if train.time is None:
            raise SoftdexError("popular: half_life needs a time column. Name it: read(time=...).")
        weight = weight * np.exp2((train.time - train.time.max()) / half_life)
    counts = np.bincount(train.item, weights=weight, minlength=train.num_items)
    return Unpersonalised(), Constant(torch.from_numpy(counts.astype(np.float32)))
