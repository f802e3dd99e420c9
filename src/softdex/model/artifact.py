"""Artifacts: one file per model, written whole or not at all, and checked before it is used.

The file is an uncompressed zip of four members: `manifest.json` (a readable model card),
`tensors.safetensors`, `users.arrow` and `items.arrow`. The archive comment ends with the SHA-256 of
everything before it, so a damaged file is recognised before anything in it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import safetensors.torch
from torch import Tensor

from softdex.errors import ArtifactError
from softdex.files import write_atomically

FORMAT, VERSION = "softdex", 1
MEMBERS = ("manifest.json", "tensors.safetensors", "users.arrow", "items.arrow")
SEAL = b"softdex sha256:"
DIGEST = 64  # hex characters
ARROW = b"ARROW1\0\0"  # the head of an Arrow file; a stream of messages follows


class Contents(NamedTuple):
    """The contents of an artifact."""

    manifest: dict[str, Any]
    tensors: dict[str, Tensor]
    users: pa.Table
    items: pa.Table


# write -------------------------------------------------------------------------------------------


def write(path: Path, contents: Contents) -> None:
    """Write an artifact beside `path`, sync and rename it; a failure leaves nothing behind."""
    manifest = {
        **contents.manifest,
        "format": FORMAT,
        "version": VERSION,
        "tensors": _shapes(contents.tensors),
        "users": contents.users.num_rows,
        "items": contents.items.num_rows,
    }
    parts = (
        (json.dumps(plain(manifest), indent=2, sort_keys=True) + "\n").encode(),
        safetensors.torch.save({n: t.cpu().contiguous() for n, t in contents.tensors.items()}),
        _arrow_bytes(contents.users),
        _arrow_bytes(contents.items),
    )
    write_atomically(path, lambda file: _pack(file, parts))


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: numpy numbers as numbers, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(name): plain(inside) for name, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inside) for inside in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _pack(file: Any, parts: tuple[bytes, ...]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in zip(MEMBERS, parts, strict=True):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same bytes on every system
            archive.writestr(entry, part)
        archive.comment = SEAL + b"0" * DIGEST
    file.seek(-DIGEST, os.SEEK_END)
    end = file.tell()
    digest = _digest(file, end)
    file.seek(end)
    file.write(digest)


def _arrow_bytes(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return out.getvalue()


# read --------------------------------------------------------------------------------------------


def read(path: Path) -> Contents:
    """Read an artifact, or raise ArtifactError with the reason."""
    with refused(path):
        if not path.is_file():
            raise ArtifactError(f"load: no file {path}. Expected a model saved with save().")
        _check_seal(path)
        with zipfile.ZipFile(path) as archive:
            raw = _unpack(archive, path.stat().st_size)
        manifest = _check_manifest(path, raw["manifest.json"])
        tensors = safetensors.torch.load(raw["tensors.safetensors"])
        users, items = (_arrow_table(raw[name]) for name in ("users.arrow", "items.arrow"))
        promised = (manifest["tensors"], manifest["users"], manifest["items"])
        if promised != (_shapes(tensors), users.num_rows, items.num_rows):
            raise ValueError("the manifest does not describe what the file holds")
    return Contents(manifest, tensors, users, items)


@contextlib.contextmanager
def refused(path: Path) -> Any:
    """Turn any error about a file of unknown origin into one ArtifactError that names it."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # Arrow's own errors have none
            raise ArtifactError(f"load: cannot read {path} ({error.strerror}).") from None
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise ArtifactError(f"load: {path} is damaged ({why}). Save the model again.") from None


def check_kinds(record: Mapping[str, Any], kinds: Mapping[str, Any], *, needed: bool) -> None:
    """Refuse a record whose entries have other types; `needed` entries must be there."""
    for name, kind in kinds.items():
        if name in record or needed:
            value = record.get(name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise ValueError(f"the manifest's {name!r} is {str(value)[:40]!r}")


def _digest(file: Any, end: int) -> bytes:
    file.seek(0)
    digest = hashlib.sha256()
    while end > 0:
        block = file.read(min(end, 1 << 22))
        if not block:
            break
        digest.update(block)
        end -= len(block)
    return digest.hexdigest().encode()


def _check_seal(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise ArtifactError(f"load: {path} is not a softdex artifact (a foreign file).")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - DIGEST - len(SEAL)))
        seal = file.read()
        if not seal.startswith(SEAL):
            raise ArtifactError(
                f"load: {path} has no seal at its end: it is truncated, or not a softdex artifact. "
                "Copy it again, or save the model again."
            )
        if seal[len(SEAL) :] != _digest(file, size - DIGEST):
            raise ValueError("its checksum does not match")


def _unpack(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    entries = archive.infolist()
    if tuple(e.filename for e in entries) != MEMBERS:
        raise ValueError(f"expected the members {', '.join(MEMBERS)}")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"member {entry.filename} is compressed")
        if entry.file_size > size:
            raise ValueError(f"member {entry.filename} claims {entry.file_size} bytes")
    return {e.filename: archive.read(e) for e in entries}


def _check_manifest(path: Path, raw: bytes) -> dict[str, Any]:
    manifest = plain(json.loads(raw))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"load: {path} is not a softdex artifact (a foreign manifest).")
    check_kinds(manifest, {"version": int}, needed=True)
    if manifest["version"] > VERSION:
        raise ArtifactError(
            f"load: {path} has format version {manifest['version']}, this softdex reads up to "
            f"{VERSION}. Upgrade softdex."
        )
    if manifest["version"] < 1:
        raise ValueError(f"format version {manifest['version']}")
    check_kinds(manifest, {"tensors": dict, "users": int, "items": int}, needed=True)
    return manifest


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[Any]]:
    return {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()}


def _arrow_table(raw: bytes) -> pa.Table:
    """Return a table from the messages of an Arrow file; the redundant footer is not read."""
    if not raw.startswith(ARROW):
        raise ValueError("a member is not an Arrow file")
    return stream_table(pa.py_buffer(raw)[len(ARROW) :])


def stream_table(stream: pa.Buffer) -> pa.Table:
    """Return a table from an Arrow stream of unknown origin, checked in full; refuse compression,
    which could inflate to any size."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type not in ("schema", "record batch") or _is_compressed(message):
            raise ValueError("an Arrow member is compressed or uses dictionaries")
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    return table


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Return whether the buffers of a record batch are compressed: inflating could be a bomb.

    pyarrow does not tell, so the flatbuffer is read: Message.header (field 2) is a RecordBatch,
    whose field 3 is present if it is compressed.
    """
    raw = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", raw, table)[0]
        place = 4 + 2 * number
        if place >= struct.unpack_from("<H", raw, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", raw, vtable + place)[0]
        return table + offset if offset else 0

    root: int = struct.unpack_from("<I", raw, 0)[0]
    header = field(root, 2)
    if message.type == "schema" or not header:
        return False
    return bool(field(header + struct.unpack_from("<I", raw, header)[0], 3))
