"""What the page asks for beside lists."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from softdex.serve.words import Items, Name


class Rows(Struct, forbid_unknown_fields=True, frozen=True):
    """Items to show."""

    items: Items
    model: Name | None = None


class Chosen(Struct, forbid_unknown_fields=True, frozen=True):
    """Which users to look at."""

    kind: Annotated[
        Literal["random", "hard", "easy", "cold"],
        Meta(description="At random, worst lists, best lists, fewest events."),
    ] = "random"
    limit: Annotated[int, Meta(ge=1, le=1000, description="Users, at most.")] = 20
    seed: Annotated[int, Meta(ge=0, description="Of the random choice, and of ties.")] = 0
    metric: Annotated[str, Meta(description="Metric with its cut-off, such as ndcg@20.")] = ""
    model: Name | None = None


class OfUser(Struct, forbid_unknown_fields=True, frozen=True):
    """What to show of a user's held-out events."""

    metrics: Annotated[bool, Meta(description="Metrics of the list, else the events.")] = False
    model: Name | None = None


class Pair(Struct, forbid_unknown_fields=True, frozen=True):
    """Which two models to compare."""

    other: Annotated[str, Meta(description="Name of the other served model.")]
    metric: Annotated[str, Meta(description="Metric with its cut-off, such as ndcg@20.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="Users to list, at most.")] = 20
    model: Name | None = None
