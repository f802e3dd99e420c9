"""What the draws of BIR cost: its Lemmas A.2-A.6 and Theorem A.2, over all draws in float64.

One row: the target y with mass a = exp o_y, and K candidates k drawn M times by w. Each draw of k
adds x_k / M to the normaliser V and x_k g_k / M to U, with g the gradient of the score; x is
exp(o) / w for `proposal` and M exp(o) for `none`. S_m sums x over m draws, Z = E V = a + sum w x,
and W = (a + S_(M - 1) / M)^2. The gradient of the loss is U / V - g_y.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from softdex.objective.in_batch import (
    batch_softmax,
    resampled_softmax,
    resampling_log_weights,
)

CANDIDATES, DIM = 3, 4
SEEDS = pytest.mark.parametrize("seed", range(4))
DRAWS = pytest.mark.parametrize("draws", [2, 8, 32])


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


class Row(NamedTuple):
    """A row: the score of its target, those of the candidates, their p and all gradients."""

    own: Tensor  # ()
    scores: Tensor  # (K,)
    p: Tensor  # (K,)
    to_own: Tensor  # g_y (D,)
    to_scores: Tensor  # g (K, D)

    @property
    def mass(self) -> Tensor:
        return self.scores.exp()

    @property
    def law(self) -> Tensor:
        """w, by the definition."""
        weight = self.mass / self.p
        return weight / weight.sum()


def row_of(seed: int, *, even: bool = False) -> Row:
    p = (normal(CANDIDATES, seed=seed) * (0.0 if even else 0.6)).exp()
    own, scores = normal(seed=seed + 10), normal(CANDIDATES, seed=seed + 20) * 0.7
    gradients = normal(CANDIDATES + 1, DIM, seed=seed + 30)
    return Row(own, scores, p / p.sum(), gradients[0], gradients[1:])


SKEWED = Row(  # one candidate holds nearly all of the mass and is rarely drawn
    torch.tensor(-3.0, dtype=torch.float64),
    torch.tensor([2.0, -0.5, -0.5], dtype=torch.float64),
    torch.tensor([0.98, 0.01, 0.01], dtype=torch.float64),
    torch.zeros(DIM, dtype=torch.float64),
    torch.ones(CANDIDATES, DIM, dtype=torch.float64),
)


@cache
def counts_of(draws: int, kinds: int = CANDIDATES) -> Tensor:
    """Return how often each candidate can be drawn, (ways, K)."""
    bars = itertools.combinations(range(draws + kinds - 1), kinds - 1)
    edges = [(-1, *bar, draws + kinds - 1) for bar in bars]
    return torch.tensor(edges).diff(dim=1).double() - 1


def chance(counts: Tensor, law: Tensor) -> Tensor:
    """Return the multinomial probability of these counts (ways,)."""
    ways = torch.lgamma(counts.sum(1) + 1) - torch.lgamma(counts + 1).sum(1)
    return (ways + counts @ law.log()).exp()


class Drawn(NamedTuple):
    """All draws of a row: their probability, and what the library makes of them."""

    p: Tensor  # (ways,)
    total: Tensor  # V (ways,)
    gradient: Tensor  # of the loss (ways, D)

    def mean(self, values: Tensor) -> Tensor:
        return self.p @ values


def drawn(row: Row, draws: int, correction: str = "proposal") -> Drawn:
    counts = counts_of(draws)
    own = row.own.expand(len(counts)).clone().requires_grad_()
    neg = row.scores.expand(len(counts), -1).clone().requires_grad_()
    weight = resampling_log_weights(neg, row.p.log())
    loss = resampled_softmax(own, neg, counts, weight, correction=correction)
    to_own, to_neg = torch.autograd.grad(loss.sum(), [own, neg])
    gradient = to_own[:, None] * row.to_own + to_neg @ row.to_scores
    return Drawn(chance(counts, row.law), (loss + own).detach().exp(), gradient)


def inverse_square(row: Row, draws: int) -> Tensor:
    """Return 1 / W of `proposal` over all draws but the last (ways,), and E of it by `chance`."""
    a, before = row.own.exp(), drawn(row, draws - 1)
    return (a + (before.total - a) * (draws - 1) / draws).square().reciprocal()


class Parts(NamedTuple):
    """The quantities of the lemmas for one estimator, by their definitions."""

    x: Tensor
    law: Tensor
    a: Tensor
    to_own: Tensor
    to_scores: Tensor
    draws: int

    @property
    def total(self) -> Tensor:
        return self.a + self.law @ self.x

    @property
    def upper(self) -> Tensor:
        """E U."""
        return self.a * self.to_own + (self.law * self.x) @ self.to_scores

    @property
    def variance(self) -> Tensor:
        """Of V."""
        return (self.law @ self.x**2 - (self.law @ self.x) ** 2) / self.draws

    def rest(self) -> Tensor:
        """E 1 / W."""
        counts = counts_of(self.draws - 1, len(self.x))
        return chance(counts, self.law) @ (self.a + counts @ self.x / self.draws) ** -2.0

    def delta(self) -> Tensor:
        """Lemma A.2: (1 / M) E sum_k w x |g_k| |x_o - x_k| / W, o the last draw (D,)."""
        apart = self.law @ (self.x[:, None] - self.x).abs()
        return self.rest() * ((self.law * self.x * apart) @ self.to_scores.abs()) / self.draws

    def widest(self) -> Tensor:
        """Lemma A.5, with the largest difference of x and the largest gradient."""
        apart, steep = self.x.max() - self.x.min(), self.to_scores.abs().max()
        return steep * apart * (self.law @ self.x) * self.rest() / self.draws

    def bound(self) -> Tensor:
        """Theorem A.2, for either sign and any M (D,)."""
        inverse = self.variance / (self.total**2 * (self.a + self.x.min()))
        return self.upper.abs() * inverse + self.widest()


def parts(row: Row, draws: int, correction: str = "proposal") -> Parts:
    x = {
        "proposal": row.mass / row.law,
        "none": draws * row.mass,
        "uniform": torch.ones_like(row.mass),
    }[correction]
    a = row.own.exp() if correction != "uniform" else torch.zeros_like(row.own)
    return Parts(x, row.law, a, row.to_own, row.to_scores, draws)


def limit(row: Row, draws: int, correction: str) -> Tensor:
    """Return the gradient (D,) of the loss that the draws of an estimator stand for."""
    if correction == "uniform":
        weight = resampling_log_weights(row.scores[None], row.p.log())[0].exp()
        return weight @ row.to_scores - row.to_own
    own, neg = row.own[None].clone().requires_grad_(), row.scores[None].clone().requires_grad_()
    logp = None if correction == "proposal" else -(draws * row.law).log()
    to_own, to_neg = torch.autograd.grad(batch_softmax(own, neg, None, logp).sum(), [own, neg])
    return to_own[0] * row.to_own + to_neg[0] @ row.to_scores


# lemmas ------------------------------------------------------------------------------------------


@SEEDS
@DRAWS
def test_the_mean_inverse_exceeds_the_inverse_of_the_mean_by_little(seed: int, draws: int) -> None:
    """Lemma A.6 with 1 / E V on the right, where E 1 / V is printed. Sharper: Var / (E V^2 a)."""
    d = drawn(row_of(seed), draws)
    low, mean = d.total.min(), d.mean(d.total)
    variance = d.mean((d.total - mean) ** 2)
    excess = d.mean(1 / d.total) - 1 / mean
    assert excess > 0
    assert excess <= variance / (mean**2 * low) <= variance / low**3
    third = d.mean((d.total - mean).abs() ** 3)
    assert excess <= variance / mean**3 + third / low**4


@SEEDS
def test_the_normaliser_of_proposal_has_the_mean_of_the_batch_and_this_variance(seed: int) -> None:
    """Lemma A.3: Var V = (Z_Bp sum p exp o - Z_B^2) / M. The printed variance doubles where it
    should square, and the printed Z sums over all items."""
    row, draws = row_of(seed), 64
    d, batch = drawn(row, draws), row.mass.sum()
    weighted = (row.mass / row.p).sum() * (row.p @ row.mass)
    mean = d.mean(d.total)
    variance = d.mean((d.total - mean) ** 2)
    assert mean.item() == pytest.approx((row.own.exp() + batch).item())
    assert variance.item() == pytest.approx(((weighted - batch**2) / draws).item())
    pairs = (row.mass[:, None] + row.mass).sum()
    printed = (2 * (row.mass / row.law).sum() - pairs) / draws
    assert abs(printed - variance) > 0.1 * variance
    excess = d.mean(1 / d.total) - 1 / mean
    assert (excess / (variance / mean**3)).item() == pytest.approx(1, abs=0.1)
    every = mean + 2.0  # with items that are not in the batch
    assert excess > 1.1 * variance / every**3


@SEEDS
def test_the_mean_inverse_square_tends_to_that_of_the_batch_not_to_less(seed: int) -> None:
    """Lemma A.4: E 1 / W = 1 / Z^2 + O(1 / M). Printed 1 / (Z^2 + sum exp(2 o) / w), which has the
    variance of one draw where that of their mean belongs."""
    row = row_of(seed)
    total, second = row.own.exp() + row.mass.sum(), (row.mass**2 / row.law).sum()
    gaps = []
    for draws in (16, 64, 256):
        p, inverse = chance(counts_of(draws - 1), row.law), inverse_square(row, draws)
        mean = total - row.mass.sum() / draws
        variance = (draws - 1) / draws**2 * (second - row.mass.sum() ** 2)
        assert (p @ (1 / inverse)).item() == pytest.approx((mean**2 + variance).item())
        spread = p @ (1 / inverse - p @ (1 / inverse)) ** 2
        assert p @ inverse <= 1 / (p @ (1 / inverse)) + spread / (row.own.exp() ** 6)
        assert (p @ inverse).item() == pytest.approx(parts(row, draws).rest().item())
        assert p @ inverse > 1.2 / (total**2 + second)
        assert p @ inverse > 1.2 / (total**2 + (row.mass / row.law).sum())  # as in the statement
        gaps.append((p @ inverse * total**2 - 1).abs().item())
    for more, less in itertools.pairwise(gaps):
        assert more / less == pytest.approx(4, rel=0.35)


@SEEDS
@DRAWS
def test_a_ratio_of_sums_over_draws_lies_between_these_two(seed: int, draws: int) -> None:
    """Lemma A.2, sums over the batch. Below, the two terms are added (printed: multiplied), and g
    must not be negative; above, it may be."""
    row = row_of(seed)
    for signed in (True, False):
        if not signed:
            row = row._replace(to_own=row.to_own.abs(), to_scores=row.to_scores.abs())
        d, of = drawn(row, draws), parts(row, draws)
        ratio = d.mean(d.gradient) + row.to_own  # E U / V
        assert (ratio <= of.upper * d.mean(1 / d.total) + of.delta() + 1e-12).all()
        own = of.a * row.to_own / of.total
        rest = row.mass / (of.a + (1 - 1 / draws) * row.mass.sum() + of.x / draws)
        if not signed:
            assert (ratio >= own + rest @ row.to_scores - 1e-12).all()
    product = own * (rest @ row.to_scores)
    assert (1000**2 * product > 1000 * ratio).all()  # in other units of g


def test_below_zero_the_lower_bound_of_a_ratio_fails() -> None:
    row, draws = SKEWED._replace(to_scores=-SKEWED.to_scores), 4
    d, of = drawn(row, draws), parts(row, draws)
    rest = row.mass / (of.a + (1 - 1 / draws) * row.mass.sum() + of.x / draws)
    assert (d.mean(d.gradient) < rest @ row.to_scores - 1e-3).all()


@SEEDS
@DRAWS
def test_what_is_left_over_is_bounded_by_the_spread_of_popularity(seed: int, draws: int) -> None:
    """Lemma A.5: Delta <= (G / M) max|p_j - p_l| Z_Bp Z_B E 1 / W. The statement drops 1 / M; the
    printed 2 is not needed."""
    row = row_of(seed)
    of, scarce = parts(row, draws), (row.mass / row.p).sum()
    steep, spread = row.to_scores.abs().max(), (row.p.max() - row.p.min()) * scarce
    stated = steep / draws * spread * row.mass.sum() * of.rest()
    assert (of.delta() <= stated).all()
    assert stated.item() == pytest.approx(of.widest().item())


def test_the_printed_bound_of_what_is_left_over_is_too_small() -> None:
    """Lemma A.5 with Z^2 + sum exp(2 o) / w below. Here Delta is 5.5 times that as M grows."""
    row = SKEWED
    second, total = (row.mass**2 / row.law).sum(), row.own.exp() + row.mass.sum()
    for draws in (64, 256):
        of = parts(row, draws)
        spread = of.x.max() - of.x.min()
        printed = 2 * spread * row.mass.sum() / (draws * (total**2 + second))
        assert (of.delta() > 5 * printed).all()


# the theorem -------------------------------------------------------------------------------------


@SEEDS
@DRAWS
@pytest.mark.parametrize("correction", ["none", "uniform", "proposal"])
def test_theorem_a2_bounds_the_bias_of_each_estimator_against_its_own_limit(
    correction: str, seed: int, draws: int
) -> None:
    """|E gradient - its limit| <= |E U| Var V / (Z^2 a) + (G / M) max|x_j - x_l| sum(w x) E 1 / W.

    The limit of `proposal` is the plain softmax over the batch, that of `none` the one weighted by
    M w, and `uniform` has no bias from its draws."""
    row = row_of(seed)
    d, of = drawn(row, draws, correction), parts(row, draws, correction)
    bias = (d.mean(d.gradient) - limit(row, draws, correction)).abs()
    assert (bias <= of.bound() + 1e-12).all()
    if correction == "uniform":
        assert bias.max() < 1e-12
        assert of.bound().max() < 1e-12
    else:
        assert bias.max() > of.bound().max() / 200  # it says something


@SEEDS
def test_theorem_a2_the_bias_of_proposal_falls_as_one_over_the_draws(seed: int) -> None:
    row = row_of(seed)
    bias, bound = [], []
    for draws in (32, 128):
        d = drawn(row, draws)
        bias.append((d.mean(d.gradient) - limit(row, draws, "proposal")).abs().max().item())
        bound.append(parts(row, draws).bound().max().item())
    assert bias[0] / bias[1] == pytest.approx(4, rel=0.1)
    assert bound[0] / bound[1] == pytest.approx(4, rel=0.15)


@SEEDS
@pytest.mark.parametrize("draws", [1, 5])
def test_theorem_a2_with_even_popularity_every_draw_gives_the_same_loss(
    seed: int, draws: int
) -> None:
    """x is the same for all candidates, so V is a constant, and the bias is 0 for any M."""
    row = row_of(seed, even=True)
    d = drawn(row, draws)
    assert d.total.numpy() == pytest.approx((row.own.exp() + row.mass.sum()).item())
    bias = d.mean(d.gradient) - limit(row, draws, "proposal")
    assert bias.abs().max() < 1e-12
    if draws > 1:
        assert parts(row, draws).bound().max() < 1e-12


def test_theorem_a2_as_printed_speaks_of_the_full_softmax_and_fails() -> None:
    """With Z and the limit over all items, for a batch that lacks a likely one: the bias stays and
    the printed bound vanishes."""
    row, absent = row_of(0), torch.tensor(2.0, dtype=torch.float64)
    total = row.own.exp() + row.mass.sum() + absent.exp()
    to_absent = torch.zeros(DIM, dtype=torch.float64)
    upper = row.own.exp() * row.to_own + row.mass @ row.to_scores + absent.exp() * to_absent
    full = upper / total - row.to_own
    missed = []
    for draws in (8, 32, 128):
        d = drawn(row, draws)
        scarce, steep = (row.mass / row.p).sum(), row.to_scores.abs().max()
        second, batch = scarce * (row.p @ row.mass), row.mass.sum()
        spread = (row.p.max() - row.p.min()) * scarce
        printed = upper * (second - batch**2) / (draws * total**3)
        printed = printed + 2 * steep * spread * batch / (draws * (total**2 + second))
        missed.append((d.mean(d.gradient) - full - printed).max().item())
    assert missed == sorted(missed)
    assert missed[-1] > 0.1


@pytest.mark.parametrize("batch", [8, 16, 32])
@SEEDS
def test_against_the_full_softmax_it_bounds_the_bias_of_uniform_over_batches(
    seed: int, batch: int
) -> None:
    """With the batch as the draws, w = p and x = exp(o) / p, E V is the sum over all items, so the
    theorem holds of the full softmax. The bias is 0 where p is the softmax, not where p is even."""
    row = row_of(seed)

    def bias(p: Tensor) -> Tensor:
        counts = counts_of(batch)
        ids = torch.stack(
            [torch.repeat_interleave(torch.arange(CANDIDATES), c.long()) for c in counts]
        )
        weight = resampling_log_weights(row.scores[ids], p.log()[ids]).exp()
        mean = (weight.unsqueeze(2) * row.to_scores[ids]).sum(1)  # E over draws, for any M
        return (chance(counts, p) @ mean - row.scores.softmax(0) @ row.to_scores).abs()

    nothing = torch.zeros((), dtype=torch.float64)
    of = Parts(row.mass / row.p, row.p, nothing, row.to_own, row.to_scores, batch)
    assert of.total.item() == pytest.approx(row.mass.sum().item())
    assert (bias(row.p) <= of.bound()).all()
    assert bias(row.p).max() > of.bound().max() / 200
    assert bias(row.scores.softmax(0)).max() < 1e-12
    assert bias(torch.full_like(row.p, 1 / CANDIDATES)).max() > 1e-3
