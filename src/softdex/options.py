"""Options: what a function's signature says of its arguments, and given values held against it.

A parameter says what it takes: `dim: Annotated[int, positive] = 64`, `score: Literal["dot",
"cosine"]`, `temperature: Annotated[float, positive, only(score="cosine")] = 0.1`. A parameter whose
default is a dataclass stands for the fields of that dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Container, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from os.path import exists
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from softdex.errors import SoftdexError, choose, did_you_mean

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "a table of entries",
    NoneType: "nothing",
}


class Limit(NamedTuple):
    """Which numbers an option takes."""

    words: str
    holds: Callable[[float], bool]


class Only(NamedTuple):
    """The option has an effect only if the option `by` has one of these values."""

    by: str
    values: Container[Any]


class OneOf(NamedTuple):
    """The words that an option takes, where a table has them."""

    words: tuple[str, ...]


class ModelOr(NamedTuple):
    """The option takes the path of a saved model or one of these words; the function gets the model
    itself."""

    words: tuple[str, ...]


positive = Limit("> 0", lambda value: value > 0)
width = Limit("> 0 and at most 65,536", lambda value: 0 < value <= 2**16)
count = Limit("> 0 and at most 16,777,216", lambda value: 0 < value <= 2**24)
few = Limit("> 0 and at most 4,096", lambda value: 0 < value <= 2**12)
rate = Limit("> 0 and at most 1,000", lambda value: 0 < value <= 1e3)
unit = Limit("from 0.0001 to 10,000", lambda value: 1e-4 <= value <= 1e4)
at_least_0 = Limit(">= 0", lambda value: value >= 0)
at_least_2 = Limit(">= 2 and at most 65,536", lambda value: 2 <= value <= 2**16)
from_0_to_1 = Limit("from 0 to 1", lambda value: 0 <= value <= 1)
below_1 = Limit("from 0 to below 1", lambda value: 0 <= value < 1)


def up_to(most: float) -> Limit:
    """Numbers from 0 to `most`."""
    return Limit(f"from 0 to {most:g}".replace("e+0", "e"), lambda value: 0 <= value <= most)


def one_of(*words: str) -> OneOf:
    """These words: `Literal` for words that come from a table."""
    return OneOf(words)


def model_or(*words: str) -> ModelOr:
    """The path of a saved model, or one of these words."""
    return ModelOr(words)


def only(**by: Any) -> Only:
    """An option that has an effect only if another has this value, or one of these values."""
    [(name, values)] = by.items()
    many = isinstance(values, Container) and not isinstance(values, str)
    return Only(name, values if many else (values,))


class Option(NamedTuple):
    """One option of a function.

    Attributes:
        kind: its annotation.
        default: what it is if it is not given.
        rules: when it has an effect: always, if there are none.
        field: (parameter, field) if it is a field of a dataclass parameter.
    """

    kind: Any
    default: Any
    rules: tuple[Only, ...] = ()
    field: tuple[str, str] | None = None


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword options of a function; a dataclass default stands for its fields."""
    hints = get_type_hints(function, include_extras=True)
    found: dict[str, Option] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            inside = get_type_hints(type(default), include_extras=True)
            for each in dataclasses.fields(default):
                value = getattr(default, each.name)
                kind = inside[each.name] if value is None else _without_none(inside[each.name])
                rules = _rules(hints[name]) + _rules(kind)
                found[each.name] = Option(kind, value, rules, (name, each.name))
        else:
            kind = hints.get(name, Any)
            found[name] = Option(kind, default, _rules(kind))
    return found


def _rules(kind: Any) -> tuple[Only, ...]:
    return tuple(note for note in notes(kind) if isinstance(note, Only))


def notes(kind: Any) -> tuple[Any, ...]:
    """What `Annotated` says beside the type."""
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def _without_none(kind: Any) -> Any:
    """A type that may be None, as one that may not."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(bare) not in (Union, UnionType):
        return kind
    left = [k for k in get_args(bare) if k is not NoneType]
    bare = Union[tuple(left)]  # noqa: UP007
    extra = notes(kind)
    return Annotated[(bare, *extra)] if extra else bare


def folded(function: Callable[..., Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options as arguments of the function: fields go back into their dataclass."""
    arguments: dict[str, Any] = {}
    parameters = inspect.signature(function).parameters
    fields: dict[str, dict[str, Any]] = {}
    for name, option in options_of(function).items():
        if option.field is None:
            arguments[name] = chosen[name]
        else:
            fields.setdefault(option.field[0], {})[option.field[1]] = chosen[name]
    for name, values in fields.items():
        arguments[name] = dataclasses.replace(parameters[name].default, **values)
    return arguments


def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each parameter of a function."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def check(where: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown names, and values that their annotation does not take; return the others as
    plain numbers and text.

    Example:
        >>> check("item_cf", {"neighbours": int}, {"neighbours": "many"})
        Traceback (most recent call last):
        softdex.errors.SoftdexError: item_cf: expected neighbours as a whole number, got 'many'.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = known[choose(where, "option", name, list(known))]
        if isinstance(value, str) and (among := words_of(kind)):
            choose(where, name, value, among)
        if not fits(value, kind):
            shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
            raise SoftdexError(f"{where}: expected {name} as {words(kind)}, got {shown}.")
        for note in notes(kind):
            if isinstance(note, Limit) and value is not None and not note.holds(value):
                raise SoftdexError(f"{where}: expected {name} {note.words}, got {value}.")
            if isinstance(note, ModelOr) and names_model(kind, value) and not exists(value):
                raise SoftdexError(
                    f"{where}: there is no saved model {value!r} for {name}. "
                    f"{did_you_mean(value, note.words)}"
                )
        found[name] = plain(value, kind)
    return found


def names_model(kind: Any, value: Any) -> bool:
    """Whether a value of this kind is the path of a saved model."""
    known = [note.words for note in notes(kind) if isinstance(note, ModelOr)]
    return bool(known) and value is not None and value not in known[0]


def words_of(kind: Any) -> list[str]:
    """The words that an option takes, if it takes no other text."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    inside = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
    found = [word for note in notes(kind) if isinstance(note, OneOf) for word in note.words]
    if str not in inside:
        found += [w for k in inside if get_origin(k) is Literal for w in get_args(k)]
    return [word for word in found if isinstance(word, str)]


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind: numbers must be finite, whole numbers below 2^63, and true and
    false are no numbers."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fits(value, inside[0])
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
    """A value that fits its kind, converted to the number or text it is annotated as.

    Example:
        >>> plain(1, float | None)
        1.0
    """
    if get_origin(kind) is Annotated:
        return plain(value, get_args(kind)[0])
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if each in (int, float, bool) and fits(value, each):
            return each(value)
        if each is str and fits(value, each):
            return str(fspath(value))
        if get_origin(each) in (Sequence, list, tuple) and fits(value, each):
            return [plain(v, get_args(each)[0]) for v in value]
    return value


def words(kind: Any) -> str:
    """A kind in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return words(inside[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(words(k) for k in inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if origin in (Sequence, list, tuple):
        return f"a list, each {words(inside[0])}"
    return WORDS.get(kind) or str(getattr(kind, "__name__", kind))
