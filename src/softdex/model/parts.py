"""Parts of a model, and what it knows of users and items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa
from torch import nn

from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged
from softdex.encode.contract import Encoder
from softdex.encode.features.tower import Tower, tower_in
from softdex.index.contract import Index
from softdex.index.flat import Flat


@final
@dataclass(frozen=True, eq=False)
class Parts:
    """What a model answers requests with.

    Attributes:
        encoder: makes queries of users.
        index: searches items for queries; `index.scorer` scores them.
        tower, user_tower: make vectors of new items and users from their features; None unless
            the model was trained on features.
    """

    encoder: Encoder
    index: Index
    tower: Tower | None = None
    user_tower: Tower | None = None


@final
@dataclass(frozen=True, eq=False)
class Known:
    """What a model knows of the users and items of its training log.

    Attributes:
        users, items: keys.
        seen: item rows of each user's events, oldest first.
        item_counts: events per item (I,).
        item_table: columns of each item, or None.
    """

    users: Keys
    items: Keys
    seen: Ragged
    item_counts: np.ndarray
    item_table: pa.Table | None = None


def known_from(log: Interactions) -> Known:
    """Return what a training log says of its users and items."""
    return Known(log.users, log.items, log.histories, log.item_counts, log.item_table)


def parts_from(encoder: nn.Module, scorer: nn.Module, index: Index | None = None) -> Parts:
    """Put parts in evaluation mode; without an index every item is scored."""
    encoder.eval()
    scorer.eval()
    index = Flat(scorer) if index is None else index  # type: ignore[arg-type]
    towers = tower_in(scorer, "items"), tower_in(encoder, "vectors")
    return Parts(encoder, index, *towers)  # type: ignore[arg-type]
