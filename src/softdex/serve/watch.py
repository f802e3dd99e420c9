"""Watch a folder: a new model file in it is served, a changed one is swapped in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from softdex.errors import SoftdexError
from softdex.messages import say
from softdex.model.saving import MODEL_FILE
from softdex.serve.problems import Problem
from softdex.serve.registry import Registry
from softdex.serve.served import name_of, seal_of

EVERY = 1.0  # seconds
State = tuple[int, int, int]


@contextlib.contextmanager
def watching(registry: Registry, folder: Path | None, every: float = EVERY) -> Iterator[None]:
    """Serve what comes into a folder meanwhile, and what has changed since it was loaded; a file
    that fails is not tried again until it changes."""
    if folder is None:
        yield
        return
    known, ends = models_in(folder), threading.Event()
    for path in [each for each in known if _is_outdated(registry, each)]:
        del known[path]

    def work() -> None:
        while not ends.wait(every):
            look(registry, folder, known)

    thread = threading.Thread(target=work, name="softdex-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def models_in(folder: Path) -> dict[Path, State]:
    """Return the models in a folder, files and runs, with what tells when they change."""
    if not folder.is_dir():
        raise SoftdexError(f"serve: {folder} is not a folder to watch.")
    found = {}
    for path in sorted(folder.iterdir()):
        file = path / MODEL_FILE if path.is_dir() else path
        if path.is_dir() or path.suffix == ".sdx":
            with contextlib.suppress(OSError):
                state = file.stat()
                found[path] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def look(registry: Registry, folder: Path, known: dict[Path, State]) -> None:
    """Serve what is new or has changed since the last look."""
    try:
        found = models_in(folder)
    except (OSError, SoftdexError):
        return
    for path, state in found.items():
        if known.get(path) == state:
            continue
        name = name_of(path)
        try:
            swap = registry.reload(name, path, new=True)
        except Problem:  # another model is being loaded: at the next look
            continue
        except Exception as error:
            say(f"serve: {name} was not reloaded: {error}")
        else:
            say(f"serve: loaded {name} in {swap.seconds:.1f} s")
        known[path] = state


# inside ------------------------------------------------------------------------------------------


def _is_outdated(registry: Registry, path: Path) -> bool:
    """Return whether the model of this file is served as it was before."""
    served = registry.models.get(name_of(path))
    return (
        served is not None
        and served.path is not None
        and served.path.resolve() == path.resolve()
        and served.seal != seal_of(path)
    )
