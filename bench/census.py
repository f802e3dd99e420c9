"""Size and dependencies of the code itself: what a review counts.

    python bench/census.py [--root DIR]

Lines per file, `isinstance` on concrete parts (encoders, scorers, indexes, tables, towers) outside
the file that defines them, imports against the rule in CONTRIBUTING.md, lines per function, depth
of inheritance, and the seconds that `import softdex` takes beyond `import torch`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from _harness import report, sized
from _options import parser, run

PARTS = re.compile(r"(encode|score|index)/|(score|din)\.py$|.*fold_in\.py$")
LONG = 400  # lines of a file
IMPORT = (
    "import time, torch; t = time.perf_counter(); import softdex; print(time.perf_counter() - t)"
)
Trees = dict[str, ast.Module]  # by path inside the package

PARSER = parser(__file__, __doc__)
PARSER.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another checkout")


def top_level(package: Path) -> dict[str, int]:
    packages = [p for p in package.iterdir() if (p / "__init__.py").exists()]
    return {"modules": len([*package.glob("*.py")]), "packages": len(packages)}


def lines_per_file(package: Path, names: list[str]) -> dict[str, Any]:
    lines = {name: len((package / name).read_text().splitlines()) for name in names}
    lines = {name: n for name, n in lines.items() if n}
    of_all = list(lines.values())
    return {
        "files": len(lines),
        "median": int(median(of_all)),
        "p90": int(np.quantile(of_all, 0.9)),
        "max": max(of_all),
        f"over {LONG}": sorted(name for name, n in lines.items() if n > LONG),
    }


def concrete_parts(trees: Trees) -> dict[str, set[str]]:
    """Files that define a name, per final class that is a part and per union of such classes."""
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for node in tree.body if PARTS.match(name) else ():
            if isinstance(node, ast.ClassDef) and "final" in map(last_name, node.decorator_list):
                found.setdefault(node.name, set()).add(name)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                parts = {last_name(part) for part in ast.walk(node.value)} & found.keys()
                if parts and isinstance(node.targets[0], ast.Name):
                    found.setdefault(node.targets[0].id, set()).add(name)
    return found


def switches(trees: Trees) -> Counter[str]:
    """Calls per file of `isinstance` on a concrete part that another file defines."""
    parts, found = concrete_parts(trees), Counter[str]()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and last_name(node.func) == "isinstance":
                names = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                asked = names & parts.keys()
                found[name] += any(name not in parts[each] for each in asked)
    return +found


def imports(tree: ast.Module) -> Iterator[str]:
    """The module that each import statement of the package names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "softdex":
            yield from (f"softdex.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("softdex."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("softdex."))


def against_the_rule(root: Path, trees: Trees) -> dict[str, Any]:
    """Imports in all, and those that point to the right in the rule; None without a rule."""
    everything = {(name, to) for name, tree in trees.items() for to in imports(tree)}
    everything = {pair for pair in everything if not pair[0].startswith("__")}
    rule = re.search(r"`(base < .*)`", (root / "CONTRIBUTING.md").read_text())
    if rule is None:
        return {"imports": len(everything), "against the rule": None}
    ranks = {word: i for i, group in enumerate(rule[1].split(" < ")) for word in group.split(", ")}

    def rank(first: str) -> int:
        return ranks.get(first.removesuffix(".py"), 0)

    wrong = [
        f"{name} -> {to}"
        for name, to in everything
        if rank(to.split(".")[1]) > rank(Path(name).parts[0])
    ]
    return {"imports": len(everything), "against the rule": sorted(wrong)}


def functions(trees: Trees) -> dict[str, Any]:
    lines = {
        f"{name}:{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    longest = max(lines, key=lines.__getitem__)
    return {
        "functions": len(lines),
        "median lines": int(median(lines.values())),
        "longest": {longest: lines[longest]},
    }


def inheritance(trees: Trees) -> dict[str, Any]:
    """The deepest chain of classes of the package; one without a parent in it has depth 1."""
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    bases = {n.name: [last_name(b) for b in n.bases] for n in nodes if isinstance(n, ast.ClassDef)}

    def depth(name: str) -> int:
        parents = [base for base in bases[name] if base in bases and base != name]
        return 1 + max(map(depth, parents), default=0)

    depths = {name: depth(name) for name in bases}
    deepest = max(depths.values())
    return {
        "classes": len(bases),
        "deepest": deepest,
        "such classes": sorted(n for n in depths if depths[n] == deepest > 1),
    }


def last_name(node: ast.AST) -> str:
    """`b` of the expressions `b`, `a.b` and `b[c]`; empty for any other."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return getattr(node, "id", getattr(node, "attr", ""))


def import_seconds(root: Path) -> float:
    """Median seconds of `import softdex` after `import torch`, each time in a new process."""
    there = os.environ | {"PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", IMPORT]
    times = [
        float(subprocess.run(command, env=there, capture_output=True, check=True).stdout)
        for _ in range(sized(5, 1))
    ]
    return round(median(times), 3)


def main(given: Namespace) -> None:
    package = given.root / "src" / "softdex"
    if not package.is_dir():
        PARSER.error(f"--root: no src/softdex in {given.root}")
    names = sorted(str(path.relative_to(package)) for path in package.rglob("*.py"))
    trees = {name: ast.parse((package / name).read_text()) for name in names}
    found = switches(trees)
    report(
        "census",
        "all .py files under src/softdex; lines include blank ones and docstrings; empty files not "
        "counted; import: median of 5 new processes",
        root=str(given.root.resolve()),
        top_level=top_level(package),
        lines_per_file=lines_per_file(package, names),
        isinstance_on_parts={"in all": found.total(), **dict(found.most_common())},
        layers=against_the_rule(given.root, trees),
        functions=functions(trees),
        inheritance=inheritance(trees),
        import_seconds_beyond_torch=import_seconds(given.root),
    )


if __name__ == "__main__":
    run(PARSER, main)
