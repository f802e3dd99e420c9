"""Recommendations as an Arrow table, ready for notebooks and data frames."""

from __future__ import annotations

from html import escape
from typing import Any, final

import pyarrow as pa

SHOWN = 50  # rows in a notebook


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
        names = self.table.column_names
        head = "".join(f"<th>{escape(n)}</th>" for n in names)
        rows = (
            "".join(f"<td>{escape(str(row[n]))}</td>" for n in names)
            for row in self.table.slice(0, SHOWN).to_pylist()
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        more = f"<p>{len(self):,} rows, {SHOWN} shown</p>" if len(self) > SHOWN else ""
        return f"<table><tr>{head}</tr>{body}</table>{more}"
