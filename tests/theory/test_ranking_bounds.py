"""What losses say of rankings: RG2 Propositions 3, 5, 6 and 15, and Theorem 14, in float64.

N is the number of items, o their scores, p the softmax, eta the probability of each item to be the
target, c_r = 1 / log2(1 + r) the discount of rank r. The risk of a loss is its mean over eta; the
excess is the risk less the least one. With one target NDCG is c_r.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from softdex.evaluate.metrics import user_metrics
from softdex.objective.softmax import full_softmax
from softdex.objective.taylor import rg2, rgx
from softdex.synthetic import World

Loss = Callable[[Tensor, Tensor], Tensor]
SEEDS = pytest.mark.parametrize("seed", range(3))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def ndcg(scores: Tensor, wanted: Tensor, k: int | None = None) -> Tensor:
    """Return NDCG (B,) of the lists by score; of ties, the last is ranked first."""
    n = scores.shape[1]
    order = (n - 1) - scores.flip(1).argsort(dim=1, descending=True, stable=True)
    hits = wanted.gather(1, order).numpy()
    found = user_metrics(hits, hits.sum(1), [k or n])
    return torch.from_numpy(found[f"ndcg@{k or n}"])


def every_target(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.bool)


def expected_ndcg(scores: Tensor, eta: Tensor) -> Tensor:
    """Return the mean NDCG (B,) over single targets."""
    return torch.stack(
        [
            e @ ndcg(s.expand(len(s), -1), every_target(len(s)))
            for s, e in zip(scores, eta, strict=True)
        ]
    )


def risk(loss: Loss, scores: Tensor, eta: Tensor) -> Tensor:
    every = torch.arange(eta.shape[1])
    of = torch.stack([loss(scores, y.expand(len(scores))) for y in every], 1)
    return (eta * of).sum(1)


def steps(n: int) -> Tensor:
    """c of ranks 1 to n."""
    return 1 / torch.log2(torch.arange(2, n + 2, dtype=torch.float64))


@pytest.fixture(scope="module")
def eta(world: World) -> Tensor:
    return torch.from_numpy(world.eta(np.arange(10)))


# the softmax and NDCG ----------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_softmax_bounds_the_logarithm_of_ndcg(seed: int, scale: float) -> None:
    """Proposition 3, for each target. Sharper: NDCG >= ln 2 / ln(1 + 1 / p_y)."""
    scores = scale * normal(200, 9, seed=seed)
    target = torch.arange(200) % 9
    found, loss = ndcg(scores, every_target(9)[target]), full_softmax(scores, target)
    sharp = math.log(2) / torch.log1p(loss.exp())
    assert (found >= sharp - 1e-12).all()
    assert (sharp >= (-loss).exp() - 1e-12).all()
    assert (found.log() >= -loss).all()


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_no_sharper_function_of_the_softmax_bounds_ndcg(rank: int) -> None:
    """Reached by a target that is the last of equals above which nobody stands."""
    scores = torch.full((1, 9), -60.0, dtype=torch.float64)
    scores[0, :rank] = 1.0
    target = torch.zeros(1, dtype=torch.int64)
    found, loss = ndcg(scores, every_target(9)[target]), full_softmax(scores, target)
    assert found.item() == pytest.approx(1 / math.log2(1 + rank))
    assert found.item() == pytest.approx(math.log(2) / math.log1p(loss.exp().item()))


@SEEDS
def test_of_several_targets_the_mean_softmax_bounds_the_logarithm_of_ndcg(seed: int) -> None:
    """Proposition 3 over the events of a user. Sharper: the sum of ln 2 / ln(1 + 1 / p_y) over the
    ideal DCG."""
    scores, wanted = 3 * normal(100, 9, seed=seed), normal(100, 9, seed=seed + 9) > 0.5
    wanted[:, 0] = True
    loss = torch.stack([full_softmax(scores, torch.full((100,), y)) for y in range(9)], 1)
    mean = (loss * wanted).sum(1) / wanted.sum(1)
    sharp = (math.log(2) / torch.log1p(loss.exp()) * wanted).sum(1)
    sharp /= steps(9).cumsum(0)[wanted.sum(1) - 1]
    assert (ndcg(scores, wanted) >= sharp - 1e-12).all()
    assert (sharp.log() >= -mean).all()


def test_with_a_cut_off_the_softmax_bounds_nothing() -> None:
    """Proposition 3 is of the whole list: below place k, NDCG@k is 0 and its logarithm infinite."""
    scores, target = torch.tensor([[0.1, 0.0, 0.05]]).double(), torch.tensor([1])
    assert full_softmax(scores, target).item() < 1.2
    assert ndcg(scores, every_target(3)[target], k=2).item() == 0
    assert ndcg(scores, every_target(3)[target]).item() == pytest.approx(0.5)


# the softmax, calibrated -------------------------------------------------------------------------


@SEEDS
def test_the_softmax_is_the_bregman_divergence_of_the_entropy(seed: int) -> None:
    """Proposition 5: phi(s) = sum s ln s, from the softmax to the target."""
    for row in 2 * normal(5, 6, seed=seed):
        p = [math.exp(x) / sum(math.exp(z) for z in row.tolist()) for x in row.tolist()]
        for y in range(6):
            inner = sum((math.log(q) + 1) * ((i == y) - q) for i, q in enumerate(p))
            divergence = 0 - sum(q * math.log(q) for q in p) - inner
            loss = full_softmax(row[None], torch.tensor([y])).item()
            assert loss == pytest.approx(divergence)


def keeps_top(scores: Tensor, eta: Tensor, k: int) -> Tensor:
    """Definition 18 (B,), for eta without ties."""
    at, after = scores.sort(1, descending=True).values[:, k - 1 : k + 1].T
    high, low = eta.topk(k + 1).values[-2:]
    over, under = eta > low, eta < high
    return ((scores > after[:, None]) | ~over).all(1) & ((scores < at[:, None]) | ~under).all(1)


@SEEDS
@pytest.mark.parametrize("k", [1, 2, 4])
def test_scores_that_miss_one_of_the_best_k_cost_at_least_as_much_as_a_tie(
    k: int, seed: int
) -> None:
    """Proposition 5, top-k calibration, and how much it is: the cheapest way to break the best k is
    to score places k and k + 1 alike, at a ln(2 a / (a + b)) + b ln(2 b / (a + b))."""
    eta = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(5)))
    a, b = eta.topk(k + 1).values[-2:].tolist()
    least = a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b))
    best = risk(full_softmax, eta.log()[None], eta[None])
    assert best.item() == pytest.approx(-(eta * eta.log()).sum().item())

    tied = torch.where((eta == a) | (eta == b), (a + b) / 2, eta).log()[None]
    assert not keeps_top(tied, eta, k)
    cost = risk(full_softmax, tied, eta[None]) - best
    assert cost.item() == pytest.approx(least)
    assert least > 0

    near = tied + 0.3 * normal(2000, 5, seed=seed)
    cost = risk(full_softmax, near, eta.expand(2000, -1)) - best
    kept = keeps_top(near, eta, k)
    assert kept.any()
    assert (~kept).sum() > 100
    assert (cost[~kept] >= least - 1e-12).all()
    assert keeps_top(eta.log()[None], eta, k)


@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0])
def test_ndcg_regret_is_bounded_by_the_root_of_the_excess_softmax(
    noise: float, eta: Tensor
) -> None:
    """Proposition 6 with its rate: regret <= (c_1 - c_N) sqrt(2 excess)."""
    constant = (1 - steps(eta.shape[1])[-1]).item()
    best = expected_ndcg(eta, eta)
    for seed in range(2):
        scores = eta.log() + noise * normal(*eta.shape, seed=seed)
        excess = risk(full_softmax, scores, eta) - risk(full_softmax, eta.log(), eta)
        regret = best - expected_ndcg(scores, eta)
        assert (regret > 0).any()
        assert (regret <= constant * (2 * excess).sqrt()).all()


def test_no_smaller_constant_bounds_the_ndcg_regret_of_the_softmax() -> None:
    """Two items, nearly equal: both score alike and the wrong one comes first."""
    eta = torch.tensor([[0.5 - 1e-5, 0.5 + 1e-5]], dtype=torch.float64)
    scores = torch.tensor([[1e-12, 0.0]], dtype=torch.float64)
    excess = risk(full_softmax, scores, eta) - risk(full_softmax, eta.log(), eta)
    regret = expected_ndcg(eta, eta) - expected_ndcg(scores, eta)
    ratio = regret / (2 * excess).sqrt()
    assert ratio.item() == pytest.approx((1 - steps(2)[-1]).item(), rel=1e-4)


# generalisation ----------------------------------------------------------------------------------


def events(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores (M, N), r (M, N) and the users of its events, all with some."""
    wanted = normal(4, 6, seed=seed + 5) > 0.4
    wanted[:, seed] = True
    return normal(4, 6, seed=seed), wanted, wanted.nonzero()[:, 0]


