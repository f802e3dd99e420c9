"""Tree: items are leaves, a search follows the best nodes of each level, a walk draws an item.

Level 1 has any number of nodes and is scored whole; every node has `arity` children. A tree is an
array of slots: node i of level j owns a block of them, so a parent is a division and children are a
multiplication. Shapes: B queries, N ids, M walkers, S slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from softdex.data.ragged import Ragged
from softdex.encode.history import padded
from softdex.errors import DataError, ShapeError
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, edited
from softdex.index.flat import ranked, top_k

NOWHERE = -torch.inf
LEAVES = 1024  # scored at a time where all of them are


class NodeScorer(Protocol):
    """Scores nodes, which are rows of its table, level after level from the top."""

    pair_bytes: int
    nodes: Any

    def num_queries(self, query: Any) -> int:
        """How many queries there are."""
        ...

    def seen(self, query: Any, *rows: Callable[[Tensor], Tensor]) -> Any:
        """Queries as a level sees them, where these rows stand for items; as each of several
        levels does, one behind the other."""
        ...

    def __call__(self, query: Any, ids: Tensor | slice) -> Tensor:
        """Scores (B, N) of rows (N,) or (B, N) for a query that was seen."""
        ...


class Level(NamedTuple):
    """Nodes of a level, counted in it, (B, M), and their log-probabilities or scores (B, M)."""

    nodes: Tensor
    values: Tensor


class Path(NamedTuple):
    """Draws of a level, and the node that leads to a given item (B,) with its log-probability."""

    draws: Level
    node: Tensor
    logq: Tensor


@final
class Tree:
    """Beam search and walks by local softmax.

        q(leaf) = softmax of level 1, times the softmax among siblings on every level below

    Args:
        scorer: of nodes; rows are levels one behind the other.
        item_of: the item of each slot (S,), -1 where it is free.
        alive: which items may be found and drawn (I,).
        arity: children of a node.
        depth: levels.
        effort: width of the beam.
        product: whether the beam ranks by the product of the sigmoids of a node's scores and its
            ancestors', and not by its own score.
    """

    searches = True

    def __init__(
        self,
        scorer: NodeScorer,
        item_of: Tensor,
        alive: Tensor,
        arity: Tensor,
        depth: Tensor,
        effort: Tensor,
        product: Tensor,
    ) -> None:
        self.scorer, self.item_of, self.alive = scorer, item_of, alive
        self.arity, self.depth, self.effort = int(arity), int(depth), float(effort)
        self.product, self.num_items = bool(product), len(alive)
        self.home: Tree | None = None
        taken = (item_of >= 0).nonzero()[:, 0]
        self.slot_of = torch.full_like(alive, -1, dtype=torch.int64)
        self.slot_of[item_of[taken].long()] = taken
        here = (item_of >= 0) & alive[item_of.long()]
        self.sizes = [len(item_of) // self.width(j) for j in range(1, self.depth + 1)]
        self.starts = [sum(self.sizes[:j]) for j in range(self.depth)]
        self.full = torch.cat([here.view(size, -1).any(1) for size in self.sizes])  # of each node
        self.living = [int(part.sum()) for part in torch.split(self.full, self.sizes)]
        self.before = pad(here.cumsum(0), (1, 0))  # how many live before each slot

    def width(self, level: int) -> int:
        """Slots of a node."""
        return int(self.arity ** (self.depth - level))

    def rows(self, level: int) -> Callable[[Tensor], Tensor]:
        """Items -> rows of their ancestors of this level, -1 for items without a place."""
        if self.home is not None:
            return self.home.rows(level)
        start, width = self.starts[level - 1], self.width(level)

        def found(ids: Tensor) -> Tensor:
            slot = self.slot_of[ids]
            return torch.where(slot >= 0, start + slot // width, -1)

        return found

    def seen(self, query: Any, *levels: int) -> Any:
        """Queries as this level sees them; as each of several does, one behind the other."""
        return self.scorer.seen(query, *map(self.rows, levels))

    def scores(self, seen: Any, level: int, nodes: Tensor | None = None) -> Tensor:
        """Scores (B, N) of nodes (N,) or (B, N) of a level, None: all; -inf for empty ones."""
        start, size = self.starts[level - 1], self.sizes[level - 1]
        return self.row_scores(
            seen, start + (torch.arange(size, device=self.full.device) if nodes is None else nodes)
        )

    def row_scores(self, seen: Any, rows: Tensor) -> Tensor:
        """Scores (B, N) of nodes given as rows of the scorer's table; -inf for empty ones."""
        return self.scorer(seen, rows).masked_fill(~self.full[rows], NOWHERE)

    def children(self, nodes: Tensor) -> Tensor:
        """Nodes (B, M) -> nodes (B, M * arity) of the next level."""
        inside = torch.arange(self.arity, device=nodes.device)
        return (nodes.unsqueeze(2) * self.arity + inside).flatten(1)

    # draw ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def walk(
        self,
        query: Any,
        n: int,
        *,
        generator: torch.Generator | None = None,
        to: Tensor | None = None,
    ) -> list[Path]:
        """n walks from the top to a leaf: the draws of every level in one pass.

        Args:
            query: B of them.
            n: walks.
            generator: of the choices.
            to: items (B,): the probability of a walk to come by their ancestors is told, too.
        """
        if to is None:
            slot = torch.zeros_like(self.slot_of[:1]).expand(self.scorer.num_queries(query))
        else:
            slot = self.slot_of[to]
        found, node, logq, mine = [], None, None, None
        for level in range(1, self.depth + 1):
            seen, own = self.seen(query, level), slot // self.width(level)
            if node is None or logq is None or mine is None:
                local = self.scores(seen, level).double().log_softmax(1)
                node = _chosen(local, n, generator)
                logq, mine = local.gather(1, node), local.gather(1, own.unsqueeze(1))
            else:
                parents = torch.cat([node, own.unsqueeze(1) // self.arity], 1)
                local = self._local(seen, level, parents)
                at = _one_of(local[:, :n], generator)
                node = node * self.arity + at
                logq = logq + local[:, :n].gather(2, at.unsqueeze(2)).squeeze(2)
                mine = mine + local[:, n].gather(1, own.unsqueeze(1) % self.arity)
            found.append(Path(Level(node, logq.float()), own, mine.squeeze(1).float()))
        return found

    def sample(
        self, query: Any, n: int, *, generator: torch.Generator | None = None, shared: bool = False
    ) -> Draws:
        """Draws (B, N) of items by walks; shared draws it does not have."""
        if shared:
            raise ShapeError("Tree.sample: its law depends on the query; draws cannot be shared.")
        nodes, logq = self.walk(query, n, generator=generator)[-1].draws
        return Draws(self.item_of[nodes].long(), logq)

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Log-probability (B, N) of a walk to end at these items."""
        slot = self.slot_of[ids].expand(self.scorer.num_queries(query), -1)
        place = slot.clamp(min=0)
        logq = self.scores(self.seen(query, 1), 1).double().log_softmax(1)
        logq = logq.gather(1, place // self.width(1))
        for level in range(2, self.depth + 1):
            own = place // self.width(level)
            local = self._local(self.seen(query, level), level, own // self.arity)
            logq = logq + local.gather(2, (own % self.arity).unsqueeze(2)).squeeze(2)
        return logq.masked_fill((slot < 0) | ~self.alive[ids], NOWHERE).float()

    def _local(self, seen: Any, level: int, parents: Tensor) -> Tensor:
        """log-softmax (B, M, arity) among the children of these nodes; of none lives, -inf."""
        scores = self.scores(seen, level, self.children(parents)).double()
        local = scores.view(*parents.shape, self.arity).log_softmax(2)
        return local.nan_to_num(nan=NOWHERE, neginf=NOWHERE)

    # search --------------------------------------------------------------------------------------

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Scores (B, N) of items (N,) or (B, N), by which a search ranks them."""
        return self._score(self._seen(query), ids)

    def _seen(self, query: Any) -> dict[int, Any]:
        """The query as the levels see it that an item's score needs."""
        levels = range(1 if self.product else self.depth, self.depth + 1)
        return {level: self.seen(query, level) for level in levels}

    def _score(self, seen: dict[int, Any], ids: Tensor) -> Tensor:
        slot = self.slot_of[ids].clamp(min=0)
        each = [
            self.scorer(query, self.starts[level - 1] + slot // self.width(level))
            for level, query in seen.items()
        ]
        return torch.stack([logsigmoid(s) for s in each]).sum(0) if self.product else each[0]

    @torch.inference_mode()
    def search(
        self,
        query: Any,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        """The best k items under the nodes that a beam of width `effort` keeps on each level.

        It keeps more of them where these hold fewer than k items that may come back. Infinite
        effort scores every leaf.
        """
        if k < 1:
            raise ShapeError(f"search: expected k >= 1, got {k}.")
        beam = self.effort if effort is None else effort
        exact = math.isinf(beam) or self.depth == 1
        widest = LEAVES if exact else max(self.sizes[0], self.arity * max(1, int(beam)))
        widest = min(len(self.item_of), widest)
        size = max(1, max_memory // (self.scorer.pair_bytes * widest))
        found = []
        for start in range(0, max(1, self.scorer.num_queries(query)), size):
            part = slice(start, start + size)
            mine = _part(filter, part)
            if exact:
                found.append(ranked(self._blocks(query[part], widest), k, mine))
            else:
                leaves = self.beam(query[part], k, Allowed(self, mine), beam)[-1]
                found.append(self._best(leaves, k))
        return Hits(*(torch.cat(column) for column in zip(*found, strict=True)))

    def _blocks(self, query: Any, width: int) -> Iterator[tuple[int, Tensor]]:
        """Scores of all items, so many at a time, -inf for those that cannot be found."""
        seen = self._seen(query)
        living = self.alive & (self.slot_of >= 0)
        for start in range(0, self.num_items, width):
            ids = torch.arange(start, min(start + width, self.num_items), device=living.device)
            yield start, self._score(seen, ids).masked_fill(~living[ids], NOWHERE)

    @torch.inference_mode()
    def beam(
        self, query: Any, k: int, allowed: Allowed | None = None, beam: float | None = None
    ) -> list[Level]:
        """The nodes that a search looks at on each level, the best first, and their scores."""
        allowed = Allowed(self, None) if allowed is None else allowed
        width = self.effort if beam is None else beam
        found: list[Level] = []
        for level in range(1, self.depth + 1):
            seen = self.seen(query, level)
            if not found:
                scores = self.scores(seen, level)
                nodes = torch.arange(self.sizes[0], device=scores.device).expand(len(scores), -1)
                above = torch.zeros_like(scores)
            else:
                kept, values = self._kept(found[-1], k, allowed, level - 1, width)
                nodes = self.children(kept.clamp(min=0))
                scores = self.scores(seen, level, nodes)
                outside = (kept < 0).repeat_interleave(self.arity, 1)
                scores = scores.masked_fill(outside, NOWHERE)
                above = values.repeat_interleave(self.arity, 1)
            if self.product:
                scores = logsigmoid(scores) + above
            if allowed.filters:
                scores = scores.masked_fill(allowed.count(nodes, level) < 1, NOWHERE)
            scores, order = scores.sort(dim=1, descending=True, stable=True)
            found.append(Level(nodes.gather(1, order), scores))
        return found

    def _kept(self, level: Level, k: int, allowed: Allowed, number: int, width: float) -> Level:
        """The head of a sorted level that a beam keeps, -1 behind its end."""
        nodes, scores = level
        most = int(min(nodes.shape[1], max(width, 1)))
        real = scores > NOWHERE
        if most < k and len(nodes):  # each node holds an item at least, so else there are enough
            counts = allowed.count(nodes, number) * real
            enough = (counts.cumsum(1) - counts < k).sum(1, keepdim=True).clamp(min=most)
            real &= torch.arange(nodes.shape[1], device=nodes.device) < enough
            most = min(int(enough.max()), nodes.shape[1])
        nodes, scores, real = nodes[:, :most], scores[:, :most], real[:, :most]
        return Level(torch.where(real, nodes, -1), scores)

    def _best(self, leaves: Level, k: int) -> Hits:
        """The best k items of the leaves, equal scores by item."""
        nodes, scores = leaves
        ids = torch.where(scores > NOWHERE, self.item_of[nodes].long(), self.num_items)
        ids, order = ids.sort(dim=1)
        best = top_k(scores.gather(1, order), min(k, ids.shape[1]))
        ids = torch.where(best.scores > NOWHERE, ids.gather(1, best.ids), -1)
        short = k - ids.shape[1]
        return Hits(
            pad(ids, (0, max(0, short)), value=-1),
            pad(best.scores, (0, max(0, short)), value=NOWHERE).float(),
        )

    def tune(self, query: Any, recall: float, k: int = 100) -> Self:
        """With the narrowest beam that finds this share of the best k items of these queries."""
        k = min(k, int(self.alive.sum()))
        best = self.search(query, k, effort=math.inf).ids
        beam = 1
        while beam < self.num_items:
            found = self.search(query, k, effort=beam).ids
            if float((found.unsqueeze(2) == best.unsqueeze(1)).any(2).float().mean()) >= recall:
                break
            beam *= 2
        return self.with_beam(beam)

    def with_beam(self, width: float) -> Self:
        """With a beam of this width; an infinite one scores every leaf."""
        return self._with(effort=torch.tensor(float(width), dtype=torch.float64))

    # edit ----------------------------------------------------------------------------------------

    def level(self, level: int) -> Tree:
        """The tree that ends at a level: its items are the nodes there."""
        start, size = self.starts[level - 1], self.sizes[level - 1]
        full = self.full[start : start + size]
        item_of = torch.arange(size, device=full.device, dtype=self.item_of.dtype)
        cut = Tree(self.scorer, item_of, full, **self._numbers(depth=level))
        cut.home = self
        return cut

    def vectors(self) -> Tensor:
        """Vectors of all items (I, D): those of their leaves."""
        every = torch.arange(self.num_items, device=self.slot_of.device)
        found: Tensor = self.scorer.nodes(self.rows(self.depth)(every))
        return found

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """The tree is learned apart; nodes follow the scorer by themselves."""
        return self

    def insert(self, ids: Tensor) -> Self:
        """With these items: in the place they had, or in the first free ones."""
        alive = edited(self.alive, ids, True)
        new = torch.as_tensor(ids, device=alive.device)
        new = torch.unique(new[self.slot_of[new] < 0])
        free = (self.item_of < 0).nonzero()[:, 0]
        if len(free) < len(new):
            raise DataError(
                f"index: the tree has {len(free):,} free leaves for {len(new):,} new items. Build "
                "a tree with more room."
            )
        item_of = self.item_of.clone()
        item_of[free[: len(new)]] = new.to(item_of)
        return self._with(item_of=item_of, alive=alive)

    def delete(self, ids: Tensor) -> Self:
        """Without these items; they keep their places."""
        return self._with(alive=edited(self.alive, ids, False))

    def to(self, device: torch.device | str) -> Self:
        """On another device."""
        return self._with(item_of=self.item_of.to(device), alive=self.alive.to(device))

    def state(self) -> dict[str, Tensor]:
        """Slots, who lives, and numbers."""
        return {"item_of": self.item_of, "alive": self.alive, **self._numbers()}

    def _numbers(self, **other: int) -> dict[str, Tensor]:
        numbers = {"arity": self.arity, "depth": self.depth} | other
        return {name: torch.tensor(value) for name, value in numbers.items()} | {
            "effort": torch.tensor(self.effort, dtype=torch.float64),
            "product": torch.tensor(self.product),
        }

    def _with(self, **changed: Tensor) -> Self:
        made = type(self)(self.scorer, **(self.state() | changed))
        made.home = self.home
        return made


@final
class Allowed:
    """How many items under a node may come back."""

    def __init__(self, tree: Tree, filter: Filter | None) -> None:
        self.tree, self.before = tree, tree.before
        self.excluded: Tensor | None = None
        allow, exclude = (None, None) if filter is None else (filter.allow, filter.exclude)
        self.filters = allow is not None or exclude is not None
        here = tree.full[tree.starts[-1] :]
        if allow is not None:
            here = here & allow.to(here.device)[tree.item_of.clamp(min=0).long()]
            self.before = pad(here.cumsum(0), (1, 0))
        if exclude is not None:
            self.excluded = _slots(tree, exclude, here)

    def count(self, nodes: Tensor, level: int) -> Tensor:
        """Items under nodes (B, M) of a level."""
        width = self.tree.width(level)
        first = nodes * width
        count = self.before[first + width] - self.before[first]
        if self.excluded is not None:
            edges = torch.cat([first, first + width], 1).contiguous()
            low, high = torch.searchsorted(self.excluded, edges).chunk(2, 1)
            count = count - (high - low)
        return count


def _part(filter: Filter | None, part: slice) -> Filter | None:
    """A filter for some of the queries."""
    if filter is None or filter.exclude is None:
        return filter
    return replace(filter, exclude=filter.exclude.take(np.arange(len(filter.exclude))[part]))


def _slots(tree: Tree, exclude: Ragged, here: Tensor) -> Tensor:
    """The slots (B, E) of excluded items that could else come back, sorted, each once; behind their
    end the number of slots."""
    ids = padded(exclude, max(1, int(exclude.lengths.max(initial=0)))).to(here.device)
    slot = torch.where(ids >= 0, tree.slot_of[ids.clamp(min=0)], -1)
    out = len(here)
    slot = torch.where((slot >= 0) & here[slot.clamp(min=0)], slot, out).sort(1).values
    again = pad(slot[:, 1:] == slot[:, :-1], (1, 0))
    return torch.where(again, out, slot).sort(1).values.contiguous()


def _one_of(logp: Tensor, generator: torch.Generator | None) -> Tensor:
    """One of few columns (B, M) drawn by log-probabilities (B, M, C); they are summed along the
    first axis, since a GPU sums many short rows slowly along the last."""
    cdf = logp.exp().movedim(2, 0).contiguous().cumsum(0)
    point = torch.rand(cdf.shape[1:], generator=generator, dtype=cdf.dtype, device=cdf.device)
    return torch.minimum((cdf <= point * cdf[-1]).sum(0), (cdf < cdf[-1]).sum(0))


def _chosen(logp: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Columns (B, n) drawn by log-probabilities (B, C)."""
    cdf = logp.exp().cumsum(1)
    point = torch.rand(len(cdf), n, generator=generator, dtype=cdf.dtype, device=cdf.device)
    at = torch.searchsorted(cdf, point * cdf[:, -1:], right=True)
    last = (cdf < cdf[:, -1:]).sum(1, keepdim=True)  # rounding must not lead to what has no mass
    return torch.minimum(at, last)
