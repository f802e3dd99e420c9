"""The laws of an index, each one function against brute force. A new index joins by one `Case`.

1 mass, 2 agreement, 3 frequency, 4 support, 5 prefix, 6 mode, 7 relabel, 8 refit, 9 filter,
10 round trip, 11 edit, 12 tune, 13 remade.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.torch
import torch
from scipy.stats import chisquare
from torch import Tensor

from part_files import grown
from softdex.data.ragged import Ragged
from softdex.index.contract import Filter, Index

BATCH, ITEMS, NEW = 4, 24, 3


def as_it_is(scorer: Any, order: np.ndarray) -> Any:
    """A scorer of nodes, which knows no items."""
    return scorer


@dataclass(frozen=True)
class Case:
    """How to make an index for the laws.

    Attributes:
        make: (seed, order) -> index and query; item `order[i]` of the first index is item i here,
            so that relabelling can be checked.
        restore: (index, state) -> the same index from its saved state.
        shared: whether one set of draws can serve a batch.
        other: (scorer, order) -> the scorer over other items, see `Index.over`.
    """

    name: str
    make: Callable[[int, Tensor], tuple[Any, Any]]
    restore: Callable[[Any, dict[str, Tensor]], Any]
    shared: bool = False
    other: Callable[[Any, np.ndarray], Any] = grown

    def build(self, seed: int) -> tuple[Any, Any]:
        return self.make(seed, torch.arange(ITEMS))


EVERYTHING = torch.arange(ITEMS)


def living(index: Index, query: Any) -> Tensor:
    return index.log_prob(query, EVERYTHING)[0] > -torch.inf


def truth(index: Index, query: Any, allowed: Tensor) -> list[list[int]]:
    """Allowed items of each query by score, then by id."""
    scores = index.score(query, EVERYTHING).tolist()
    rows = []
    for b in range(len(scores)):
        mine = [i for i in range(ITEMS) if allowed[b, i]]
        rows.append(sorted(mine, key=lambda i: (-scores[b][i], i)))
    return rows


def mass(index: Index, query: Any, seed: int) -> None:
    """exp(log_prob) sums to 1 over living items."""
    total = index.log_prob(query, EVERYTHING).double().exp().sum(1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-5), total


def agreement(index: Index, query: Any, seed: int) -> None:
    """sample().logq equals log_prob of the drawn ids, and is a constant."""
    if isinstance(query, Tensor) and query.is_floating_point():
        query = query.clone().requires_grad_()
    draws = index.sample(query, 50, generator=torch.Generator().manual_seed(seed))
    assert draws.ids.shape == draws.logq.shape == (BATCH, 50)
    logq = index.log_prob(query, draws.ids)
    assert not draws.logq.requires_grad
    assert not logq.requires_grad
    assert torch.allclose(draws.logq, logq, atol=1e-5)


def frequency(index: Index, query: Any, seed: int) -> None:
    """Draws follow exp(log_prob)."""
    draws = index.sample(query, 20_000, generator=torch.Generator().manual_seed(seed))
    expected = index.log_prob(query, EVERYTHING).double().exp().numpy()
    for b in range(BATCH):
        counts = np.bincount(draws.ids[b].numpy(), minlength=ITEMS)
        likely = expected[b] * 20_000 > 5
        assert counts[expected[b] == 0].sum() == 0
        seen = np.append(counts[likely], counts[~likely].sum() + 1e-9)
        hoped = np.append(expected[b][likely] * 20_000, expected[b][~likely].sum() * 20_000 + 1e-9)
        assert chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue > 1e-6


def support(index: Index, query: Any, seed: int) -> None:
    """log_prob is finite for every living item, and nothing dead is drawn."""
    logq, alive = index.log_prob(query, EVERYTHING), index.alive
    assert torch.isfinite(logq[:, alive]).all()
    assert (logq[:, ~alive] == -torch.inf).all()
    drawn = index.sample(query, 500, generator=torch.Generator().manual_seed(seed)).ids
    assert alive[drawn].all()


def prefix(index: Any, query: Any, seed: int) -> None:
    """At one effort search(k) is the head of search(k + 1); scores never rise, no id twice."""
    reach = index.reach(query) if hasattr(index, "reach") else int(living(index, query).sum())
    reach = min(reach, int(getattr(index, "effort", reach)))
    for k in range(1, ITEMS + 2):
        here, more = index.search(query, k), index.search(query, k + 1)
        if k < reach:
            assert torch.equal(here.ids, more.ids[:, :k]), k
        assert (here.scores[:, 1:] <= here.scores[:, :-1]).all()
        for row in here.ids.tolist():
            real = [i for i in row if i >= 0]
            assert len(set(real)) == len(real)
            assert all(i == -1 for i in row[len(real) :])


def mode(index: Index, query: Any, seed: int) -> None:
    """At full effort search is the exact top k of score."""
    best = truth(index, query, living(index, query).expand(BATCH, -1))
    for k in (1, 5, ITEMS):
        hits = index.search(query, k, effort=math.inf)
        for b in range(BATCH):
            assert [i for i in hits.ids[b].tolist() if i >= 0] == best[b][:k]
        real = hits.ids >= 0
        scores = index.score(query, hits.ids.clamp(min=0)).detach()
        assert torch.allclose(hits.scores[real], scores[real], atol=1e-5)


def refit(index: Index, query: Any, seed: int) -> None:
    """Refitting what is fitted changes no answer; the same generator gives the same index."""
    once = index.refit(generator=torch.Generator().manual_seed(seed))
    again = index.refit(generator=torch.Generator().manual_seed(seed))
    twice = once.refit(generator=torch.Generator().manual_seed(seed + 1))
    for name, tensor in once.state().items():
        assert torch.equal(tensor, again.state()[name])
    assert torch.equal(once.search(query, 7).ids, twice.search(query, 7).ids)
    close = torch.allclose(once.log_prob(query, EVERYTHING), twice.log_prob(query, EVERYTHING))
    assert close


def filtered(index: Index, query: Any, seed: int) -> None:
    """Nothing filtered out comes back, and k come back whenever k allowed ones exist, for a mask of
    all queries or one per query."""
    draw = np.random.default_rng(seed)
    for share, rows in ((0.0, ()), (0.3, (BATCH,)), (0.9, ()), (0.1, (BATCH,))):
        lists = [np.flatnonzero(draw.random(ITEMS) < share) for _ in range(BATCH)]
        allow = torch.from_numpy(draw.random((*rows, ITEMS)) < 0.8)
        exclude = Ragged(np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32))
        free = (allow & living(index, query)).expand(BATCH, -1).clone()
        free[exclude.row_of, exclude.ids] = False
        for k in (1, 6, ITEMS):
            hits = index.search(query, k, filter=Filter(exclude, allow))
            for b in range(BATCH):
                found = [i for i in hits.ids[b].tolist() if i >= 0]
                assert all(free[b, i] for i in found)
                assert len(found) == min(k, int(free[b].sum()))
        best = truth(index, query, free)
        exact = index.search(query, 5, filter=Filter(exclude, allow), effort=math.inf)
        for b in range(BATCH):
            assert [i for i in exact.ids[b].tolist() if i >= 0] == best[b][:5]


def tune(index: Index, query: Any, seed: int) -> None:
    """A tuned index finds the recall that it was asked for, and draws as before."""
    for k, recall in ((1, 1.0), (5, 0.8), (ITEMS, 0.5)):
        tuned = index.tune(query, recall, k)
        most = min(k, int(index.alive.sum()))
        best = index.search(query, most, effort=math.inf).ids
        found = (tuned.search(query, most).ids.unsqueeze(2) == best.unsqueeze(1)).any(2)
        assert float(found.float().mean()) >= recall - 1e-6
        assert torch.equal(tuned.log_prob(query, EVERYTHING), index.log_prob(query, EVERYTHING))


ON_AN_INDEX = {
    "mass": mass,
    "agreement": agreement,
    "frequency": frequency,
    "support": support,
    "prefix": prefix,
    "mode": mode,
    "refit": refit,
    "filter": filtered,
    "tune": tune,
}


def relabel(case: Case, seed: int) -> None:
    """Permuting the items with the structure, or the batch, permutes the answer."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(ITEMS))
    index, query = case.build(seed)
    other, same_query = case.make(seed, order)
    logq = index.log_prob(query, EVERYTHING)
    assert torch.allclose(other.log_prob(same_query, EVERYTHING), logq[:, order], atol=1e-5)
    hits, moved = index.search(query, 6), other.search(same_query, 6)
    assert torch.equal(order[moved.ids], hits.ids)
    vectors = index.vectors()
    assert vectors is None or torch.equal(other.vectors(), vectors[order])
    swap = torch.tensor([2, 0, 3, 1])
    assert torch.equal(index.search(query[swap], 6).ids, hits.ids[swap])
    assert torch.allclose(index.log_prob(query[swap], EVERYTHING), logq[swap], atol=1e-6)


