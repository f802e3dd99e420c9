"""What the views of the page ask for, beside lists."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from softdex.model.kinds import TEMPERATURES
from softdex.serve.words import History, Name, User

By = Annotated[
    Literal["history", "popularity", "category"],
    Meta(
        description="Users by the length of their history; or held-out items by their training "
        "events or by a column."
    ),
]
Metric = Annotated[
    str, Meta(description="Metric with its cut-off, such as ndcg@20; of items: recall only.")
]
Column = Annotated[str, Meta(description="Item column; none: the one that fits best.")]
Temperature = Annotated[
    Annotated[float, Meta(ge=TEMPERATURES[0], le=TEMPERATURES[1])] | None,
    Meta(description="Divides the scores; none: that of the model."),
]
Length = Annotated[int, Meta(ge=1, le=1000, description="Length of the lists.")]


class Exposure(Struct, forbid_unknown_fields=True, frozen=True):
    """Which lists to count."""

    k: Length = 20
    column: Column = ""
    model: Name | None = None


class Breakdown(Struct, forbid_unknown_fields=True, frozen=True):
    """How to break a metric down."""

    by: By = "history"
    metric: Metric = ""
    column: Column = ""
    most: Annotated[int, Meta(ge=1, le=1000, description="Groups, at most.")] = 30
    model: Name | None = None


class GroupUsers(Struct, forbid_unknown_fields=True, frozen=True):
    """Which users of a breakdown to list."""

    group: Annotated[str, Meta(description="Name of the group.")]
    by: By = "history"
    metric: Metric = ""
    column: Column = ""
    order: Annotated[Literal["worst", "best"], Meta(description="Who comes first.")] = "worst"
    limit: Annotated[int, Meta(ge=1, le=1000, description="Users, at most.")] = 20
    model: Name | None = None


class Effort(Struct, forbid_unknown_fields=True, frozen=True):
    """Which lists to search."""

    k: Length = 20
    model: Name | None = None


class EffortList(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, and how much the search may look at."""

    effort: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="In units of the index; none: as it serves."),
    ] = None
    exact: Annotated[bool, Meta(description="Score every item, whatever the effort.")] = False
    user: User = None
    history: History = None
    k: Length = 20
    model: Name | None = None


class Sampler(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, and the softmax."""

    user: User = None
    history: History = None
    temperature: Temperature = None
    model: Name | None = None


class SamplerDraws(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, the softmax, and what to draw from."""

    proposal: Annotated[str, Meta(description="One of those that the sampler names.")]
    user: User = None
    history: History = None
    n: Annotated[int, Meta(ge=1, le=10_000, description="Draws.")] = 100
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    temperature: Temperature = None
    model: Name | None = None


class Inside(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, whose search is shown."""

    user: User = None
    history: History = None
    k: Length = 20
    effort: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Items that a multi-index scores; none: as it serves."),
    ] = None
    model: Name | None = None


class Map(Struct, forbid_unknown_fields=True, frozen=True):
    """Which column colours the items."""

    column: Column = ""
    model: Name | None = None
