"""Write files completely or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from softdex.errors import ArtifactError, SoftdexError

if sys.platform != "win32":
    import fcntl

_HELD = ContextVar[frozenset[Path]]("_HELD", default=frozenset())


def write_atomically(path: Path, fill: Callable[[Any], object]) -> None:
    """Call `fill(file)` on a temporary file beside `path`, then rename it to `path`.

    Readers see the old file or the new one, never a part of it.
    """
    name = path.parent / f".softdex-{secrets.token_hex(6)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(0, "it is a folder or a device")
        with name.open("x+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        name.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            name.unlink()
        if isinstance(error, OSError):
            raise ArtifactError(f"save: cannot write {path} ({error.strerror or error}).") from None
        raise
    with contextlib.suppress(OSError):  # the file is in place; some systems cannot sync a folder
        sync_folder(path.parent)


@contextmanager
def locked(folder: Path, where: str = "fit") -> Iterator[None]:
    """Let no other process or thread write a run into a folder meanwhile; `where` is the caller.

    The lock ends with the process, however that ends. What is left empty is removed. A lock inside
    a lock on the same folder does nothing.
    """
    held, place = _HELD.get(), folder.absolute()
    if place in held:
        yield
        return
    try:
        made = [p for p in (place, *place.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = None if sys.platform == "win32" else os.open(folder, os.O_RDONLY)
    except FileExistsError:
        raise SoftdexError(f"{where}: {folder} is a file. Expected a folder.") from None
    except (OSError, ValueError) as error:
        raise SoftdexError(f"{where}: cannot write into {folder} ({_reason(error)}).") from None
    before = _HELD.set(held | {place})
    try:
        _take(handle, folder, where)
        yield
    finally:
        _HELD.reset(before)
        if handle is not None:
            os.close(handle)
        for empty in made:
            with contextlib.suppress(OSError):
                empty.rmdir()


def _take(handle: int | None, folder: Path, where: str) -> None:
    """Lock a folder that is open; Windows, and a file system without locks, go without."""
    if sys.platform == "win32":
        return
    assert handle is not None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SoftdexError(
            f"{where}: another run is writing into {folder}. Wait until it ends, or choose "
            "another folder."
        ) from None
    except OSError:
        pass


def save_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def check_file(path: Path, where: str) -> None:
    """Refuse a file that cannot be written, before the work that it is for."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is a folder or a device")
        _try_folder(path.parent)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{where}: cannot write {path} ({_reason(error)}).") from None


def check_page(path: Path, where: str) -> None:
    """Refuse a name that is not one of an HTML page, and a place that cannot be written to."""
    check_file(path, where)
    if path.suffix.lower() not in (".html", ".htm"):
        raise SoftdexError(f"{where}: expected a file name ending in .html, got {path.name!r}.")


def check_folder(folder: Path, where: str) -> None:
    """Refuse a folder that cannot be written into or made, before the work that it is for."""
    try:
        _try_folder(folder)
    except (OSError, ValueError) as error:
        raise SoftdexError(f"{where}: cannot write into {folder} ({_reason(error)}).") from None


def sync_folder(folder: Path) -> None:
    """Let a new name in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> object:
    return error.strerror if isinstance(error, OSError) and error.strerror else error


def _try_folder(folder: Path) -> None:
    """Write into a folder, or into the nearest one above that exists, and leave nothing there."""
    while True:
        try:
            folder.stat()
            break
        except FileNotFoundError:
            if folder == folder.parent:
                raise
            folder = folder.parent
    tempfile.TemporaryFile(dir=folder).close()
