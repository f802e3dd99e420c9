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
ZIP = b"PK\x03\x04"
LONGEST_MAGIC = 6


def _zstd(path: Path) -> Any:
    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


OPENERS: dict[bytes, Callable[[Path], Any]] = {  # by the first bytes of a file
    b"\x1f\x8b": gzip.open,
    b"\x28\xb5\x2f\xfd": _zstd,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, or a member of a zip, for reading, and decompress it if need be."""
    archive = zip_above(path)
    if archive is not None:
        with zipfile.ZipFile(archive) as opened:
            return opened.open(path.relative_to(archive).as_posix())
    opener = _opener(path)
    return opener(path) if opener else path.open("rb")


def is_plain(path: Path) -> bool:
    """Whether the bytes of a file are on disk as they are."""
    return zip_above(path) is None and _opener(path) is None


def zip_above(path: Path) -> Path | None:
    """The zip that holds this path as a member, or None."""
    if path.exists():
        return None
    return next((p for p in path.parents if p.is_file() and is_zip(p)), None)


def is_zip(path: Path) -> bool:
    """Whether a file starts as zips do."""
    with path.open("rb") as file:
        return file.read(len(ZIP)) == ZIP


def members(archive: Path) -> list[str]:
    """The names of the files in a zip."""
    with readable(archive), zipfile.ZipFile(archive) as opened:
        return [name for name in opened.namelist() if not name.endswith("/")]


def _opener(path: Path) -> Callable[[Path], Any] | None:
    with path.open("rb") as file:
        head = file.read(LONGEST_MAGIC)
    return next((o for magic, o in OPENERS.items() if head.startswith(magic)), None)


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
