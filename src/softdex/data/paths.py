"""Paths: the files that a path, a glob, a folder or a zip stands for."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from softdex.data import compressed
from softdex.errors import DataError, did_you_mean, first_few

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter")
JSON = (".json", ".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
TABLES = (*PARQUET, *ARROW, *TEXT, *JSON)
URL = re.compile(r"[a-z][a-z0-9+.-]+:/+", re.IGNORECASE)
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Place:
    """A file, and the columns that the names of its folders give to all of its rows."""

    path: Path
    constants: dict[str, str | None] = field(default_factory=dict)


def places_of(source: str | os.PathLike[str]) -> list[Place]:
    """The files that a path, a folder, a glob or a zip stands for."""
    if URL.match(str(source)):
        raise DataError(
            f"read: {str(source)[:200]!r} is a URL, and softdex reads local files. Download it "
            "first, e.g. with curl -LO, or read it with pandas or polars and pass the table."
        )
    try:
        path = Path(source).expanduser()
        found, is_folder, archive = path.exists(), path.is_dir(), compressed.zip_above(path)
        zipped = path.is_file() and compressed.is_zip(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"read: no file {str(source)[:80]!r} ({str(error)[:60]}).") from None
    if is_folder:
        return _in_folder(path)
    if found and not path.is_file():
        raise DataError(f"read: {path} is a pipe or a device. Write its content to a file first.")
    if found:
        return [Place(_in_zip(path) if zipped else path)]
    if archive is not None:
        return [Place(_member(path, archive))]
    if any(c in str(path) for c in "*?["):
        matches = sorted(glob.glob(str(path), recursive=True))
        if matches:
            return [place for match in matches for place in _matched(match, path)]
        raise DataError(f"read: nothing matches {path}. Is the folder right?")
    raise DataError(_missing(path))


def suffix(path: Path) -> str:
    """The suffix of a file, in lower case, without the one of its compression."""
    found = [s.lower() for s in path.suffixes if s.lower() not in compressed.SUFFIXES]
    return found[-1] if found else ""


def _missing(path: Path) -> str:
    shown = str(path) if str(path).isprintable() else repr(str(path))
    try:
        beside = [p.name for p in path.parent.iterdir()][:500]
    except OSError:
        return f"read: no file {shown}. Folder {path.parent} is missing too."
    hint = did_you_mean(path.name, beside)
    if hint.startswith("Known"):
        hint = f"Folder {path.parent} holds {first_few(sorted(beside))}."
    return f"read: no file {shown}. {hint}"


def _in_folder(folder: Path) -> list[Place]:
    """The tables in a folder; if there are none, those in folders called `column=value`."""
    inside = sorted(folder.iterdir())
    found = [Place(p) for p in inside if p.is_file() and _is_table(p.name)]
    found = found or [place for p in inside for place in _in_partition(p, {})]
    if not found:
        raise DataError(
            f"read: folder {folder} holds no table. Expected files that end in "
            f"{', '.join(TABLES)} or .gz, or folders called column=value."
        )
    columns = {tuple(sorted(place.constants)) for place in found}
    if len(columns) > 1:
        shown = " and ".join(first_few(names) or "none" for names in sorted(columns))
        raise DataError(f"read: folder {folder} mixes the partitions {shown}. Read one of them.")
    return found


def _matched(match: str, pattern: Path) -> list[Place]:
    """The tables in what a glob matches; folders from its first wildcard on may be partitions."""
    fixed = next(i for i, part in enumerate(pattern.parts) if any(c in part for c in "*?["))
    folders = Path(match).parts[fixed:-1] if Path(match).is_file() else Path(match).parts[fixed:]
    above: dict[str, str | None] = {}
    for folder in folders:
        above |= _partition(folder)
    return [Place(p.path, above | p.constants) for p in places_of(match)]


def _partition(folder: str) -> dict[str, str | None]:
    """The column of a folder called `column=value`, and its value."""
    name, equals, value = folder.partition("=")
    if not (name and equals) or name[0] in "._":
        return {}
    return {unquote(name): None if value == NO_VALUE else unquote(value)}


def _in_partition(folder: Path, above: dict[str, str | None]) -> list[Place]:
    column = _partition(folder.name)
    if not column or not folder.is_dir():
        return []
    constants = above | column
    inside = sorted(folder.iterdir())
    found = [Place(p, constants) for p in inside if p.is_file() and _is_table(p.name)]
    return found + [place for p in inside for place in _in_partition(p, constants)]


def _is_table(name: str) -> bool:
    return name[0] not in "._" and suffix(Path(name)) in TABLES


def _in_zip(archive: Path) -> Path:
    """The only table in a zip, as a path below it."""
    inside = compressed.members(archive)
    tables = [n for n in inside if not n.startswith("__MACOSX") and _is_table(_last(n))]
    if len(tables) == 1:
        return archive / tables[0]
    if tables:
        raise DataError(
            f"read: {archive} holds {len(tables)} tables ({first_few(tables, 8)}). Name one: "
            f"read('{archive}/{tables[0]}')."
        )
    raise DataError(f"read: {archive} holds no table. It has {first_few(inside) or 'no files'}.")


def _member(path: Path, archive: Path) -> Path:
    inside, name = compressed.members(archive), path.relative_to(archive).as_posix()
    if name not in inside:
        raise DataError(f"read: {archive} has no member {name!r}. {did_you_mean(name, inside)}")
    return path


def _last(member: str) -> str:
    return PurePosixPath(member).name or "."
