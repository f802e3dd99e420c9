"""Put single faults into copies of the package, and see which of them the tests find.

    python tools/mutants.py                      # the lists in tools/mutants, and 300 made ones
    python tools/mutants.py --sample 0 --list towers
    python tools/mutants.py --only recipes/mf.py --sample 40 --seed 7
    python tools/mutants.py --workers 16 --out faults.jsonl    # goes on where it was stopped
    python tools/mutants.py --workers 0 --out faults.jsonl     # the table of what is there

A fault is a file and a text with what stands in its place; tools/mutants/*.toml lists them, with
the faults that change nothing (`same`) and why. Others are made from the syntax: an argument is
dropped, a comparison negated, + turned to - and * to /, a call replaced by its object or its first
argument, a constant changed, branches swapped, a statement deleted. A first run records which test
calls which function, so that a fault is tried by the tests that can see it, the shortest first; a
second, without a fault, leaves out the tests that fail. A fault is tried by the other tests first
and, where none finds it, by those of tests/composition: the table has a share before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from faults import ROOT, SOURCE, Fault, among, made, written

ROOMS = ["solve", "recipes", "objective"]
TESTS = ["tests/composition", "tests/theory", "tests/unit"]
LAST = "tests/composition"  # tried where no other test finds a fault
QUICK = 40  # tests run first, the shortest; the others file by file, which share fixtures
LIMIT = 100  # seconds per test without a fault
MEMORY = 8 * 2**30  # bytes per fault
FOUND = ("before", "after")
HEAVY = ["torch", "torch._dynamo", "numba", "pyarrow.compute", "scipy.stats", "pytest"]


def main() -> int:
    """Print a table per module and the faults that no test found; 1 below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="made faults to try")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of made faults")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the paths to try")
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="packages of made faults")
    parser.add_argument("--list", default="", help="part of the name of the lists to try")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="folders and files of tests")
    parser.add_argument("--workers", type=int, default=1, help="at a time; 0: only the table")
    parser.add_argument("--out", type=Path, help="a line of JSON per fault; those there stay")
    parser.add_argument("--goal", type=float, default=0.95, help="least share to be found")
    given = parser.parse_args()
    listed, same = written(given.list)
    faults = [fault for fault in listed if among(fault.file, given.only)]
    faults += made(given.rooms, given.only, given.sample, given.seed, same)
    random.Random(given.seed).shuffle(faults)  # a part of a run is a sample
    with tempfile.TemporaryDirectory() as folder:
        out = (given.out or Path(folder) / "faults.jsonl").absolute()
        out.touch()
        done = rows(out)
        left = [fault for fault in faults if key(fault) not in done]
        if left and given.workers:
            run(left, Path(folder), out, given.tests, given.workers)
        done = rows(out)
    return table([done[key(fault)] for fault in faults if key(fault) in done], given.goal)


def key(fault: Fault) -> str:
    """Name a fault by the file that it makes."""
    text = fault.of((SOURCE / fault.file).read_bytes())
    return hashlib.sha256(fault.file.encode() + b"\0" + text).hexdigest()[:16]


def rows(out: Path) -> dict[str, dict[str, Any]]:
    """The faults that have a line; a last line that was cut off is taken away."""
    whole, _, cut = out.read_text().rpartition("\n")
    if cut:
        out.write_text(whole + "\n" if whole else "")
    return {row["key"]: row for row in map(json.loads, whole.splitlines())}


def table(done: list[dict[str, Any]], goal: float) -> int:
    """Print the shares per module, before and after, and the faults that no test found."""
    print(f"\n{'':40} {'listed':>22} {'made':>22}")
    print(f"{'module':40}" + 2 * f" {'faults':>6} {'before':>7} {'after':>7}")
    for file in [*sorted({row["file"] for row in done}), ""]:
        line = f"{file or 'all':40}"
        for is_made in (False, True):
            of = [row for row in done if row["made"] == is_made and row["file"].startswith(file)]
            found = [row["found"] for row in of]
            counts = (found.count("before"), sum(word in FOUND for word in found))
            shares = [f"{count / len(found):.1%}" if found else "" for count in counts]
            line += f" {len(found):6} {shares[0]:>7} {shares[1]:>7}"
        print(line)
    left = [row for row in done if row["found"] not in FOUND]
    for row in sorted(left, key=lambda row: (row["file"], row["function"])):
        print(f"{row['found']}: {row['file']} {row['function']}: {row['words']}")
    return int(1 - len(left) / max(1, len(done)) < goal)


