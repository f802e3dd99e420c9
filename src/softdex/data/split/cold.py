"""Cold items: all events of some items are held out, so that a model knows nothing but features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from softdex.data.holdout import DROPPED, TEST, TRAIN, VALID, Split, assemble, join
from softdex.data.interactions import Interactions
from softdex.data.split.parts import Seed, check_ratios, checked, clock, generator, in_shares
from softdex.errors import choose


@checked
def cold_items(
    log: Interactions,
    ratios: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    order: str = "random",
    seed: Seed = 0,
) -> Split:
    """Hold out whole items: none of their events is trained on.

    A holdout asks for the cold items of users with events in train. `evaluate` ranks them twice:
    among all items ("recall@20"), and among the cold items of the holdout ("cold recall@20").

    Args:
        log: the log to split.
        ratios: shares of items: (train, test) or (train, valid, test).
        order: which items are cold: `random` ones, or by `time` those that appear last.
        seed: of the choice of items.

    Returns:
        `(train, valid, test)`; valid is None if there are two ratios.
    """
    shares = check_ratios("cold_items", ratios)
    choose("split.cold_items", "order", order, ("random", "time"))
    role = in_shares(_in_order(log, order, seed), shares, log.num_items)
    part = role[log.item]
    knows = np.bincount(log.user[part == TRAIN], minlength=log.num_users) > 0
    part = np.where(knows[log.user], part, DROPPED)
    arguments = {"ratios": list(ratios), "order": order, "seed": seed}
    split = assemble(log, "cold_items", arguments, part, has_valid=len(shares) == 3)
    valid = None if split.valid is None else replace(split.valid, candidates=role == VALID)
    return join(split.train, valid, replace(split.test, candidates=role == TEST), split.card)


def _in_order(log: Interactions, order: str, seed: int) -> np.ndarray:
    """Return the items with events, at random or by their first event."""
    items = np.flatnonzero(log.item_counts)
    if order == "random":
        return generator(seed).permutation(items)
    time = clock("cold_items", log, "Pass order='random' to draw the cold items.")
    first = np.full(log.num_items, np.inf)
    np.minimum.at(first, log.item, time)
    return items[np.argsort(first[items], kind="stable")]
