"""Fingerprints of events: hashes that depend on keys and values, not on the order of the rows.

Every row gets a 64-bit hash of its named cells; the rows are summed. So the same events have the
same fingerprint in any order of rows and columns, in any row groups, and however they are encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from softdex.data.keys import Keys

BLOCK = 2**17  # rows or keys hashed at a time


class Coded:
    """A column of row numbers into keys, or of -1 for no key, as hashes of the keys."""

    def __init__(self, hashes: np.ndarray, rows: np.ndarray) -> None:
        self.hashes, self.rows = hashes, rows


def fingerprint(columns: Mapping[str, Coded | np.ndarray]) -> str:
    """Return the SHA-256 of a multiset of rows, given as named columns of the same length.

    Args:
        columns: per name numbers or texts, or row numbers into hashed keys.
    """
    tables = {name: _table(name, column) for name, column in columns.items()}
    count = max((len(rows) for _, rows in tables.values()), default=0)
    total = mixed = 0
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        row = np.zeros(min(BLOCK, count - start), np.uint64)
        for hashes, rows in tables.values():
            row += hashes[rows[part]] if hashes is not None else _mixed(rows[part])
        row = _mixed(row)
        total, mixed = total + int(row.sum()), mixed + int(_mixed(row).sum())
    sums = f"{sorted(tables)} {count} {total % 2**64} {mixed % 2**64}"
    return hashlib.sha256(sums.encode()).hexdigest()


def key_hashes(keys: Keys) -> np.ndarray:
    """Return a 64-bit hash per key; integers of any width hash alike."""
    values = keys.values
    if pa.types.is_integer(values.type):
        return _mixed(values.to_numpy(zero_copy_only=False).astype(np.uint64))
    byte_like = pa.types.is_binary(values.type) or pa.types.is_fixed_size_binary(values.type)
    if not byte_like and not pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_string())
    flat = values.cast(pa.large_binary())
    parts = [_of_texts(flat[start : start + BLOCK]) for start in range(0, len(flat), BLOCK)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _table(name: str, column: Coded | np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Return hashes and the place of each row's among them; None: the rows are to be hashed."""
    seed = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], np.uint64)[0]
    if isinstance(column, Coded):
        return _mixed(np.append(column.hashes, np.uint64(0)) + seed), column.rows
    if column.dtype.kind not in "biuf":
        texts, rows = np.unique(column.astype(str), return_inverse=True)
        return _mixed(_of_texts(pa.array(texts).cast(pa.large_binary())) + seed), rows
    if column.dtype.kind == "f":
        wide = column.astype(np.float64) + 0.0  # no -0.0
        whole = bool(np.isfinite(wide).all() and (np.abs(wide) < 2**53).all())
        whole = whole and bool((wide == np.floor(wide)).all())
        column = wide.astype(np.int64) if whole else wide
    else:
        column = column.astype(np.int64)
    return None, column.view(np.uint64) + seed


def _of_texts(flat: pa.Array) -> np.ndarray:
    """Return a 64-bit hash per text: the sum of its bytes times a random number per place."""
    ends = np.frombuffer(flat.buffers()[1], np.int64)[flat.offset :][: len(flat) + 1]
    data = flat.buffers()[2]
    letters = np.frombuffer(b"" if data is None else data, np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    place = np.arange(len(letters)) - np.repeat(ends[:-1] - ends[0], lengths)
    weight = _mixed(np.arange(1, int(lengths.max(initial=0)) + 1, dtype=np.uint64))
    sums = np.append(np.uint64(0), np.cumsum((letters + np.uint64(1)) * weight[place]))
    found = sums[ends[1:] - ends[0]] - sums[ends[:-1] - ends[0]]
    return _mixed(found + _mixed(lengths.astype(np.uint64)))


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return the bits of each number well mixed: the finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), np.uint64)