# run ----------------------------------------------------------------------------------------------


def run(faults: list[Fault], folder: Path, out: Path, tests: list[str], workers: int) -> None:
    """Try faults, each in a copy of the package."""
    os.environ |= {"OMP_NUM_THREADS": "1", "SOFTDEX_QUIET": "1"}
    for heavy in HEAVY:
        __import__(heavy)
    clean, junk = folder / "clean", shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "tools", "docs"):
        shutil.copytree(ROOT / name, clean / name, ignore=junk)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"):
        shutil.copy(ROOT / name, clean / name)
    seen = recorded(clean, tests, workers)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    places = [folder / str(i) for i in range(workers)]
    for place in places:
        shutil.copytree(clean, place)  # with what was compiled

    def try_one(place: Path, job: tuple[int, Fault]) -> None:
        number, fault = job
        row = tried(fault, seen, clean, place)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        words = f"{fault.file} {fault.function}: {fault.words}"
        about = f"{row['found']:8} {row['seconds']:5.1f} s, {row['tests']:4} tests"
        print(f"{number:4}/{len(faults)} {about} {words}", flush=True)

    each(enumerate(faults, 1), places, try_one)


def each(jobs: Iterable[Any], places: list[Path], work: Callable[[Path, Any], None]) -> None:
    """Do every job in a process of its own, as many at a time as there are places."""
    free, busy = list(places), {}

    def collect() -> None:
        for sentinel in wait(list(busy)):
            child, place = busy.pop(sentinel)
            child.join()
            free.append(place)
            if child.exitcode:
                print(f"a process ended with {child.exitcode}; its job is lost", flush=True)

    try:
        for job in jobs:
            if not free:
                collect()
            place = free.pop()
            child = multiprocessing.get_context("fork").Process(target=_do, args=(work, place, job))
            child.start()
            busy[child.sentinel] = child, place
        while busy:
            collect()
    finally:  # where the run is stopped, none goes on in folders that are taken away
        for child, _ in busy.values():
            child.terminate()
            child.join()


def _do(work: Callable[[Path, Any], None], place: Path, job: Any) -> None:
    os.chdir(place)
    own = [str(place / "src"), str(place / "tests")]
    sys.path[:0] = own
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *([others] if others else [])])  # of children
    work(place, job)


def recorded(clean: Path, tests: list[str], workers: int) -> dict[str, Any]:
    """Which functions each test calls, and how long it takes; kept until a file changes."""
    files = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
    parts = [*(f.read_bytes() for f in files), *(t.encode() for t in tests)]
    name = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"softdex-mutants-{name}.json"
    if not kept.exists():
        began = time.monotonic()
        print("recording which test calls what", flush=True)
        first = _runs(clean, workers, lambda i: (tests, slice(i, None, workers)))
        passed = sorted(test for test in first if first[test]["passed"])
        again = _runs(clean, workers, lambda i: (passed[i::workers], None))
        seen = {
            test: {"seconds": again[test]["seconds"], "calls": first[test]["calls"]}
            for test in passed
            if test in again and again[test]["passed"]
        }
        if not seen:
            raise SystemExit("No test passes without a fault: run pytest on them and see why.")
        kept.write_text(json.dumps(seen))
        for test in sorted(first.keys() - seen.keys()):
            print(f"left out, since it fails without a fault: {test}")
        print(f"recorded {len(seen)} tests in {time.monotonic() - began:.0f} s", flush=True)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def _runs(clean: Path, workers: int, share: Callable[[int], Any]) -> dict[str, Any]:
    """Run a share of the tests per worker; what is known of each test after."""
    with tempfile.TemporaryDirectory() as folder:
        kept = [Path(folder) / str(i) for i in range(workers)]
        jobs = [(kept[i], *share(i)) for i in range(workers)]
        each(jobs, [clean] * workers, _watch)
        lines = [line for file in kept if file.exists() for line in file.read_text().splitlines()]
    return {row["test"]: row for row in map(json.loads, lines)}


