"""Sources: the columns of a table in memory or of files, and where each row came from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from softdex.data.columnar import InMemory, is_columnar, open_columnar
from softdex.data.delimited import Delimited, as_integers
from softdex.data.interactions import Interactions
from softdex.data.json_lines import is_json, open_json
from softdex.data.layout import Layout, check_encoding, guess_layout
from softdex.data.memory import first_line, table_of
from softdex.data.paths import Place, places_of
from softdex.errors import DataError, first_few

Lines = dict[str, list[int]]  # line numbers per problem


class Part(Protocol):
    """A table in memory, or one file."""

    @property
    def label(self) -> str:
        """Names the part in messages."""

    @property
    def names(self) -> list[str]:
        """Its columns."""

    @property
    def kind(self) -> str:
        """What it is in one word: memory, Parquet, Arrow, JSON or text."""

    def sample(self, columns: list[str]) -> pa.Table:
        """The first rows of these columns."""

    def fetch(self, columns: list[str], ids: list[str]) -> pa.Table:
        """All rows of these columns; raises pa.ArrowInvalid if a line does not parse."""

    def by_line(self, columns: list[str], ids: list[str]) -> tuple[pa.Table, np.ndarray, Lines]:
        """The rows that parse, the line or row number of each, and those that do not parse."""


@dataclass(frozen=True)
class Fetched:
    """Columns that were read, and which lines of their files they came from.

    Attributes:
        table: the rows that parse.
        places: per file, its label and the line or row number of each row; None if not known.
        problems: per label, the line numbers of the lines that do not parse, per problem.
    """

    table: pa.Table
    places: list[tuple[str, np.ndarray]] | None = None
    problems: dict[str, Lines] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """The columns of one or more parts of one kind.

    Attributes:
        label: names the source in messages.
        names: its columns.
        parts: where they are.
        constants: per part, the columns that are the same in all of its rows.
    """

    label: str
    names: list[str]
    parts: Sequence[Part]
    constants: list[dict[str, str | None]]

    @property
    def layouts(self) -> list[Layout]:
        """The layout of each file, if they are delimited text."""
        return [part.layout for part in self.parts if isinstance(part, Delimited)]

    @property
    def unit(self) -> str:
        """What a row is called in its file."""
        return "line" if self.parts[0].kind in ("text", "JSON") else "row"

    def sample(self, columns: list[str]) -> pa.Table:
        """The first rows of these columns, to see what they hold."""
        own, _ = self._own(0, columns, [])
        return self._with_constants(0, self.parts[0].sample(own), columns, [])

    def fetch(self, columns: list[str], ids: list[str]) -> Fetched:
        """Read columns the fast way, or line by line where that fails."""
        try:
            tables = [p.fetch(*self._own(i, columns, ids)) for i, p in enumerate(self.parts)]
        except pa.ArrowInvalid:
            return self.fetch_with_places(columns, ids)
        parts = [self._with_constants(i, t, columns, ids) for i, t in enumerate(tables)]
        return Fetched(concatenate(parts))

    def fetch_with_places(self, columns: list[str], ids: list[str]) -> Fetched:
        """Read columns together with the line or row number of each row."""
        tables, places, problems = [], [], {}
        for i, part in enumerate(self.parts):
            try:
                table, lines, bad = part.by_line(*self._own(i, columns, ids))
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"read: {part.label} does not parse ({first_line(error)})."
                ) from None
            tables.append(self._with_constants(i, table, columns, ids))
            places.append((part.label, lines))
            if bad:
                problems[part.label] = bad
        return Fetched(concatenate(tables), places, problems)

    def _own(self, i: int, columns: list[str], ids: list[str]) -> tuple[list[str], list[str]]:
        """The columns that are in part i itself, and those of them that are ids."""
        own = [name for name in columns if name not in self.constants[i]]
        missing = set(own) - set(self.parts[i].names)
        if missing:
            raise DataError(
                f"read: {self.parts[i].label} has no column {first_few(sorted(missing))}, which "
                f"{self.parts[0].label} has. Read files with the same columns together."
            )
        own = own or self.parts[i].names[:1]  # so that the rows are counted
        return own, [name for name in ids if name in own]

    def _with_constants(
        self, i: int, table: pa.Table, columns: list[str], ids: list[str]
    ) -> pa.Table:
        """The table of part i with its constant columns, in the order that was asked for."""
        same = {
            name: pa.chunked_array([pa.repeat(pa.scalar(value, pa.string()), table.num_rows)])
            for name, value in self.constants[i].items()
            if name in columns
        }
        same |= {name: as_integers(same[name]) for name in ids if name in same}
        return pa.table({name: same[name] if name in same else table[name] for name in columns})


def with_layouts(source: Source, layouts: list[Layout]) -> Source:
    """The same files of text under other layouts."""
    names = [*layouts[0].names, *source.constants[0]]
    return replace(source, names=names, parts=[Delimited(layout) for layout in layouts])


def concatenate(tables: list[pa.Table]) -> pa.Table:
    """Join tables; ids that are integers in one and strings in another become strings."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].column_names
    return pa.table({name: _join(name, [t.select([name]) for t in tables]) for name in names})


