"""Put single faults into a copy of the package, and see which of them the tests find.

    python tools/mutants.py                      # the lists in tools/mutants, and 300 made ones
    python tools/mutants.py --sample 0 --list towers
    python tools/mutants.py --only recipes/mf.py --sample 40 --seed 7

A fault is a file and a text with what stands in its place; tools/mutants/*.toml lists them, with
the faults that change nothing (`same`) and why. Others are made from the syntax: an argument is
dropped, a comparison negated, + turned to - and * to /, a call replaced by its object or its first
argument, a constant changed, branches swapped, a statement deleted. A first run records which test
calls which function, so that a fault is tried by the tests that can see it, the shortest first.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "softdex"
ROOMS = ["solve", "recipes", "objective"]
TESTS = ["tests/composition", "tests/theory", "tests/unit"]
SILENT = {"say", "memory", "extent", "_say_preset", "say_if_compiling"}  # words, and estimates
ON_GPU = {"device", "strict", "capturable", "fused"}  # arguments that change nothing on a CPU
SKIPPED = {"solve/gradient/replay.py"}  # needs a GPU
LIMIT = 150.0  # seconds per fault
MEMORY = 8 * 2**30  # bytes, too
MODULE = "<module>"


class Fault(NamedTuple):
    """One fault: the bytes of a file that it takes out and what it puts there, the function it is
    in, and its words."""

    file: str
    function: str
    words: str
    start: int
    end: int
    new: str

    def of(self, text: bytes) -> bytes:
        """The file with the fault."""
        return text[: self.start] + self.new.encode() + text[self.end :]


def main() -> int:
    """Print a table per module and the faults that no test found; 1 below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="made faults to try")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of made faults")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the paths to try")
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="packages of made faults")
    parser.add_argument("--list", default="", help="part of the name of the lists to try")
    parser.add_argument(
        "--tests",
        nargs="*",
        default=TESTS,
        help="of tests/unit the files that name the packages of made faults",
    )
    parser.add_argument("--goal", type=float, default=0.95, help="least share to be found")
    given = parser.parse_args()
    listed, same = written(given.list)
    faults = [fault for fault in listed if _among(fault.file, given.only)]
    faults += made(given.rooms, given.only, given.sample, given.seed, same)
    os.environ |= {"OMP_NUM_THREADS": "1", "SOFTDEX_QUIET": "1"}
    sys.dont_write_bytecode = True
    for heavy in ("torch", "torch._dynamo", "numba", "pyarrow.compute", "scipy.sparse", "pytest"):
        __import__(heavy)
    with tempfile.TemporaryDirectory() as folder:
        place, junk = Path(folder), shutil.ignore_patterns("__pycache__")
        for name in ("src", "tests", "tools", "docs"):
            shutil.copytree(ROOT / name, place / name, ignore=junk)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"):
            shutil.copy(ROOT / name, place / name)
        sys.path[:0] = [str(place / "src"), str(place / "tests")]
        os.chdir(place)
        seen = recorded(place, given.tests)
        return tried(faults, seen, place, given.goal)


def tried(faults: list[Fault], seen: dict[str, Any], place: Path, goal: float) -> int:
    """Try every fault, and print what became of it."""
    killed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    left: list[Fault] = []
    for number, fault in enumerate(faults, 1):
        path, began = place / "src" / "softdex" / fault.file, time.monotonic()
        before = path.read_bytes()
        path.write_bytes(fault.of(before))
        tests = chosen(seen, fault)
        found = outcome(tests, place) if tests else "no test"
        path.write_bytes(before)
        total[fault.file] += 1
        killed[fault.file] += found in ("killed", "timeout")
        if found not in ("killed", "timeout"):
            left.append(fault)
        took = f"{time.monotonic() - began:4.0f} s, {len(tests):3} tests"
        words = f"{fault.file} {fault.function}: {fault.words}"
        print(f"{number:4}/{len(faults)} {found:8} {took} {words}", flush=True)
    print(f"\n{'module':40} {'faults':>6} {'found':>6} {'share':>6}")
    for file in sorted(total):
        print(f"{file:40} {total[file]:6} {killed[file]:6} {killed[file] / total[file]:6.0%}")
    share = killed.total() / max(1, total.total())
    print(f"{'all':40} {total.total():6} {killed.total():6} {share:6.1%}")
    for fault in left:
        print(f"survived: {fault.file} {fault.function}: {fault.words}")
    return int(share < goal)


