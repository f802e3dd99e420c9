"""Factor ranks: the law is the mixture over factors of an exponential law of ranks."""

from __future__ import annotations

import math

import pytest
import torch

from softdex.index.factor_ranks import FactorRanks
from softdex.score.product import Cosine, Dot

ITEMS, DIM, B = 30, 4, 5


def made(kind: str) -> tuple[Dot | Cosine, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    items, offsets = (torch.randn(*s, generator=generator) for s in ((ITEMS, DIM), (ITEMS,)))
    query = torch.randn(B, DIM, generator=generator)
    if kind == "cosine":
        return Cosine(items, torch.tensor(0.3), offsets), query
    return Dot(items, offsets if kind == "bias" else None), query


@pytest.mark.parametrize("kind", ["dot", "bias", "cosine"])
def test_the_law_equals_the_loop(kind: str) -> None:
    scorer, query = made(kind)
    dead, scale = {3, 17}, 2.5
    index = FactorRanks(scorer, scale=scale).delete(torch.tensor(sorted(dead)))
    found = index.log_prob(query, torch.arange(ITEMS))
    living = [i for i in range(ITEMS) if i not in dead]
    vectors = scorer.vectors(slice(None)).double()
    offsets = scorer.offsets(slice(None))
    mass = sum(math.exp(-r / scale) for r in range(len(living)))
    for b in range(B):
        z = scorer.project(query)[b].double().tolist()
        columns = vectors.T.tolist()
        if offsets is not None:
            z, columns = [*z, 1.0], [*columns, offsets.tolist()]
        weights = []
        for entry, column in zip(z, columns, strict=True):
            mean = sum(column[i] for i in living) / len(living)
            spread = math.sqrt(sum((column[i] - mean) ** 2 for i in living) / len(living))
            weights.append(abs(entry) * spread)
        for item in range(ITEMS):
            if item in dead:
                assert found[b, item] == -math.inf
                continue
            q = 0.0
            for entry, column, weight in zip(z, columns, weights, strict=True):
                better = [i for i in living if (column[i] - column[item]) * entry > 0]
                q += weight / sum(weights) * math.exp(-len(better) / scale) / mass
            assert found[b, item].item() == pytest.approx(math.log(q), abs=1e-4)


def test_small_scales_draw_the_head_of_one_factor_and_large_ones_everything_alike() -> None:
    scorer, _ = made("dot")
    query = torch.zeros(2, DIM)
    query[0, 2], query[1, 2] = 1.0, -1.0
    narrow = FactorRanks(scorer, scale=1e-3).sample(query, 40)
    best = scorer.items.weight[:, 2]
    assert set(narrow.ids[0].tolist()) == {int(best.argmax())}
    assert set(narrow.ids[1].tolist()) == {int(best.argmin())}
    wide = FactorRanks(scorer, scale=1e6).log_prob(query, torch.arange(ITEMS))
    assert torch.allclose(wide, torch.tensor(-math.log(ITEMS)), atol=1e-4)


def test_ranks_follow_the_vectors_at_a_refit_and_not_before() -> None:
    scorer, query = made("dot")
    index, every = FactorRanks(scorer, scale=2.0), torch.arange(ITEMS)
    before = index.log_prob(query, every)
    scorer.items.weight.copy_(scorer.items.weight.flip(0).clone())
    assert torch.equal(index.log_prob(query, every), before)
    after = index.refit().log_prob(query, every)
    assert torch.allclose(after, before.flip(1), atol=1e-5)


def test_a_query_of_zeros_draws_by_all_factors() -> None:
    scorer, _ = made("dot")
    found = FactorRanks(scorer).log_prob(torch.zeros(1, DIM), torch.arange(ITEMS))
    assert torch.isfinite(found).all()
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_tiles_do_not_change_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, query = made("bias")
    index, every = FactorRanks(scorer, scale=2.0), torch.arange(ITEMS)
    whole = index.log_prob(query, every)
    monkeypatch.setattr("softdex.index.factor_ranks.CELLS", 3 * DIM)
    assert torch.equal(index.log_prob(query, every), whole)
