"""A small tree index, written with the contract alone: its query is a padded history, its scorer a
module that looks at nodes. If the contract needed a special case for trees, it would show here."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from softdex.index.contract import MAX_MEMORY, Draws, Filter, Hits


class NodeScorer(nn.Module):
    """Scores nodes of any level for padded histories (B, L) of item ids, -1 where they end.

    Item vectors belong to items; the vectors of internal nodes belong to places in the tree.
    """

    def __init__(self, items: Tensor, nodes: list[Tensor], seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.items = nn.Parameter(items)
        self.nodes = nn.ParameterList(nodes)
        self.mix = nn.Parameter(torch.randn(items.shape[1], items.shape[1], generator=generator))
        self.num_items = len(items)

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    def taste(self, query: Tensor) -> Tensor:
        real = (query >= 0).unsqueeze(-1)
        mean = (self.items[query.clamp(min=0)] * real).sum(1) / real.sum(1).clamp(min=1)
        return torch.tanh(mean @ self.mix) * 3

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        vectors = self.items[ids]
        if vectors.ndim == 2:
            return self.taste(query) @ vectors.T
        return torch.einsum("bd,bnd->bn", self.taste(query), vectors)

    def over(self, order: np.ndarray) -> NodeScorer:
        new = torch.zeros(len(order) - self.num_items, self.items.shape[1])
        made = NodeScorer(torch.cat([self.items.detach(), new])[order], list(self.nodes))
        made.mix = self.mix
        return made

    def level(self, query: Tensor, level: int) -> Tensor:
        """Scores of all nodes of an internal level, (B, nodes)."""
        return self.taste(query) @ self.nodes[level].T


def ranked(scores: Tensor) -> Tensor:
    return scores.argsort(dim=1, descending=True, stable=True)


class ToyTree:
    """`item_of[slot]` is an item or -1; node i of level j owns a contiguous block of slots."""

    def __init__(
        self, scorer: NodeScorer, item_of: Tensor, arity: int, items: int, beam: int = 2
    ) -> None:
        self.scorer, self.num_items = scorer, items
        self.item_of, self.arity, self.beam = item_of, arity, beam
        self.depth = round(math.log(len(item_of), arity))
        self.slot_of = torch.full((self.num_items,), -1)
        self.slot_of[item_of[item_of >= 0]] = (item_of >= 0).nonzero()[:, 0]

    @property
    def alive(self) -> Tensor:
        return self.slot_of >= 0

    def vectors(self) -> Tensor:
        return self.scorer.items.detach()

    def score(self, query: Tensor, ids: Tensor) -> Tensor:
        return self.scorer(query, ids)

    def _levels(self, query: Tensor) -> list[Tensor]:
        """Scores of every level's nodes below the root; empty nodes and free slots are -inf."""
        full = self.item_of >= 0
        levels = []
        for j in range(1, self.depth + 1):
            if j < self.depth:
                scores = self.scorer.level(query, j - 1)
            else:
                scores = self.scorer(query, self.item_of.clamp(min=0))
            living = full.view(self.arity**j, -1).any(1)
            levels.append(scores.masked_fill(~living, -torch.inf))
        return levels

    @torch.inference_mode()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        path = torch.zeros(len(query), 1, dtype=torch.float64)
        for scores in self._levels(query):
            local = scores.double().view(len(query), -1, self.arity).log_softmax(2)
            path = (path.unsqueeze(2) + local.nan_to_num(nan=-math.inf)).view(len(query), -1)
        slots = self.slot_of[ids]
        slots = slots.expand(len(query), -1)
        found = path.gather(1, slots.clamp(min=0)).masked_fill(slots < 0, -torch.inf)
        return found.float()

    @torch.inference_mode()
    def sample(
        self,
        query: Tensor,
        n: int,
        *,
        generator: torch.Generator | None = None,
        shared: bool = False,
    ) -> Draws:
        assert not shared
        node = torch.zeros(len(query), n, dtype=torch.int64)
        for scores in self._levels(query):
            children = node.unsqueeze(2) * self.arity + torch.arange(self.arity)
            local = scores.gather(1, children.view(len(query), -1)).view_as(children)
            cdf = local.double().softmax(2).cumsum(2)
            point = torch.rand(node.shape, generator=generator, dtype=torch.float64).unsqueeze(2)
            node = node * self.arity + (cdf <= point * cdf[..., -1:]).sum(2)
        ids = self.item_of[node]
        return Draws(ids, self.log_prob(query, ids))

    @torch.inference_mode()
    def search(
        self,
        query: Tensor,
        k: int,
        *,
        filter: Filter | None = None,
        effort: float | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Hits:
        beam = self.beam if effort is None else effort
        allowed = self._allowed(len(query), filter)
        kept = torch.ones(len(query), 1, dtype=torch.bool)
        for j, scores in enumerate(self._levels(query), 1):
            counts = allowed.view(len(query), self.arity**j, -1).sum(2)
            open_ = kept.repeat_interleave(self.arity, 1) & (counts > 0)
            order = scores.masked_fill(~open_, -torch.inf).argsort(
                dim=1, descending=True, stable=True
            )
            enough = counts.gather(1, order).cumsum(1) - counts.gather(1, order) < k
            place = torch.arange(scores.shape[1])
            keep = (place < beam) | enough
            kept = torch.zeros_like(open_).scatter(1, order, keep) & open_
        scores = scores.masked_fill(~kept, -torch.inf)
        items = self.item_of.expand(len(query), -1)
        tie = items.argsort(1)
        ranked = scores.gather(1, tie).sort(dim=1, descending=True, stable=True)
        ids = items.gather(1, tie).gather(1, ranked.indices)[:, :k]
        values = ranked.values[:, :k]
        ids = torch.where(values > -torch.inf, ids, -1)
        short = max(0, k - ids.shape[1])
        pad = torch.nn.functional.pad
        return Hits(pad(ids, (0, short), value=-1), pad(values, (0, short), value=-torch.inf))

    def reach(self, query: Tensor) -> int:
        """How many leaves the beam of fixed width holds at its last internal level, at least."""
        kept = torch.ones(len(query), 1, dtype=torch.bool)
        for scores in self._levels(query)[:-1]:
            open_ = kept.repeat_interleave(self.arity, 1) & (scores > -torch.inf)
            order = scores.masked_fill(~open_, -torch.inf).argsort(
                dim=1, descending=True, stable=True
            )
            keep = torch.arange(scores.shape[1]) < self.beam
            kept = torch.zeros_like(open_).scatter(1, order, keep.expand_as(order)) & open_
        leaves = (self.item_of >= 0).view(-1, self.arity).sum(1)
        return int((kept * leaves).sum(1).min())

    def _allowed(self, batch: int, filter: Filter | None) -> Tensor:
        living = (self.item_of >= 0).expand(batch, -1).clone()
        if filter is not None and filter.allow is not None:
            living &= filter.allow[..., self.item_of.clamp(min=0)]
        if filter is not None and filter.exclude is not None:
            rows = torch.from_numpy(filter.exclude.row_of)
            slots = self.slot_of[torch.from_numpy(filter.exclude.ids.astype("int64"))]
            living[rows[slots >= 0], slots[slots >= 0]] = False
        return living

    def tune(self, query: Tensor, recall: float = 0.95, k: int = 100) -> Self:
        k, beam = min(k, int(self.alive.sum())), 1
        best = self.search(query, k, effort=math.inf).ids
        while True:
            found = self.search(query, k, effort=beam).ids
            share = (found.unsqueeze(2) == best.unsqueeze(1)).any(2).float().mean()
            if float(share) >= recall:
                return self._with(self.item_of, beam)
            beam *= 2

    def over(self, scorer: NodeScorer, order: np.ndarray) -> Self:
        place = torch.from_numpy(np.argsort(order))
        item_of = torch.where(self.item_of >= 0, place[self.item_of.clamp(min=0)], -1)
        return type(self)(scorer, item_of, self.arity, len(order), self.beam)

    def _with(self, item_of: Tensor, beam: int | None = None) -> Self:
        wide = self.beam if beam is None else beam
        return type(self)(self.scorer, item_of, self.arity, self.num_items, wide)

    def refit(self, *, generator: torch.Generator | None = None) -> Self:
        return self

    def insert(self, ids: Tensor) -> Self:
        item_of = self.item_of.clone()
        new = [i for i in ids.tolist() if self.slot_of[i] < 0]
        free = (item_of < 0).nonzero()[: len(new), 0]
        item_of[free] = torch.tensor(new, dtype=torch.int64)
        return self._with(item_of)

    def delete(self, ids: Tensor) -> Self:
        gone = torch.isin(self.item_of, ids)
        return self._with(torch.where(gone, -1, self.item_of))

    def to(self, device: Any) -> Self:
        return self._with(self.item_of.to(device))

    def state(self) -> dict[str, Tensor]:
        return {"item_of": self.item_of}
