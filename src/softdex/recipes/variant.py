"""A variant: options that make a recipe of its own, under its own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Variant(NamedTuple):
    """One name under which a recipe is found.

    Attributes:
        about: what it does, in one sentence.
        options: defaults that differ from the function's.
        fixed: options that make it what it is, and cannot be given.
        space: options worth tuning: lists of choices, or (low, high) ranges.
        presets: per type of device, what options are that are None.
    """

    about: str
    options: Mapping[str, Any] = {}
    fixed: Sequence[str] = ()
    space: Mapping[str, Any] = {}
    presets: Mapping[str, Mapping[str, Any]] = {}


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a function's docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
