"""Run fuzzers: each input in a child process with a time limit, and every outcome counted.

A fuzzer is a file beside this one with `KINDS: dict[str, Attempt]`. An attempt makes the input of
its seed inside the folder it is given (empty, its own), tries it, and returns "done" or "refused"
(a SoftdexError). It raises AssertionError for a silent misread, Partial for a partial output, and
lets everything else escape. A function `warm` of the file is called once, before children are
forked.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

Attempt = Callable[[int, Path], str]
OUTCOMES = ("done", "refused", "traceback", "crash", "hang", "partial", "misread")
GOOD = ("done", "refused")
FOLDER = Path(__file__).parent
LIMIT = 60.0  # seconds per input; a child that takes longer hangs
MEMORY = 8 * 2**30  # bytes of address space that a child may ask for beyond its parent's
KEPT = 20  # failed seeds kept per kind


class Partial(AssertionError):
    """Something was written in part, or left behind by what was refused."""


@dataclass
class Tally:
    """What became of the inputs of one kind.

    Attributes:
        counts: inputs per outcome.
        failed: (seed, outcome, last lines of what it said), of the first that failed.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    failed: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Number of inputs."""
        return sum(self.counts.values())

    def add(self, seed: int, outcome: str, said: str) -> None:
        """Count one input."""
        self.counts[outcome] += 1
        if outcome not in GOOD and len(self.failed) < KEPT:
            self.failed.append((seed, outcome, said))


def kinds() -> dict[str, Attempt]:
    """The attempts of every fuzzer, as "file.kind"."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem == "harness" or path.stem.startswith("test_"):
            continue
        spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        found |= {f"{path.stem}.{name}": attempt for name, attempt in module.KINDS.items()}
    return found


def warm(attempts: Iterable[Attempt]) -> None:
    """Prepare what the children of these attempts share."""
    for module in {attempt.__module__ for attempt in attempts}:
        vars(sys.modules[module]).get("warm", lambda: None)()


def run(attempt: Attempt, seeds: Iterable[int], *, workers: int = 1, limit: float = LIMIT) -> Tally:
    """Try every seed in child processes, each of which goes on until it crashes or hangs."""
    tally, left = Tally(), iter(seeds)
    with tempfile.TemporaryDirectory(prefix="softdex-fuzz-") as scratch:
        children = [_Child(attempt, Path(scratch) / str(n)) for n in range(workers)]
        try:
            busy = [child for child in children if child.begin(left)]
            while busy:
                soonest = min(child.until for child in busy) + limit - time.monotonic()
                ready = wait([child.pipe for child in busy], max(0.0, soonest))
                late = time.monotonic() - limit
                for child in list(busy):
                    if child.pipe in ready or child.until <= late:
                        tally.add(child.seed, *child.outcome())
                        if not child.begin(left):
                            busy.remove(child)
        finally:
            for child in children:
                child.end()
    return tally


class _Child:
    """A forked process that tries one seed after another."""

    def __init__(self, attempt: Attempt, folder: Path) -> None:
        self.attempt, self.folder, self.seed, self.until = attempt, folder, 0, 0.0
        self.folder.mkdir()
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent are idle
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.pipe.close()
                _serve(self.attempt, self.folder, theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()

    def begin(self, seeds: Iterator[int]) -> bool:
        """Send the next seed, if there is one."""
        seed = next(seeds, None)
        if seed is None:
            return False
        self.seed, self.until = seed, time.monotonic()
        self.pipe.send(seed)
        return True

    def outcome(self) -> tuple[str, str]:
        """What became of the seed; a child that died or hangs is replaced by a new one."""
        hangs = not self.pipe.poll()
        if not hangs:
            with contextlib.suppress(EOFError, ConnectionResetError):
                return self.pipe.recv()
        status, said = self.end(), (self.folder / "said").read_text(errors="replace")[:2000]
        self._start()
        return ("hang", said) if hangs else ("crash", f"ended with {status}\n{said}")

    def end(self) -> int:
        """Kill the process; its exit code, negative for a signal."""
        self.pipe.close()
        if self.pid == 0:
            return 0
        time.sleep(0.01)  # one that is dying tells of what
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if not done:
            os.kill(self.pid, 9)
            _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


def _serve(attempt: Attempt, folder: Path, pipe: Connection) -> None:
    """Answer seeds until the other end is closed; what is printed goes to a file."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.enable(said, all_threads=False)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    place = folder / "input"
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        os.ftruncate(said, 0)
        os.lseek(said, 0, os.SEEK_SET)
        pipe.send(_tried(attempt, seed, place))


def _tried(attempt: Attempt, seed: int, place: Path) -> tuple[str, str]:
    try:
        outcome = attempt(seed, place)
        if outcome not in GOOD:
            return "misread", f"the attempt returned {outcome!r}"
        return outcome, ""
    except Partial:
        return "partial", traceback.format_exc()[-2000:]
    except AssertionError:
        return "misread", traceback.format_exc()[-2000:]
    except BaseException:
        return "traceback", traceback.format_exc()[-2000:]
