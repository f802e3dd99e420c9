"""The recipes by name: their options, what is refused of them, and the functions behind them.

A recipe is a function of a log that returns a job (encoder, scorer, and how they are trained), or
encoder and scorer where nothing is trained. Its signature says which options it has and what they
take (see `softdex.options`); `VARIANTS` beside it names it, and every set of options that is a
method of its own.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.machine import pick_device
from softdex.options import Only, Option, check, folded, options_of, plain
from softdex.recipes import ials as ials_file
from softdex.recipes import item_cf as item_cf_file
from softdex.recipes import mf as mf_file
from softdex.recipes import popular as popular_file
from softdex.recipes import rg as rg_file
from softdex.recipes import sequence as sequence_file
from softdex.recipes import tree as tree_file
from softdex.recipes import two_tower as two_tower_file
from softdex.recipes import vae as vae_file
from softdex.recipes.variant import HAVE, Guide, Variant, first_line

DEFAULT = "rg2"
"""For a log of which nothing else is known: good on all that we have, in seconds, untuned."""
Recipe = str | Callable[..., Any]
"""The name of a recipe, or a function that is one."""
FUNCTIONS: Mapping[Callable[..., Any], Mapping[str, Variant]] = {
    popular_file.popular: popular_file.VARIANTS,
    item_cf_file.item_cf: item_cf_file.VARIANTS,
    ials_file.ials: ials_file.VARIANTS,
    rg_file.rg: rg_file.VARIANTS,
    mf_file.mf: mf_file.VARIANTS,
    two_tower_file.two_tower: two_tower_file.VARIANTS,
    vae_file.vae: vae_file.VARIANTS,
    sequence_file.sequence: sequence_file.VARIANTS,
    tree_file.tree: tree_file.VARIANTS,
}


class Entry(NamedTuple):
    """A recipe under one name."""

    name: str
    function: Callable[..., Any]
    variant: Variant

    @property
    def is_variant(self) -> bool:
        """Whether it is a set of options of a recipe with another name."""
        return self.name != self.function.__name__


TABLE = {
    name: Entry(name, function, variant)
    for function, variants in FUNCTIONS.items()
    for name, variant in variants.items()
}


def entry(recipe: Recipe) -> Entry:
    """The recipe of this name; a function is a recipe of its own name."""
    if isinstance(recipe, str):
        return TABLE[choose("fit", "recipe", recipe, names())]
    if not callable(recipe):
        raise SoftdexError(f"fit: expected the name of a recipe, or a function, got {recipe!r}.")
    return Entry(recipe.__name__, recipe, Variant(first_line(recipe)))


def names() -> list[str]:
    """Every recipe, variants under their own names."""
    return sorted(TABLE)


def methods() -> list[str]:
    """The recipes that are methods of their own: variants, and recipes without variants."""
    parents = {e.function for e in TABLE.values() if e.is_variant}
    return [n for n in names() if TABLE[n].is_variant or TABLE[n].function not in parents]


@functools.cache
def _signature(function: Callable[..., Any]) -> dict[str, Option]:
    return options_of(function)


def options(recipe: Recipe) -> dict[str, Any]:
    """The options of a recipe with their defaults."""
    found = entry(recipe)
    defaults = {name: option.default for name, option in _signature(found.function).items()}
    return defaults | dict(found.variant.options)


def choices(recipe: Recipe) -> list[str]:
    """The options of a recipe that can be given; others make it what it is."""
    return [option for option in options(recipe) if option not in entry(recipe).variant.fixed]


def kinds(recipe: Recipe) -> dict[str, Any]:
    """The annotation of each option of a recipe."""
    return {name: option.kind for name, option in _signature(entry(recipe).function).items()}


def about(recipe: Recipe) -> str:
    """What a recipe does, in one sentence."""
    return entry(recipe).variant.about


def guides() -> dict[str, dict[str, Guide]]:
    """The rows of the table of recipes: group, name, row."""
    rows = {name: entry.variant.guide for name, entry in TABLE.items()}
    return {
        words: {name: row for name, row in rows.items() if row is not None and row.have == have}
        for have, words in HAVE.items()
    }


def docs(recipe: Recipe) -> dict[str, str]:
    """What each option of a recipe means, by its docstring and those of its dataclasses."""
    function = entry(recipe).function
    parameters = inspect.signature(function).parameters.values()
    holders = [type(p.default) for p in parameters if is_dataclass(p.default)]
    found: dict[str, str] = {}
    for holder in (function, *holders):
        text = inspect.getdoc(holder) or ""
        section = re.split(r"^(?:Args|Attributes):\n", text, flags=re.MULTILINE)[-1]
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(words.split())
    return {name: found[name] for name in choices(recipe) if name in found}


def space(recipe: Recipe) -> dict[str, Any]:
    """The options of a recipe worth tuning: lists of choices, or (low, high) ranges."""
    return dict(entry(recipe).variant.space)


def preset(recipe: Recipe, device: str) -> dict[str, Any]:
    """What options of a recipe that are None become on this device."""
    return dict(entry(recipe).variant.presets.get(pick_device(device).type, {}))


def rules(recipe: Recipe) -> Sequence[tuple[str, Only]]:
    """(option, rule) of every option that has an effect only with some values of another."""
    signature = _signature(entry(recipe).function)
    return tuple((name, rule) for name, option in signature.items() for rule in option.rules)


def unread(recipe: Recipe, chosen: Mapping[str, Any]) -> dict[str, str]:
    """The options that have no effect with these, and because of which."""
    return {
        option: f"{rule.by}={chosen[rule.by]!r}"
        for option, rule in rules(recipe)
        if chosen[rule.by] not in rule.values
    }


def check_options(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown options and wrong values; return the others as plain numbers and text, without
    those that only repeat what makes the recipe what it is."""
    name, function, _ = found = entry(recipe)
    annotated, defaults = kinds(recipe), options(recipe)
    fixed = [o for o in given if o in defaults and o not in choices(recipe)]
    for option in fixed:
        if plain(given[option], annotated[option]) != defaults[option]:
            raise SoftdexError(
                f"{name}: {option}= is fixed, it makes the recipe what it is. "
                f"{function.__name__!r} has it as an option."
            )
    free = {option: value for option, value in given.items() if option not in fixed}
    checked = check(found.name, {option: annotated[option] for option in choices(recipe)}, free)
    if checked.get("device") is not None:
        pick_device(checked["device"])
    return checked


def checked(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """`check_options`, which also refuses options that would be ignored."""
    found, defaults = check_options(recipe, given), options(recipe)
    for option, because in unread(recipe, defaults | found).items():
        if option in found and found[option] != defaults[option]:
            name = entry(recipe).name
            raise SoftdexError(f"{name}: {option}= has no effect with {because}. Leave it out.")
    return found


def make(recipe: Recipe, train: Interactions, given: Mapping[str, Any]) -> Any:
    """What a recipe makes of a log with these options, others at their defaults; it complains under
    its own name."""
    name, function, _ = entry(recipe)
    try:
        return function(train, **folded(function, options(recipe) | dict(given)))
    except SoftdexError as error:
        parent = f"{function.__name__}: "
        if not str(error).startswith(parent):
            raise
        raise type(error)(f"{name}: {str(error).removeprefix(parent)}") from error
