"""Errors that say where, what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class SoftdexError(ValueError):
    """Anything the caller can put right. The command line prints it and exits with 2."""


class DataError(SoftdexError):
    """The data, or a key or column asked of it, is not what was expected."""


class ShapeError(SoftdexError):
    """An array has the wrong shape or type."""


class ArtifactError(SoftdexError):
    """A saved model is damaged, foreign, or from a newer version."""


class UnknownName(SoftdexError, KeyError):
    """A name that a mapping does not hold."""

    __str__ = Exception.__str__


def nearest(name: object, known: Iterable[object]) -> str:
    """A sentence that names the nearest known name, or lists what is known."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else "None are known here."


def choose(where: str, what: str, value: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of `known`, else raise with the nearest one."""
    if value in known:
        return value
    raise SoftdexError(f"{where}: unknown {what} {value!r}. {nearest(value, known)}")


def some(values: Iterable[object], most: int = 5) -> str:
    """The first few values of a list, for a message."""
    shown = [str(v) for _, v in zip(range(most + 1), values, strict=False)]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")
