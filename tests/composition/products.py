"""Two towers by loops: vectors of users and items, their queries and their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

import softdex as sdx
from composition.loops import Leaves, Ran, Rows
from composition.suite import tiny

Vector = Callable[[int], Tensor]
GENRES: list[list[str] | None] = [
    ["b", "a"], ["a"], None, ["c"], ["a", "c", "b"], ["b"], ["c", "b"], ["a"], ["b"], ["c"],
    ["a", "b"], ["d", "a"],
]  # fmt: skip
PRICES = [3.0, None, 1.5, 4.0, 9.0, 2.0, 2.5, None, 6.0, 1.0, 5.0, 7.0]
CITIES = ["x", "y", "x", "z", None, "y", "x", "y"]


def featured() -> sdx.Interactions:
    """The tiny log with columns of items and users, a user without events, and an item without
    events, whose genre d no other item has."""
    items = {"item": [f"i{n}" for n in range(12)], "genre": GENRES, "price": PRICES}
    users = {"user": [f"u{n}" for n in range(8)], "city": CITIES}
    return tiny(items=items, users=users)


def cells(values: Sequence[Any], first: int) -> tuple[list[list[tuple[int, float]]], int]:
    """Tokens and their weights per row of a column of categories, and the number of tokens."""
    lists = [v if isinstance(v, list) else [] if v is None else [v] for v in values]
    known = sorted({word for words in lists for word in words})
    found = [
        [(first + 1 + known.index(word), 1 / len(words)) for word in words] or [(first, 1.0)]
        for words in lists
    ]
    return found, 1 + len(known)


def standard(values: Sequence[float | None]) -> list[float]:
    """Numbers less their mean over their deviation, 0 where missing."""
    real = [v for v in values if v is not None]
    mean = sum(real) / len(real)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in real) / len(real))
    return [0.0 if v is None else (v - mean) / deviation for v in values]


def columns_of(
    ran: Ran, what: str
) -> tuple[list[list[tuple[int, float]]], list[list[float]], int] | None:
    """Tokens per row, numbers per row and the number of tokens of the features a recipe was given;
    None for none."""
    given = ran.options["features" if what == "item" else "user_features"]
    if given is None:
        return None
    table = ran.log.item_table if what == "item" else ran.log.user_table
    assert table is not None
    names = table.column_names if given == "all" else given
    names = [names] if isinstance(names, str) else names
    tokens: list[list[tuple[int, float]]] = [[] for _ in range(len(table))]
    numbers: list[list[float]] = [[] for _ in range(len(table))]
    first = 0
    for name in names:
        values = table[name].to_pylist()
        if name == "price":
            for row, number in enumerate(standard(values)):
                numbers[row].append(number)
                tokens[row] += [(first, 1.0)] if values[row] is None else []
            first += 1
            continue
        found, size = cells(values, first)
        tokens = [a + b for a, b in zip(tokens, found, strict=True)]
        first += size
    return tokens, numbers, first


def dropped(row: int, salt: int, dropout: float) -> bool:
    """Whether a row has no vector of its own in the step with this salt."""
    mixed = (row * 2654435761 + salt * 40503) & 0xFFFFFFFF
    for _ in range(2):
        mixed = ((mixed >> 16) ^ mixed) * 0x45D9F3B & 0xFFFFFFFF
    return mixed < dropout * 2**32


def vectors_in(
    ran: Ran,
    state: dict[str, Tensor],
    part: str,
    what: str,
    leaves: Leaves | None,
    salt: int | None,
) -> Vector:
    """The vectors of one side in a state: rows of a table, or sums over features.

    With `leaves` they are looked up there, and have gradients; without `salt` nothing is dropped.
    """
    columns = columns_of(ran, what)

    def table(name: str) -> Rows:
        if leaves is not None:
            return leaves.tables[name]
        return Rows(state[f"model.{name}.weight"], learns=False)

    if columns is None:
        return table(part).__getitem__
    tokens, numbers, _ = columns
    words, own = table(f"{part}.tokens"), ran.options["ids"] == "add"
    ids = table(f"{part}.own") if own else None
    name = f"{part}.numeric"
    numeric = state.get(f"model.{name}") if leaves is None else leaves.dense.get(name)

    def vector(row: int) -> Tensor:
        total = torch.zeros(words.weight.shape[1], dtype=torch.float64)
        for token, weight in tokens[row]:
            total = total + weight * words[token]
        for n, number in enumerate(numbers[row]):
            assert numeric is not None
            total = total + number * numeric[n]
        lost = salt is not None and dropped(row, salt, ran.options["id_dropout"])
        return total if ids is None or lost else total + ids[row]

    return vector


class Pair:
    """Queries and scores in one state of a run: of a step with its leaves, or of its end.

    Args:
        ran: the training.
        state: tensors by the names of the run.
        leaves: of the step; None: nothing is looked up.
        salts: the state with the numbers by which own vectors are dropped in the step; None: none.
    """

    def __init__(
        self,
        ran: Ran,
        state: dict[str, Tensor],
        leaves: Leaves | None = None,
        salts: dict[str, Tensor] | None = None,
    ) -> None:
        self.ran, given = ran, ran.options
        part = "scorer.items" if given["encoder"] == "user" else "encoder.items"

        def vectors(part: str, what: str) -> Vector:
            salt = None if salts is None else salts.get(f"model.{part}.salt")
            number = None if salt is None else int(salt)
            return cache(vectors_in(ran, state, part, what, leaves, number))

        self.user, self.item = vectors("encoder.vectors", "user"), vectors(part, "item")
        self.cosine, self.bias = given["score"] == "cosine", None
        self.euclidean = given["score"] == "euclidean"
        if given["score"] == "dot_bias":
            kept = Rows(state["model.scorer.bias.weight"], learns=False)
            self.bias = kept if leaves is None else leaves.tables["scorer.bias"]
        self.items = ran.log.num_items
        self.direction = cache(self._direction)

    def query(self, user: int, history: Sequence[int] = (), target: int | None = None) -> Tensor:
        """The query of a user (-1: none) with this history, of which the target is left out."""
        given = self.ran.options
        if given["encoder"] == "user":
            return self.user(user)
        read = [i for i in list(history)[-given["max_history"] :] if i != target]
        mean = torch.zeros(given["dim"], dtype=torch.float64)
        for item in read:
            mean = mean + self.item(item) / len(read)
        share = given["share"] if given["encoder"] == "mix" and user >= 0 else 0.0
        if user < 0:
            return mean
        return share * self.user(user) + (1 - share) * mean

    def projected(self, query: Tensor) -> Tensor:
        """What directions are multiplied with."""
        if self.euclidean:  # 2 q . x - |x|^2 ranks by the distance
            return 2 * query / query.norm().clamp(min=1)
        if not self.cosine:
            return query
        return query / query.norm().clamp(min=1e-12) / self.ran.options["temperature"]

    def _direction(self, item: int) -> Tensor:
        """The vector of an item as it is scored."""
        vector = self.item(item)
        if self.euclidean:
            return vector / vector.norm().clamp(min=1)
        return vector / vector.norm().clamp(min=1e-12) if self.cosine else vector

    def offset(self, item: int) -> Tensor | float:
        """What is added to the score of an item."""
        if self.bias is not None:
            return self.bias[item][0]
        if self.euclidean:
            return -self.direction(item).square().sum()
        return offsets(self.ran)[item] if self.cosine else 0.0

    def score(self, projected: Tensor, item: int) -> Tensor:
        """The score of an item for a projected query."""
        return projected @ self.direction(item) + self.offset(item)

    def scores(self, query: Tensor) -> list[float]:
        """The scores of all items for a query."""
        projected = self.projected(query)
        return [float(self.score(projected, i)) for i in range(self.items)]


def offsets(ran: Ran) -> list[float]:
    """The prior of each item by its count; an item with features and no events has the mean."""
    known = [ran.options["prior"] * math.log1p(count) for count in ran.facts.counts]
    met = [value for value, count in zip(known, ran.facts.counts, strict=True) if count]
    if ran.options["features"] is None:
        return known
    pairs = zip(known, ran.facts.counts, strict=True)
    return [value if count else sum(met) / len(met) for value, count in pairs]


def living(ran: Ran) -> list[int]:
    """The items that can be negatives: where items have features, those with events."""
    every = range(ran.log.num_items)
    return [i for i in every if ran.options["features"] is None or ran.facts.counts[i]]


def start_of(ran: Ran) -> dict[str, Tensor]:
    """The tables before the first step, by the seed."""
    given, found = ran.options, {}
    generator = torch.Generator().manual_seed(given["seed"])
    scale = (0.3 if given["score"] in ("cosine", "euclidean") else 0.1) / math.sqrt(given["dim"])
    items = "scorer.items" if given["encoder"] == "user" else "encoder.items"
    for part, what in (("encoder.vectors", "user"), (items, "item")):
        columns = columns_of(ran, what)
        counts = ran.log.user_counts if what == "user" else ran.log.item_counts

        def random(rows: int) -> Tensor:
            return torch.randn(rows, given["dim"], generator=generator) * scale

        if columns is None:
            found[f"{part}.weight"] = random(len(counts))
            continue
        tokens, numbers, size = columns
        met = {t for row, count in zip(tokens, counts, strict=True) if count for t, _ in row}
        if given["ids"] == "add":
            own = random(len(counts))
            own[torch.tensor(counts == 0)] = 0.0
            found[f"{part}.own.weight"] = own
        words = random(size)
        words[[t for t in range(size) if t not in met]] = 0.0
        found[f"{part}.tokens.weight"], found[f"{part}.numeric"] = words, random(len(numbers[0]))
    if given["score"] == "dot_bias":
        found["scorer.bias.weight"] = torch.zeros(ran.log.num_items, 1)
    return found
