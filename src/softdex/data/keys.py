"""Keys: the caller's ids of users and items, and the row numbers they have inside softdex."""

from __future__ import annotations

import bisect
import hashlib
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.arrow import NOT_CONVERTIBLE, combined, unwrapped
from softdex.errors import DataError, SoftdexError, UnknownKey, did_you_mean, first_few, in_number

BISECT_UP_TO = 64  # lookups of more keys build a hash table, unless there are far more known ones
NUMBERS, OTHERS = 8, 256  # known keys per lookup from which on bisection is faster
NEAR, PAIRS = 500, 10_000  # known keys beside an unknown one, and pairs of letters, to compare
STEP = 32  # known keys between those that a bisection looks at first


@final
@dataclass(frozen=True, eq=False)
class Keys:
    """Sorted, unique keys of one type. The row number of a key is its rank.

    Attributes:
        values: the keys in their Arrow storage type.
        type: the Arrow type in which keys are handed back (a UUID stays a UUID).
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
            as_text = pa.types.is_decimal(self.values.type)
            flat = self.values.cast(pa.string()) if as_text else self.values
            flat = flat.cast(pa.large_binary())
            ends = np.frombuffer(flat.buffers()[1], np.int64)[flat.offset :][: len(flat) + 1]
            digest.update((ends - ends[0]).tobytes())
            digest.update(flat.buffers()[2][int(ends[0]) : int(ends[-1])])
        return digest.hexdigest()

    def take(self, rows: np.ndarray) -> pa.Array:
        """The keys at these row numbers, in their original type."""
        return Keys(self.values.take(pa.array(rows)), self.type).all()

    def all(self) -> pa.Array:
        """Every key in row order, in its original type."""
        if isinstance(self.type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(self.type, self.values)
        return self.values

    def lookup(self, keys: Any) -> np.ndarray:
        """The row number of each key (int64); -1 for unknown keys."""
        given = _as_array(keys)
        wanted = _storage(given if given.type == self.type else convert(given, self.type))
        numbers = pa.types.is_integer(wanted.type) and not wanted.null_count
        if len(wanted) <= max(BISECT_UP_TO, len(self) // (NUMBERS if numbers else OTHERS)):
            if numbers:
                return self._among_numbers(wanted.to_numpy())
            return self._among_cells(wanted.to_pylist())
        rows = pc.fill_null(pc.index_in(wanted, value_set=self.values), -1)
        return rows.to_numpy(zero_copy_only=False).astype(np.int64)

    def rows(self, keys: Any, where: str, what: str) -> np.ndarray:
        """The row number of each key; an unknown key raises and names the nearest known one."""
        rows = self.lookup(keys)
        count = int((rows < 0).sum())
        if count:
            given = _as_array(keys).to_pylist()
            missing = [given[i] for i in np.flatnonzero(rows < 0)[:6]]
            text = f"{where}: {count} unknown {in_number(count, what)} "
            raise UnknownKey(
                f"{text}({first_few(map(repr, missing))}).", lambda: self._hint(missing[0])
            )
        return rows

    def plain(self, keys: Any) -> np.ndarray | None:
        """The row numbers of a short list of keys as Python has them; None for any other.

        A request of one user has a key or two: Arrow would take longer than the lookup.
        """
        if type(keys) is not list or not 0 < len(keys) <= BISECT_UP_TO or not len(self):
            return None
        kinds, kind = set(map(type, keys)), self.type
        if kinds == {str} and pa.types.is_string(kind) and _is_unicode(keys):
            return self._among_cells(keys)
        if kinds == {int} and pa.types.is_int64(kind) and max(map(abs, keys)) < 2**63:
            return self._among_numbers(np.array(keys))
        return None

    def _among_numbers(self, wanted: np.ndarray) -> np.ndarray:
        if not len(self):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self._numbers, wanted)
        at[self._numbers[np.minimum(at, len(self) - 1)] != wanted] = -1
        return at

    def _among_cells(self, wanted: list[Any]) -> np.ndarray:
        return np.array([self._bisect(key) for key in wanted], dtype=np.int64)

    def _bisect(self, key: Any) -> int:
        if key is None:
            return -1
        start = max(0, bisect.bisect_right(self._fence, key) - 1) * STEP
        cells = self.values.slice(start, STEP).to_pylist()
        at = bisect.bisect_left(cells, key)
        return start + at if at < len(cells) and cells[at] == key else -1

    @cached_property
    def _numbers(self) -> np.ndarray:
        """The keys as numbers; no copy."""
        numbers: np.ndarray = self.values.to_numpy()
        return numbers

    @cached_property
    def _fence(self) -> list[Any]:
        """Every STEP-th key."""
        fence: list[Any] = self.values.take(pa.array(np.arange(0, len(self), STEP))).to_pylist()
        return fence

    def _hint(self, key: object) -> str:
        if not len(self):
            return "None are known here."
        if not pa.types.is_string(self.values.type):
            first, last = self.take(np.array([0, len(self) - 1])).to_pylist()
            return f"Known keys run from {first} to {last}."
        at = bisect.bisect_left(_Scalars(self.values), str(key))
        most = min(NEAR, max(4, PAIRS // max(1, len(str(key))) ** 2))
        near = self.values.slice(max(0, at - most), 2 * most)
        hint = did_you_mean(key, near.to_pylist())
        return hint if len(self) <= 12 else hint.split("Known:")[0]


class _Scalars(Sequence[Any]):
    """An Arrow array as a Python sequence, for `bisect` without a copy."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: Any) -> Any:
        return self.array[i].as_py()


