"""Errors. Each message says where, what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

LONGEST = 60  # characters of a name for which a similar one is looked for


class SoftdexError(ValueError):
    """An error that the caller can fix. The command line prints it and exits with status 2."""


class DataError(SoftdexError):
    """The data, or a key or column requested from it, is not as expected."""


class UnknownKey(DataError):
    """A user or an item is not known to the model.

    Args:
        text: the message.
        hint: looks for the nearest known key, once the message is read: it takes as long as a list.
    """

    def __init__(self, text: str, hint: Callable[[], str] = str) -> None:
        super().__init__(text)
        self._hint = hint

    def __str__(self) -> str:
        return f"{self.args[0]} {self._hint()}".rstrip()


class ToldElsewhere(SoftdexError):
    """An error of a group of processes, which the first of them tells."""


class ShapeError(SoftdexError):
    """An array has the wrong shape or type."""


class ArtifactError(SoftdexError):
    """A saved model is damaged, not a softdex file, or from a newer version."""


class UnknownName(SoftdexError, KeyError):
    """A mapping has no entry of this name."""

    __str__ = Exception.__str__


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A sentence that suggests the nearest known name, or lists all of them."""
    text, names = str(name), [str(k) for k in known]
    short = [each for each in names if len(each) <= LONGEST] if len(text) <= LONGEST else []
    close = difflib.get_close_matches(text, short, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else "None are known here."


def choose(where: str, what: str, value: str, known: Sequence[str]) -> str:
    """Return `value` if it is one of `known`; otherwise raise and suggest the nearest."""
    if value in known:
        return value
    raise SoftdexError(f"{where}: unknown {what} {value!r}. {did_you_mean(value, known)}")


def in_number(count: int, what: str) -> str:
    """Return a plural noun, which may have words around it, in the number of a count."""
    words = what.split(" ")
    place = next((i for i, word in enumerate(words) if word.endswith("s")), 0)
    words[place] = words[place].removesuffix("s") if count == 1 else words[place]
    return " ".join(words)


def counted(count: int, what: str) -> str:
    """Return a count with its noun: 1 user, 1,200 users."""
    return f"{count:,} {in_number(count, what)}"


def first_few(values: Iterable[object], most: int = 5) -> str:
    """The first `most` values, comma-separated for a message; ", ..." stands for the rest."""
    shown = [str(v) for _, v in zip(range(most + 1), values, strict=False)]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")
