"""Spill: logs larger than memory, read piece by piece into columns that lie on disk.

The first pass collects the keys; the second writes row numbers, times and weights, which the log
then maps. A piece is a file, or some row groups of a Parquet file.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.bad_rows import check, refuse_or_drop
from softdex.data.columnar import Columnar, pieces_of
from softdex.data.interactions import BLOCK, Interactions
from softdex.data.keys import Keys, factorize
from softdex.data.numbers import nulls
from softdex.data.sources import Fetched, Source, concatenate
from softdex.errors import DataError, counted

Choose = Callable[[Mapping[str, int]], dict[str, str]]


def spilled(
    source: Source, roles: Mapping[str, Sequence[str]], choose: Choose, bad_rows: str, folder: Path,
    notes: list[str],
) -> tuple[Interactions, dict[str, str]]:  # fmt: skip
    """Read a log into files in a folder; return it, and the column of each role.

    The files have no name once the log is made: they vanish with it, however the process ends.

    Args:
        source: what to read, in pieces.
        roles: the candidate columns of each role.
        choose: returns the column of each role, given the nulls of each candidate.
        bad_rows: `error` or `drop`.
        folder: where the columns are written.
        notes: gets what was dropped and left out.
    """
    candidates = [name for names in roles.values() for name in names]
    ids = [roles["user"][0], roles["item"][0]]
    found = {name: Distinct(name) for name in ids}
    absent = dict.fromkeys(candidates, 0)
    for piece in pieces(source):
        table = piece.fetch(candidates, ids).table
        for name in candidates:
            absent[name] += int(nulls(table[name]).sum())
        for name in ids:
            found[name].add(table.select([name]))
    chosen = choose(absent)
    keys = {role: found[chosen[role]].keys(role) for role in ("user", "item")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="softdex-", dir=folder) as place:
            columns = _written(source, chosen, keys, bad_rows, Path(place), notes)
            users, items = (_compacted(Path(place), role, keys[role]) for role in keys)
            log = Interactions(users, items, **columns)  # type: ignore[arg-type]
    except OSError as error:
        raise DataError(
            f"read: cannot write into spill={str(folder)!r} ({error.strerror or error})."
        ) from None
    return log, chosen


def pieces(source: Source) -> Iterator[Source]:
    """Yield a source as sources that each fit into memory."""
    for part, same in zip(source.parts, source.constants, strict=True):
        for piece in pieces_of(part) if isinstance(part, Columnar) else [part]:
            yield replace(source, label=part.label, parts=[piece], constants=[same])


class Distinct:
    """The distinct cells of a column that comes in pieces."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.known: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Add the cells of a piece."""
        cells = pc.unique(table[self.name]).drop_null()
        self.known.append(pa.table({self.name: cells}))
        if sum(map(len, self.known)) > 2 * self.count + 2**20:
            self._merge()

    def keys(self, what: str) -> Keys:
        """Return the cells as keys."""
        self._merge()
        return factorize(self.known[0][self.name], what)[0]

    def _merge(self) -> None:
        if len(self.known) > 1:
            cells = pc.unique(concatenate(self.known)[self.name])
            self.known = [pa.table({self.name: cells})]
        self.count = len(self.known[0])


# inside ------------------------------------------------------------------------------------------


def _written(
    source: Source,
    chosen: Mapping[str, str],
    keys: Mapping[str, Keys],
    bad_rows: str,
    place: Path,
    notes: list[str],
) -> dict[str, np.ndarray]:
    """Write the columns into a folder, and map them."""
    kinds: dict[str, np.dtype[Any]] = {}
    dropped = unweighted = 0
    with contextlib.ExitStack() as stack:
        files = {role: stack.enter_context((place / role).open("wb")) for role in chosen}
        for piece in pieces(source):
            table, values, lost = _good(piece, chosen, bad_rows)
            dropped += lost
            if "weight" in values:
                good = values["weight"] > 0
                unweighted += int((~good).sum())
                table = table.filter(pa.array(good))
                values = {role: column[good] for role, column in values.items()}
            for role in keys:
                values[role] = keys[role].lookup(table[chosen[role]]).astype(np.int32)
            for role, column in values.items():
                if kinds.setdefault(role, column.dtype) != column.dtype:
                    raise DataError(
                        f"read: column {chosen[role]!r} has whole numbers in some files and others "
                        f"in {piece.label}. Cast it to one type."
                    )
                column.tofile(files[role])
    if dropped:
        notes.append(f"(dropped {dropped:,} bad rows)")
    if unweighted:
        notes.append(f"({counted(unweighted, 'rows')} of weight 0 left out)")
    if not kinds or not (place / "user").stat().st_size:
        raise DataError(f"read: {source.label} has no row that can be used.")
    return {role: np.memmap(place / role, kind, "r") for role, kind in kinds.items()}


def _good(
    piece: Source, chosen: Mapping[str, str], bad_rows: str
) -> tuple[pa.Table, dict[str, np.ndarray], int]:
    """Return the good rows of a piece, their numbers, and how many others there were."""
    columns, ids = list(chosen.values()), [chosen["user"], chosen["item"]]
    fetched: Fetched = piece.fetch(columns, ids)
    values, bad = check(fetched.table, chosen)
    if not bad and not fetched.problems:
        return fetched.table, values, 0
    if not fetched.places:
        fetched = piece.fetch_with_places(columns, ids)
        values, bad = check(fetched.table, chosen)
    if bad_rows == "error":
        refuse_or_drop(piece, fetched, bad, bad_rows, [])
    good = ~np.logical_or.reduce([np.zeros(fetched.table.num_rows, bool), *bad.values()])
    lost = int((~good).sum()) + sum(len(x) for p in fetched.problems.values() for x in p.values())
    return fetched.table.filter(pa.array(good)), {r: v[good] for r, v in values.items()}, lost


def _compacted(place: Path, role: str, keys: Keys) -> Keys:
    """Drop the keys that only rows have that were left out, and renumber the others on disk."""
    rows = np.memmap(place / role, np.int32, "r+")
    used = np.zeros(len(keys), bool)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(rows), BLOCK)]
    for block in blocks:
        used[rows[block]] = True
    if used.all():
        return keys
    number = np.cumsum(used, dtype=np.int32) - 1
    for block in blocks:
        rows[block] = number[rows[block]]
    return Keys(keys.values.filter(pa.array(used)), keys.type)