def _is_unicode(texts: list[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeError:
        return False
    return True


def _as_array(keys: Any) -> pa.Array:
    if isinstance(keys, (str, bytes)):
        raise DataError(f"keys: expected a list of keys, got {keys!r}. Write [{keys!r}].")
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        keys.validate(full=True)
        return combined(keys)
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
        return combined(pa.chunked_array(keys))
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
    """The values of a column in the storage type of `Keys`: no large strings or binaries."""
    flat = combined(unwrapped(column))
    if pa.types.is_large_string(flat.type):
        return flat.cast(pa.string())
    return flat.cast(pa.binary()) if pa.types.is_large_binary(flat.type) else flat


def convert(given: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast keys to another type ("17" finds 17); keys that do not cast become null."""
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
    """Rebuild keys from what `Keys.all` returned; unsorted or repeated keys raise."""
    flat = _storage(column)
    if flat.null_count or (len(flat) > 1 and not pc.all(pc.less(flat[:-1], flat[1:])).as_py()):
        raise DataError("keys: expected sorted, unique keys without nulls.")
    return _keys(flat, column.type)


def range_keys(n: int) -> Keys:
    """The keys 0 to n - 1, for data without ids."""
    return Keys(pa.array(np.arange(n, dtype=np.int64)), pa.int64())


def factorize(column: pa.Array | pa.ChunkedArray, what: str = "key") -> tuple[Keys, np.ndarray]:
    """The sorted unique keys of a column without nulls, and the row number (int32) of each cell.

    Args:
        column: any Arrow type with an order.
        what: the singular noun for error messages, e.g. "user".
    """
    kind, cells = column.type, unwrapped(column)
    if pa.types.is_decimal(cells.type) and cells.type.scale == 0:
        cells = _as_int64(cells)
    if pa.types.is_integer(cells.type) and len(cells):
        values, rows = _factorize_integers(cells.to_numpy())
        return _keys(pa.array(values, cells.type), kind), rows
    try:
        encoded = combined(cells.dictionary_encode())
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
    """The union of two sets of disjoint keys, and the position of each in old followed by new."""
    more = convert(new.all(), old.type)
    if more.null_count:
        raise DataError(f"keys: {new.type} keys do not fit among keys of type {old.type}.")
    cells = pa.chunked_array([old.values, more.cast(old.values.type)])
    keys, rows = factorize(cells)
    return Keys(keys.values, old.type), np.argsort(rows)


def _as_int64(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals without a fraction, as some databases count, as int64 if they fit."""
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return cells


def _keys(values: pa.Array, kind: pa.DataType) -> Keys:
    return Keys(values, kind if isinstance(kind, pa.BaseExtensionType) else values.type)


def _factorize_integers(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank integers with a table over their range if it is small, else by sorting."""
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
    """Keys that can be iterated more than once; a single key becomes a list of one."""
    if isinstance(keys, (str, bytes, pa.Scalar)) or not isinstance(keys, Iterable):
        return [keys]
    return list(keys) if isinstance(keys, Iterator) else keys


def sound(keys: Any, where: str, what: str) -> Any:
    """Keys in any container, once Arrow has checked an array of them against its buffers."""
    if isinstance(keys, (pa.Array, pa.ChunkedArray)):
        try:
            keys.validate(full=True)
        except pa.ArrowException as error:
            raise SoftdexError(
                f"{where}: expected {what} as a list of keys, got {type(keys).__name__} ({error})."
            ) from None
    return keys


def find(keys: Keys, given: Any, where: str, what: str, *, known: bool = True) -> np.ndarray:
    """The row number of each given key.

    Args:
        keys: the known keys.
        given: keys in any container.
        where, what: for error messages, e.g. "recommend" and "users".
        known: raise if a key is unknown; otherwise its row number is -1.
    """
    rows = keys.plain(given)
    if rows is not None and (not known or rows.min() >= 0):
        return rows
    try:
        array = _as_array(given)
        _refuse_no_keys(given, array, where, what)
        if len(array) and pa.types.is_boolean(array.type) and not pa.types.is_boolean(keys.type):
            raise DataError(f"{where}: expected {what} as keys (text or numbers), got {array[0]}.")
        return keys.rows(array, where, what) if known else keys.lookup(array)
    except NOT_CONVERTIBLE as error:
        why = "text that is not valid Unicode" if isinstance(error, UnicodeError) else error
        raise SoftdexError(
            f"{where}: expected {what} as a list of keys, got {type(given).__name__} ({why})."
        ) from None


def _refuse_no_keys(given: Any, array: pa.Array, where: str, what: str) -> None:
    """Refuse nulls, lists and records, none of which is the key of anything."""
    kind, cells = array.type, given
    if isinstance(given, Mapping):
        cells = [given]
    elif array.null_count or pa.types.is_nested(kind) or pa.types.is_floating(kind):
        cells = array.to_pylist()
    elif isinstance(given, (pa.Array, pa.ChunkedArray)) or all(map(_may_be_key, _types(given))):
        return
    for cell in cells:
        if not _may_be_key(type(cell)) or cell != cell:
            shown = " ".join(str(cell).split())[:60]
            raise DataError(f"{where}: expected {what} as keys (text or numbers), got {shown}.")


def _types(cells: Iterable[Any]) -> set[type]:
    return set(map(type, cells))


def _may_be_key(kind: type) -> bool:
    return kind is not type(None) and issubclass(kind, Hashable) and not issubclass(kind, tuple)
