"""Parts: how one column of a table is read, a category, text, a number or a vector of numbers.

Each has `size` tokens, and `width` numbers per row.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.ragged import Ragged, offsets
from softdex.encode.features.cells import Cells

FAR = 1e6  # standardised numbers are clipped here; no 10**12 numbers deviate as far
SEPARATORS = r"[^\p{L}\p{M}\p{N}_]+"  # RE2: all but letters, marks, digits and underscores


@final
@dataclass(frozen=True)
class Category:
    """Distinct values, sorted; each is a token. A cell may hold a list of values."""

    name: str
    type: str
    values: pa.Array
    width = 0

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 1 + len(self.values)

    def tokens(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the token of each known value."""
        found = pc.fill_null(pc.index_in(cells.values, value_set=self.values), -1)
        ids = found.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        return cells.rows[ids > 0], ids[ids > 0]

    def json(self) -> dict[str, Any]:
        """Return plain values."""
        values = self.values.to_pylist()
        return {"name": self.name, "kind": "category", "type": self.type, "values": values}


@final
@dataclass(frozen=True)
class Text:
    """Words, lower-cased and hashed; each bucket is a token."""

    name: str
    hashed: int
    type = "string"
    width = 0

    @property
    def size(self) -> int:
        """Number of tokens."""
        return 1 + self.hashed

    def tokens(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the token of each word."""
        split = pc.utf8_split_whitespace(cells.values)
        pieces = pc.list_flatten(split).dictionary_encode()
        words = self._buckets(pieces.dictionary).take(pieces.indices.to_numpy())
        rows = np.repeat(cells.rows, pc.list_value_length(split).to_numpy())
        return rows[words.row_of], words.ids

    def _buckets(self, pieces: pa.Array) -> Ragged:
        """Return the tokens of the words of each distinct piece of text."""
        split = pc.split_pattern_regex(pc.utf8_lower(pieces), pattern=SEPARATORS)
        words = pc.list_flatten(split).cast(pa.large_binary()).to_pylist()
        ids = [1 + zlib.crc32(word) % self.hashed if word else 0 for word in words]
        tokens = np.array(ids, np.int64)
        return Ragged(offsets(pc.list_value_length(split).to_numpy()), tokens).where(tokens > 0)

    def json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "kind": "text", "hashed": self.hashed}


@final
@dataclass(frozen=True)
class Number:
    """Mean and standard deviation; a scale of 0 says that all values were the same."""

    name: str
    type: str
    mean: float
    scale: float
    size = 1
    width = 1

    def standard(self, cells: Cells, rows: int) -> np.ndarray:
        """Return standardised numbers (rows,), 0 where missing."""
        numbers = np.zeros(rows)
        if self.scale:
            with np.errstate(over="ignore"):
                far = (cells.values.to_numpy() - self.mean) / self.scale
            numbers[cells.rows] = np.clip(far, -FAR, FAR)
        return numbers

    def json(self) -> dict[str, Any]:
        """Return plain values."""
        found = {"name": self.name, "kind": "number", "type": self.type}
        return {**found, "mean": self.mean, "scale": self.scale}


@final
@dataclass(frozen=True)
class Vector:
    """Mean vector, and the root mean square distance from it; 0 says that all were the same."""

    name: str
    mean: tuple[float, ...]
    scale: float
    size = 1

    @property
    def width(self) -> int:
        """Length of the vectors."""
        return len(self.mean)

    def standard(self, present: np.ndarray, vectors: np.ndarray, rows: int) -> np.ndarray:
        """Return centred vectors (rows, width), of mean square length 1; 0 where missing."""
        found = np.zeros((rows, self.width))
        if self.scale:
            with np.errstate(over="ignore"):
                found[present] = np.clip((vectors - self.mean) / self.scale, -FAR, FAR)
        return found

    def json(self) -> dict[str, Any]:
        """Return plain values."""
        mean = list(self.mean)
        return {"name": self.name, "kind": "vector", "mean": mean, "scale": self.scale}


Part = Category | Text | Number | Vector


def vector_of(name: str, vectors: np.ndarray) -> Vector:
    """Learn mean and scale of vectors (N, width), bit for bit the same in any order of the rows."""
    power = math.frexp(float(np.abs(vectors).max()))[1]  # otherwise squares could overflow
    shares = np.ldexp(np.sort(vectors, 0), -power)
    mean = np.clip(shares.mean(0), shares[0], shares[-1])
    square = np.sort(((np.ldexp(vectors, -power) - mean) ** 2).sum(1))
    scale = math.ldexp(math.sqrt(square.mean()), power)
    return Vector(name, tuple(np.ldexp(mean, power).tolist()), scale)


def moments(numbers: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation, bit for bit the same in any order of the rows."""
    numbers = np.sort(numbers)
    if not len(numbers) or numbers[0] == numbers[-1]:
        return (float(numbers[0]) if len(numbers) else 0.0), 0.0
    largest = float(np.abs(numbers[[0, -1]]).max())
    power = math.frexp(largest)[1]  # otherwise squares could overflow
    shares = np.ldexp(numbers, -power)
    mean = np.clip(shares.mean(), shares[0], shares[-1])
    scale = min(shares.std(), math.ldexp(largest, -power))
    return math.ldexp(mean, power), math.ldexp(scale, power)