@SEEDS
def test_the_empirical_risk_is_a_mean_over_events_and_a_term_without_scores(seed: int) -> None:
    """Before Theorem 14: it is 2 N (mean RG2 - 1) + N^2 M / |D|. That of RGx is so only if the
    interaction is divided by N^2 (printed: by N, as in Eq. 17)."""
    scores, wanted, row = events(seed)
    n, target = 6, wanted.nonzero()[:, 1]
    own = 0.0
    printed = right = 0.0
    for x in range(4):
        size, total = wanted[x].sum().item(), scores[x].sum().item()
        for y in range(n):
            square = (scores[x, y].item() + 1 - wanted[x, y].item() * n / size) ** 2
            own += size * square / len(row)
            printed += size * (square - total**2 / n) / len(row)
            right += size * (square - total**2 / n**2) / len(row)
    rest = n * n * 4 / len(row)
    assert own == pytest.approx(2 * n * (rg2(scores[row], target).mean().item() - 1) + rest)
    mean = 2 * n * (rgx(scores[row], target).mean().item() - 1) + rest
    assert right == pytest.approx(mean)
    assert abs(printed - mean) > 0.1


@pytest.mark.parametrize("most", [0.5, 3.0])
@pytest.mark.parametrize("loss", [rg2, rgx])
def test_the_loss_of_an_event_changes_n_times_as_fast_as_the_printed_constant_says(
    loss: Loss, most: float
) -> None:
    """Remark 13: L > 2 (2 sqrt(N) C + 1 + N) bounds each derivative of 2 N times the loss, with
    scores up to C. But an event reads N scores. In their mean difference, which a cover measures,
    L is N times as large: moving the score of the target alone reaches 2 N (N - 1)."""
    n = 6
    corners = torch.cartesian_prod(*[torch.tensor([-most, most])] * n).double().requires_grad_()
    target = torch.arange(len(corners)) % n
    (slope,) = torch.autograd.grad(2 * n * loss(corners, target).sum(), corners)
    printed = 2 * (2 * math.sqrt(n) * most + 1 + n)
    assert n < slope.abs().max() <= 2 * (2 * most + 1 + n) < printed
    zero, moved = torch.zeros(2, n, dtype=torch.float64), 1e-3
    zero[1, 0] = -moved
    one, other = 2 * n * loss(zero, torch.zeros(2, dtype=torch.int64))
    rate = (other - one).item() / (moved / n)
    assert rate == pytest.approx(2 * n * (n - 1), rel=2e-3)
    assert printed < rate <= n * printed


