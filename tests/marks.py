"""Marks of tests."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Cases of a parametrised test that `make test-slow` runs; a tuple is one case."""
    rows = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]
