"""Options: given values held against the annotations of the function that takes them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from softdex.errors import SoftdexError, choose

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table of entries",
    NoneType: "nothing",
}
LIMITS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "positive": ("> 0", lambda value: value > 0),
    "at_least_0": (">= 0", lambda value: value >= 0),
    "at_least_2": (">= 2", lambda value: value >= 2),
    "from_0_to_1": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "from_0_to_9": ("from 0 to 9", lambda value: 0 <= value <= 9),
    "from_0_to_1e9": ("from 0 to 1e9", lambda value: 0 <= value <= 1e9),
    "below_1": ("from 0 to below 1", lambda value: 0 <= value < 1),
}


def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each parameter of a function."""
    hints = get_type_hints(function)
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def check(where: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse names that are not known, and values that are not of the annotated kind; the others as
    plain numbers and text.

    Example:
        >>> check("item_cf", {"neighbours": int}, {"neighbours": "many"})
        Traceback (most recent call last):
        softdex.errors.SoftdexError: item_cf: expected neighbours as a whole number, got 'many'.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = known[choose(where, "option", name, list(known))]
        if not fits(value, kind):
            shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
            raise SoftdexError(f"{where}: expected {name} as {words(kind)}, got {shown}.")
        found[name] = plain(value, kind)
    return found


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; a number must be finite, a whole one below 2^63, and a truth is
    not a number."""
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
        return number and not isinstance(value, bool) and _holds(kind, value)
    if kind is str and isinstance(value, PathLike):
        return isinstance(fspath(value), str)
    return isinstance(value, (bool, np.bool_) if kind is bool else origin or kind)


def _holds(kind: Any, value: Any) -> bool:
    """Whether a float, or 64 bits, can hold a number."""
    try:
        return math.isfinite(value) if kind is float else -(2**63) <= int(value) < 2**63
    except OverflowError:
        return False


def plain(value: Any, kind: Any) -> Any:
    """A value that fits its kind, as the number or text that it is annotated as.

    Example:
        >>> plain(1, float | None)
        1.0
    """
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if each in (int, float, bool) and fits(value, each):
            return each(value)
        if each is str and fits(value, each):
            return str(fspath(value))
        if get_origin(each) in (Sequence, list, tuple) and fits(value, each):
            return [plain(v, get_args(each)[0]) for v in value]
    return value


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


def within(where: str, given: Mapping[str, Any], **limited: Sequence[str]) -> None:
    """Refuse numbers that lie outside of what makes sense for them; nothing given is fine.

    Example:
        >>> within("ials", {"dim": 0}, positive=["dim", "epochs"])
        Traceback (most recent call last):
        softdex.errors.SoftdexError: ials: expected dim > 0, got 0.
    """
    for limit, names in limited.items():
        words, holds = LIMITS[limit]
        for name in names:
            value = given.get(name)
            if value is not None and not holds(value):
                raise SoftdexError(f"{where}: expected {name} {words}, got {value}.")
