"""Closed forms: alternating least squares, one decomposition, and Newton's method."""

from __future__ import annotations

from composition import alternating, newton
from composition.suite import Case

CASES: list[Case] = [*alternating.CASES, *newton.CASES]
