"""Sparsemax: the projection is the nearest point, and the loss is its potential."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from softdex.objective import sparsemax as module
from softdex.objective.softmax import full_softmax
from softdex.objective.sparsemax import (
    simplex_projection,
    sparsemax,
    sparsemax_mass,
    sparsemax_of_draws,
)

B, ITEMS, D = 6, 17, 4


def world(scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores (B, I) and targets (B,) in float64; the first row has ties at its top."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, ITEMS, dtype=torch.float64, generator=generator) * scale
    scores[0, :4] = scores[0].max()
    return scores, torch.randint(ITEMS, (B,), generator=generator)


def sorted_threshold(scores: list[float]) -> tuple[float, list[int]]:
    """The threshold and the support by sorting, as the paper finds them."""
    falling = sorted(scores, reverse=True)
    size = max(k for k in range(1, len(falling) + 1) if 1 + k * falling[k - 1] > sum(falling[:k]))
    level = (sum(falling[:size]) - 1) / size
    return level, [i for i, o in enumerate(scores) if o > level]


@pytest.mark.parametrize("scale", [1e-6, 0.1, 2.0, 1e4])
def test_the_loss_equals_the_loop(scale: float) -> None:
    scores, target = world(scale)
    p = simplex_projection(scores)
    for b, loss in enumerate(sparsemax(scores, target)):
        row = scores[b].tolist()
        level, support = sorted_threshold(row)
        squares = sum(row[i] ** 2 - level**2 for i in support)
        expected = -row[target[b]] + squares / 2 + 0.5
        assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9 * (1 + scale**2))
        assert p[b].tolist() == pytest.approx([max(0.0, o - level) for o in row], abs=1e-9)


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    scores, _ = world(0.4)
    rule = {"type": "eq", "fun": lambda p: p.sum() - 1}
    for row, found in zip(scores.numpy(), simplex_projection(scores).numpy(), strict=True):
        start, box = np.full(ITEMS, 1 / ITEMS), [(0, 1)] * ITEMS
        best = minimize(
            lambda p, o=row: ((p - o) ** 2).sum(), start, bounds=box, constraints=rule, tol=1e-14
        )
        assert found == pytest.approx(best.x, abs=1e-5)


def test_its_gradient_is_the_projection_less_the_target() -> None:
    scores, target = world(0.7)
    scores.requires_grad_()
    ours = torch.autograd.grad(sparsemax(scores, target).sum(), scores)[0]
    one_hot = torch.nn.functional.one_hot(target, ITEMS)
    assert torch.allclose(ours, simplex_projection(scores) - one_hot)
    step, towards = 1e-6, torch.randn_like(scores)
    up, down = (sparsemax(scores + s * towards, target).sum() for s in (step, -step))
    assert ((up - down) / (2 * step)).item() == pytest.approx((ours * towards).sum().item())


def test_a_constant_changes_nothing_and_a_lead_of_one_ends_the_loss() -> None:
    scores, target = world(0.7)
    assert torch.allclose(sparsemax(scores + 3, target), sparsemax(scores, target))
    others = scores.scatter(1, target[:, None], -math.inf).amax(1)
    ahead = scores.scatter(1, target[:, None], (others + 1)[:, None])
    assert torch.allclose(sparsemax(ahead, target), torch.zeros(B, dtype=torch.float64))
    behind = scores.scatter(1, target[:, None], (others + 0.99)[:, None])
    assert (sparsemax(behind, target) > 0).all()


def test_it_is_the_softmax_with_half_the_gini_index_in_the_place_of_the_entropy() -> None:
    """Both are max over p of p . o + H(p) less the target's score."""
    scores, target = world(0.7)
    own = scores.gather(1, target[:, None])[:, 0]
    for p, entropy, loss in (
        (simplex_projection(scores), lambda p: (1 - p.square().sum(1)) / 2, sparsemax),
        (scores.softmax(1), lambda p: -(p * p.log()).sum(1), full_softmax),
    ):
        assert torch.allclose((p * scores).sum(1) + entropy(p) - own, loss(scores, target))


