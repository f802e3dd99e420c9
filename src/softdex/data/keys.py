"""Keys: the names users and items have outside, and the row numbers they have inside."""

from __future__ import annotations

import bisect
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.errors import DataError, SoftdexError, nearest, some

REFUSED = (pa.ArrowException, OverflowError, TypeError)
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
        if pa.types.is_primitive(self.values.type):
            digest.update(self.values.to_numpy(zero_copy_only=False).tobytes())
        else:
            written = pa.types.is_decimal(self.values.type)
            flat = self.values.cast(pa.string()) if written else self.values
            flat = flat.cast(pa.large_binary())
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
        given = _as_array(keys)
        wanted = _storage(given if given.type == self.type else _convert(given, self.type))
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
            first, last = self.take(np.array([0, len(self) - 1])).to_pylist()
            return f"Known keys run from {first} to {last}."
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


def chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column in chunks, if need be one."""
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def plain(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """The values under a dictionary, a run-length code, a view or an extension type."""
    column = chunked(column)
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        parts = [part.storage for part in column.chunks]
        return plain(pa.chunked_array(parts, kind.storage_type))
    if pa.types.is_dictionary(kind):
        empty = plain(pa.array([], kind.value_type)).type
        parts = [_as_array(plain(part.dictionary)).take(part.indices) for part in column.chunks]
        return pa.chunked_array(parts, empty)
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(column))
    return without_views(column)


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """String views, which polars hands out and few Arrow functions know, as large strings."""
    kind, wanted = column.type, _without_views(column.type)
    if pa.types.is_dictionary(kind) and _without_views(kind.value_type) != kind.value_type:
        return plain(column)
    return column if kind == wanted else column.cast(wanted)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def _as_array(keys: Any) -> pa.Array:
    if isinstance(keys, (str, bytes)):
        raise DataError(f"keys: expected a list of keys, got {keys!r}. Write [{keys!r}].")
    if isinstance(keys, pa.ChunkedArray):
        return keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)
    if isinstance(keys, pa.Array):
        return keys
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
        return _as_array(pa.chunked_array(keys))
    if isinstance(keys, np.ndarray):
        return pa.array(keys)
    cells = list(keys)
    try:
        return pa.array(cells)
    except OverflowError:
        return pa.array(cells, pa.uint64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([None if k is None else str(k) for k in cells])


def _storage(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The plain array under a column, in the type that keys of its kind are kept in."""
    flat = _as_array(plain(column))
    if pa.types.is_large_string(flat.type):
        return flat.cast(pa.string())
    return flat.cast(pa.binary()) if pa.types.is_large_binary(flat.type) else flat


def _convert(given: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast what can be cast ("17" finds 17); the rest becomes null, which no key equals."""
    if given.type == pa.uuid():
        given = pa.array([None if k is None else str(k) for k in given.to_pylist()], pa.string())
    given = _storage(given)
    if to == pa.uuid() and pa.types.is_string(given.type):
        return pa.array([_uuid(k) for k in given.to_pylist()], to)
    to = to.storage_type if isinstance(to, pa.BaseExtensionType) else to
    try:
        found = given.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        found = pa.array([_cast(value, to) for value in given], to)
    if pa.types.is_string(given.type) and pa.types.is_integer(to):  # "007" is not 7
        found = pc.if_else(pc.equal(found.cast(given.type), given), found, None)
    return found


def _cast(value: pa.Scalar, to: pa.DataType) -> Any:
    try:
        return value.cast(to).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _uuid(text: str | None) -> bytes | None:
    try:
        return None if text is None else uuid.UUID(text).bytes
    except ValueError:
        return None


def restore(column: pa.ChunkedArray) -> Keys:
    """Keys from a column that holds them as `Keys.all` gave them; raises if they are not sorted."""
    flat = _storage(_as_array(column))
    if flat.null_count or (len(flat) > 1 and not pc.all(pc.less(flat[:-1], flat[1:])).as_py()):
        raise DataError("keys: expected sorted, unique keys without nulls.")
    return _keys(flat, column.type)


def range_keys(n: int) -> Keys:
    """The keys 0..n-1, for data that comes without names."""
    return Keys(pa.array(np.arange(n, dtype=np.int64)), pa.int64())


def encode(column: pa.Array | pa.ChunkedArray, what: str = "key") -> tuple[Keys, np.ndarray]:
    """Sorted unique keys of a column without nulls, and the row (int32) of each cell."""
    kind, cells = column.type, plain(column)
    if pa.types.is_decimal(cells.type) and cells.type.scale == 0:
        cells = _whole(cells)
    if pa.types.is_integer(cells.type) and len(cells):
        values, rows = _encode_integers(cells.to_numpy())
        return _keys(pa.array(values, cells.type), kind), rows
    try:
        encoded = _as_array(cells.dictionary_encode())
        values = _storage(encoded.dictionary)
        order = pc.array_sort_indices(values).to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise DataError(
            f"read: expected {what}s that can be compared (integers, strings, UUIDs), got the "
            f"Arrow type {kind}. Cast the column first."
        ) from None
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    rows = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    return _keys(values.take(pa.array(order)), kind), rows


def merge(old: Keys, new: Keys) -> tuple[Keys, np.ndarray]:
    """Keys of both, sorted, and where each is in the old ones followed by the new."""
    more = _convert(new.all(), old.type)
    if more.null_count:
        raise DataError(f"keys: {new.type} keys do not fit among keys of type {old.type}.")
    cells = pa.chunked_array([old.values, more.cast(old.values.type)])
    keys, rows = encode(cells)
    return Keys(keys.values, old.type), np.argsort(rows)


def _whole(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals without a fraction, as databases count in, as int64 if they fit."""
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return cells


def _keys(values: pa.Array, kind: pa.DataType) -> Keys:
    return Keys(values, kind if isinstance(kind, pa.BaseExtensionType) else values.type)


def _encode_integers(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank integers through a table over their range when that is small, else by sorting."""
    low, high = int(column.min()), int(column.max())
    if high - low > 8 * len(column) + 1_000_000:
        values, rows = np.unique(column, return_inverse=True)
        return values, rows.astype(np.int32)
    wide = np.uint64 if column.dtype == np.uint64 else np.int64
    offset = np.subtract(column, wide(low), dtype=wide) if low else column
    present = np.zeros(high - low + 1, dtype=bool)
    present[offset] = True
    values = np.add(np.flatnonzero(present), wide(low), dtype=wide, casting="unsafe")
    values = values.astype(column.dtype)
    if len(values) == len(present):
        return values, offset.astype(np.int32)
    rank = np.cumsum(present, dtype=np.int32) - 1
    return values, rank[offset].astype(np.int32, copy=False)


def as_list(keys: Any) -> Any:
    """Keys that can be gone through more than once; one key as a list of one."""
    if isinstance(keys, (str, bytes, pa.Scalar)) or not isinstance(keys, Iterable):
        return [keys]
    return list(keys) if isinstance(keys, Iterator) else keys


def find(keys: Keys, given: Any, where: str, what: str, *, known: bool = True) -> np.ndarray:
    """The row of each key; one that is not known is an error, or -1 where `known` is False."""
    try:
        return keys.rows(given, where, what) if known else keys.lookup(given)
    except REFUSED as error:
        raise SoftdexError(
            f"{where}: expected {what} as a list of keys, got {type(given).__name__} ({error})."
        ) from None
