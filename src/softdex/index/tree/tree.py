"""Tree: items are leaves, a search follows the best nodes of each level, a walk draws an item.

Level 1 has any number of nodes and is scored whole; every node has `arity` children. A tree is an
array of slots: node i of level j owns a block of them, so the parent is a division and children are
a multiplication. Shapes: B queries, N ids, M nodes, S slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from softdex.errors import DataError, ShapeError
from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits, edited, reordered
from softdex.index.tree.beam import NOWHERE, Allowed, Level, levels, search
from softdex.shapes import DOUBLES, FLAGS, INTS, LONGS, Layout, Sizes, Tensors
from softdex.share import draw


class NodeScorer(Protocol):
    """Scores nodes, which are rows of its table, one level after the other from the top.

    Attributes:
        pair_bytes: memory per (query, node) pair while it is scored.
        nodes: the table of node vectors.
    """

    pair_bytes: int
    nodes: Any

    def num_queries(self, query: Any) -> int:
        """Return the number of queries."""
        ...

    def seen(self, query: Any, *rows: Callable[[Tensor], Tensor]) -> Any:
        """Return queries as a level sees them; those of several levels are concatenated.

        Args:
            query: B queries.
            rows: for each level, the rows that stand for items.
        """
        ...

    def __call__(self, query: Any, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N) of rows (N,) or (B, N) for a query from `seen`."""
        ...


class Path(NamedTuple):
    """Draws of a level, and the ancestor of a given item (B,) with its log-probability (B,)."""

    draws: Level
    node: Tensor
    logq: Tensor


