"""A variant: options that make a recipe of its own, under its own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

HAVE = {
    "log": "A log only",
    "large": "A very large catalogue (a step costs the same for any number of items)",
    "order": "The order of events matters",
    "features": "Features of items or users (two towers)",
    "deep": "A deep scorer (reached through a tree of items)",
}
"""What people have who look for a recipe: the groups of the table of recipes, in its order."""


class Guide(NamedTuple):
    """The row of a recipe in the table of recipes.

    Attributes:
        have: its group in the table.
        what: what it does, in a few words.
        speed: how long a million events take on two cores, by default; minutes: below an hour.
        new_users: whether `recommend(history=...)` serves users who were not in training; or the
            option that makes it so.
        cold_items: what serves an item without events: an option with its columns, or the
            `columns` it shares with others; or its `few events`; or nothing.
        gpu: whether training can use one; `best`: it should.
    """

    have: Literal["log", "large", "order", "features", "deep"]
    what: str
    speed: Literal["seconds", "minutes", "hours"]
    new_users: Literal["yes", "no", "encoder=mix"]
    cold_items: Literal["no", "few events", "features=", "columns"]
    gpu: Literal["no", "yes", "best"]


class Variant(NamedTuple):
    """One name under which a recipe is found.

    Attributes:
        about: what it does, in one sentence.
        options: defaults that differ from the function's.
        fixed: options that make it what it is, and cannot be given.
        space: options worth tuning: lists of choices, or (low, high) ranges.
        presets: per type of device, what options are that are None.
        guide: its row in the table of recipes; None: a family, whose members have theirs.
    """

    about: str
    options: Mapping[str, Any] = {}
    fixed: Sequence[str] = ()
    space: Mapping[str, Any] = {}
    presets: Mapping[str, Mapping[str, Any]] = {}
    guide: Guide | None = None


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a function's docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
