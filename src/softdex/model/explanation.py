"""Explanation: why a user gets an item, as a table of shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import pyarrow as pa

from softdex.model.recommendations import as_html
from softdex.notebook import ROWS, notes, page, title
from softdex.tables import cell, render


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The score of one item for one user, and the share of each item of the history in it.

    Attributes:
        user: key of the user, or None for a history alone.
        item: key of the item.
        score: of the item.
        base: the part of the score without any share; if not `exact`, the score for an empty
            history.
        rest: sum of the shares that the table leaves out.
        exact: whether base, shares and rest sum to the score.
        method: how shares were found: `solve`, `mean`, `neighbours`, `own vector`, `the same for
            all`, or `leave-one-out`, where a share is what the score loses without the item.
        table: `of` ("history", or "user" for the user's own vector), `item`, `share`, and the item
            columns asked for; the largest share first.
        path: of a tree, the item's node per level: `level`, `node`, `score` and `rank` among the
            `candidates` that the beam scored, of which it kept `kept`; null where the beam had lost
            the node. Else None.
    """

    user: Any
    item: Any
    score: float
    base: float
    rest: float
    exact: bool
    method: str
    table: pa.Table
    path: pa.Table | None = None

    @property
    def title(self) -> str:
        """Say what is explained, and what the score is made of."""
        who = "a history" if self.user is None else self.user
        head = f"{self.item} for {who}: score {self.score:.4f}"
        if not self.exact:
            return f"{head}, {self.base:.4f} without a history; a share is what leaving out loses"
        left = f" + rest {self.rest:.4f}" if self.rest else ""
        return f"{head} = base {self.base:.4f} + shares{left} ({self.method})"

    def __repr__(self) -> str:
        return "\n".join([_text(self.title, self.table), *_parts(self.path)])

    def _repr_html_(self) -> str:
        path = () if self.path is None else (notes(["beam"]), as_html(self.path))
        return page(title(self.title), as_html(self.table), *path)

    def json(self) -> dict[str, Any]:
        """Return everything as plain values, with the table as `shares`."""
        names = ("user", "item", "score", "base", "rest", "exact", "method")
        found = {name: getattr(self, name) for name in names}
        path = None if self.path is None else self.path.to_pylist()
        return found | {"shares": self.table.to_pylist(), "path": path}


def _parts(path: pa.Table | None) -> list[str]:
    return [] if path is None else [_text("beam", path)]


def _text(title: str, table: pa.Table) -> str:
    rows = [["" if v is None else cell(v) for v in row.values()] for row in table.to_pylist()]
    lines = render(title, table.column_names, rows[:ROWS]) if rows else title
    return f"{lines}\n{len(rows):,} rows, {ROWS} shown" if len(rows) > ROWS else lines
