"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import softdex as sdx

SOURCE = Path(sdx.__file__).parent
WITH_EXAMPLES = [p for p in sorted(SOURCE.rglob("*.py")) if ">>>" in p.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_examples_in_docstrings_run(path: Path) -> None:
    name = ".".join(["softdex", *path.relative_to(SOURCE).with_suffix("").parts])
    found = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert found.attempted > 0
    assert found.failed == 0
