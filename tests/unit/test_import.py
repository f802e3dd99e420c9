"""The import: public names load when they are used, and short commands load next to nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import softdex as sdx
from softdex.cli.app import COMMANDS, load, summary

SHORT = """
import contextlib, io, sys
import softdex
from softdex.cli import main
for words in ("", "--version", "--help", "recipes", "recipes rg2", "recipes --json"):
    if words:
        sys.argv = ["softdex", *words.split()]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main()
        assert out.getvalue()
    print(words, [m for m in ("torch", "numpy", "pyarrow", "scipy", "numba") if m in sys.modules])
"""
LONG = """
import sys
import softdex as sdx
sdx.fit, sdx.tune, sdx.compare, sdx.load, sdx.read
heavy = "scipy.stats", "scipy.optimize", "pandas", "polars", "matplotlib"
print([m for m in heavy if m in sys.modules])
"""


def lines(code: str) -> list[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_import_version_help_and_recipes_load_no_heavy_package() -> None:
    found = lines(SHORT)
    assert len(found) == 6
    assert [line for line in found if not line.endswith(" []")] == []


def test_the_whole_package_loads_nothing_heavy_that_training_does_not_need() -> None:
    assert lines(LONG) == ["[]"]


def test_dir_lists_the_public_names_only() -> None:
    assert dir(sdx) == sorted(sdx.MODULES | sdx.OBJECTS) == sdx.__all__
    assert {"fit", "read", "split", "Retriever"} <= set(dir(sdx))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'softdex' has no attribute 'fitt'$"):
        sdx.fitt  # noqa: B018


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    for name in ("fit", "tune", "compare"):
        module = importlib.import_module(f"softdex.{name}")
        setattr(sdx, name, module)  # as the first import of it does
        assert not isinstance(getattr(sdx, name), ModuleType)
    assert isinstance(sdx.split, ModuleType)


def test_editors_and_type_checkers_see_the_names_that_load() -> None:
    tree = ast.parse(Path(str(sdx.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = sdx.MODULES | {name: f"{place}.{name}" for name, place in sdx.OBJECTS.items()}
    assert seen == loaded | {"fit": "softdex.typed.fit"}  # with the options of each recipe


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_options_of_the_app_and_says_what_help_lists(name: str) -> None:
    command = load(name)
    flags = {flag for option in command.params for flag in option.opts}
    assert {"--quiet", "-q", "--verbose", "-v", "--threads"} <= flags
    assert command.help.partition("\n")[0] == summary(name)
