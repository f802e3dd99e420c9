"""Artifacts: one file that holds a model, written whole or not at all, never trusted blindly.

The file is an uncompressed zip with four members: `manifest.json` (readable as a model card),
`tensors.safetensors`, `users.arrow` and `items.arrow`. The archive comment ends with the SHA-256
of everything before it, so a damaged file is recognised before anything in it is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import safetensors.torch
from torch import Tensor

from softdex.errors import ArtifactError

FORMAT, VERSION = "softdex", 1
MEMBERS = ("manifest.json", "tensors.safetensors", "users.arrow", "items.arrow")
SEAL = b"softdex sha256:"
DIGEST = 64  # hex characters


class Contents(NamedTuple):
    """What an artifact holds."""

    manifest: dict[str, Any]
    tensors: dict[str, Tensor]
    users: pa.Table
    items: pa.Table


def write(path: Path, contents: Contents) -> None:
    """Write to a temporary name beside `path`, sync, rename; on failure nothing is left."""
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        **contents.manifest,
        "tensors": _shapes(contents.tensors),
        "users": contents.users.num_rows,
        "items": contents.items.num_rows,
    }
    parts = (
        (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode(),
        safetensors.torch.save({n: t.contiguous() for n, t in contents.tensors.items()}),
        _arrow_bytes(contents.users),
        _arrow_bytes(contents.items),
    )
    write_atomically(path, lambda file: _pack(file, parts))


def write_atomically(path: Path, fill: Any) -> None:
    """Let `fill(file)` write a temporary file, then put it in the place of `path` at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise ArtifactError(f"save: cannot write {path} ({error.strerror}).") from None
    try:
        with os.fdopen(handle, "w+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        _sync_folder(path.parent)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ArtifactError(f"save: cannot write {path} ({error.strerror}).") from None
        raise


def read(path: Path) -> Contents:
    """Read an artifact, or refuse it with the reason."""
    if not path.is_file():
        raise ArtifactError(f"load: no file {path}. Expected a model that was saved with save().")
    _check_seal(path)
    try:
        with zipfile.ZipFile(path) as archive:
            raw = _unpack(path, archive)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise _damaged(path, error) from None
    manifest = _check_manifest(path, raw["manifest.json"])
    try:
        tensors = safetensors.torch.load(raw["tensors.safetensors"])
        users, items = (_arrow_table(raw[name]) for name in ("users.arrow", "items.arrow"))
    except (
        ValueError,
        OSError,
        KeyError,
        TypeError,
        pa.ArrowException,
        safetensors.SafetensorError,
    ) as error:
        raise _damaged(path, error) from None
    promised = (manifest["tensors"], manifest["users"], manifest["items"])
    if promised != (_shapes(tensors), users.num_rows, items.num_rows):
        raise _damaged(path, "the manifest does not describe what the file holds")
    return Contents(manifest, tensors, users, items)


def _pack(file: Any, parts: tuple[bytes, ...]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in zip(MEMBERS, parts, strict=True):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), part)
        archive.comment = SEAL + b"0" * DIGEST
    file.seek(-DIGEST, os.SEEK_END)
    end = file.tell()
    digest = _digest(file, end)
    file.seek(end)
    file.write(digest)


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
            raise _damaged(path, "its checksum does not match")


def _unpack(path: Path, archive: zipfile.ZipFile) -> dict[str, bytes]:
    entries = archive.infolist()
    if tuple(e.filename for e in entries) != MEMBERS:
        raise _damaged(path, f"expected the members {', '.join(MEMBERS)}")
    size = path.stat().st_size
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise _damaged(path, f"member {entry.filename} is compressed")
        if entry.file_size > size:
            raise _damaged(path, f"member {entry.filename} claims {entry.file_size} bytes")
    return {e.filename: archive.read(e) for e in entries}


def _check_manifest(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"load: {path} is not a softdex artifact (a foreign manifest).")
    version = manifest.get("version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, f"format version {version!r}")
    if version > VERSION:
        raise ArtifactError(
            f"load: {path} has format version {version}, this softdex reads up to {VERSION}. "
            "Upgrade softdex."
        )
    for name, kind in (("tensors", dict), ("users", int), ("items", int)):
        if not isinstance(manifest.get(name), kind):
            raise _damaged(path, f"the manifest has no {name!r}")
    return manifest


def _damaged(path: Path, why: object) -> ArtifactError:
    return ArtifactError(f"load: {path} is damaged ({str(why)[:200]}). Save the model again.")


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[Any]]:
    return {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()}


def _arrow_bytes(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return out.getvalue()


def _arrow_table(raw: bytes) -> pa.Table:
    table = pa.ipc.open_file(pa.BufferReader(raw)).read_all()
    table.validate(full=True)
    return table


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
