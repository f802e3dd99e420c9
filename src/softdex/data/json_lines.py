"""JSON lines: one object per line, or a list of objects, as columns."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from softdex.data.compressed import open_bytes, readable
from softdex.data.memory import table_of_columns
from softdex.data.paths import JSON, suffix
from softdex.errors import DataError

SAMPLE_ROWS = 1000
NOT_JSON = (ValueError, RecursionError)


@dataclass(frozen=True)
class JsonLines:
    """A file of JSON objects.

    Attributes:
        path: the file.
        encoding: of the file.
        names: the names in its first objects.
    """

    path: Path
    encoding: str
    names: list[str]
    kind: str = "JSON"

    @property
    def label(self) -> str:
        """The path."""
        return str(self.path)

    def sample(self, columns: list[str]) -> pa.Table:
        """These columns of the first objects."""
        first = islice(objects(self.path, self.encoding), SAMPLE_ROWS)
        rows = [row for _, row in first if row is not None]
        return _table(columns, rows)

    def fetch(self, columns: list[str], ids: list[str]) -> pa.Table:
        """All rows of these columns; raises pa.ArrowInvalid if a line does not parse."""
        table, _, problems = self.by_line(columns, ids)
        if problems:
            raise pa.ArrowInvalid("a line that is no JSON object")
        return table

    def by_line(
        self, columns: list[str], ids: list[str]
    ) -> tuple[pa.Table, np.ndarray, dict[str, list[int]]]:
        """These columns, the line number of each row, and the lines that do not parse."""
        problems: dict[str, list[int]] = defaultdict(list)
        lines, rows = [], []
        for number, row in objects(self.path, self.encoding):
            if row is None:
                problems["not a JSON object"].append(number)
            else:
                lines.append(number)
                rows.append({name: row.get(name) for name in columns})
        return _table(columns, rows), np.array(lines, np.int64), dict(problems)


def is_json(path: Path) -> bool:
    """Whether a file is called JSON, or starts with a JSON object."""
    if suffix(path) in JSON:
        return True
    with readable(path), open_bytes(path) as file:
        head = file.read(1 << 16).lstrip(b"\xef\xbb\xbf \r\n")
    if head.startswith(b"["):
        return head[1:].lstrip(b" \r\n\t").startswith(b"{")
    return head.startswith(b"{") and isinstance(_parsed(head.split(b"\n")[0]), dict)


def open_json(path: Path, encoding: str) -> JsonLines:
    """Find the names of the columns of a file of JSON objects."""
    first = [row for _, row in islice(objects(path, encoding), SAMPLE_ROWS) if row is not None]
    if not first:
        raise DataError(
            f"read: {path} holds no JSON object in its first {SAMPLE_ROWS:,} lines. Expected one "
            "object per line, or a list of objects."
        )
    return JsonLines(path, encoding, list(dict.fromkeys(name for row in first for name in row)))


def objects(path: Path, encoding: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Line number and object of each line that is not blank; None where it is none.

    A list of objects is numbered by its places from 1.
    """
    encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    with readable(path, encoding), open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding=encoding, errors="surrogateescape")
        numbered = ((number, line) for number, line in enumerate(text, 1) if line.strip())
        for place, (number, line) in enumerate(numbered):
            if place == 0 and line.lstrip().startswith("["):
                whole = _parsed(line + text.read())
                yield from enumerate(map(_object, whole if isinstance(whole, list) else [None]), 1)
                return
            yield number, _object(_parsed(line))


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _parsed(text: str | bytes) -> Any:
    try:
        text = text if isinstance(text, bytes) else text.encode()  # raises if it was not text
        return json.loads(text)
    except NOT_JSON:
        return None


def _table(columns: list[str], rows: list[dict[str, Any]]) -> pa.Table:
    if not rows:
        return pa.table({name: pa.nulls(0) for name in columns})
    return table_of_columns({name: [row.get(name) for row in rows] for name in columns})
