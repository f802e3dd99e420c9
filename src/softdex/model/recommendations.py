"""Recommendations as an Arrow table, ready for notebooks and data frames."""

from __future__ import annotations

import json
from typing import Any, final

import pyarrow as pa

from softdex import notebook

NOTE = b"softdex.sampling"  # key of the metadata of a table of lists that were drawn


@final
class Recommendations:
    """An Arrow table of recommendations that notebooks show as HTML.

    Pass it to `pyarrow.table`, `polars.DataFrame` or `pandas.DataFrame.from_arrow`, or call a
    method of `pyarrow.Table` on it (`to_pandas`, `to_pylist`, ...).

    Attributes:
        table: the `pyarrow.Table`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @property
    def sampling(self) -> dict[str, Any] | None:
        """How lists were drawn: `seed`, `temperature`, and what `from`: `all` items allowed, or the
        best that an approximate index finds. None for the best items."""
        noted = (self.table.schema.metadata or {}).get(NOTE)
        return None if noted is None else json.loads(noted)

    def __getattr__(self, name: str) -> Any:
        if name == "table":  # copy and pickle ask before there is one
            raise AttributeError(name)
        return getattr(self.table, name)

    def __getitem__(self, key: Any) -> Any:
        return self.table[key]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return notebook.page(as_html(self.table))


def as_html(table: pa.Table) -> str:
    """Return the first rows of a table as HTML for a notebook."""
    rows = [list(row.values()) for row in table.slice(0, notebook.ROWS).to_pylist()]
    return notebook.table(table.column_names, rows, len(table))
