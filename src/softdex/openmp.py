"""OpenMP threads: idle ones soon sleep, and none is left over in a forked process.

Import before torch, which reads the first setting when loaded. By default, waiting threads spin.
Beside any other busy process this makes training over 20 times slower (measured on 2 cores); on an
idle machine, threads that sleep at once make it 3 times slower. A short spin avoids both. A wait
policy set by the user is kept.

A fork copies the record of the pool but not its threads, and the child would wait for them for
ever. So the pool ends before a fork; parent and child start new threads when they need them.
"""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

PAUSE = 1  # omp_pause_soft

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def end_idle_threads() -> None:
    """End the threads that wait for work of this thread, in every GNU OpenMP that is loaded."""
    if "torch" not in sys.modules:
        return
    with contextlib.suppress(OSError, AttributeError):  # no /proc; an OpenMP older than 5.0
        maps = Path("/proc/self/maps").read_text()
        for library in set(re.findall(r"/.*/libgomp[^/\n]*", maps)):
            ctypes.CDLL(library).omp_pause_resource_all(PAUSE)


if sys.platform != "win32":
    os.register_at_fork(before=end_idle_threads)
