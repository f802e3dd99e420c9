"""What requests hold: the words of `Retriever.recommend`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from softdex.model.kinds import TEMPERATURES

Key = str | int
WEIGHTS = (1e-6, 1e6)  # of events
Unknown = Literal["error", "popular", "skip"]
Mode = Annotated[
    Literal["best", "sample"], Meta(description="The best items, or items drawn from the softmax.")
]
Temperature = Annotated[
    float | None,
    Meta(
        description="Divides the scores of a sample; none: that of the model.",
        extra_json_schema={"minimum": TEMPERATURES[0], "maximum": TEMPERATURES[1]},
    ),
]
Seed = Annotated[
    int | None,
    Meta(
        description="Seed of a sample; none: another one per request.",
        extra_json_schema={"minimum": 0, "maximum": 2**63 - 1},
    ),
]
K = Annotated[int, Meta(description="Length of the list.", extra_json_schema={"minimum": 1})]
Value = str | int | float | bool | None
Where = Annotated[
    dict[str, Value | list[Value]],
    Meta(description="Item columns and the value, or the list of values, that match."),
]
AtMost = Annotated[dict[str, int], Meta(description="At most n items per value of an item column.")]
User = Annotated[Key | None, Meta(description="User key.")]
History = Annotated[list[Key] | None, Meta(description="Item keys, oldest first.")]
Columns = Annotated[list[str], Meta(description="Item columns to add.")]
Items = Annotated[list[Key], Meta(description="Item keys.")]
Name = Annotated[str, Meta(description="Name of a served model.")]


class Recommend(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both."""

    user: User = None
    history: History = None
    k: K = 10
    exclude_seen: bool = True
    allow: Items | None = None
    deny: Items | None = None
    where: Where | None = None
    at_most: AtMost | None = None
    columns: Columns = []
    unknown: Unknown = "error"
    mode: Mode = "best"
    temperature: Temperature = None
    seed: Seed = None
    model: Name | None = None


class RecommendQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a request without a body."""

    k: K = 10
    exclude_seen: bool = True
    allow: Annotated[list[str], Meta(description="Item key; repeat for more.")] = []
    deny: Annotated[list[str], Meta(description="Item key; repeat for more.")] = []
    where: Annotated[list[str], Meta(description="column:value; repeat for more.")] = []
    columns: Annotated[list[str], Meta(description="Item column; repeat for more.")] = []
    unknown: Unknown = "error"
    mode: Mode = "best"
    temperature: Temperature = None
    seed: Seed = None
    model: Name | None = None


class Batch(Struct, forbid_unknown_fields=True, frozen=True):
    """Several requests."""

    requests: list[Recommend]


class TableQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a table of users."""

    k: K = 10
    exclude_seen: bool = True
    columns: Annotated[list[str], Meta(description="Item column; repeat for more.")] = []
    unknown: Unknown = "error"
    mode: Mode = "best"
    temperature: Temperature = None
    seed: Seed = None
    model: Name | None = None


class Similar(Struct, forbid_unknown_fields=True, frozen=True):
    """Items to find similar ones of."""

    items: Items
    k: K = 10
    allow: Items | None = None
    deny: Items | None = None
    where: Where | None = None
    at_most: AtMost | None = None
    columns: Columns = []
    model: Name | None = None


class SimilarQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a request without a body."""

    k: K = 10
    where: Annotated[list[str], Meta(description="column:value; repeat for more.")] = []
    columns: Annotated[list[str], Meta(description="Item column; repeat for more.")] = []
    model: Name | None = None


class Score(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, and the items to score."""

    items: Items
    user: User = None
    history: History = None
    exclude_seen: Annotated[bool, Meta(description="Give items of the history no rank.")] = True
    columns: Columns = []
    model: Name | None = None


class Explain(Struct, forbid_unknown_fields=True, frozen=True):
    """A user, a history, or both, and the item to explain."""

    item: Annotated[Key, Meta(description="Item key.")]
    user: User = None
    history: History = None
    k: Annotated[
        int | None,
        Meta(
            description="Number of shares, the largest; none: all.",
            extra_json_schema={"minimum": 1},
        ),
    ] = None
    columns: Columns = []
    model: Name | None = None


class Vectors(Struct, forbid_unknown_fields=True, frozen=True):
    """Users, histories, or both."""

    users: Annotated[list[Key] | None, Meta(description="User keys.")] = None
    histories: Annotated[
        list[list[Key]] | None, Meta(description="Item keys per user, oldest first.")
    ] = None
    model: Name | None = None


class Look(Struct, forbid_unknown_fields=True, frozen=True):
    """What to look for in the catalogue."""

    q: Annotated[str, Meta(description="Start of a key, or text in an item column.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="Rows, at most.")] = 20
    model: Name | None = None


class Which(Struct, forbid_unknown_fields=True, frozen=True):
    """Which model to ask."""

    model: Name | None = None


class Event(Struct, forbid_unknown_fields=True, frozen=True):
    """An event: a user interacted with an item. A repeated event_id counts once."""

    user: Annotated[Key, Meta(description="User key; it need not be known.")]
    item: Annotated[Key, Meta(description="Item key; it need not be known.")]
    time: Annotated[
        float | None,
        Meta(description="Seconds since 1970; none: now.", extra_json_schema={"minimum": 0}),
    ] = None
    weight: Annotated[
        float,
        Meta(
            description="How much it counts in training.",
            extra_json_schema={"minimum": WEIGHTS[0], "maximum": WEIGHTS[1]},
        ),
    ] = 1.0
    event_id: Annotated[str, Meta(description="What tells it from others; none: a new one.")] = ""


class Reload(Struct, forbid_unknown_fields=True, frozen=True):
    """Which file to load."""

    path: Annotated[str | None, Meta(description="Model file or run folder; none: the same.")] = (
        None
    )
    other_catalogue: Annotated[
        bool, Meta(description="Swap although most served items are not in the new model.")
    ] = False


ENCODER = msgspec.json.Encoder(enc_hook=str)


def encode(value: Any) -> bytes:
    """Return a value as JSON; keys of other types are written as text."""
    return ENCODER.encode(value)
