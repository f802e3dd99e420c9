"""WARP, PRIS, UIB and SML equal naive loops, and every line of their `Relations` holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from softdex.objective.binary import bce
from softdex.objective.boundary import uib
from softdex.objective.metric import sml, squared_distances
from softdex.objective.pairwise import bpr, pris, self_adversarial, warp

B, N, ITEMS = 6, 9, 40


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def draws(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Target scores (B,), scores of draws (B, N), hits (B, N), log q of draws and of targets; the
    last row has hits alone."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, ITEMS, dtype=torch.float64, generator=generator) * 2
    q = (torch.rand(B, ITEMS, dtype=torch.float64, generator=generator) + 0.05).log_softmax(1)
    own = torch.randint(ITEMS, (B, 1), generator=generator)
    ids = torch.randint(ITEMS, (B, N), generator=generator)
    ids[:, 3] = own[:, 0]
    ids[-1] = own[-1]
    own_logq = q.gather(1, own)[:, 0]
    return (
        scores.gather(1, own)[:, 0],
        scores.gather(1, ids),
        ids == own,
        q.gather(1, ids),
        own_logq,
    )


# warp --------------------------------------------------------------------------------------------


def warp_by_loop(
    pos: float, row: list[tuple[float, bool, float]], own: float, margin: float, weight: str
) -> float:
    """Try the draws one after another until one violates, as the paper does."""
    trials = 0
    for score, is_hit, logq in row:
        if is_hit:
            continue
        trials += 1
        if score > pos - margin:
            rank = max(1, math.floor((1 - math.exp(own)) / math.exp(logq) / trials))
            harmonic = sum(1 / r for r in range(1, rank + 1))
            return (harmonic if weight == "harmonic" else math.log(rank)) * (margin - pos + score)
    return 0.0


@pytest.mark.parametrize("weight", ["harmonic", "log"])
@pytest.mark.parametrize("margin", [0.0, 1.0])
@pytest.mark.parametrize("lead", [0.0, 2.0])
def test_warp_equals_the_loop(weight: str, margin: float, lead: float) -> None:
    """Rows stop at their own first violator, whenever other rows do."""
    pos, neg, hit, logq, own = draws()
    pos = pos + lead
    losses = warp(pos, neg, hit, logq, own, margin=margin, rank_weight=weight)
    for b in range(B):
        row = list(zip(neg[b].tolist(), hit[b].tolist(), logq[b].tolist(), strict=True))
        expected = warp_by_loop(pos[b].item(), row, own[b].item(), margin, weight)
        assert losses[b].item() == pytest.approx(expected)


def uniform_trials(first: list[int], items: int, trials: int) -> Tensor:
    """Losses of rows of uniform draws whose violator is draw number `first`, of excess 1."""
    neg = torch.full((len(first), trials), -9.0)
    for row, place in enumerate(first):
        if place < trials:
            neg[row, place] = 0.0
    logq = torch.full((len(first), trials), -math.log(items))
    hit = torch.zeros_like(neg, dtype=torch.bool)
    return warp(torch.zeros(len(first)), neg, hit, logq, logq[:, 0])


def test_with_uniform_draws_the_rank_is_the_items_over_the_trials() -> None:
    """In float32, too, where log q is rounded: I - 1 = 100 divides without a rest."""
    found = uniform_trials([0, 1, 3, 9, 49, 60], items=101, trials=50)
    ranks = [100, 50, 25, 10, 2]
    expected = [sum(1 / r for r in range(1, rank + 1)) for rank in ranks]
    assert found.tolist() == pytest.approx([*expected, 0.0], rel=1e-5)


def test_a_late_violator_still_counts_where_other_rows_found_theirs_at_once() -> None:
    alone = uniform_trials([40], items=1000, trials=50)
    beside = uniform_trials([0, 0, 0, 40], items=1000, trials=50)
    assert alone.item() > 0
    assert beside[3].item() == alone.item()


def test_only_the_first_violator_and_the_target_have_a_gradient() -> None:
    pos, neg = torch.zeros(1, requires_grad=True), torch.tensor([[-5.0, 0.5, 2.0, 3.0]])
    neg.requires_grad_()
    logq = torch.full((1, 4), -math.log(9))
    loss = warp(pos, neg, torch.zeros(1, 4, dtype=torch.bool), logq, logq[:, 0])
    to_pos, to_neg = torch.autograd.grad(loss.sum(), (pos, neg))
    weight = sum(1 / r for r in range(1, 5))  # 8 others in 2 trials
    assert to_neg.tolist()[0] == pytest.approx([0, weight, 0, 0], rel=1e-5)
    assert to_pos.item() == pytest.approx(-weight, rel=1e-5)


def test_with_one_draw_of_two_items_it_is_the_hinge() -> None:
    pos, neg = torch.tensor([0.3, -1.0, 4.0]), torch.tensor([[1.1], [0.4], [0.2]])
    logq = torch.full((3, 1), -math.log(2))
    loss = warp(pos, neg, torch.zeros(3, 1, dtype=torch.bool), logq, logq[:, 0])
    assert torch.allclose(loss, (1 - pos + neg[:, 0]).clamp(min=0))


def test_an_unknown_weight_of_ranks_is_named() -> None:
    with pytest.raises(ValueError, match="Did you mean 'log'"):
        warp(*draws(), rank_weight="lag")


# pris --------------------------------------------------------------------------------------------


def test_pris_equals_the_loop() -> None:
    pos, neg, hit, logq, _ = draws()
    losses = pris(pos, neg, hit, logq)
    for b in range(B - 1):
        kept = [(o, q) for o, h, q in zip(neg[b].tolist(), hit[b], logq[b].tolist(), strict=True)
                if not h]  # fmt: skip
        total = sum(math.exp(o - q) for o, q in kept)
        o_y = pos[b].item()
        expected = sum(math.exp(o - q) / total * -math.log(sigmoid(o_y - o)) for o, q in kept)
        assert losses[b].item() == pytest.approx(expected)


def test_the_weights_of_pris_have_no_gradient() -> None:
    pos, neg, hit, logq, _ = draws()
    neg.requires_grad_()
    weight = (neg.detach() - logq).masked_fill(hit, -math.inf).softmax(1).nan_to_num(0.0)
    ours = torch.autograd.grad(pris(pos, neg, hit, logq).sum(), neg)[0]
    assert torch.allclose(ours, weight * torch.sigmoid(neg - pos[:, None]))


def test_with_uniform_draws_pris_is_self_adversarial_and_with_the_softmax_it_is_bpr() -> None:
    pos, neg, hit, logq, _ = draws()
    even = torch.zeros_like(logq) - math.log(ITEMS)
    assert torch.allclose(pris(pos, neg, hit, even), self_adversarial(pos, neg, hit, 1.0))
    assert torch.allclose(pris(pos, neg, hit, neg - 3.0), bpr(pos, neg, hit))


def test_pris_tends_to_its_mean_over_the_softmax_whatever_the_proposal() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(ITEMS, dtype=torch.float64, generator=generator)
    q = (torch.rand(ITEMS, dtype=torch.float64, generator=generator) + 0.1).log().log_softmax(0)
    pos = scores[:1]
    rest = torch.arange(ITEMS) > 0
    p = scores[rest].softmax(0)
    exact = (p * torch.nn.functional.softplus(scores[rest] - pos)).sum().item()
    ids = torch.multinomial(q.exp(), 400_000, replacement=True, generator=generator)
    found = pris(pos, scores[ids][None], (ids == 0)[None], q[ids])
    assert found.item() == pytest.approx(exact, rel=5e-3)
    assert abs(bpr(pos, scores[ids][None], (ids == 0)[None]).item() - exact) > 0.05


# uib ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["logistic", "hinge"])
def test_uib_equals_the_loop(link: str) -> None:
    pos, neg, hit, _, _ = draws()
    boundary = torch.linspace(-2, 2, B, dtype=torch.float64)

    def phi(z: float) -> float:
        return math.log(1 + math.exp(z)) if link == "logistic" else max(0.0, z + 0.3)

    losses = uib(pos, neg, hit, boundary, link=link, margin=0.3)
    for b in range(B):
        edge = boundary[b].item()
        others = [o for o, h in zip(neg[b].tolist(), hit[b], strict=True) if not h]
        below = sum(phi(o - edge) for o in others) / max(1, len(others))
        assert losses[b].item() == pytest.approx(phi(edge - pos[b].item()) + below)


def test_at_boundary_zero_uib_is_bce_and_it_moves_with_the_scores() -> None:
    pos, neg, hit, _, _ = draws()
    boundary = torch.linspace(-2, 2, B, dtype=torch.float64)
    assert torch.allclose(uib(pos, neg, hit, torch.zeros(B)), bce(pos, neg, hit))
    for link in ("logistic", "hinge"):
        moved = uib(pos + 3, neg + 3, hit, boundary + 3, link=link)
        assert torch.allclose(moved, uib(pos, neg, hit, boundary, link=link))


def test_the_boundary_has_the_gradient_of_its_two_sides() -> None:
    pos, neg, hit, _, _ = draws()
    boundary = torch.linspace(-2, 2, B, dtype=torch.float64, requires_grad=True)
    ours = torch.autograd.grad(uib(pos, neg, hit, boundary).sum(), boundary)[0]
    for b in range(B):
        edge = boundary[b].item()
        others = [o for o, h in zip(neg[b].tolist(), hit[b], strict=True) if not h]
        down = sum(sigmoid(o - edge) for o in others) / max(1, len(others))
        assert ours[b].item() == pytest.approx(sigmoid(edge - pos[b].item()) - down)


# sml ---------------------------------------------------------------------------------------------


def points(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Users (B, D), targets (B, D) and draws (B, N, D)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, 3), (B, 3), (B, N, 3)
    return tuple(torch.randn(*s, dtype=torch.float64, generator=generator) * 0.5 for s in shapes)  # type: ignore[return-value]


def test_sml_equals_the_loop() -> None:
    user, item, others = points()
    hit = draws()[2]
    mine, its = torch.linspace(0.1, 1, B).double(), torch.linspace(1, 0.2, B).double()
    near = (user - item).square().sum(1)
    far, across = squared_distances(user, others), squared_distances(item, others)
    losses = sml(near, far, across, hit, mine, its, symmetry=0.4, reward=0.07)
    distance = lambda a, b: sum((x - y) ** 2 for x, y in zip(a, b, strict=True))  # noqa: E731
    for b in range(B):
        x, y = user[b].tolist(), item[b].tolist()
        kept = [n for n, h in zip(others[b].tolist(), hit[b], strict=True) if not h]
        first = [max(0.0, distance(x, y) - distance(x, n) + mine[b].item()) for n in kept]
        second = [max(0.0, distance(x, y) - distance(y, n) + its[b].item()) for n in kept]
        expected = (sum(first) + 0.4 * sum(second)) / max(1, len(kept))
        expected -= 0.07 * (mine[b] + its[b]).item()
        assert losses[b].item() == pytest.approx(expected)


def test_without_symmetry_and_reward_sml_is_the_hinge_of_negative_distances() -> None:
    user, item, others = points()
    near, far = (user - item).square().sum(1), squared_distances(user, others)
    margin, none = torch.full((B,), 0.6).double(), torch.zeros(B, N, dtype=torch.bool)
    found = sml(near, far, far, none, margin, margin, symmetry=0.0, reward=0.0)
    hinge = (0.6 - (-near[:, None]) + (-far)).clamp(min=0).mean(1)
    assert torch.allclose(found, hinge)


def test_a_margin_grows_until_a_fraction_of_the_draws_violates_it() -> None:
    user, item, others = points()
    near = (user - item).square().sum(1)
    far, across = squared_distances(user, others), squared_distances(item, others)
    none = torch.zeros(B, N, dtype=torch.bool)
    margins = [torch.full((B,), 0.5, dtype=torch.float64, requires_grad=True) for _ in "xy"]
    loss = sml(near, far, across, none, *margins, symmetry=0.4, reward=0.1)
    to_user, to_item = torch.autograd.grad(loss.sum(), margins)
    violated = ((near + 0.5)[:, None] > far).double().mean(1)
    around = ((near + 0.5)[:, None] > across).double().mean(1)
    assert torch.allclose(to_user, violated - 0.1)
    assert torch.allclose(to_item, 0.4 * around - 0.1)


@pytest.mark.parametrize("shared", [False, True])
def test_squared_distances_are_those_of_the_points(shared: bool) -> None:
    user, _, others = points()
    drawn = others[0] if shared else others
    expected = (user[:, None] - (drawn[None] if shared else drawn)).square().sum(2)
    assert torch.allclose(squared_distances(user, drawn), expected)


def test_rows_whose_draws_are_all_hits_have_no_loss_of_draws_and_no_nan() -> None:
    pos = torch.tensor([1.0], requires_grad=True)
    neg = torch.tensor([[1.0, 1.0]], requires_grad=True)
    hit, logq = torch.ones(1, 2, dtype=torch.bool), torch.full((1, 2), -1.0)
    zero = torch.zeros(1)
    losses = [
        pris(pos, neg, hit, logq),
        warp(pos, neg, hit, logq, logq[:, 0]),
        sml(pos, neg, neg, hit, zero, zero, reward=0.0),
    ]
    for loss in losses:
        assert loss.item() == 0
        for gradient in torch.autograd.grad(loss.sum(), (pos, neg)):
            assert torch.isfinite(gradient).all()
    assert uib(pos, neg, hit, zero).item() == pytest.approx(math.log(1 + math.exp(-1)))
