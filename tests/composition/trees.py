"""Loops for these recipes."""

from __future__ import annotations

from composition.suite import Case

CASES: list[Case] = []