# run ----------------------------------------------------------------------------------------------


def recorded(place: Path, tests: list[str]) -> dict[str, Any]:
    """Which functions each test calls, and how long it takes; kept until a file changes."""
    files = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
    parts = [*(f.read_bytes() for f in files), *(t.encode() for t in tests)]
    key = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"softdex-mutants-{key}.json"
    if not kept.exists():
        print("recording which test calls what", flush=True)
        child = multiprocessing.get_context("fork").Process(
            target=_record, args=(kept, place, tests)
        )
        child.start()
        child.join()
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def _record(kept: Path, place: Path, where: list[str]) -> None:
    import pytest

    tests: dict[str, Any] = {}
    failed: set[str] = set()
    source = f"{place}/src/softdex/"

    class Calls:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            called: set[CodeType] = set()

            def look(frame: FrameType, event: str, _: Any) -> None:
                called.add(frame.f_code)

            began = time.monotonic()
            sys.settrace(look)
            try:
                return (yield)
            finally:
                sys.settrace(None)
                took = time.monotonic() - began
                tests[item.nodeid] = {
                    "seconds": took,
                    "calls": [name(c) for c in called if inside(c)],
                }

        def pytest_runtest_logreport(self, report: Any) -> None:
            failed.update([report.nodeid] if report.failed else [])

    def inside(code: CodeType) -> bool:
        return code.co_filename.startswith(source)

    def name(code: CodeType) -> str:
        file = code.co_filename.removeprefix(source)
        return f"{file}::{code.co_qualname.replace('.<locals>', '')}"

    rooms = [f"softdex.{room}" for room in ROOMS]
    units = sorted(place.glob("tests/unit/*.py")) if "tests/unit" in where else []
    units = [f for f in units if any(room in f.read_text() for room in rooms)]
    where = [*(test for test in where if test != "tests/unit"), *map(str, units)]
    pytest.main([*_quiet(), *where], plugins=[Calls()])
    kept.write_text(json.dumps({test: tests[test] for test in tests if test not in failed}))


def _quiet() -> list[str]:
    """Arguments of pytest; a fault is looked for by the tests of `make test`."""
    return [
        "-q",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        "--no-header",
    ]


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
    return [test for test in seen if "composition" in test]


def outcome(tests: list[str], place: Path) -> str:
    """Run tests in a process of their own until one fails."""
    child = multiprocessing.get_context("fork").Process(target=_run, args=(tests,))
    child.start()
    child.join(LIMIT)
    if child.is_alive():
        child.kill()
        child.join()
        return "timeout"
    return {0: "survived"}.get(child.exitcode or 0, "killed")


def _run(tests: list[str]) -> None:
    import pytest

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os._exit(int(pytest.main([*_quiet(), "-x", *tests])))


# faults -------------------------------------------------------------------------------------------


def written(name: str) -> tuple[list[Fault], set[tuple[str, str]]]:
    """The faults of the lists, and those made ones (file, words) that change nothing."""
    faults, same = [], set()
    for path in sorted((ROOT / "tools" / "mutants").glob("*.toml")):
        table = tomllib.loads(path.read_text())
        same |= {(row["file"], row["words"]) for row in table.get("same", [])}
        if name not in path.stem:
            continue
        for row in table.get("fault", []):
            text = (SOURCE / row["file"]).read_text()
            if text.count(row["old"]) != 1:
                raise SystemExit(f"{path.name}: {row['file']} has not one {row['old']!r}.")
            line = text[: text.index(row["old"])].count("\n") + 1
            start = len(text[: text.index(row["old"])].encode())
            end = start + len(row["old"].encode())
            where = function_at(ast.parse(text), line, row["old"].count("\n"))
            faults.append(Fault(row["file"], where, row["why"], start, end, row["new"]))
    return faults, same


