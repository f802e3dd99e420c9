"""Card: how a split was made. Its log and its holdouts carry it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from softdex.tables import Record


@final
@dataclass(frozen=True)
class Card:
    """How a split was made, so that a metric can be traced to it.

    The hashes are of events: keys and values count, the order of rows does not. Order among a
    user's events of equal time may still matter for training, and random splits draw by row.

    Attributes:
        name: the split, e.g. "leave_last".
        arguments: the arguments it was called with.
        counts: events, users, items and targets per part.
        data_sha256: hash of the log.
        sha256: hash of the parts.
        notes: warnings, e.g. that the split ignores time.
        part: which part carries this card: `train`, `valid` or `test`; "" for the whole split.
    """

    name: str
    arguments: dict[str, Any]
    counts: dict[str, int]
    data_sha256: str
    sha256: str
    notes: list[str] = field(default_factory=list)
    part: str = ""

    @property
    def identity(self) -> str:
        """The part of the split that carries this card, told apart from any other."""
        return f"{self.sha256} {self.part}"

    def of(self, part: str) -> Card:
        """Return the card that a part of the split carries."""
        return replace(self, part=part)

    def noted(self, notes: Sequence[str]) -> Card:
        """Return the card with further notes."""
        return replace(self, notes=[*self.notes, *notes])

    def json(self) -> dict[str, Any]:
        """The card as a dict that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        facts = {"split": self.name, **self.arguments, **self.counts}
        facts |= {"data sha256": self.data_sha256[:16], "split sha256": self.sha256[:16]}
        facts |= {f"note {i}": note for i, note in enumerate(self.notes, 1)}
        return str(Record("Protocol card", facts))
