"""Expect: refuse objects of the wrong kind with one sentence that says what to pass instead."""

from __future__ import annotations

from typing import Any

from softdex.data.holdout import Holdout, Split
from softdex.data.interactions import Interactions
from softdex.errors import DataError

NOUNS = {
    "Interactions": "a log",
    "Holdout": "a holdout",
    "Split": "a split",
    "Retriever": "a model",
    "Result": "a result",
    "Comparison": "a comparison",
    "NoneType": "None",
}
READ = "Read a log first: sdx.read(...)."
DIVIDE = "Split the log: train, valid, test = sdx.split.per_user(log)."
ADVICE: dict[tuple[type, str], str] = {  # what to do, per kind expected and kind that came
    (Interactions, ""): READ,
    (Interactions, "Split"): "Pass split.train.",
    (Interactions, "Holdout"): "Pass a log, or the train part of the split.",
    (Holdout, ""): DIVIDE,
    (Holdout, "Split"): "Pass split.valid or split.test.",
    (Holdout, "NoneType"): "The split has no such part; choose one that has.",
    (Split, ""): DIVIDE,
}


def expect(kind: type | tuple[type, ...], where: str, value: Any, argument: str = "") -> None:
    """Refuse a value of another kind.

    Args:
        kind: the class expected, or several.
        where: the function called; the error starts with it.
        value: what was passed.
        argument: as which argument, unless the function has only one.
    """
    if isinstance(value, kind):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    came, wanted = type(value).__name__, " or ".join(NOUNS[k.__name__] for k in kinds)
    advice = ADVICE.get((kinds[0], came)) or ADVICE.get((kinds[0], ""), "")
    place = f" as {argument}" if argument else ""
    raise DataError(
        f"{where}: expected {wanted}{place}, got {NOUNS.get(came, came)}. {advice}".rstrip()
    )


def expect_log(where: str, log: Any, argument: str = "") -> None:
    """Refuse what is no log, or a log without events."""
    expect(Interactions, where, log, argument)
    if not len(log):
        raise DataError(f"{where}: the training log is empty.")
