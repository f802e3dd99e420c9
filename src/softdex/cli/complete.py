"""What the shell completes: recipes, and their options with the words that these take."""

from __future__ import annotations

import typer

from softdex.listing import listing


def recipe_names(incomplete: str) -> list[tuple[str, str]]:
    """Names of recipes, each with its sentence."""
    known = listing().recipes
    return [(name, known[name]["about"]) for name in known if name.startswith(incomplete)]


def recipe_options(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Options of the recipe on the command line; behind `=`, the words that the option takes."""
    found, recipe = listing(), context.params.get("recipe") or listing().default
    if recipe not in found.recipes:
        return []
    option, equals, start = incomplete.partition("=")
    if equals:
        words = found.words(recipe, option)
        return [(f"{option}={word}", "") for word in words if word.startswith(start)]
    docs = found.docs(recipe).items()
    return [(f"{name}=", text) for name, text in docs if name.startswith(incomplete)]
