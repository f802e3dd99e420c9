"""The listing: what the command line says of recipes, and completes, without importing them.

`listing.json` and the stub `typed.pyi` are written by `python tools/write_recipes.py` from the
signatures and tables in `recipes/`; a test compares them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_suffix(".json")


class Listing(NamedTuple):
    """What is known of recipes.

    Attributes:
        default: the recipe of `softdex fit` where none is named.
        recipes: per name, its sentence, family, options with their defaults, and fixed options.
        families: per family, what its options mean and the words that they take.
        groups: per group of the table and name, the cells of its row.
    """

    default: str
    recipes: dict[str, dict[str, Any]]
    families: dict[str, dict[str, dict[str, Any]]]
    groups: dict[str, dict[str, list[str]]]

    def docs(self, recipe: str) -> dict[str, str]:
        """What the options of a recipe mean that can be given."""
        found = self.recipes[recipe]
        known = self.families[found["family"]]["docs"].items()
        return {option: text for option, text in known if option not in found["fixed"]}

    def words(self, recipe: str, option: str) -> list[str]:
        """The words that an option takes, if it takes no other text."""
        found: list[str] = self.families[self.recipes[recipe]["family"]]["words"].get(option, [])
        return found


@functools.cache
def listing() -> Listing:
    """What `listing.json` holds."""
    return Listing(**json.loads(FILE.read_text(encoding="utf-8")))
