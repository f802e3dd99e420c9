"""Options: given values held against the annotations of the function that takes them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from softdex.errors import SoftdexError, choose

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table of entries",
    NoneType: "nothing",
}


def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each parameter of a function."""
    hints = get_type_hints(function)
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def check(where: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse names that are not known, and values that are not of the annotated kind.

    Example:
        >>> check("item_cf", {"neighbours": int}, {"neighbours": "many"})
        Traceback (most recent call last):
        softdex.errors.SoftdexError: item_cf: expected neighbours as a whole number, got 'many'.
    """
    for name, value in given.items():
        kind = known[choose(where, "option", name, list(known))]
        if not fits(value, kind):
            shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
            raise SoftdexError(f"{where}: expected {name} as {words(kind)}, got {shown}.")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; a number must be finite, and a truth is not a number."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, k) for k in inside)
    if origin is Literal:
        return any(type(value) is type(k) and value == k for k in inside)
    if origin in (Sequence, list, tuple):
        return isinstance(value, (list, tuple)) and all(fits(v, inside[0]) for v in value)
    if kind in (int, float):
        number = isinstance(value, Integral if kind is int else Real)
        return number and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, origin or kind)


def words(kind: Any) -> str:
    """A kind as a person would say it."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(words(k) for k in inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if origin in (Sequence, list, tuple):
        return f"a list, each {words(inside[0])}"
    return WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def at_least(where: str, least: float, **given: float) -> None:
    """Refuse numbers that are too small."""
    for name, value in given.items():
        if value < least:
            raise SoftdexError(f"{where}: expected {name} of at least {least:g}, got {value}.")


def within(
    where: str,
    given: Mapping[str, Any],
    *,
    positive: Sequence[str] = (),
    at_least_0: Sequence[str] = (),
    from_0_to_1: Sequence[str] = (),
) -> None:
    """Refuse numbers that lie outside of what makes sense for them; nothing given is fine."""
    expected = dict.fromkeys(positive, "> 0") | dict.fromkeys(at_least_0, ">= 0")
    for name, words in (expected | dict.fromkeys(from_0_to_1, "from 0 to 1")).items():
        value = 1 if given[name] is None else given[name]
        too_large = name in from_0_to_1 and value > 1
        if value < 0 or too_large or (name in positive and value == 0):
            raise SoftdexError(f"{where}: expected {name} {words}, got {value}.")