def dimension(users: int, items: int, rank: int) -> float:
    """d of Proposition 24."""
    return rank * (users + items) * math.log(16 * math.e * users / rank)


def relaxed(d: float, most: float, steep: float, size: float, delta: float, power: int) -> float:
    """Eq. 33, ln of its term, with B^power: 4 is printed, 2 has the unit of the loss."""
    inside = math.log(d + 1) + power * math.log(most) + (d + 1) + d * math.log(steep)
    return math.log(16) + (inside - math.log(size * delta)) / (d + 2)


def tail(eps: float, d: float, most: float, steep: float, size: float, *, kept: bool) -> float:
    """ln of Eq. 44 in the unit of the loss, with or without the step exp(-x) <= 1 / x."""
    cover = math.log(4 * math.e * (d + 1)) + d * math.log(16 * math.e * steep / eps)
    x = size * eps**2 / (32 * most**2)
    return cover - (x if kept else math.log(x))


def root(f: Callable[[float], float]) -> float:
    """Return where a falling function of ln eps is 0, as ln eps."""
    low, high = -200.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(math.exp(middle)) > 0 else (low, middle)
    return low


def event_loss(items: int, most: float) -> tuple[float, float]:
    """Return B and L of 2 N (RG2 - its least value), |o| <= C: the largest value, and N slopes."""
    worst = torch.full((1, items), most, dtype=torch.float64)
    worst[0, 0] = -most
    best = torch.full((1, items), -min(most, 1.0), dtype=torch.float64)
    best[0, 0] = most
    target = torch.zeros(1, dtype=torch.int64)
    span = 2 * items * (rg2(worst, target) - rg2(best, target)).item()
    return span, 2 * items * (most + items - 1)


