"""Off-policy evaluation: the reward that a model's own draws would earn, from logged events.

The policy draws one item i for user u with probability

    pi(i | u) = exp(score / temperature) / sum of the same over the items that may be shown

Shapes: E events, U users, I items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from softdex.data.arrow import NOT_CONVERTIBLE
from softdex.data.expect import expect
from softdex.data.keys import find
from softdex.data.memory import table_of
from softdex.data.ragged import Ragged, empty
from softdex.errors import DataError, SoftdexError, choose, counted, did_you_mean
from softdex.index.contract import MAX_MEMORY
from softdex.machine import parse_bytes
from softdex.model.asking import Asked, batch_size, histories_of, queries, who, whole
from softdex.model.estimate import softmax_of
from softdex.model.kinds import TEMPERATURES
from softdex.model.retriever import Retriever
from softdex.tables import cell, render

SHRINK = 10.0  # events of the mean reward that an item's own mean is mixed with
ESTIMATORS = {
    "logged": "the mean reward in the log",
    "ips": "inverse propensity",
    "snips": "self-normalised",
    "dr": "doubly robust",
}
ROLES = ("user", "item", "reward", "propensity", "history", "above")
Rewards = Callable[[pa.Array], np.ndarray]


class Estimate(NamedTuple):
    """An expected reward per event, its standard error, and the bounds of its interval."""

    value: float
    standard_error: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False, repr=False)
class OffPolicy:
    """Estimates of the expected reward per event of a model's policy.

    Attributes:
        estimates: by name: `logged` (the mean reward in the log), `ips`, `snips` and `dr`.
        events, users: numbers of events, and of users or histories.
        effective: effective number of events, (sum w)^2 / sum w^2 of the weights w.
        mean_weight: near 1 if propensities are right and every item the policy shows could have
            been logged.
        max_weight: the largest weight.
        unsupported: fraction of the events whose item the policy never shows.
        temperature: of the policy.
        interval: `normal` or `bootstrap`, and its `level`.
    """

    estimates: Mapping[str, Estimate]
    events: int
    users: int
    effective: float
    mean_weight: float
    max_weight: float
    unsupported: float
    temperature: float
    interval: str
    level: float

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[choose("OffPolicy", "estimator", name, list(self.estimates))]

    @property
    def table(self) -> pa.Table:
        """One row per estimator: `estimator`, `value`, `standard_error`, `low` and `high`."""
        rows = [{"estimator": n} | e._asdict() for n, e in self.estimates.items()]
        return pa.Table.from_pylist(rows)

    def __repr__(self) -> str:
        who = f"{counted(self.events, 'events')} of {counted(self.users, 'users')}"
        title = f"Expected reward per event, {who}, {self.level:.0%} {self.interval} intervals"
        rows = [[cell(v) for v in row.values()] for row in self.table.to_pylist()]
        return (
            f"{render(title, self.table.column_names, rows)}\n"
            f"weights: mean {self.mean_weight:.3f}, largest {self.max_weight:.1f}, worth "
            f"{self.effective:,.0f} events; {self.unsupported:.1%} of the events never shown"
        )


class Events(NamedTuple):
    """Logged events: who was asked about, the item shown (E,), its reward and propensity (E,), and
    items shown above it, which the policy cannot show again."""

    asked: Asked
    item: np.ndarray
    reward: np.ndarray
    propensity: np.ndarray
    above: Ragged


def off_policy(
    events: Any,
    model: Retriever,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: Rewards | None = None,
    temperature: float | None = None,
    exclude_seen: bool = True,
    interval: str = "normal",
    level: float = 0.95,
    samples: int = 1000,
    seed: int = 0,
    max_memory: int | str = MAX_MEMORY,
) -> OffPolicy:
    """Estimate the expected reward per event if the model had drawn the items, from a log.

    The model draws one item from its softmax over items that are not removed, not seen by the user
    and not in `above`. With `above`, this is the value of a position given the items above it.

    Args:
        events: table with a row per item shown: `user`, `item`, `reward` and `propensity`, the
            probability with which the logging system showed this item then. Optional columns of
            lists: `history`, the user's item keys then, oldest first, for models that read
            histories (`user` may then be absent); `above`, the items shown above.
        model: with item vectors.
        columns: the names of these columns in the table where they differ, such as
            `{"reward": "click"}`.
        rewards: returns the expected rewards (B, I) of all items, in the order of `model.items`,
            for users given by key, for the doubly robust estimate; it must not be fitted to these
            events. None: mean rewards per item, each half of the users with those of the other.
        temperature: divides the scores; None: that of the model.
        exclude_seen: whether the policy excludes the items of the history.
        interval: `normal`, or `bootstrap` over users.
        level: of the intervals.
        samples: of the bootstrap.
        seed: of the bootstrap and of the halves.
        max_memory: bytes (or "2GB") of scores held at a time.
    """
    expect(Retriever, "off_policy", model)
    choose("off_policy", "interval", interval, ("normal", "bootstrap"))
    heat = _between("temperature", model.temperature if temperature is None else temperature,
                    *TEMPERATURES)  # fmt: skip
    _between("level", level, 0.5, 0.9999)
    whole("off_policy", samples)
    found = _read(events, model, columns or {})
    group = _groups(found.asked)
    generator = np.random.default_rng(seed)
    fold = generator.permutation(group.max() + 1)[group] % 2
    expected = _item_means(found, fold, len(model.items)) if rewards is None else rewards
    shown, direct, at_item = _policy(
        model, found, heat, exclude_seen, expected, fold, parse_bytes(max_memory)
    )
    weight, one = shown / found.propensity, np.ones(len(shown))
    parts = {
        "logged": (found.reward, one),
        "ips": (weight * found.reward, one),
        "snips": (weight * found.reward, weight),
        "dr": (direct + weight * (found.reward - at_item), one),
    }
    each = {
        name: ratio(
            np.bincount(group, over), np.bincount(group, under), interval, level, samples, seed
        )
        for name, (over, under) in parts.items()
    }
    square = float((weight**2).sum())
    return OffPolicy(
        each, len(weight), int(group.max()) + 1,
        effective=float(weight.sum()) ** 2 / square if square else 0.0,
        mean_weight=float(weight.mean()), max_weight=float(weight.max()),
        unsupported=float((shown == 0).mean()), temperature=heat, interval=interval, level=level,
    )  # fmt: skip


def ratio(
    over: np.ndarray, under: np.ndarray, interval: str, level: float, samples: int, seed: int
) -> Estimate:
    """Estimate a ratio of sums over independently drawn users, with its interval.

    The normal interval is that of the linearised ratio. NaN where the sum below is 0; the error of
    a single user is NaN.

    Args:
        over, under: sums per user (U,).
        interval, level, samples, seed: as in `off_policy`.
    """
    from scipy.stats import norm  # takes a while to import

    users, total = len(over), under.sum()
    value = float(over.sum() / total) if total else math.nan
    if users < 2 or not total:
        return Estimate(value, math.nan, math.nan, math.nan)
    if interval == "normal":
        gaps = over - value * under
        error = math.sqrt(users / (users - 1) * float(gaps @ gaps)) / abs(float(total))
        half = float(norm.ppf((1 + level) / 2)) * error
        return Estimate(value, error, value - half, value + half)
    generator = np.random.default_rng(seed)
    found = np.empty(samples)
    for sample in range(samples):
        times = np.bincount(generator.integers(users, size=users), minlength=users)
        below = times @ under
        found[sample] = times @ over / below if below else value
    low, high = np.quantile(found, ((1 - level) / 2, (1 + level) / 2))
    return Estimate(value, float(found.std()), float(low), float(high))


# inside ------------------------------------------------------------------------------------------


@torch.inference_mode()
def _policy(
    model: Retriever,
    found: Events,
    temperature: float,
    exclude_seen: bool,
    expected: np.ndarray | Rewards,
    fold: np.ndarray,
    max_memory: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per event the probability of its item, the expected reward of the policy by the model
    of rewards, and that model's reward for the item, (E,) each."""
    softmax = softmax_of(model, "off_policy", temperature)
    count, asked = len(model.items), found.asked
    shown, direct, at_item = (np.zeros(len(found.item)) for _ in range(3))
    size = batch_size(model.encoder, max_memory, 2 * count)
    for part, query in queries(model, asked.rows, asked.history, size):
        scores = softmax.candidates(softmax.scaled(query), slice(None)).double().cpu()
        for hidden in (asked.history, found.above) if exclude_seen else (found.above,):
            mine = hidden.take(part)
            scores[mine.row_of, mine.ids.astype(np.int64)] = -torch.inf
        chance = scores.softmax(1).nan_to_num(0.0).numpy()  # NaN where no item may be shown
        if callable(expected):
            worth = _rewards(expected(asked.names.take(pa.array(part))), (len(part), count))
        else:
            worth = expected[fold[part]]
        rows, items = np.arange(len(part)), found.item[part]
        shown[part], at_item[part] = chance[rows, items], worth[rows, items]
        direct[part] = (chance * worth).sum(1)
    return shown, direct, at_item