@pytest.mark.parametrize("cells", [7, 40, 10**6])
@pytest.mark.parametrize("with_bias", [False, True])
def test_in_blocks_it_has_the_same_value_and_gradient(
    cells: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCORES_IN_CACHE", cells)
    monkeypatch.setattr("softdex.objective.softmax.SCORES_IN_CACHE", cells)
    generator = torch.Generator().manual_seed(1)
    make = lambda *s: torch.randn(*s, dtype=torch.float64, generator=generator)  # noqa: E731
    query, items, bias = (t.requires_grad_() for t in (make(B, D), make(ITEMS, D), make(ITEMS)))
    target = torch.randint(ITEMS, (B,), generator=generator)
    weight = torch.rand(B, dtype=torch.float64, generator=generator)
    leaves = [query, items, *([bias] if with_bias else [])]
    whole = sparsemax(query @ items.T + (bias if with_bias else 0.0), target)
    own = (query * items[target]).sum(1) + (bias[target] if with_bias else 0.0)
    block = sparsemax_mass(query, items, bias if with_bias else None) - own
    assert torch.allclose(block, whole)
    ours = torch.autograd.grad((block * weight).sum(), leaves)
    theirs = torch.autograd.grad((whole * weight).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b)


def test_items_that_are_left_out_have_no_share() -> None:
    scores, _ = world(0.3)
    scores[:, 5:9] = -math.inf
    kept = torch.tensor([i for i in range(ITEMS) if not 5 <= i < 9])
    assert torch.allclose(simplex_projection(scores)[:, kept], simplex_projection(scores[:, kept]))
    assert (simplex_projection(scores)[:, 5:9] == 0).all()
    query, items = torch.randn(3, D), torch.randn(ITEMS, D)
    bias = torch.zeros(ITEMS).index_fill(0, torch.arange(5, 9), -math.inf)
    few = sparsemax_mass(query, items[kept])
    assert torch.allclose(sparsemax_mass(query, items, bias), few, atol=1e-5)


@pytest.mark.parametrize("shape", ["flat", "normal", "geometric", "offset"])
def test_in_float32_many_items_share_a_mass_of_one(shape: str) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 50_000, generator=generator)
    spread = torch.linspace(0, 20, 50_000)
    scores = {
        "flat": noise * 1e-6,
        "normal": noise * 3,
        "geometric": -torch.exp2(-spread).expand(3, -1),
        "offset": noise * 1e-3 + 8,
    }[shape]
    assert torch.allclose(simplex_projection(scores).sum(1), torch.ones(3), atol=2e-2)
    exact = simplex_projection(scores.double())
    assert torch.allclose(exact.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-9)


def test_against_draws_it_is_the_loss_of_the_target_and_the_draws() -> None:
    scores, target = world(0.5)
    ids = torch.randint(ITEMS, (B, 9), generator=torch.Generator().manual_seed(1))
    ids[1, :] = target[1]
    pos, neg, hit = (
        scores.gather(1, target[:, None])[:, 0], scores.gather(1, ids), ids == target[:, None]
    )  # fmt: skip
    for b, loss in enumerate(sparsemax_of_draws(pos, neg, hit)):
        row = [pos[b].item(), *(o for o, h in zip(neg[b].tolist(), hit[b], strict=True) if not h)]
        level, support = sorted_threshold(row)
        expected = -row[0] + sum(row[i] ** 2 - level**2 for i in support) / 2 + 0.5
        assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert sparsemax_of_draws(pos, neg, hit)[1].item() == pytest.approx(0)


def test_with_every_other_item_drawn_once_it_is_the_whole_loss() -> None:
    scores, target = world(0.5)
    ids = torch.arange(ITEMS).expand(B, -1)
    pos = scores.gather(1, target[:, None])[:, 0]
    drawn = sparsemax_of_draws(pos, scores, ids == target[:, None])
    assert torch.allclose(drawn, sparsemax(scores, target))