def _join(name: str, parts: list[pa.Table]) -> pa.ChunkedArray:
    text = pa.schema([(name, pa.string())])
    try:
        return pa.concat_tables(parts, promote_options="permissive")[name]
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kinds = {str(p.schema.field(name).type) for p in parts}
    try:
        return pa.concat_tables([p.cast(text) for p in parts])[name]
    except pa.ArrowException:
        raise DataError(
            f"read: column {name!r} has the types {first_few(sorted(kinds))} in different files. "
            "Cast it to one."
        ) from None


def open_source(source: Any, separator: str | None, encoding: str) -> Source:
    """Find out what a source is and which columns it has; nothing is read yet."""
    check_encoding(encoding)
    if isinstance(source, (str, os.PathLike)):
        return _from_places(places_of(source), separator, encoding)
    if is_files(source):
        places = [place for s in source for place in places_of(s)]
        return _from_places(places, separator, encoding)
    if isinstance(source, Interactions):
        raise DataError("read: this is a log already. Use it as it is.")
    return _joined("a table", [InMemory("a table", table_of(source))], [{}])


def is_files(source: Any) -> bool:
    """Whether a source is a path, or a list of paths."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    return bool(listed) and all(isinstance(s, (str, os.PathLike)) for s in listed)


def _from_places(places: list[Place], separator: str | None, encoding: str) -> Source:
    label = str(places[0].path)
    if len(places) > 1:
        label = f"{len(places)} files ({label}, ...)"
    parts = [_open(place, separator, encoding) for place in places]
    return _joined(label, parts, [place.constants for place in places])


def _open(place: Place, separator: str | None, encoding: str) -> Part:
    path = place.path
    if is_columnar(path):
        return open_columnar(path)
    if is_json(path):
        return open_json(path, encoding)
    least = 1 if place.constants else 2  # the other column may be in the name of its folder
    return Delimited(guess_layout(path, separator, encoding, least))


def _joined(label: str, parts: Sequence[Part], constants: list[dict[str, str | None]]) -> Source:
    """Parts of one kind as a source; a column of a file comes before one of its folder."""
    kinds = list(dict.fromkeys(part.kind for part in parts))
    if len(kinds) > 1:
        shown = " and ".join(sorted(kinds))
        raise DataError(f"read: {label} mixes {shown} files. Read one kind at a time.")
    first = parts[0]
    twice = [n for i, n in enumerate(first.names) if n in first.names[:i]]
    if twice:
        raise DataError(f"read: {label} has duplicate columns ({first_few(twice)}). Rename them.")
    for other in parts[1:]:
        if first.kind == "text" and sorted(other.names) != sorted(first.names):
            raise DataError(
                f"read: {other.label} has columns {first_few(other.names, 12)}; {first.label} has "
                f"{first_few(first.names, 12)}. Read files with the same columns together."
            )
    own = [
        {n: v for n, v in found.items() if n not in part.names}
        for part, found in zip(parts, constants, strict=True)
    ]
    return Source(label, [*first.names, *own[0]], parts, own)