def _rewards(given: Any, shape: tuple[int, int]) -> np.ndarray:
    worth = np.asarray(given, dtype=np.float64)
    if worth.shape != shape or not np.isfinite(worth).all():
        raise SoftdexError(
            f"off_policy: expected rewards= to return finite numbers {shape}, one per user and "
            f"item, got {worth.shape}."
        )
    return worth


def _item_means(found: Events, fold: np.ndarray, items: int) -> np.ndarray:
    """Return mean rewards of all items (2, I), for each fold from the events of the other one.

    An item's mean is mixed with that of all events, which counts as SHRINK events.
    """
    means = np.zeros((2, items))
    for half in range(2):
        mine = fold != half
        if mine.any():
            reward, item = found.reward[mine], found.item[mine]
            sums = np.bincount(item, reward, items) + SHRINK * reward.mean()
            means[half] = sums / (np.bincount(item, minlength=items) + SHRINK)
    return means


def _groups(asked: Asked) -> np.ndarray:
    """Number the users of the events (E,); a history without a user is a user of its own."""
    found: np.ndarray = pc.dictionary_encode(asked.names).indices.to_numpy()
    return found


def _read(events: Any, model: Retriever, columns: Mapping[str, str]) -> Events:
    """Read logged events; refuse what no propensity, reward or key can be."""
    table = _table(events)
    for role in columns:
        choose("off_policy", "column", role, ROLES)
    names = {role: columns.get(role, role) for role in ROLES}
    there = {role for role, name in names.items() if name in table.column_names}
    needed = {"item", "reward", "propensity", *columns, "history" if "history" in there else "user"}
    for role in sorted(needed - there):
        more = " Log the probability with which each item was shown." * (role == "propensity")
        raise DataError(
            f"off_policy: the events have no column {names[role]!r}.{more} "
            f"{did_you_mean(names[role], table.column_names)} Name it by "
            f"columns={{{role!r}: name}}."
        )
    if not len(table):
        raise DataError("off_policy: expected at least one event, got none.")
    cells = {role: table[names[role]].combine_chunks() for role in there}
    reward, propensity = (_numbers(cells[role], names[role]) for role in ("reward", "propensity"))
    for wrong, words in ((propensity <= 0, "above 0"), (propensity > 1, "of at most 1")):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"off_policy: expected propensities {words}, got {propensity[row]:g} in row {row} "
                f"of {names['propensity']!r}. It is the probability with which the logging system "
                "showed this item."
            )
    past = cells["history"].to_pylist() if "history" in there else None
    above = empty(len(table))
    if "above" in there:
        lists = [cell or [] for cell in cells["above"].to_pylist()]
        above = histories_of(model.items, "off_policy", lists, "error", "above")
    asked = who(model, "off_policy", cells.get("user"), past)
    item = find(model.items, cells["item"], "off_policy", "items")
    return Events(asked, item, reward, propensity, above)


def _table(events: Any) -> pa.Table:
    try:
        return table_of(events)
    except (DataError, *NOT_CONVERTIBLE) as error:
        raise DataError(
            f"off_policy: expected events as a table in memory, got {type(events).__name__} "
            f"({str(error).removeprefix('read: ').rstrip('.')})."
        ) from None


def _numbers(column: pa.Array, name: str) -> np.ndarray:
    """Return a column as finite numbers (E,)."""
    try:
        found: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except NOT_CONVERTIBLE:
        raise DataError(
            f"off_policy: expected numbers in {name!r}, got {column.type}. Cast the column."
        ) from None
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        raise DataError(
            f"off_policy: expected a number in row {row} of {name!r}, got none. Drop or fill it."
        )
    return found


def _between(name: str, value: Any, low: float, high: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise SoftdexError(f"off_policy: expected {name} from {low:g} to {high:g}, got {value!r}.")
    return float(value)
