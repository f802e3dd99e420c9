"""Recipes: one file per published method, each a function from a log to what is to be trained."""

from softdex.recipes.catalogue import (
    Recipe,
    about,
    check_options,
    checked,
    choices,
    docs,
    entry,
    kinds,
    make,
    methods,
    names,
    options,
    preset,
    rules,
    space,
    unread,
)

__all__ = [
    "Recipe",
    "about",
    "check_options",
    "checked",
    "choices",
    "docs",
    "entry",
    "kinds",
    "make",
    "methods",
    "names",
    "options",
    "preset",
    "rules",
    "space",
    "unread",
]
