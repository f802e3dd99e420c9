"""Small tests of ourselves: imports point one way, the core stays small, nothing is pickled."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import softdex as sdx

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "softdex"
RULE = re.search(r"`(base < .*)`", (ROOT / "CONTRIBUTING.md").read_text())[1]  # type: ignore[index]
RANKS = {name: i for i, group in enumerate(RULE.split(" < ")) for name in group.split(", ")}
CORE = {"torch", "numpy", "scipy", "pyarrow", "numba", "safetensors", "typer", "rich"}
SERVE = {"starlette", "uvicorn", "msgspec", "prometheus_client"}
FILES = sorted(SOURCE.rglob("*.py"))


def rank(module: str) -> int:
    """Where a module `softdex.a.b` stands in the rule; a module that is no package is in `base`."""
    first = module.split(".")[1]
    return RANKS.get(first, 0)


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
def test_imports_point_to_the_left(path: Path) -> None:
    here = ".".join(["softdex", *path.relative_to(SOURCE).with_suffix("").parts])
    if here in ("softdex.__init__", "softdex.__main__"):
        return
    for name in imports(path) - {"softdex.__version__"}:
        if name.startswith("softdex."):
            assert rank(name) <= rank(here), f"{here} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_core_packages_are_imported_and_nothing_unpickles(path: Path) -> None:
    allowed = CORE | set(sys.stdlib_module_names) | {"softdex"}
    if path.name.endswith("_gpu.py"):  # imported where there is a GPU and Triton with it
        allowed |= {"triton"}
    if path.name == "screen.py":  # is there in a notebook
        allowed |= {"IPython"}
    if path.name == "plot.py":  # an extra
        allowed |= {"matplotlib"}
    if path.name == "export.py":  # an extra
        allowed |= {"faiss"}
    if path.name == "batch.py":  # an extra
        allowed |= {"pyspark"}
    if path.parent.name == "serve":  # an extra
        allowed |= SERVE
    top = {name.split(".")[0] for name in imports(path)}
    assert top <= allowed, top - allowed
    assert not top & {"pickle", "marshal", "shelve", "dill"}


def test_the_rule_names_every_package() -> None:
    packages = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert packages <= RANKS.keys() - {"base"}


def test_the_declared_dependencies_are_the_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {d.split(">")[0].strip() for d in project["dependencies"]}
    assert names == CORE


def test_the_package_is_typed_and_its_public_names_exist() -> None:
    assert (SOURCE / "py.typed").exists()
    for name in sdx.__all__:
        assert hasattr(sdx, name), name
    assert sdx.__version__


@pytest.mark.parametrize("page", ["equations", "claims"])
def test_every_function_and_test_that_the_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("|") and "::" in line]
    assert len(named) >= len(rows) > 10
    defined = {file: definitions(file) for file in {file for file, _ in named}}
    for file, name in named:
        assert name in defined[file], f"{file}::{name}"


def definitions(file: str) -> set[str]:
    """The functions and classes that a file of tests or of the package defines."""
    folder = ROOT / "tests" if "test_" in file else SOURCE
    tree = ast.parse((folder / file).read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
