"""Take artifacts apart, change them and seal them again, as an attacker would; fill the disk."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import safetensors.torch
from torch import Tensor

from softdex.model.artifact import DIGEST, SEAL


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def sealed(raw: bytes) -> bytes:
    """Replace the checksum by the one that belongs to these bytes."""
    return raw[:-DIGEST] + hashlib.sha256(raw[:-DIGEST]).hexdigest().encode()


def packed(
    parts: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED, seal: bool = True
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, part in parts:
            archive.writestr(zipfile.ZipInfo(name), part, compression)
        if seal:
            archive.comment = SEAL + b"0" * DIGEST
    return sealed(out.getvalue()) if seal else out.getvalue()


def changed(path: Path, **parts: bytes) -> bytes:
    """Replace members of the artifact: manifest=, tensors=, users=, items=."""
    return packed(
        (name, parts.get(name.partition(".")[0], raw)) for name, raw in members(path).items()
    )


def with_manifest(path: Path, **entries: Any) -> bytes:
    """Replace entries of the manifest; `...` removes one."""
    manifest = json.loads(members(path)["manifest.json"]) | entries
    manifest = {name: value for name, value in manifest.items() if value is not ...}
    return changed(path, manifest=json.dumps(manifest).encode())


def with_tensors(path: Path, **others: Tensor | None) -> bytes:
    """Replace tensors, and describe them in the manifest; None removes one."""
    tensors = safetensors.torch.load(members(path)["tensors.safetensors"])
    tensors |= {name.replace("__", "."): tensor for name, tensor in others.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    shapes = {n: [str(t.dtype).removeprefix("torch."), *t.shape] for n, t in tensors.items()}
    manifest = json.loads(members(path)["manifest.json"]) | {"tensors": shapes}
    return changed(
        path, manifest=json.dumps(manifest).encode(), tensors=safetensors.torch.save(tensors)
    )


def with_table(path: Path, member: str, table: pa.Table, **options: Any) -> bytes:
    """Replace the table of users or items, and describe it in the manifest."""
    manifest = json.loads(members(path)["manifest.json"]) | {member: table.num_rows}
    raw = arrow_file(table, **options)
    return changed(path, manifest=json.dumps(manifest).encode(), **{member: raw})


def arrow_file(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_file(out, table.schema, options=settings) as writer:
        writer.write_table(table)
    return out.getvalue()


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: the system itself refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
