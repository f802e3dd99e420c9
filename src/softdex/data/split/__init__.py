"""Splits: divide a log into a training log and holdouts to evaluate on.

Every split returns the named tuple `(train, valid, test)` with a `card` that says how it was made:

- `per_user`, `leave_last`, `by_user`, `global_time` and `given` are general;
- `cold_items` holds out whole items;
- `next_item` holds out whole sessions and asks for each of their clicks;
- `lightgcn`, `rg`, `fastvae`, `xir` and `dtr` are published protocols.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from softdex.data.holdout import Split
from softdex.data.interactions import Interactions
from softdex.data.split.cold import cold_items
from softdex.data.split.general import by_user, given, global_time, leave_last, per_user
from softdex.data.split.protocols import dtr, fastvae, lightgcn, rg, xir
from softdex.data.split.sessions import next_item
from softdex.errors import choose

__all__ = [
    "SPLITS",
    "by_name",
    "by_user",
    "cold_items",
    "default_name",
    "dtr",
    "fastvae",
    "given",
    "global_time",
    "leave_last",
    "lightgcn",
    "next_item",
    "per_user",
    "rg",
    "xir",
]

GENERAL = (per_user, leave_last, by_user, global_time, given, next_item, cold_items)
PUBLISHED = (lightgcn, rg, fastvae, xir, dtr)
SPLITS: dict[str, Callable[..., Split]] = {f.__name__: f for f in (*GENERAL, *PUBLISHED)} | {
    "random": per_user
}


def by_name(name: str, log: Interactions, **arguments: Any) -> Split:
    """Call the split of this name; unknown names and arguments raise and suggest the nearest."""
    choose("split", "split", name, list(SPLITS))
    known = [p for p in inspect.signature(SPLITS[name]).parameters if p != "log"]
    for argument in arguments:
        choose(f"split.{name}", "argument", argument, known)
    return SPLITS[name](log, **arguments)


def default_name(log: Interactions) -> tuple[str, str]:
    """Return the name of the split that suits a log, and the reason in words."""
    if "test" in log.extra:
        return "given", "the log has a column 'test'"
    if log.time is not None:
        return "leave_last", "the log has times"
    return "per_user", "the log has no time"
