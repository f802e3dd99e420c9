"""Files as bytes, whatever compresses them: gzip, zstd, bzip2, xz, or a zip that they lie in."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from softdex.errors import DataError

SUFFIXES = (".gz", ".zst", ".bz2", ".xz")
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the second is one without members
LONGEST_MAGIC = 6


def _zstd(file: IO[bytes]) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")


OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.open,
    b"\x28\xb5\x2f\xfd": _zstd,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, or a member of a zip, for reading, and decompress it if need be."""
    with _open(path) as file:
        head = file.read(LONGEST_MAGIC)
        file.seek(0)
        opener = next((o for magic, o in OPENERS.items() if head.startswith(magic)), None)
        if opener is None:
            yield file
            return
        with opener(file) as unpacked:
            yield unpacked


def is_plain(path: Path) -> bool:
    """Whether the bytes of a file are on disk as they are."""
    if zip_above(path) is not None:
        return False
    with _open(path) as file:
        return not file.read(LONGEST_MAGIC).startswith(tuple(OPENERS))


def zip_above(path: Path) -> Path | None:
    """The zip that holds this path as a member, or None."""
    if path.exists():
        return None
    return next((p for p in path.parents if p.is_file() and is_zip(p)), None)


def is_zip(path: Path) -> bool:
    """Whether a file starts as zips do."""
    with path.open("rb") as file:
        return file.read(LONGEST_MAGIC).startswith(ZIP)


def members(archive: Path) -> list[str]:
    """The names of the files in a zip."""
    with readable(archive), zipfile.ZipFile(archive) as opened:
        return [name for name in opened.namelist() if not name.endswith("/")]


def _open(path: Path) -> IO[bytes]:
    """Open a file, or a member of a zip, as it is stored."""
    archive = zip_above(path)
    if archive is None:
        return path.open("rb")
    with zipfile.ZipFile(archive) as opened:
        return opened.open(path.relative_to(archive).as_posix())


@contextmanager
def readable(path: Path, encoding: str = "utf-8") -> Iterator[None]:
    """Turn everything that can go wrong while reading a file into a `DataError`."""
    try:
        yield
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"read: {path}: line {line} is not valid {encoding} ({error.reason}). Pass the "
            "encoding it was written in, e.g. encoding='latin-1'."
        ) from None
    except UnicodeError as error:
        raise DataError(
            f"read: {path} is not valid {encoding} ({error}). Pass the encoding it was written in."
        ) from None
    except (
        OSError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        NotImplementedError,  # a zip in a compression of its own
        RuntimeError,  # a zip with a password
    ) as error:
        raise DataError(
            f"read: cannot read {path} ({error}). Is it complete, and may you read it?"
        ) from None