@final
class Tree:
    """Beam search, and walks by a softmax among siblings.

        q(leaf) = softmax of level 1, times the softmax among siblings on every level below

    Args:
        scorer: of the nodes; its rows are the levels, concatenated.
        item_of: item of each slot (S,), -1 for a free one.
        alive: which items are in the index (I,).
        arity: children per node.
        depth: number of levels.
        effort: width of the beam, by default.
        product: the beam ranks by the product of the sigmoids of a node's own and its ancestors'
            scores, not by its own score.
    """

    tensors: ClassVar[Layout] = {
        "item_of": (INTS, "S"),
        "alive": (FLAGS, "I"),
        "arity": (LONGS, ""),
        "depth": (LONGS, ""),
        "effort": (DOUBLES, ""),
        "product": (FLAGS, ""),
    }
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
        taken = (item_of >= 0).nonzero()[:, 0]
        self.slot_of = torch.full_like(alive, -1, dtype=torch.int64)
        self.slot_of[item_of[taken].long()] = taken
        here = (item_of >= 0) & alive[item_of.long()]
        self.sizes = [len(item_of) // self.width(j) for j in range(1, self.depth + 1)]
        self.starts = [sum(self.sizes[:j]) for j in range(self.depth)]
        self.full = torch.cat([here.view(size, -1).any(1) for size in self.sizes])  # per node
        self.living = [int(part.sum()) for part in torch.split(self.full, self.sizes)]
        self.before = pad(here.cumsum(0), (1, 0))  # living items before each slot

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes, scorer: Any) -> None:
        """Refuse slots, levels and nodes that do not fit together, and a tree without items."""
        item_of, arity, levels = tensors["item_of"], int(tensors["arity"]), int(tensors["depth"])
        taken, slots = item_of[item_of >= 0], len(item_of)
        good = arity > 1 and 0 < levels < 64 and slots > 0 and slots % arity ** (levels - 1) == 0
        good = good and int(item_of.min()) >= -1 and int(item_of.max()) < sizes["I"]
        good = good and len(taken) > 0 and len(taken.unique()) == len(taken)  # type: ignore[no-untyped-call]
        rows = sum(slots // arity**j for j in range(levels)) if good else -1
        if rows != scorer.num_items or scorer.is_product or not float(tensors["effort"]) > 0:
            raise ValueError("the tree's slots, levels and nodes do not fit together")
        if not bool(tensors["alive"][taken.long()].any()):
            raise ValueError("the tree holds no living item")

    def width(self, level: int) -> int:
        """Return the number of slots under a node of a level."""
        return int(self.arity ** (self.depth - level))

    def rows(self, level: int) -> Callable[[Tensor], Tensor]:
        """Return a map from items to the rows of their ancestors, -1 for items without a slot."""
        start, width = self.starts[level - 1], self.width(level)

        def found(ids: Tensor) -> Tensor:
            slot = self.slot_of[ids]
            return torch.where(slot >= 0, start + slot // width, -1)

        return found

    def seen(self, query: Any, *levels: int) -> Any:
        """Return queries as a level sees them; those of several levels are concatenated."""
        return self.scorer.seen(query, *map(self.rows, levels))

    def scores(self, seen: Any, level: int, nodes: Tensor | None = None) -> Tensor:
        """Return scores (B, N) of nodes (N,) or (B, N) of a level, None: all; -inf if empty."""
        start, size = self.starts[level - 1], self.sizes[level - 1]
        return self.row_scores(
            seen, start + (torch.arange(size, device=self.full.device) if nodes is None else nodes)
        )

    def row_scores(self, seen: Any, rows: Tensor) -> Tensor:
        """Return scores (B, N) of nodes given as rows of the scorer's table; -inf if empty."""
        return self.scorer(seen, rows).masked_fill(~self.full[rows], NOWHERE)

    def children(self, nodes: Tensor) -> Tensor:
        """Return the children of nodes (B, M), (B, M * arity)."""
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
        """Draw n walks per query from the top to a leaf, and return the draws of every level.

        Args:
            query: B queries.
            n: walks per query.
            generator: of the draws.
            to: items (B,), whose ancestors and their log-probabilities are returned as well.
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
        """Draw (B, N) items by walks; draws cannot be shared."""
        if shared:
            raise ShapeError(
                "Tree.sample: the proposal depends on the query; draws cannot be shared."
            )
        nodes, logq = self.walk(query, n, generator=generator)[-1].draws
        return Draws(self.item_of[nodes].long(), logq)

    @torch.no_grad()
    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        """Return the log-probability (B, N) that a walk ends at these items."""
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
        """Return the log-softmax (B, M, arity) among the children of these nodes."""
        scores = self.scores(seen, level, self.children(parents)).double()
        local = scores.view(*parents.shape, self.arity).log_softmax(2)
        return local.nan_to_num(nan=NOWHERE, neginf=NOWHERE)

    # search --------------------------------------------------------------------------------------

    def score(self, query: Any, ids: Tensor) -> Tensor:
        """Return scores (B, N) of items (N,) or (B, N), by which a search ranks them."""
        return self.item_scores(self.seen_by_items(query), ids)

    def seen_by_items(self, query: Any) -> dict[int, Any]:
        """Return the query as seen by the levels that an item's score needs."""
        levels = range(1 if self.product else self.depth, self.depth + 1)
        return {level: self.seen(query, level) for level in levels}

    def item_scores(self, seen: dict[int, Any], ids: Tensor) -> Tensor:
        """Return scores (B, N) of items (N,) or (B, N) for a query from `seen_by_items`."""
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
        """Return the top k items under the nodes that a beam of width `effort` keeps.

        The beam widens where these hold fewer than k items that may come back. Infinite effort
        scores every leaf.
        """
        return search(self, query, k, filter, self.effort if effort is None else effort, max_memory)

    @torch.inference_mode()
    def beam(
        self, query: Any, k: int, allowed: Allowed | None = None, beam: float | None = None
    ) -> list[Level]:
        """Return the nodes that a search looks at on each level, by falling score."""
        allowed = Allowed(self, None) if allowed is None else allowed
        return levels(self, query, k, allowed, self.effort if beam is None else beam)

    def tune(self, query: Any, recall: float = 0.95, k: int = 100) -> Self:
        """Return the tree with the narrowest beam that finds this recall of the exact top k."""
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
        """Return the tree with a beam of this width; an infinite one scores every leaf."""
        return self._with(effort=torch.tensor(float(width), dtype=torch.float64))

    # edit ----------------------------------------------------------------------------------------

    def vectors(self) -> Tensor:
        """Return the vectors of all items (I, D): those of their leaves."""
        every = torch.arange(self.num_items, device=self.slot_of.device)
        found: Tensor = self.scorer.nodes(self.rows(self.depth)(every))
        return found

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        """Return the tree itself: its nodes are the scorer's, and `learn` moves items."""
        return self

    def insert(self, ids: Tensor) -> Self:
        """Return the tree with these items, in the slots they had or in the first free ones."""
        alive = edited(self.alive, ids, True)
        new = torch.as_tensor(ids, device=alive.device)
        new = torch.unique(new[self.slot_of[new] < 0])
        free = (self.item_of < 0).nonzero()[:, 0]
        if len(free) < len(new):
            raise DataError(
                f"index: expected free leaves for {len(new):,} new items, the tree has "
                f"{len(free):,}. Build it with more room."
            )
        item_of = self.item_of.clone()
        item_of[free[: len(new)]] = new.to(item_of)
        return self._with(item_of=item_of, alive=alive)

    def delete(self, ids: Tensor) -> Self:
        """Return the tree without these items; they keep their slots."""
        return self._with(alive=edited(self.alive, ids, False))

    def over(self, scorer: NodeScorer, order: np.ndarray) -> Self:
        """Return the tree over other items; new ones have no slot yet."""
        place = torch.from_numpy(np.argsort(order)).to(self.item_of)
        item_of = torch.where(self.item_of >= 0, place[self.item_of.clamp(min=0).long()], -1)
        alive = reordered(self.alive, order)
        return type(self)(scorer, **(self.state() | {"item_of": item_of, "alive": alive}))

    def to(self, device: torch.device | str) -> Self:
        """Return the tree with its structure on a device."""
        return self._with(item_of=self.item_of.to(device), alive=self.alive.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return slots, which items live, and the settings."""
        return {
            "item_of": self.item_of,
            "alive": self.alive,
            "arity": torch.tensor(self.arity),
            "depth": torch.tensor(self.depth),
            "effort": torch.tensor(self.effort, dtype=torch.float64),
            "product": torch.tensor(self.product),
        }

    def _with(self, **changed: Tensor) -> Self:
        return type(self)(self.scorer, **(self.state() | changed))


def _one_of(logp: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one of few columns (B, M) by log-probabilities (B, M, C).

    Sums run along the first axis, since a GPU is slow on many short rows along the last.
    """
    cdf = logp.exp().movedim(2, 0).contiguous().cumsum(0)
    rows, n = cdf.shape[1:]
    point = _points(rows, n, cdf, generator)
    return torch.minimum((cdf <= point * cdf[-1]).sum(0), (cdf < cdf[-1]).sum(0))


def _chosen(logp: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw columns (B, n) by log-probabilities (B, C)."""
    cdf = logp.exp().cumsum(1)
    point = _points(len(cdf), n, cdf, generator)
    at = torch.searchsorted(cdf, point * cdf[:, -1:], right=True)
    last = (cdf < cdf[:, -1:]).sum(1, keepdim=True)  # rounding must not reach columns without mass
    return torch.minimum(at, last)


def _points(rows: int, n: int, cdf: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return uniform numbers (B, N) of the type of a distribution."""
    like, device = cdf.dtype, cdf.device
    return draw(
        rows, lambda rows: torch.rand(rows, n, generator=generator, dtype=like, device=device)
    )


def as_tree(index: Any) -> Tree | None:
    """Return an index that is a tree, None for any other."""
    return index if isinstance(index, Tree) else None
