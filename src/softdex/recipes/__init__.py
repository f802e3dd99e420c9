"""Recipes: one file per published method, each a function from a log to what is to be trained."""

from softdex.recipes.catalogue import (
    about,
    check_options,
    checked,
    choices,
    make,
    methods,
    names,
    options,
    preset,
    recipe,
    rules,
    space,
    unread,
)

__all__ = [
    "about",
    "check_options",
    "checked",
    "choices",
    "make",
    "methods",
    "names",
    "options",
    "preset",
    "recipe",
    "rules",
    "space",
    "unread",
]
