"""The conformance suite of recipes: a row per recipe and options, and what it is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import softdex as sdx


class Case(NamedTuple):
    """A recipe with options, trained on `tiny()`, and the check that recomputes it by loops."""

    recipe: str
    options: dict[str, Any]
    check: Callable[[Case], None]

    @property
    def name(self) -> str:
        """For the report of the tests."""
        given = ",".join(f"{n}={v}" for n, v in self.options.items() if n not in SMALL)
        return f"{self.recipe}[{given}]" if given else self.recipe


SMALL = {"dim": 4, "epochs": 2, "batch_size": 8, "seed": 3, "device": "cpu"}


def row(recipe: str, check: Callable[[Case], None], **options: Any) -> Case:
    """A case that is trained briefly, on the CPU."""
    return Case(recipe, SMALL | options, check)


def tiny(weights: bool = True, **tables: Any) -> sdx.Interactions:
    """A log of 7 users and 11 items, not in the order of time and with uneven weights; one item has
    no other user, one user met an item twice. `tables` are `items=` and `users=` of `read`."""
    rng = np.random.default_rng(5)
    rows = [
        (f"u{u}", f"i{i}", 100 + 10 * (7 * n % 5) + u, 1.0 + (3 * u + i) % 4 / 2)
        for u in range(7)
        for n, i in enumerate(rng.permutation(10)[: 3 + u % 3])
    ]
    rows += [("u6", "i10", 50, 2.0), (rows[1][0], rows[1][1], 500, 3.5)]
    user, item, time, weight = zip(*rows, strict=True)
    columns = {"user": user, "item": item, "time": time} | ({"weight": weight} if weights else {})
    return sdx.read({name: list(column) for name, column in columns.items()}, quiet=True, **tables)
