"""Small tests of ourselves: imports point one way, the core stays small, nothing is pickled."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import softdex as sdx

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "softdex"
ORDER = [
    "waiting", "errors", "threads", "options", "tables", "keys", "ragged", "interactions",
    "delimited", "sources", "read", "holdout", "split", "fused", "fused_attend", "encode",
    "score", "lanes", "attend", "din", "index",
    "objective", "distributed", "artifact", "solve", "evaluate", "synthetic", "catalogue", "parts",
    "grow_tree", "grow", "export", "estimate", "recommendations", "retrieve", "learn", "recipes",
    "tune", "report", "explain_look", "explain", "explain_near",
    "run", "demo", "doctor", "cli_options", "cli", "__main__",
]  # fmt: skip
CORE = {"torch", "numpy", "scipy", "pyarrow", "numba", "safetensors", "typer", "rich"}
FILES = sorted(SOURCE.rglob("*.py"))


def stage(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_never_point_back(path: Path) -> None:
    here = stage(path)
    if here == "__init__":
        return
    for name in imports(path):
        if name.startswith("softdex.") and name != "softdex.__version__":
            there = name.split(".")[1]
            assert ORDER.index(there) <= ORDER.index(here), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_core_packages_are_imported_and_nothing_unpickles(path: Path) -> None:
    allowed = CORE | set(sys.stdlib_module_names) | {"softdex"}
    if path.name.startswith("fused"):  # imported where there is a GPU and Triton with it
        allowed |= {"triton"}
    if path.name == "export.py":  # an extra
        allowed |= {"faiss"}
    top = {name.split(".")[0] for name in imports(path)}
    assert top <= allowed, top - allowed
    assert not top & {"pickle", "marshal", "shelve", "dill"}


def test_every_stage_has_its_place_in_the_order() -> None:
    assert {stage(p) for p in FILES} - {"__init__"} == set(ORDER)


def test_the_declared_dependencies_are_the_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {d.split(">")[0].strip() for d in project["dependencies"]}
    assert names == CORE


def test_the_package_is_typed_and_its_public_names_exist() -> None:
    assert (SOURCE / "py.typed").exists()
    for name in sdx.__all__:
        assert hasattr(sdx, name), name
    assert sdx.__version__


def test_importing_softdex_takes_little_beyond_torch() -> None:
    """No heavy optional package is pulled in by the import."""
    heavy = ("pandas", "polars", "matplotlib")
    code = f"import sys, softdex; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_row_of_the_equations_names_a_function_and_a_test_that_exist() -> None:
    text = (ROOT / "docs" / "equations.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("|") and "::" in line]
    assert len(named) >= len(rows) > 10
    for file, name in named:
        folder = ROOT / "tests" if "test_" in file else SOURCE
        tree = ast.parse((folder / file).read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, kinds)}, f"{file}::{name}"
