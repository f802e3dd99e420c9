"""Single faults of the package: those listed in tools/mutants, and those made from the syntax."""

from __future__ import annotations

import ast
import copy
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "softdex"
SILENT = {"say", "memory", "extent", "_say_preset", "say_if_compiling"}  # words, and estimates
ON_GPU = {"device", "strict", "capturable", "fused"}  # arguments that change nothing on a CPU
SKIPPED = {"solve/gradient/replay.py"}  # needs a GPU
MODULE = "<module>"


class Fault(NamedTuple):
    """One fault: the bytes of a file that it takes out and what it puts there, the function it is
    in, its words, and whether it was made or listed."""

    file: str
    function: str
    words: str
    start: int
    end: int
    new: str
    made: bool = True

    def of(self, text: bytes) -> bytes:
        """The file with the fault."""
        return text[: self.start] + self.new.encode() + text[self.end :]


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
            faults.append(Fault(row["file"], where, row["why"], start, end, row["new"], False))
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
        if among(file := str(path.relative_to(SOURCE)), only) and file not in SKIPPED and size
        for fault in of_file(file)
        if (fault.file, f"{fault.function}: {fault.words}") not in same
    ]
    drawn = random.Random(seed).sample(every, min(size, len(every)))
    return sorted(drawn, key=lambda fault: every.index(fault))


def among(file: str, parts: list[str]) -> bool:
    """Whether a path has one of these parts."""
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
