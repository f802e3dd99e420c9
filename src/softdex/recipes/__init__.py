"""Recipes: one file per published method, each a function from a log to what is to be trained.

The names below are what a recipe is written with; a recipe of your own is a function that `sdx.fit`
takes in the place of a name.
"""

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
from softdex.recipes.compose import Sampling, Towers, drawn_loss
from softdex.solve.gradient.composition import Composition, Negatives
from softdex.solve.gradient.feed import Events, Histories, Sequences, Windows
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training

__all__ = [
    "Composition",
    "Descent",
    "Events",
    "Histories",
    "Negatives",
    "Recipe",
    "Sampling",
    "Sequences",
    "Towers",
    "Training",
    "Windows",
    "about",
    "check_options",
    "checked",
    "choices",
    "docs",
    "drawn_loss",
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
