"""Where compiled code is kept: beside the package, in the home folder, or in a temporary folder.

numba refuses to compile where it can write neither beside a module nor in the home folder. Import
before numba, which reads the setting when loaded.
"""

import os
import stat
import sys
from pathlib import Path

SETTING = "NUMBA_CACHE_DIR"
PACKAGE = Path(__file__).parent


def folder() -> str | None:
    """The folder for compiled code where neither package nor home can be written to, else None."""
    if sys.platform == "win32":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.environ.get(SETTING) or _can_write(PACKAGE) or _can_write(Path(home)):
        return None
    import tempfile  # takes a while

    own = Path(tempfile.gettempdir()) / f"softdex-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()  # numba unpickles what it finds: nobody else may have put it there
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        return tempfile.mkdtemp(prefix="softdex-")
    return str(own)


def _can_write(place: Path) -> bool:
    """Whether a folder, or the nearest one above it that exists, can be written to."""
    there = next(p for p in (place, *place.parents) if p.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


FALLBACK = folder()
if FALLBACK is not None:
    os.environ[SETTING] = FALLBACK
