"""Keys: the names users and items have outside, and the row numbers they have inside."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.errors import DataError, nearest, some

FEW = 64  # below this many keys, bisecting beats building a hash table


@final
@dataclass(frozen=True, eq=False)
class Keys:
    """Sorted, unique keys of one kind; the row of a key is its rank.

    `values` is the plain Arrow storage; `type` is what goes back out (a UUID stays a UUID).
    """

    values: pa.Array
    type: pa.DataType

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.type == other.type and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def sha256(self) -> str:
        """Hash of the keys and their type."""
        digest = hashlib.sha256(str(self.type).encode())
        if pa.types.is_primitive(self.type):
            digest.update(self.values.to_numpy(zero_copy_only=False).tobytes())
        else:
            flat = self.values.cast(pa.large_binary())
            ends = np.frombuffer(flat.buffers()[1], np.int64)[flat.offset :][: len(flat) + 1]
            digest.update((ends - ends[0]).tobytes())
            digest.update(flat.buffers()[2][int(ends[0]) : int(ends[-1])])
        return digest.hexdigest()

    def take(self, rows: np.ndarray) -> pa.Array:
        """The keys of these rows, in the type they came in."""
        return Keys(self.values.take(pa.array(rows)), self.type).all()

    def all(self) -> pa.Array:
        """Every key, in the type it came in."""
        if isinstance(self.type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(self.type, self.values)
        return self.values

    def lookup(self, keys: Any) -> np.ndarray:
        """The row of each key, -1 where it is unknown."""
        wanted = _storage(_as_array(keys))
        if wanted.type != self.values.type:
            wanted = _convert(wanted, self.values.type)
        if len(wanted) <= FEW:
            return np.array([self._bisect(k) for k in wanted.to_pylist()], dtype=np.int64)
        rows = pc.fill_null(pc.index_in(wanted, value_set=self.values), -1)
        return rows.to_numpy(zero_copy_only=False).astype(np.int64)

    def rows(self, keys: Any, where: str, what: str) -> np.ndarray:
        """The row of each key; an unknown key is an error that names the nearest known one."""
        rows = self.lookup(keys)
        if (rows < 0).any():
            given = _as_array(keys).to_pylist()
            missing = [given[i] for i in np.flatnonzero(rows < 0)[:6]]
            raise DataError(
                f"{where}: {int((rows < 0).sum())} unknown {what} ({some(map(repr, missing))}). "
                f"{self._hint(missing[0])}"
            )
        return rows

    def _bisect(self, key: object) -> int:
        if key is None:
            return -1
        at = bisect.bisect_left(_Scalars(self.values), key)
        return at if at < len(self) and self.values[at].as_py() == key else -1

    def _hint(self, key: object) -> str:
        if not len(self):
            return "None are known here."
        if not pa.types.is_string(self.values.type):
            return f"Known keys run from {self.values[0]} to {self.values[-1]}."
        at = bisect.bisect_left(_Scalars(self.values), str(key))
        window = self.values.slice(max(0, at - 500), 1000).to_pylist()
        return nearest(key, window) if len(self) <= 12 else nearest(key, window).split("Known:")[0]


class _Scalars(Sequence[Any]):
    """An Arrow array as a Python sequence, so that `bisect` can walk it without a copy."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: Any) -> Any:
        return self.array[i].as_py()


def _as_array(keys: Any) -> pa.Array:
    if isinstance(keys, pa.ChunkedArray):
        return keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    if isinstance(keys, pa.Array):
        return keys
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
        return _as_array(pa.chunked_array(keys))
    if isinstance(keys, np.ndarray):
        return pa.array(keys)
    try:
        return pa.array(list(keys))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([str(k) for k in keys])


def _storage(column: pa.Array) -> pa.Array:
    """The plain array under a dictionary, a view or an extension type."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_large_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    return column


def _convert(wanted: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast what can be cast ("17" finds 17); the rest becomes null, which no key equals."""
    try:
        return wanted.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cells = []
        for value in wanted:
            try:
                cells.append(value.cast(to).as_py())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                cells.append(None)
        return pa.array(cells, to)


def restore(column: pa.ChunkedArray) -> Keys:
    """Keys from a column that holds them as `Keys.all` gave them; raises if they are not sorted."""
    flat = _storage(_as_array(column))
    if flat.null_count or (len(flat) > 1 and not pc.all(pc.less(flat[:-1], flat[1:])).as_py()):
        raise DataError("keys: expected sorted, unique keys without nulls.")
    return Keys(flat, column.type if isinstance(column.type, pa.BaseExtensionType) else flat.type)


def range_keys(n: int) -> Keys:
    """The keys 0..n-1, for data that comes without names."""
    return Keys(pa.array(np.arange(n, dtype=np.int64)), pa.int64())


def encode(column: pa.Array | pa.ChunkedArray, what: str = "key") -> tuple[Keys, np.ndarray]:
    """Sorted unique keys of a column without nulls, and the row (int32) of each cell."""
    kind = column.type
    flat = _storage(_as_array(column))
    outward = kind if isinstance(kind, pa.BaseExtensionType) else flat.type
    if pa.types.is_integer(flat.type) and len(flat):
        values, rows = _encode_integers(flat.to_numpy())
        return Keys(pa.array(values, flat.type), outward), rows
    try:
        encoded = flat.dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise DataError(
            f"read: expected {what}s that can be compared (integers, strings, UUIDs), got the "
            f"Arrow type {kind}. Cast the column first."
        ) from error
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rows = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    return Keys(encoded.dictionary.take(pa.array(order)), outward), rows


def _encode_integers(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank integers through a table over their range when that is small, else by sorting."""
    low, high = int(column.min()), int(column.max())
    if high - low > 8 * len(column) + 1_000_000:
        values, rows = np.unique(column, return_inverse=True)
        return values, rows.astype(np.int32)
    offset = column.astype(np.int64) - low if low or column.dtype.itemsize < 4 else column
    present = np.zeros(high - low + 1, dtype=bool)
    present[offset] = True
    values = (np.flatnonzero(present) + low).astype(column.dtype)
    if len(values) == len(present):
        return values, offset.astype(np.int32)
    rank = np.cumsum(present, dtype=np.int32) - 1
    return values, rank[offset].astype(np.int32, copy=False)
