"""What the views of the page are answered with. Shares are fractions, times are milliseconds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from softdex.serve.words import Key

Number = float | None


class OfModel(Struct):
    """Names the model that is shown."""

    model: str
    seal: str


# popularity --------------------------------------------------------------------------------------


class OfPlaces(Struct):
    """A figure of the lists, and the same of the training events."""

    places: float
    events: float


class Class(Struct):
    """Items of a class by popularity, and what they have of the places and of the events."""

    name: str
    items: int
    places: float
    events: float


class Tenth(Struct):
    """A tenth of the items, with its fewest and most events per item."""

    low: int
    high: int
    items: int
    places: float
    events: float


class Curves(Struct):
    """Lorenz curves: the share of the least 0, 1, ... 100 per cent of the items."""

    places: list[float]
    events: list[float]


class Popularity(Struct):
    """Mean share of the items that are at most as popular, of lists and histories."""

    lists: float
    histories: float


class TopItem(Struct):
    """An item, the share of the lists that it is in, its events and its rank by them."""

    item: Key
    share: float
    events: int
    rank: int


class OfValue(Struct):
    """The share of the places and of the histories that a value of a column has."""

    value: str
    places: float
    histories: float


class Exposures(OfModel, omit_defaults=True):
    """How lists spread over the catalogue. A place is one item of one list."""

    k: int
    cutoffs: list[int]
    held_out: Annotated[bool, Meta(description="Whether the lists are those of the metrics.")]
    lists: int
    places: int
    items: int
    listed: Annotated[int, Meta(description="Items that are in a list.")]
    half: Annotated[int, Meta(description="Items that half of the places go to.")]
    gini: OfPlaces
    popularity: Popularity
    classes: list[Class]
    tenths: list[Tenth]
    curve: Curves
    top: list[TopItem]
    column: str = ""
    values: list[OfValue] = []


# breakdown ---------------------------------------------------------------------------------------


class Ratio(Struct):
    """A mean with its 95 % interval, null for fewer than two users."""

    users: int
    count: Annotated[int, Meta(description="Users asked, or held-out items.")]
    value: float
    low: Number
    high: Number


class Group(Ratio, omit_defaults=True):
    """A group of users or of held-out items."""

    name: str
    items: int = 0


class Broken(OfModel):
    """A metric per group."""

    by: str
    metric: str
    metrics: list[str]
    cutoffs: list[int]
    column: str | None
    whole: Ratio
    groups: list[Group]


class GroupUser(Struct):
    """A user of a group."""

    user: Key
    events: int
    value: float
    count: int


class UsersOfGroup(OfModel):
    """The users of a group."""

    group: str
    metric: str
    users: int
    rows: list[GroupUser]


# effort ------------------------------------------------------------------------------------------


class Point(Struct, omit_defaults=True):
    """What a search finds at an effort, null for an exact one; `_held` is on the held-out items."""

    effort: Number
    recall: float
    ms: float
    recall_held: Number = None
    ndcg_held: Number = None


class Efforts(OfModel):
    """What an index finds of the exact lists."""

    index: str
    serves: Annotated[bool, Meta(description="Whether the index serves, or only could.")]
    present: Annotated[Number, Meta(description="Effort that it serves with; null: exact.")]
    items: int
    k: int
    users: int
    timed: int
    held_out: bool
    exact: Point
    points: list[Point]


class FoundItem(Struct):
    """An item of a list, with its rank in the exact one."""

    item: Key
    rank: int
    score: Number
    exact: int | None


class LostItem(Struct):
    """An item of the exact list that is missed."""

    item: Key
    exact: int


class EffortLists(OfModel):
    """The list of a user at an effort."""

    user: Key | None
    effort: Number
    ms: float
    exact_ms: float
    recall: float
    items: list[FoundItem]
    lost: list[LostItem]


# sampler -----------------------------------------------------------------------------------------


class Proposal(Struct):
    """A proposal q beside the softmax p."""

    name: str
    own: Annotated[bool, Meta(description="Whether the model is trained with it.")]
    kl: Annotated[float, Meta(description="KL(q || p), in nats.")]
    effective: Annotated[float, Meta(description="Effective draws per draw.")]
    q: list[float]


class Samplers(OfModel):
    """Proposals of a user; p and q are means over ranges of ranks by the softmax."""

    user: Key | None
    temperature: float
    default: float
    fitted: Annotated[bool, Meta(description="Whether the default was fitted to the holdout.")]
    scales: Annotated[bool, Meta(description="Whether proposals follow the temperature.")]
    negatives: int | None
    items: int
    perplexity: float
    ranks: list[list[int]]
    p: list[float]
    proposals: list[Proposal]


class Draw(Struct):
    """An item that was drawn, and its share of all weights p / q."""

    item: Key
    log_q: float
    log_p: float
    weight: float


class Drawings(OfModel):
    """Draws from a proposal, and estimates of the log-normaliser from the first n of them."""

    user: Key | None
    proposal: str
    n: int
    distinct: int
    effective: float
    expected: float
    normaliser: float
    estimates: list[tuple[int, float]]
    draws: list[Draw]


class Trainings(OfModel):
    """The records of the epochs of a training."""

    source: str | None
    recipe: str
    metric: str
    best_epoch: int | None
    records: list[dict[str, float]]


# inside ------------------------------------------------------------------------------------------


class ShownNode(Struct):
    """A node of a tree: on a `path` to the list, on the `trail` to a lost item, where that was
    `lost`, `kept` or `cut`."""

    number: int
    parent: int
    kind: str
    rank: int
    shade: Annotated[float, Meta(description="0 for the worst score of the level, 1 for the best.")]
    leads: Annotated[list[int], Meta(description="Ranks of the items of the list below it.")]
    name: str
    detail: str
    note: str
    x: Annotated[float, Meta(description="Place in the drawing, from 0 to 1.")]


class ShownLevel(Struct):
    """A level of a beam search, and its nodes that are drawn."""

    level: int
    size: int
    scored: int
    kept: int
    candidates: int
    nodes: list[ShownNode]


class InList(Struct):
    """An item of the list of a beam search."""

    item: Key
    title: str
    rank: int
    exact: int | None


class LostOn(Struct):
    """An item of the exact list, and the level on which the beam lost it."""

    item: Key
    title: str
    exact: int | None
    level: int


class Insides(OfModel, omit_defaults=True):
    """What a search looks at: the levels of a `tree`, or the cells of a multi-index (`imi`), in
    rows and columns of falling scores of their codewords."""

    user: Key | None
    kind: str
    serves: bool
    effort: Number
    named: str | None = None
    levels: list[ShownLevel] = []
    lost: list[LostOn] = []
    items: list[InList] = []
    cells: Annotated[list[float], Meta(description="Items per cell.")] = []
    codewords: int = 0
    side: int = 0
    last: str = ""
    mass: Annotated[list[float], Meta(description="Of the index's law, per cell.")] = []
    softmax: Annotated[list[float], Meta(description="Of the softmax, per cell.")] = []
    opened: Annotated[list[float], Meta(description="Items of the cells that are opened.")] = []
    looked: int = 0
    listed: Annotated[list[tuple[Key, int]], Meta(description="Items and their cells.")] = []
    history: Annotated[list[tuple[Key, int]], Meta(description="Items and their cells.")] = []


# map ---------------------------------------------------------------------------------------------


class Maps(OfModel):
    """Items in the plane, similar ones close together; coordinates are from 0 to 10,000."""

    items: list[Key]
    x: list[int]
    y: list[int]
    events: list[int]
    column: str | None
    values: list[str]
    value: Annotated[list[int], Meta(description="Place among the values, -1 for others.")]
    of: Annotated[int, Meta(description="Items of the catalogue.")]
    kept: Annotated[float, Meta(description="Share of the nearest items that are near here.")]
    plane: Annotated[float, Meta(description="The same of the two main directions alone.")]
    checked: int
    around: int
