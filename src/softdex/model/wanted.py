"""The lists that are asked for: their length, their columns, and which items may be in them.

Shapes: B users asked about, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softdex.data.ragged import Ragged, concatenate
from softdex.index.contract import MAX_MEMORY, Filter
from softdex.index.gumbel import CELL
from softdex.model.asking import Asked, whole
from softdex.model.at_most import Groups, groups
from softdex.model.filter import RESULT, check_columns, satisfying
from softdex.model.rules import Rules, rows_of
from softdex.model.sampling import COLUMNS, Sampling

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever


class Wanted(NamedTuple):
    """The lists of B users or items.

    Attributes:
        k: length of a list.
        columns: item columns to add to the table.
        mask: which items may come back (I,), or None for all.
        only: item rows per user (B) that may come back, or None for all.
        never: item rows per user (B) that may not come back, or None for none.
        limits: how many items per group a list may hold, or None.
        exclude_seen: whether to exclude the items of the history.
        max_memory: bytes of scores held at a time.
        sampling: how to draw the lists, or None for the best items.
    """

    k: int
    columns: list[str]
    mask: Tensor | None
    only: Ragged | None
    never: Ragged | None
    limits: Groups | None
    exclude_seen: bool
    max_memory: int
    sampling: Sampling | None = None

    def filter(self, part: np.ndarray, history: Ragged, items: int) -> Filter:
        """Return what may come back for the users in these places, who have these histories."""
        out = [history] if self.exclude_seen else []
        out += [] if self.never is None else [self.never.take(part)]
        exclude = concatenate(out) if len(out) > 1 else out[0] if out else None
        if self.only is None:
            return Filter(exclude, self.mask)
        mine = self.only.take(part)
        allow = torch.zeros(len(part), items, dtype=torch.bool)
        allow[mine.row_of, mine.ids.astype(np.int64)] = True
        return Filter(exclude, allow if self.mask is None else allow & self.mask)

    @property
    def bytes_per_user(self) -> int:
        """Return the memory of masks over items, or of candidates, that each user needs."""
        if self.sampling is not None and self.sampling.candidates:
            return CELL * self.sampling.candidates
        if self.limits is not None:
            return 2 * len(self.limits.of)
        return 0 if self.only is None else 2 * int(self.only.ids.max(initial=0) + 1)


def wanted(
    model: Retriever,
    method: str,
    k: Any,
    columns: Any,
    rules: Rules,
    asked: Asked | None,
    max_memory: int = MAX_MEMORY,
    sampling: Sampling | None = None,
) -> Wanted:
    """Check the arguments that `recommend`, `recommend_all` and `similar` share.

    `method` is the one called, named in errors; `similar` has no users asked about.
    """
    table, items = model.item_table, len(model.items)
    result = RESULT if sampling is None else (*RESULT, *COLUMNS)
    columns = check_columns(table, columns, method, result)
    k = min(whole(method, k), items)
    only, never = (
        None if given is None else rows_of(model, method, name, given, asked)
        for name, given in (("allow", rules.allow), ("deny", rules.deny))
    )
    masks = []
    for rows, kept in ((only, True), (never, False)):
        if isinstance(rows, np.ndarray):
            masks.append(np.full(items, not kept))
            masks[-1][rows] = kept
    if rules.where is not None:
        masks.append(satisfying(table, rules.where, method))
    mask = np.logical_and.reduce(masks) if masks else None
    return Wanted(
        k,
        columns,
        None if mask is None or mask.all() else torch.from_numpy(mask),
        only if isinstance(only, Ragged) else None,
        never if isinstance(never, Ragged) else None,
        groups(table, rules.at_most, method),
        rules.exclude_seen,
        max_memory,
        sampling,
    )