def round_trip(case: Case, seed: int) -> None:
    """State survives a file; moving to the device it is on changes nothing; kinds are as stated."""
    index, query = case.build(seed)
    index = index.delete(torch.tensor([3]))
    saved = safetensors.torch.load(safetensors.torch.save(index.state()))
    for again in (case.restore(index, saved), index.to("cpu")):
        assert torch.equal(again.search(query, 9).ids, index.search(query, 9).ids)
        ours, theirs = (i.log_prob(query, EVERYTHING) for i in (index, again))
        assert torch.equal(ours, theirs)
    hits = index.search(query, 3)
    draws = index.sample(query, 3, generator=torch.Generator().manual_seed(0))
    assert hits.ids.dtype == draws.ids.dtype == torch.int64
    assert hits.scores.dtype == draws.logq.dtype == torch.float32


def edit(case: Case, seed: int) -> None:
    """Insert and delete keep the other laws over the living items."""
    index, query = case.build(seed)
    gone = torch.from_numpy(np.random.default_rng(seed).choice(ITEMS, 7, replace=False))
    fewer = index.delete(gone)
    assert not living(fewer, query)[gone].any()
    assert int(living(fewer, query).sum()) == ITEMS - 7
    for law in ON_AN_INDEX.values():
        law(fewer, query, seed)
    back = fewer.insert(gone[:3])
    assert int(living(back, query).sum()) == ITEMS - 4
    for law in ON_AN_INDEX.values():
        law(back, query, seed)
    assert int(living(index, query).sum()) == ITEMS, "the index it came from has changed"


