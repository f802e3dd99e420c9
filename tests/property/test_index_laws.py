"""Every index keeps every law, and the suite rejects an index that breaks one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from laws import BATCH, EVERYTHING, ITEMS, LAWS, Case, as_it_is, check
from marks import slow
from softdex.index.contract import Draws, Hits
from softdex.index.factor_ranks import FactorRanks
from softdex.index.flat import Flat
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import Imi, build
from softdex.index.kernel import Kernel
from softdex.index.popularity import Popularity
from softdex.index.tree.tree import Tree
from softdex.index.uniform import Uniform
from softdex.score.din import random_din
from softdex.score.product import Cosine, Dot
from toy_tree import NodeScorer, ToyTree

DIM, ARITY, DEPTH = 5, 2, 5


def dot(seed: int, order: Tensor) -> tuple[Dot, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(ITEMS, DIM, generator=generator)
    return Dot(items[order]), torch.randn(BATCH, DIM, generator=generator)


def flat(seed: int, order: Tensor) -> tuple[Any, Any]:
    scorer, query = dot(seed, order)
    return Flat(scorer), query


def uniform(seed: int, order: Tensor) -> tuple[Any, Any]:
    scorer, query = dot(seed, order)
    return Uniform(scorer), query


def popularity(seed: int, order: Tensor) -> tuple[Any, Any]:
    scorer, query = dot(seed, order)
    counts = torch.randint(0, 50, (ITEMS,), generator=torch.Generator().manual_seed(seed))
    return Popularity(scorer, counts[order], power=0.7), query


def log_popularity(seed: int, order: Tensor) -> tuple[Any, Any]:
    index, query = popularity(seed, order)
    return Popularity(index.scorer, index.counts, log=True), query


def kernel(seed: int, order: Tensor) -> tuple[Any, Any]:
    scorer, query = dot(seed, order)
    return Kernel(scorer, block=5), query


def factor_ranks(biased: bool) -> Any:
    def make(seed: int, order: Tensor) -> tuple[Any, Any]:
        scorer, query = dot(seed, order)
        bias = torch.randn(ITEMS, generator=torch.Generator().manual_seed(seed + 1))
        made = Dot(scorer.items.weight, bias[order]) if biased else scorer
        return FactorRanks(made, scale=4.0), query

    return make


def tree(seed: int, order: Tensor) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(ITEMS, DIM, generator=generator)
    nodes = [torch.randn(ARITY**j, DIM, generator=generator) for j in range(1, DEPTH)]
    slots = torch.randperm(ARITY**DEPTH, generator=generator)[:ITEMS]
    history = torch.randint(ITEMS, (BATCH, 6), generator=generator)
    length = torch.randint(1, 6, (BATCH, 1), generator=generator)
    item_of = torch.full((ARITY**DEPTH,), -1)
    item_of[slots[order]] = torch.arange(ITEMS)
    new_name = torch.argsort(order)
    query = torch.where(torch.arange(6) < length, new_name[history], -1)
    return ToyTree(NodeScorer(items[order], nodes), item_of, ARITY, ITEMS, beam=3), query


def multi_index(last: str, residual: bool, cosine: bool) -> Any:
    """An index with cells in `order`: clusters of permuted items could end in other cells."""

    def make(seed: int, order: Tensor) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(seed)
        items, bias = (torch.randn(*shape, generator=generator) for shape in ((ITEMS, 6), (ITEMS,)))
        counts = torch.randint(0, 50, (ITEMS,), generator=generator)

        def scorer(rows: Tensor) -> Any:
            return (
                Cosine(items[rows], torch.tensor(0.3), bias[rows]) if cosine else Dot(items[rows])
            )

        weight = popularity_weight(counts) if last == "popularity" else None
        first = build(
            scorer(torch.arange(ITEMS)), codewords=4, last=last, residual=residual, weight=weight,
            generator=generator,
        )  # fmt: skip
        state = first.state() | {"effort": torch.tensor(6.0)}
        state |= {name: state[name][order] for name in ("cell", "logw", "alive")}
        return Imi(scorer(order), **state), torch.randn(BATCH, 6, generator=generator)

    return make


def real_tree(arity: int, product: bool = False) -> Any:
    """A tree with free slots whose scorer is attention over histories."""

    def make(seed: int, order: Tensor) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(seed)
        depth, roots = {2: (4, 4), 3: (3, 3), 8: (2, 4)}[arity]
        slots = roots * arity ** (depth - 1)
        rows = sum(roots * arity**j for j in range(depth))
        small = {"attention": 4, "layers": (8, 6, 4), "scale": 1.0, "generator": generator}
        scorer = random_din(rows, DIM, (3, 2, 1), **small).eval()  # type: ignore[arg-type]
        item_of = torch.full((slots,), -1)
        item_of[torch.randperm(slots, generator=generator)[:ITEMS][order]] = EVERYTHING
        history = torch.randint(ITEMS, (BATCH, 6), generator=generator)
        length = torch.randint(1, 7, (BATCH, 1), generator=generator)
        query = torch.where(torch.arange(6) >= 6 - length, torch.argsort(order)[history], -1)
        alive = torch.ones(ITEMS, dtype=torch.bool)
        numbers = {"arity": arity, "depth": depth, "effort": 3.0, "product": product}
        kept = {name: torch.tensor(value) for name, value in numbers.items()}
        return Tree(scorer, item_of, alive, **kept), query

    return make


CASES = [
    Case("tree of 2", real_tree(2), lambda i, s: Tree(i.scorer, **s), other=as_it_is),
    Case("tree of 3", real_tree(3), lambda i, s: Tree(i.scorer, **s), other=as_it_is),
    Case("tree of 8", real_tree(8), lambda i, s: Tree(i.scorer, **s), other=as_it_is),
    Case(
        "tree, product",
        real_tree(2, product=True),
        lambda i, s: Tree(i.scorer, **s),
        other=as_it_is,
    ),
    Case("imi", multi_index("uniform", False, False), lambda i, s: Imi(i.scorer, **s)),
    Case("imi cosine", multi_index("uniform", False, True), lambda i, s: Imi(i.scorer, **s)),
    Case("imi popular", multi_index("popularity", True, False), lambda i, s: Imi(i.scorer, **s)),
    Case("imi exact", multi_index("exact", False, False), lambda i, s: Imi(i.scorer, **s)),
    Case("flat", flat, lambda i, s: Flat(i.scorer, **s)),
    Case("uniform", uniform, lambda i, s: Uniform(i.scorer, **s), shared=True),
    Case("popularity", popularity, lambda i, s: Popularity(i.scorer, **s), shared=True),
    Case("log popularity", log_popularity, lambda i, s: Popularity(i.scorer, **s), shared=True),
    Case("kernel", kernel, lambda i, s: Kernel(i.scorer, **s)),
    Case("factor ranks", factor_ranks(False), lambda i, s: FactorRanks(i.scorer, **s)),
    Case("factor ranks, bias", factor_ranks(True), lambda i, s: FactorRanks(i.scorer, **s)),
    Case(
        "toy tree",
        tree,
        lambda i, s: ToyTree(i.scorer, s["item_of"], ARITY, i.num_items, beam=3),
        other=NodeScorer.over,
    ),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", [0, *slow(1, 2, 3)])
def test_the_index_keeps_the_law(case: Case, law: str, seed: int) -> None:
    check(case, law, seed)


# an index that is wrong in one way, for each law


class Wrong:
    """Popularity with one method spoilt."""

    def __init__(self, index: Any, spoil: str) -> None:
        self.index, self.spoil, self.scorer = index, spoil, index.scorer
        self.num_items, self.alive = index.num_items, index.alive

    def _same(self, index: Any) -> Wrong:
        return Wrong(index, self.spoil)

    def score(self, query: Any, ids: Tensor) -> Tensor:
        return self.index.score(query, ids)

    def log_prob(self, query: Any, ids: Tensor) -> Tensor:
        logq = self.index.log_prob(query, ids)
        if self.spoil == "mass":
            return logq + 0.5
        if self.spoil == "support":
            return torch.where(ids == 5, -torch.inf, logq)
        if self.spoil == "relabel":
            return logq.roll(1, 0) + torch.where(ids == 0, 1.0, 0.0)
        return logq

    def sample(self, query: Any, n: int, *, generator: Any = None, shared: bool = False) -> Draws:
        draws = self.index.sample(query, n, generator=generator, shared=shared)
        if self.spoil == "agreement":
            return Draws(draws.ids, torch.zeros_like(draws.logq))
        if self.spoil == "frequency":
            ids = torch.where(draws.ids == 1, 2, draws.ids)
            return Draws(ids, self.index.log_prob(query, ids))
        return draws

    def search(self, query: Any, k: int, *, filter: Any = None, effort: Any = None) -> Hits:
        if self.spoil == "filter":
            filter = None
        hits = self.index.search(query, k, filter=filter, effort=effort)
        if self.spoil == "prefix" and k % 2:
            return Hits(hits.ids.flip(1), hits.scores.flip(1))
        if self.spoil == "mode":
            return Hits((hits.ids + 1) % ITEMS, hits.scores)
        return hits

    def refit(self, *, generator: Any = None) -> Wrong:
        if self.spoil == "refit":
            order = torch.randperm(ITEMS, generator=generator)
            return self._same(Popularity(self.scorer, self.index.counts[order]))
        return self

    def insert(self, ids: Tensor) -> Wrong:
        return self._same(self.index.insert(ids))

    def delete(self, ids: Tensor) -> Wrong:
        return self._same(self.index if self.spoil == "edit" else self.index.delete(ids))

    def tune(self, query: Any, recall: float = 0.95, k: int = 100) -> Wrong:
        return Wrong(self.index, "mode" if self.spoil == "tune" else self.spoil)

    def vectors(self) -> Tensor | None:
        return self.index.vectors()

    def over(self, scorer: Any, order: Any) -> Wrong:
        return self._same(self.index.over(scorer, np.roll(order, self.spoil == "remade")))

    def to(self, device: str) -> Wrong:
        return self

    def state(self) -> dict[str, Tensor]:
        return self.index.state()


@pytest.mark.parametrize("law", LAWS)
def test_the_suite_rejects_an_index_that_breaks_the_law(law: str) -> None:
    def make(seed: int, order: Tensor) -> tuple[Any, Any]:
        index, query = popularity(seed, order)
        return Wrong(index, law), query

    def restore(index: Any, state: dict[str, Tensor]) -> Any:
        forgotten = state if law != "round trip" else {"counts": state["counts"]}
        return Wrong(Popularity(index.scorer, **forgotten), law)

    with pytest.raises(AssertionError):
        check(Case("wrong", make, restore), law, seed=0)


def test_flat_refuses_to_share_draws_whose_law_depends_on_the_query() -> None:
    index, query = flat(0, torch.arange(ITEMS))
    with pytest.raises(ValueError, match="cannot be shared"):
        index.sample(query, 5, shared=True)


def test_edits_outside_the_catalogue_or_of_everything_are_refused() -> None:
    index, _ = uniform(0, torch.arange(ITEMS))
    with pytest.raises(ValueError, match="ids from 0 to 23, got 24"):
        index.delete(torch.tensor([24]))
    with pytest.raises(ValueError, match="no item would be left"):
        index.delete(torch.arange(ITEMS))


def test_popularity_with_power_zero_is_uniform_and_smoothing_reaches_the_unseen() -> None:
    scorer, query = dot(0, torch.arange(ITEMS))
    counts = torch.zeros(ITEMS)
    counts[3] = 1000
    everything = torch.arange(ITEMS)
    flat_law = Popularity(scorer, counts, power=0.0).log_prob(query, everything)
    assert torch.allclose(flat_law, Uniform(scorer).log_prob(query, everything))
    skewed = Popularity(scorer, counts, smooth=0.5).log_prob(query, everything).exp()
    assert skewed[0, 3] == pytest.approx(1000.5 / (1000.5 + 23 * 0.5))
    with pytest.raises(ValueError, match="smooth > 0"):
        Popularity(scorer, counts, smooth=0.0)


def test_popularity_by_its_log_is_log_of_one_plus_count_and_says_so_in_its_state() -> None:
    scorer, query = dot(0, torch.arange(ITEMS))
    counts = torch.arange(ITEMS) ** 2
    index = Popularity(scorer, counts, power=0.3, log=True)
    weight = (1 + counts.double()).log()
    weight[0] = math.log(1.5)  # an item without events counts as half an event
    law = index.log_prob(query, torch.arange(ITEMS)).exp()[0].double()
    assert torch.allclose(law, weight / weight.sum(), rtol=1e-5)
    assert "log" not in Popularity(scorer, counts).state()
    assert bool(index.state()["log"])


def test_popularity_still_draws_the_rare_among_ten_million() -> None:
    """A float32 cumulative sum stops growing near 2^24; the float64 one reaches the last item."""
    size = 10_000_000
    counts = torch.full((size,), 5.0)

    class Blind:
        num_items = size

        def num_queries(self, query: Any) -> int:
            return 1

    index = Popularity(Blind(), counts)  # type: ignore[arg-type]
    ids = index.sample(None, 200_000, generator=torch.Generator().manual_seed(0), shared=True).ids
    assert ids.max() > size * 0.9999
    assert abs(ids.double().mean() / size - 0.5) < 0.01