def function_at(tree: ast.AST, line: int, more: int = 0) -> str:
    """The function or method that these lines lie in."""
    found = MODULE
    for name, node in functions(tree):
        if node.body[0].lineno <= line + more and line <= (node.end_lineno or 0):
            found = name
    return found


def functions(tree: ast.AST, head: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function by its qualified name, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{head}{node.name}", node
            yield from functions(node, f"{head}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{head}{node.name}.")
        else:
            yield from functions(node, head)


def made(
    rooms: list[str], only: list[str], size: int, seed: int, same: set[tuple[str, str]]
) -> list[Fault]:
    """A sample of the faults that the syntax gives, without those that change nothing."""
    every = [
        fault
        for room in rooms
        for path in sorted((SOURCE / room).rglob("*.py"))
        if _among(file := str(path.relative_to(SOURCE)), only) and file not in SKIPPED and size
        for fault in of_file(file)
        if (fault.file, f"{fault.function}: {fault.words}") not in same
    ]
    drawn = random.Random(seed).sample(every, min(size, len(every)))
    return sorted(drawn, key=lambda fault: every.index(fault))


def _among(file: str, parts: list[str]) -> bool:
    return any(part in file for part in parts)


def of_file(file: str) -> list[Fault]:
    """All faults that the syntax of a file gives."""
    data = (SOURCE / file).read_bytes()
    tree, found, lines = ast.parse(data), [], [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for name, function in functions(tree):
        if SILENT & set(name.split(".")):
            continue
        for node in own_nodes(function):
            for new in changes(node):
                start = lines[node.lineno - 1] + node.col_offset
                end = lines[node.end_lineno - 1] + node.end_col_offset
                old = " ".join(data[start:end].decode().split())
                words = f"{old[:70]} -> {' '.join(new.split())[:70]}"
                found.append(Fault(file, name, words, start, end, new))
    return found


def own_nodes(function: ast.FunctionDef) -> Iterator[Any]:
    """The nodes of a function without those of functions inside, messages and annotations."""
    inside: list[ast.AST] = list(function.body)
    first = inside[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        inside = inside[1:]
    while inside:
        node = inside.pop(0)
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in SILENT:
            continue
        if isinstance(node, ast.FunctionDef | ast.Raise | ast.JoinedStr | ast.Assert):
            continue
        yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            children.remove(node.annotation)
        inside = children + inside


NEGATED = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
TURNED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def changes(node: ast.AST) -> Iterator[str]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in NEGATED:
        yield f"({_with(node, ops=[NEGATED[type(node.ops[0])](), *node.ops[1:]])})"
    elif isinstance(node, ast.BinOp) and type(node.op) in TURNED:
        yield f"({_with(node, op=TURNED[type(node.op)]())})"
    elif isinstance(node, ast.IfExp):
        yield f"({_with(node, body=node.orelse, orelse=node.body)})"
    elif isinstance(node, ast.BoolOp):
        yield f"({_with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())})"
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.AugAssign | ast.If | ast.For) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass"


def _calls(node: ast.Call) -> Iterator[str]:
    for i, word in enumerate(node.keywords):
        if word.arg is not None and word.arg not in ON_GPU:
            yield _with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
    if len(node.args) > 1:
        yield _with(node, args=node.args[:-1])
    if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value):
        yield f"({ast.unparse(node.func.value)})"
    elif node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield f"({ast.unparse(node.args[0])})"


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "math", "sp", "time", "json")


def _with(node: ast.AST, **changed: Any) -> str:
    other = copy.copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return ast.unparse(other)


if __name__ == "__main__":
    raise SystemExit(main())
