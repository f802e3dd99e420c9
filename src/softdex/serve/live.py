"""Live events in answers: the items that a user has interacted with since the model was trained.

Encoders that read histories read them, closed forms solve for the user again, and a model with one
vector per user only excludes them. An item that the model does not know is left out until a model
knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa

from softdex.data.ragged import Ragged, concatenate, offsets
from softdex.model import asking
from softdex.model.asking import Asked
from softdex.model.retriever import Retriever
from softdex.serve.events import Events, Tail

MOST = 100_000  # users and items whose rows are kept


@final
class Live:
    """The live events of users, as item rows of a model.

    Args:
        model: the served model.
        events: of the server.

    Attributes:
        reads: whether the model's lists follow live events; else they only exclude them.
    """

    def __init__(self, model: Retriever, events: Events) -> None:
        self.model, self.events = model, events
        trained = model.card.events or {}
        self._until = trained["until"] if trained.get("store") == events.store else 0
        self.reads = bool(model.encoder.reads_history)
        self._users: dict[str, tuple[Tail, np.ndarray]] = {}
        self._items: dict[Any, int] = {}

    @property
    def how(self) -> str:
        """How lists follow live events, for the card."""
        if not self.reads:
            return "excluded from lists only: the model keeps one vector per user"
        return "folded in" if self.model.encoder.history_first else "read with the history"

    def rows(self, user: object) -> np.ndarray:
        """Return the items of a user's live events, oldest first, without those that the model was
        trained on."""
        tail, key = self.events.of(user), str(user)
        kept = self._users.get(key)
        if kept is not None and kept[0] is tail:
            return kept[1]
        items = self._rows_of([each.item for each in tail])
        keep = items >= 0
        old = np.array([each.seq <= self._until for each in tail], bool)
        if old.any():  # of these, the model lacks what was held out
            row = self.model.users.lookup([user])
            had = self.model.seen.take(row).ids if row[0] >= 0 else items[:0]
            keep &= ~(old & np.isin(items, had))
        if len(self._users) > MOST:
            self._users = {}
        self._users[key] = tail, (found := items[keep])
        return found

    def _rows_of(self, items: Sequence[Any]) -> np.ndarray:
        """Return the row of each item, -1 for unknown ones."""
        known = self._items if len(self._items) <= MOST else {}
        new = [item for item in dict.fromkeys(items) if item not in known]
        if new:
            rows = self.model.items.lookup([str(item) for item in new])
            known |= dict(zip(new, rows.tolist(), strict=True))
        self._items = known
        return np.array([known[item] for item in items], np.int64)


@final
class Following:
    """Finds users as `asking.who` does, with their live events.

    Attributes:
        reads: per user of the request, whether the model read live events; None where there are
            none.
    """

    def __init__(self, live: Live | None) -> None:
        self.live = live
        self.reads: list[bool | None] = []

    def __call__(
        self, model: Retriever, where: str, users: Any, history: Any, unknown: str = "error"
    ) -> Asked:
        """Find users."""
        asked, fresh = who(model, self.live, where, users, history, unknown)
        self.reads = [self.live.reads if self.live and has else None for has in fresh.tolist()]
        return asked


def who(
    model: Retriever, live: Live | None, where: str, users: Any, history: Any, unknown: str
) -> tuple[Asked, np.ndarray]:
    """Find users as `asking.who` does, with their live events at the end of their histories.

    Returns them, and which of the request's users have live events. A history that was given stays
    as it is.
    """
    cells = users.to_pylist() if isinstance(users, (pa.Array, pa.ChunkedArray)) else users
    follows = live is not None and users is not None and history is None
    more = [live.rows(user) for user in cells] if live is not None and follows else []
    lengths = np.array([len(rows) for rows in more], np.int64)
    if live is None or not lengths.any():
        found = asking.who(model, where, users, history, unknown)
        return found, np.zeros(found.given, bool)
    asked = asking.who(model, where, users, None, "popular")  # which refuses nobody
    fresh = lengths > 0
    past = concatenate([asked.history, Ragged(offsets(lengths), np.concatenate(more))])
    lost = asked.rows < 0
    if live.reads:
        lost &= ~fresh
    if unknown == "error" and lost.any():
        asking.who(model, where, [cells[i] for i in np.flatnonzero(lost)], None, "error")  # raises
    rows = np.where(fresh, -1, asked.rows) if model.encoder.history_first else asked.rows
    strangers = lost | (past.lengths == 0) if unknown == "popular" else np.zeros(len(rows), bool)
    asked = asked._replace(rows=rows, history=past, strangers=strangers)
    if unknown == "skip":
        places = np.flatnonzero(~lost)
        asked = asked._replace(
            names=asked.names.take(places), rows=rows[places], history=past.take(places),
            strangers=strangers[places], places=places,
        )  # fmt: skip
    return asked, fresh