def remade(case: Case, seed: int) -> None:
    """Over other items the old ones are as they were, and new ones are not in it yet."""
    index, query = case.build(seed)
    index = index.delete(torch.tensor([3]))
    order = np.random.default_rng(seed).permutation(ITEMS + NEW)
    place = torch.from_numpy(np.argsort(order))
    old, new = place[:ITEMS], place[ITEMS:]
    wide = index.over(case.other(index.scorer, order), order)
    if query.dtype == torch.int64:  # histories
        asked = torch.where(query >= 0, old[query.clamp(min=0)], -1)
    else:
        asked = query
    assert wide.num_items == len(wide.alive) == ITEMS + NEW
    assert torch.equal(wide.alive[old], index.alive)
    logq = wide.log_prob(asked, torch.arange(ITEMS + NEW))
    assert torch.allclose(logq[:, old], index.log_prob(query, EVERYTHING), atol=1e-5)
    assert (logq[:, new] == -torch.inf).all()
    hits = index.search(query, 6)
    assert torch.equal(wide.search(asked, 6).ids, old[hits.ids])
    more = wide.insert(new)
    assert bool(more.alive[new].all())
    drawn = more.sample(asked, 2000, generator=torch.Generator().manual_seed(seed)).ids
    assert bool(more.alive[drawn].all())
    assert torch.isfinite(more.log_prob(asked, new)).all()


ON_A_CASE = {"relabel": relabel, "round trip": round_trip, "edit": edit, "remade": remade}
LAWS = [*ON_AN_INDEX, *ON_A_CASE]


def check(case: Case, law: str, seed: int) -> None:
    """Raise AssertionError where the case breaks the law."""
    if law in ON_A_CASE:
        ON_A_CASE[law](case, seed)
        return
    index, query = case.build(seed)
    ON_AN_INDEX[law](index, query, seed)
    if law == "agreement" and case.shared:
        draws = index.sample(query, 50, generator=torch.Generator().manual_seed(seed), shared=True)
        assert draws.ids.shape == draws.logq.shape == (50,)
        assert torch.allclose(draws.logq.expand(BATCH, -1), index.log_prob(query, draws.ids))