@pytest.mark.parametrize("size", [10.0, 1e5, 1e9])
@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_theorem_14_follows_from_its_tail_and_is_larger_than_any_loss(
    size: float, delta: float
) -> None:
    """Eqs. 44-45 solved exactly, with the largest loss and slopes of RG2: Eq. 33 rounds them up by
    less than a half. The loss itself is never that large: the term falls as |D|^(-1 / (d + 2)).

    With the exponential kept, it falls as |D|^(-1/2), up to a logarithm."""
    users, items, rank = 4, 6, 1
    d = dimension(users, items, rank)
    most, steep = event_loss(items, 1.0)

    def solved(size: float, *, kept: bool) -> float:
        return root(
            lambda eps: tail(eps, d, most, steep, size, kept=kept) - math.log(delta)
        )  # ln eps

    stated, exact = relaxed(d, most, steep, size, delta, 2), solved(size, kept=False)
    assert exact <= stated <= exact + math.log(1.5)
    assert stated > math.log(most)
    assert stated - relaxed(d, most, steep, 4 * size, delta, 2) < 0.04
    fall = solved(size, kept=True) - solved(4 * size, kept=True)
    if size > 1e8:
        assert fall == pytest.approx(math.log(2), abs=0.05)
        assert solved(size, kept=True) < math.log(most)


def test_theorem_14_as_printed_has_the_wrong_unit_and_fails() -> None:
    """B^4 belongs to squares of values up to B; of losses up to B it is B^2, as scaling shows.

    One user, two equally likely items, one event, one h: the risk exceeds the empirical risk by
    half the difference of the losses with probability 1/2, in a small unit more than Eq. 33."""
    scores, delta, d = torch.tensor([[1.0, -1.0]]).double(), 0.4, dimension(1, 2, 1)
    each = torch.cat([4 * rg2(scores, torch.tensor([y])) for y in (0, 1)])
    gap = (each.mean() - each.min()).item()
    most, steep = each.abs().max().item(), 2 * 2 * (1 + 2 - 1)
    for unit in (1.0, 1e-10, 1e-20):
        terms = {
            power: math.exp(relaxed(d, unit * most, unit * steep, 1, delta, power))
            for power in (2, 4)
        }
        assert unit * gap <= terms[2]
        assert (unit * gap > terms[4]) == (unit < 1e-15)


def constant(n: int) -> float:
    """C of Theorem 12, for RG2 per event."""
    c = steps(n)
    return ((c - c.flip(0)).norm() * (2 / n) ** 0.5).item()


@SEEDS
@pytest.mark.parametrize("loss", [rg2, rgx])
def test_proposition_15_bounds_ndcg_from_below_by_the_empirical_risk(
    loss: Loss, seed: int, eta: Tensor
) -> None:
    """DCG >= DCG* - C sqrt(empirical risk - least risk + T), T any bound of the largest gap between
    risks: here the gap itself over some scores. Without T it fails, in scores fitted to the log."""
    n, generator = eta.shape[1], torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(eta, 40, replacement=True, generator=generator)
    seen = torch.zeros_like(eta).scatter_add_(1, drawn, torch.ones_like(drawn).double()) / 40
    least = risk(loss, n * eta - 1, eta).mean()
    best = expected_ndcg(eta, eta).mean()
    family = [n * ((1 - w) * seen + w / n) - 1 for w in (0.0, 0.5, 1.0)]
    family += [n * eta - 1 + noise * normal(*eta.shape, seed=seed) for noise in (0.1, 1.0, 10.0)]
    empirical = torch.stack([risk(loss, o, seen).mean() for o in family])
    true = torch.stack([risk(loss, o, eta).mean() for o in family])
    term = (true - empirical).max()
    found = torch.stack([expected_ndcg(o, eta).mean() for o in family])
    assert term > 0
    assert (found >= best - constant(n) * (empirical - least + term).sqrt()).all()
    alone = best - constant(n) * (empirical - least).clamp(min=0).sqrt()
    assert (found < alone).any()


def test_proposition_15_as_printed_drops_the_root_and_takes_the_ideal_of_each_draw() -> None:
    """Eqs. 34 and 35 in the limit of many events, T = 0, h with an excess below 1; and at the best
    h, whose DCG is not E IDCG = 1 (printed as the least risk, which is negative)."""
    n = 5
    wrong = -torch.arange(n, dtype=torch.float64)[None]
    c = steps(n)[None]
    eta = (1 + (c - c.flip(1)) / 2) / n
    scores = -1e-9 * wrong
    excess = risk(rg2, scores, eta) - risk(rg2, n * eta - 1, eta)
    best, found = expected_ndcg(eta, eta), expected_ndcg(scores, eta)
    assert 0 < excess.item() < 1
    assert found >= best - constant(n) * excess.sqrt() - 1e-6
    assert found < best - 1.2 * constant(n) * excess  # no root
    ideal = ndcg(every_target(n).double(), every_target(n))  # E IDCG: each target first
    assert (ideal == 1).all()
    assert best < 0.7
