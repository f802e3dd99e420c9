"""The item tables of MovieLens, which have no header: u.item and movies.dat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.compressed import open_bytes, readable
from softdex.data.layout import Layout

GENRES = [
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
]  # fmt: skip
COLUMNS = {
    "u.item": ["item", "title", "release_date", "video_release_date", "url", *GENRES],
    "movies.dat": ["item", "title", "genres"],
}


def with_names(layout: Layout) -> Layout:
    """The layout of a MovieLens item table with its names and encoding; any other as it is."""
    names = COLUMNS.get(layout.path.name, [])
    if layout.has_header or len(layout.names) != len(names):
        return layout
    return replace(in_latin(layout), names=names)


def in_latin(layout: Layout) -> Layout:
    """The layout of a MovieLens item table with its encoding; any other as it is."""
    if layout.path.name not in COLUMNS:
        return layout
    with readable(layout.path), open_bytes(layout.path) as file:
        content = file.read()
    try:
        content.decode(layout.encoding)
        return layout
    except UnicodeDecodeError:  # all but the largest are so
        return replace(layout, encoding="latin-1")


def with_genres(label: str, table: pa.Table) -> pa.Table:
    """The genres of a MovieLens table, a flag each or joined by `|`, as one column of lists."""
    if table.column_names != COLUMNS.get(Path(label).name):
        return table
    if "genres" in table.column_names:
        return table.set_column(2, "genres", pc.split_pattern(table["genres"].cast("string"), "|"))
    flags = np.stack([table[name].cast("string").to_numpy() for name in GENRES], axis=1) == "1"
    lists = [[name for name, flag in zip(GENRES, row, strict=True) if flag] for row in flags]
    genres = pa.array(lists, pa.list_(pa.string()))
    return table.drop_columns(GENRES).append_column("genres", genres)
