"""Recipes: one file a published method. `fit` finds them by their name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from softdex.errors import DataError, choose
from softdex.holdout import Holdout
from softdex.interactions import Interactions
from softdex.retrieve import Retriever, from_training


def names() -> list[str]:
    """Every recipe there is."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__))


def recipe(name: str) -> Callable[..., Any]:
    """The function of this name."""
    choose("fit", "recipe", name, names())
    found: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    return found


def options(name: str) -> dict[str, Any]:
    """The options of a recipe with their defaults."""
    parameters = inspect.signature(recipe(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def fit(name: str, train: Interactions, valid: Holdout | None = None, **given: Any) -> Retriever:
    """Train a recipe and return a model that recommends.

    Args:
        name: a recipe; `softdex.recipes.names()` lists them.
        train: the training part of a split, or a whole log.
        valid: a holdout to measure on; the metrics are stored with the model.
        given: options of the recipe, see `softdex recipes`.
    """
    function = recipe(name)
    known = options(name)
    for option in given:
        choose(f"fit({name!r})", "option", option, list(known))
    if not isinstance(train, Interactions):
        raise DataError(
            f"fit: expected a log, got {type(train).__name__}. Read it first: sdx.read(...)."
        )
    if not len(train):
        raise DataError("fit: the training log is empty.")
    encoder, scorer = function(train, **given)
    model = from_training(name, known | given, train, encoder, scorer)
    if valid is not None:
        model.info["metrics"]["valid"] = dict(model.evaluate(valid))
    return model
