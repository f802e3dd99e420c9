"""Sizing: how much memory, network and time a training needs, and on how many ranks it fits.

Memory is what the recipe's own job predicts (`Job.memory`). A job of a billion users cannot be made
to ask it; but its prediction is a sum of terms in the numbers of users, items and events, so jobs
of small logs give the terms, and these the prediction at any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from softdex.data.interactions import Interactions
from softdex.data.keys import range_keys
from softdex.distributed import costs
from softdex.encode.table import tables_in
from softdex.errors import SoftdexError
from softdex.fit import make_job
from softdex.machine import pick_device
from softdex.messages import volume
from softdex.objective.softmax import SCORES_AT_A_TIME
from softdex.recipes.catalogue import checked, entry, options
from softdex.recipes.compose import automatic
from softdex.solve.gradient.feed import Sequences
from softdex.solve.gradient.trainer import Descent
from softdex.solve.loop import Job

MOST = 2**31 - 1  # ids are int32
ROOM = 0.9  # of a rank's memory that a training may take
MOST_RANKS = 2**20
GATHERED = 10**9  # bytes of what comes over the network that a rank holds at a time, at most
LONG = 1000  # events of the longest history of a stand-in log


class Sizes(NamedTuple):
    """How large a log is."""

    users: int
    items: int
    events: int

    def shared(self, ranks: int) -> Sizes:
        """Return the part of one of this many ranks."""
        return Sizes(*(-(-count // ranks) for count in self))


@dataclass(frozen=True)
class Machines:
    """What there is to train on.

    Attributes:
        ranks: most processes: one per GPU, or one on the CPU.
        gpu: whether they have a GPU each.
        memory: bytes per rank.
        network: bytes per second of a rank.
    """

    ranks: int
    gpu: bool
    memory: int
    network: float


@dataclass(frozen=True)
class Layout:
    """A way to spread a training.

    Attributes:
        tables: `replicated` on every rank, or `sharded` by row over the ranks.
        ranks: number of processes.
        memory: bytes per rank, beside the libraries.
        network: bytes that a rank receives per step (a sweep for closed forms).
        steps: steps per epoch.
        seconds: per epoch; None where no step of the recipe was measured.
        fits: whether the memory is enough.
    """

    tables: str
    ranks: int
    memory: int
    network: int
    steps: int
    seconds: float | None
    fits: bool


@dataclass(frozen=True)
class Sizing:
    """The layouts of a training, and the cheapest that fits; None if none does.

    Attributes:
        recipe: its name.
        sizes: of the log.
        options: what was given, and what follows from the size.
        layouts: every layout that was looked at.
        cheapest: the one of fewest rank-seconds, or of fewest ranks where seconds are unknown.
        needed: the fewest ranks of this memory that would do, where none fits.
        source: where the seconds come from.
    """

    recipe: str
    sizes: Sizes
    options: dict[str, Any]
    layouts: list[Layout]
    cheapest: Layout | None
    needed: int | None
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self) | {"sizes": self.sizes._asdict()}


class Needs(NamedTuple):
    """What a job of a log needs.

    Attributes:
        memory: bytes, as the job predicts them.
        rows: rows of an epoch, of which a step takes `batch`.
        batch: rows of a step.
        scores: scores per query; 0: of all items.
        lookups: item vectors that a step reads and updates.
        queries: queries of a step.
        dim: length of a vector.
        dense: bytes of weights that are no tables.
        closed: solved in closed form, by sweeps.
    """

    memory: float
    rows: float
    batch: int
    scores: float
    lookups: int
    queries: int
    dim: int
    dense: int
    closed: bool


def size_up(
    recipe: str, sizes: Sizes, machines: Machines, given: Mapping[str, Any] | None = None
) -> Sizing:
    """Return the layouts of a training of this size, and the cheapest that fits.

    Args:
        recipe: name of the recipe.
        sizes: of the training log.
        machines: what there is to train on.
        given: options of the recipe.
    """
    _check(sizes)
    chosen = options(recipe) | checked(recipe, given or {})
    chosen |= {"device": "cpu"} if "device" in chosen else {}
    chosen = _automatic(recipe, chosen, sizes)
    with volume(quiet=True):
        terms = Terms(recipe, chosen, sizes)
    counts = [2**i for i in range(machines.ranks.bit_length())]
    counts += [machines.ranks] * (counts[-1] != machines.ranks)
    found = [_layout(recipe, terms, sizes, machines, "replicated", 1)]
    for ranks in counts[1:]:
        found += [_layout(recipe, terms, sizes, machines, tables, ranks)
                  for tables in ("replicated", "sharded")]  # fmt: skip
    fits = [layout for layout in found if layout.fits]
    cheapest = min(fits, key=_cost) if fits else None
    needed = None if fits else _needed(recipe, terms, sizes, machines)
    one = terms.at(sizes)
    shown = (
        dict(given or {})
        | {"dim": chosen.get("dim", one.dim)}
        | ({} if one.closed else {"batch_size": one.batch})
    )
    return Sizing(recipe, sizes, shown, found, cheapest, needed, _source(recipe, one, machines))


class Terms:
    """What jobs of small logs need, as a function of the size of the log.

    A log no larger than `most` is asked about as it is. Beyond that, every need grows by what it
    grows from `most` to twice that, in the number of users, of items and of events.
    """

    def __init__(self, recipe: str, chosen: Mapping[str, Any], sizes: Sizes) -> None:
        self.recipe, self.chosen = recipe, chosen
        batch = chosen.get("batch_size") or 256
        self.most = Sizes(50_000, max(65_000, SCORES_AT_A_TIME // batch), max(600_000, 2 * batch))
        self.base = Sizes(*map(min, sizes, self.most))
        self.made: dict[Sizes, Needs] = {}

    def at(self, sizes: Sizes) -> Needs:
        """Return what a log of this size needs."""
        base = Sizes(*map(min, sizes, self.base))
        start = found = self._needs(base)
        for name, (small, large) in zip(Sizes._fields, zip(base, sizes, strict=True), strict=True):
            if large > small:
                twice = self._needs(base._replace(**{name: 2 * small}))
                times = (large - small) / small
                found = found._replace(
                    memory=found.memory + times * (twice.memory - start.memory),
                    rows=found.rows + times * (twice.rows - start.rows),
                )
        return found

    def _needs(self, sizes: Sizes) -> Needs:
        if sizes not in self.made:
            log = stand_in(sizes)
            made, _ = make_job(self.recipe, log, self.chosen)
            self.made[sizes] = needs_of(made, log, self.recipe, self.chosen)
        return self.made[sizes]


def needs_of(made: Any, log: Interactions, recipe: str, chosen: Mapping[str, Any]) -> Needs:
    """Return what a job needs."""
    if not isinstance(made, Job):
        raise SoftdexError(
            f"plan: {recipe} is found in one step and predicts no memory. Choose a recipe that "
            "trains in epochs."
        )
    memory = made.memory(log)
    modules = nn.ModuleDict({"encoder": made.encoder, "scorer": made.scorer})
    tables = tables_in(modules)
    dim = max(table.dim for table in tables)
    if not isinstance(made, Descent):
        return Needs(memory, len(log), len(log), 0, 0, 0, dim, 0, closed=True)
    feed, negatives, batch = made.parts.feed, made.parts.negatives, made.training.batch_size or 1
    queries, targets, _ = feed.extent(batch, made.encoder)
    own = {id(table.weight) for table in tables}
    dense = sum(p.nbytes for p in modules.parameters() if id(p) not in own)
    history = chosen.get("max_history") or 0 if getattr(made.encoder, "reads_history", False) else 0
    read = queries * (1 if isinstance(feed, Sequences) else history)
    draws = negatives.draws if negatives.shared else queries * negatives.draws
    scores = negatives.draws or (batch if recipe in costs.IN_BATCH else 0)
    return Needs(
        memory, feed.size, batch, scores, read + queries * targets + draws, queries, dim, dense,
        closed=False,
    )  # fmt: skip


def stand_in(sizes: Sizes) -> Interactions:
    """Return a log of this size: as many events per user, one user with a long history, and items
    at random."""
    users, items, events = sizes
    random = np.random.default_rng(0)
    user = np.sort(random.integers(0, users, events)).astype(np.int32)
    user[: min(LONG, events // 2)] = 0
    item = random.integers(0, items, events).astype(np.int32)
    return Interactions(range_keys(users), range_keys(items), user, item)


# inside ------------------------------------------------------------------------------------------


def _layout(
    recipe: str, terms: Terms, sizes: Sizes, machines: Machines, tables: str, ranks: int
) -> Layout:
    """Return what one layout needs."""
    part = sizes.shared(ranks)
    held = part if tables == "sharded" else Sizes(sizes.users, sizes.items, part.events)
    needs, mine = terms.at(held), terms.at(part)
    steps = 1 if needs.closed else max(1, math.ceil(mine.rows / needs.batch))
    network = _network(needs, sizes, tables, ranks)
    memory = int(needs.memory) + min(network, GATHERED)
    seconds = _seconds(recipe, needs, sizes, part, machines)
    if seconds is not None:
        seconds = steps * (seconds + network / machines.network)
    fits = memory <= ROOM * machines.memory
    return Layout(tables, ranks, memory, network, steps, seconds, fits)


def _network(needs: Needs, sizes: Sizes, tables: str, ranks: int) -> int:
    """Return the bytes that a rank receives per step.

    Sharded tables: vectors of other ranks' rows come in, ids and gradients of own rows too.
    Replicated ones: the gradients of all other ranks' rows, of all items for a full softmax.
    Closed forms: the factors of other ranks' rows, per sweep. Users are read where their rows are;
    dense layers are averaged.
    """
    others, row = (ranks - 1) / ranks, 4 * needs.dim
    if needs.closed:
        return int(others * row * (sizes.users + sizes.items))
    dense = 2 * needs.dense * others
    if tables == "replicated" and not needs.scores:  # the gradient of all items
        return int(2 * others * row * sizes.items + dense)
    if tables == "replicated":
        return int((ranks - 1) * (needs.lookups + needs.queries) * (row + 4) + dense)
    gathered = 0.0 if needs.scores else (ranks - 1) * needs.queries * 2 * row  # of all items
    return int(others * needs.lookups * (2 * row + 4) + gathered + dense)


def _seconds(
    recipe: str, needs: Needs, sizes: Sizes, part: Sizes, machines: Machines
) -> float | None:
    """Return the seconds of a step, or of a sweep, without the network."""
    where = costs.GPU if machines.gpu else costs.CPU
    if needs.closed:
        rows = part.users + part.items
        known = entry(recipe).function.__name__ in ("ials", "rg") and recipe != "rgx"
        return costs.SWEEPS[where].seconds(rows, part.events, needs.dim) if known else None
    step = costs.STEPS.get(recipe, {}).get(where)
    if step is None or not needs.scores:
        return None
    batch = needs.queries if recipe == "sasrec" else needs.batch
    return step.seconds(batch, needs.scores, needs.dim)


def _source(recipe: str, needs: Needs, machines: Machines) -> str:
    """Return where the seconds come from, in words."""
    where = costs.GPU if machines.gpu else costs.CPU
    found: Any = costs.SWEEPS[where] if needs.closed else costs.STEPS.get(recipe, {}).get(where)
    if _seconds(recipe, needs, Sizes(1, 1, 1), Sizes(1, 1, 1), machines) is None:
        return f"no step of {recipe} was measured on {where}"
    what = "sweep" if needs.closed else "step"
    return f"computed from a {what} measured on {where} ({found.script})"


def _cost(layout: Layout) -> tuple[float, int]:
    return (layout.ranks * (layout.seconds or 0.0), layout.ranks)


def _needed(recipe: str, terms: Terms, sizes: Sizes, machines: Machines) -> int | None:
    """Return the fewest ranks, of twice as many at a time, on which the training fits."""
    ranks = 2
    while ranks <= MOST_RANKS:
        if _layout(recipe, terms, sizes, machines, "sharded", ranks).fits:
            return ranks
        ranks *= 2
    return None


def _automatic(recipe: str, chosen: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return the options with index="auto" replaced by what it is for this many items."""
    if chosen.get("index") != "auto":
        return chosen
    with volume(quiet=True):
        index = automatic(
            sizes.items, chosen.get("dim") or 64, chosen.get("batch_size") or 256,
            pick_device("cpu"), shared=chosen.get("shared"),
        )  # fmt: skip
    return chosen | {"index": index}


def _check(sizes: Sizes) -> None:
    for name, count in sizes._asdict().items():
        if count < 1 or (name != "events" and count > MOST):
            raise SoftdexError(
                f"plan: expected {name} from 1 to {MOST:,}, the largest id, got {count:,}."
            )