def _watch(clean: Path, job: tuple[Path, list[str], slice | None]) -> None:
    import pytest

    kept, where, part = job
    failed: set[str] = set()
    source = f"{clean}/src/softdex/"
    lines = kept.open("w", buffering=1)

    class Watch:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = items[part] if part else items

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            called: set[CodeType] = set()

            def look(frame: FrameType, event: str, _: Any) -> None:
                called.add(frame.f_code)

            began = time.monotonic()
            signal.alarm(LIMIT)
            sys.settrace(look if part else None)
            try:
                return (yield)
            finally:
                sys.settrace(None)
                signal.alarm(0)
                took = time.monotonic() - began
                calls = [name(c) for c in called if c.co_filename.startswith(source)]
                about = {"seconds": took, "passed": item.nodeid not in failed, "calls": calls}
                lines.write(json.dumps({"test": item.nodeid, **about}) + "\n")

        def pytest_runtest_logreport(self, report: Any) -> None:
            failed.update([report.nodeid] if report.failed else [])

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                about = {"seconds": 0, "passed": False, "calls": []}
                lines.write(json.dumps({"test": report.nodeid, **about}) + "\n")

    def name(code: CodeType) -> str:
        file = code.co_filename.removeprefix(source)
        return f"{file}::{code.co_qualname.replace('.<locals>', '')}"

    def late(*_: Any) -> None:
        raise TimeoutError(f"a test takes over {LIMIT} s")

    signal.signal(signal.SIGALRM, late)
    _pytest(["--continue-on-collection-errors", *where], Watch())


def _pytest(where: list[str], *plugins: Any) -> int:
    """Run the tests of `make test` that lie there, in silence."""
    import pytest

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = ["-q", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header"]
    return int(pytest.main([*options, *where], plugins=[*plugins]))


def tried(fault: Fault, seen: dict[str, Any], clean: Path, place: Path) -> dict[str, Any]:
    """Put a fault into a copy, and say which tests find it: those before, those after, or none."""
    began = time.monotonic()
    shutil.copytree(clean / "src", place / "src", dirs_exist_ok=True)
    path = place / "src" / "softdex" / fault.file
    path.write_bytes(fault.of(path.read_bytes()))
    tests = chosen(seen, fault)
    found = "survived" if tests else "no test"
    for word in FOUND:
        some = [test for test in tests if test.startswith(LAST) == (word == "after")]
        if some and not passes(some, seen):
            found = word
            break
    about = {"found": found, "tests": len(tests), "seconds": round(time.monotonic() - began, 1)}
    words = {"file": fault.file, "function": fault.function, "words": fault.words}
    return {"key": key(fault), **words, "made": fault.made, **about}


def chosen(seen: dict[str, Any], fault: Fault) -> list[str]:
    """The tests that call the function of a fault, the shortest first; where none is seen to (code
    outside of functions, or compiled), those that call anything of its file."""
    name = f"{fault.file}::{fault.function}"
    for heads in ((name, f"{name}."), (f"{fault.file}::",)):
        found = [
            test
            for test, about in seen.items()
            if any(call == name or call.startswith(heads[1:] or heads) for call in about["calls"])
        ]
        if found:
            return sorted(found, key=lambda test: seen[test]["seconds"])
    return [test for test in seen if test.startswith(LAST)]


def passes(tests: list[str], seen: dict[str, Any]) -> bool:
    """Run tests in a process of their own until one fails, or takes far longer than it did."""
    child = multiprocessing.get_context("fork").Process(target=_test, args=(tests, seen))
    child.start()
    try:
        child.join(60 + 5 * sum(seen[test]["seconds"] for test in tests))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # with those that tests have started
    child.join()
    return child.exitcode == 0


def _test(tests: list[str], seen: dict[str, Any]) -> None:
    import pytest

    rest = sorted(tests[QUICK:], key=lambda test: test.partition("::")[0])
    order = {test: place for place, test in enumerate([*tests[:QUICK], *rest])}

    class Limit:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items.sort(key=lambda item: order[item.nodeid])

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            signal.alarm(round(20 + 5 * seen[item.nodeid]["seconds"]))  # ends the process
            try:
                return (yield)
            finally:
                signal.alarm(0)

    os.setpgrp()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os._exit(_pytest(["-x", *tests], Limit()))


if __name__ == "__main__":
    raise SystemExit(main())
