"""Recipes: one file a published method. `fit` finds them by their name.

A file may have tables beside its function. Of names: VARIANTS (options that make a recipe of its
own), FIXED (those that may not be changed then), ABOUT (a sentence each). Of options: WORDS (those
there are), POSITIVE and the other LIMITS of `softdex.options`, READ_BY (option, by, values: without
an effect unless `by` has one of them), SPACE and SPACES (what is tuned), PRESET (what None is on a
device). All that they forbid is refused before the function is called.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from softdex import recipes
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.machine import pick_device
from softdex.options import LIMITS, check, kinds, plain, within

SHARED = ("catalogue", "compose")  # files of this folder that are no recipes


def names() -> list[str]:
    """Every recipe there is, variants of one under their own names."""
    return sorted(_table())


def methods() -> list[str]:
    """The recipes that are methods of their own: variants instead of what they are variants of."""
    parents = {parent for parent, fixed in _table().values() if fixed}
    return [name for name in names() if name not in parents]


@functools.cache
def _table() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Name -> the module it lives in, and the options that make it a variant."""
    table: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for module in pkgutil.iter_modules(recipes.__path__):
        if module.name in SHARED:
            continue
        found = importlib.import_module(f"softdex.recipes.{module.name}")
        table[module.name] = (module.name, {})
        variants: Mapping[str, Mapping[str, Any]] = getattr(found, "VARIANTS", {})
        table |= {name: (module.name, fixed) for name, fixed in variants.items()}
    return table


def recipe(name: str) -> Callable[..., Any]:
    """The function behind this name."""
    module, _ = _table()[choose("fit", "recipe", name, names())]
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"softdex.recipes.{module}"), module
    )
    return found


def options(name: str) -> dict[str, Any]:
    """The options of a recipe with their defaults."""
    parameters = inspect.signature(recipe(name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return defaults | dict(_table()[name][1])


def about(name: str) -> str:
    """What a recipe does, in one sentence."""
    found = recipe(name)
    return _of_module(name, "ABOUT").get(name) or (inspect.getdoc(found) or "").splitlines()[0]


def space(name: str) -> dict[str, Any]:
    """The options of a recipe that are worth tuning: lists of choices, or (low, high) ranges."""
    own = _of_module(name, "SPACES").get(name)
    return dict(own if own is not None else _of_module(name, "SPACE"))


def preset(name: str, device: str) -> dict[str, Any]:
    """What a recipe takes on this device for options that are None."""
    return dict(_of_module(name, "PRESET").get(pick_device(device).type, {}))


def _of_module(name: str, what: str) -> Any:
    """A table that the file of a recipe may have."""
    return getattr(importlib.import_module(recipe(name).__module__), what, {})


def check_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse options that a recipe does not have, or values that make no sense for them; the others
    as plain numbers and text, without those that are so anyway."""
    annotated, defaults = kinds(recipe(name)), options(name)
    fixed = [o for o in given if o in defaults and o not in choices(name)]
    for option in fixed:
        if plain(given[option], annotated[option]) != defaults[option]:
            raise SoftdexError(
                f"{name}: {option}= is fixed, it makes the recipe what it is. "
                f"{_table()[name][0]!r} has it as an option."
            )
    free = {option: value for option, value in given.items() if option not in fixed}
    found = check(name, {option: annotated[option] for option in choices(name)}, free)
    for option, words in _of_module(name, "WORDS").items():
        if found.get(option) is not None:
            choose(name, option, found[option], words)
    within(name, found, **{limit: _of_module(name, limit.upper()) for limit in LIMITS})
    if found.get("device") is not None:
        pick_device(found["device"])
    return found


def unread(name: str, chosen: Mapping[str, Any]) -> dict[str, str]:
    """The options that these choices leave without an effect, and because of what."""
    return {
        option: f"{by}={chosen[by]!r}"
        for option, by, values in rules(name)
        if chosen[by] not in values
    }


def rules(name: str) -> Sequence[tuple[str, str, Container[Any]]]:
    """(option, by, values): it has an effect if `by` has one of these values."""
    return tuple(_of_module(name, "READ_BY"))


def checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """`check_options`, which also refuses options that would be ignored."""
    found, defaults = check_options(name, given), options(name)
    for option, because in unread(name, defaults | found).items():
        if option in found and found[option] != defaults[option]:
            raise SoftdexError(f"{name}: {option}= has no effect with {because}. Leave it out.")
    return found


def make(name: str, train: Interactions, chosen: Mapping[str, Any]) -> Any:
    """What a recipe makes of a log, under its own name where it complains."""
    try:
        return recipe(name)(train, **chosen)
    except SoftdexError as error:
        parent = f"{_table()[name][0]}: "
        if not str(error).startswith(parent):
            raise
        raise type(error)(f"{name}: {str(error).removeprefix(parent)}") from error


def choices(name: str) -> list[str]:
    """The options of a recipe that may be given; others make it what it is."""
    fixed = _of_module(name, "FIXED").get(name, ())
    return [option for option in options(name) if option not in fixed]
