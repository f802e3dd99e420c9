"""What answers hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from softdex.serve.words import Key

Live = Annotated[
    bool | None,
    Meta(
        description="Only where the user has live events: whether the ranking reads them. "
        "Else the model keeps one vector per user, and they are excluded only."
    ),
]


class Item(Struct, omit_defaults=True):
    """An item of a list; item columns that were asked for stand beside these."""

    item: Key
    rank: int
    score: float | None
    log_prob: Annotated[
        float, Meta(description="Of a sample: of the item, given those above it.")
    ] = 0.0
    propensity: Annotated[
        float, Meta(description="Of a sample: of the item in the list; its inverse is a weight.")
    ] = 0.0


class Sampled(Struct, rename={"source": "from"}):
    """How a list was drawn."""

    seed: int
    temperature: float
    source: Annotated[str, Meta(description="Items drawn from: all, or the best of an index.")]


class Recommended(Struct, omit_defaults=True):
    """The list of a user."""

    model: str
    seal: str
    request_id: str
    user: Key | None
    items: list[Item]
    took_ms: float
    fallback: Annotated[
        Literal["popular"] | None, Meta(description="Most popular items: the user has no events.")
    ] = None
    live: Live = None
    empty: Annotated[str, Meta(description="Only of a list without items: why.")] = ""
    sampling: Annotated[Sampled | None, Meta(description="Only in mode sample.")] = None


class ScoredItem(Struct, omit_defaults=True):
    """An item that was given; item columns that were asked for stand beside these."""

    item: Key
    rank: Annotated[
        int | None, Meta(description="Among all items that could be recommended; else null.")
    ]
    score: float | None
    log_prob: Annotated[
        float | None, Meta(description="log p(item | user), of models with item vectors.")
    ] = None


class Scored(Struct, omit_defaults=True):
    """The scores of items, in the order given."""

    model: str
    seal: str
    request_id: str
    user: Key | None
    items: list[ScoredItem]
    took_ms: float
    live: Live = None


class Share(Struct):
    """What an item of the history adds to the score; of `user`: what the user's own vector adds."""

    of: Literal["history", "user"]
    item: Key | None
    share: float


class Node(Struct):
    """The item's node on a level of the beam search; score and rank are null where it was lost."""

    level: int
    node: int
    score: float | None
    rank: int | None
    candidates: int
    kept: int


class Explained(Struct, omit_defaults=True):
    """The score of an item in parts. Where `exact`, it is base + shares + rest."""

    model: str
    seal: str
    request_id: str
    user: Key | None
    item: Key
    score: float
    base: float
    rest: float
    exact: bool
    method: str
    shares: list[Share]
    path: Annotated[list[Node] | None, Meta(description="Of trees: the beam.")]
    took_ms: float
    live: Live = None


class Vectored(Struct, omit_defaults=True):
    """Query vectors, one per user or history, as float32 numbers."""

    model: str
    seal: str
    request_id: str
    vectors: list[list[float]]
    took_ms: float
    live: Annotated[
        list[bool | None], Meta(description="Per user, as in a list; only where one has any.")
    ] = []


class Neighbours(Struct):
    """The items that are similar to one."""

    item: Key
    items: list[Item]


class Alike(Struct):
    """Similar items."""

    model: str
    seal: str
    request_id: str
    similar: list[Neighbours]
    took_ms: float


class ProblemDetails(Struct):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    field: Annotated[str, Meta(description="Which field is wrong.")] = ""


EITHER = {
    "anyOf": [{"$ref": f"#/components/schemas/{n}"} for n in ("Recommended", "ProblemDetails")]
}


class Recommendeds(Struct):
    """One answer or problem per request, in order."""

    model: str
    request_id: str
    answers: Annotated[list[dict[str, Any]], Meta(extra_json_schema={"items": EITHER})]
    took_ms: float


class Found(Struct):
    """Rows of the catalogue."""

    model: str
    seal: str
    rows: list[dict[str, Any]]


class Shown(Struct):
    """Items that were asked for; null for unknown ones."""

    model: str
    seal: str
    rows: list[dict[str, Any] | None]


class Working(Struct):
    """The answer is still computed: ask again."""

    working: bool


class Models(Struct):
    """The served models."""

    default: str
    shares: dict[str, float]
    models: list[dict[str, Any]]


class Accepted(Struct):
    """Events that are on disk."""

    request_id: str
    new: Annotated[int, Meta(description="Events whose event_id was not known.")]
    repeated: int
    live: Annotated[
        dict[str, bool], Meta(description="Per model, whether its lists follow live events.")
    ]


class Reloaded(Struct):
    """A model was swapped."""

    model: str
    old: str
    new: str
    seconds: float


class Health(Struct):
    """Whether the server answers."""

    status: Literal["ok", "not ready", "broken"]
    reasons: list[str]
