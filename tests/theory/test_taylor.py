"""RG2, RGx and squared losses: what the RG2 paper says of them, corrected where it errs, and sums.

c = log N - 1/2 throughout; l is the full softmax. Oracles are loops and matrices of all scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import hessian

from softdex.objective.softmax import full_softmax
from softdex.objective.squared import frequency_reg, squared_of_vectors, weighted_squared
from softdex.objective.taylor import rg2, rg_of_vectors, rgx
from softdex.synthetic import World

INTERACTIONS = ["exact", "frobenius"]
Loss = Callable[[Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def gap(loss: Loss, scores: Tensor, t: float = 1.0) -> float:
    """l - loss - c of one vector of scores, scaled by t; the target is the first item."""
    scores, first = t * scores[None], torch.zeros(1, dtype=torch.int64)
    constant = math.log(scores.shape[1]) - 0.5
    return (full_softmax(scores, first) - loss(scores, first)).item() - constant


def slope(loss: Loss, scores: Tensor, t: float = 2e-3) -> float:
    """The power of t with which the gap vanishes."""
    return math.log2(abs(gap(loss, scores, 2 * t) / gap(loss, scores, t)))


def moment(scores: Tensor, power: int) -> float:
    """Central moment under equal probabilities."""
    return float((scores - scores.mean()).pow(power).mean())


SKEWED = torch.tensor([2.0, -0.5, 0.3, -1.1, 0.9, 0.4, 1.7], dtype=torch.float64)
SYMMETRIC = torch.tensor([2.0, -2.0, 0.7, -0.7, 0.0], dtype=torch.float64)


class Events:
    """Tiny vectors and weighted events: one pair twice, and a query with none."""

    def __init__(self, seed: int = 0, users: int = 5, items: int = 7, dim: int = 3) -> None:
        self.query, self.items = normal(users, dim, seed=seed), normal(items, dim, seed=seed + 1)
        self.row = torch.tensor([0, 0, 0, 1, 2, 2, 4, 4, 4, 4])
        self.item = torch.tensor([1, 5, 1, 0, 2, 6, 3, 1, 4, 0])
        self.weight = normal(10, seed=seed + 2).abs() + 0.1
        self.events = self.row, self.item

    def losses(self, query: Tensor, items: Tensor, beta: float, interaction: str) -> Tensor:
        return rgx((query @ items.T)[self.row], self.item, beta, interaction=interaction)

    def own(self, query: Tensor, items: Tensor) -> Tensor:
        return (query @ items.T)[self.row, self.item]


def assert_same_function(ours: Callable[..., Tensor], theirs: Callable[..., Tensor]) -> None:
    """In value, gradient and Hessian-vector product, of query (5, 3) and items (7, 3)."""
    here = [normal(5, 3, seed=11).requires_grad_(), normal(7, 3, seed=12).requires_grad_()]
    along = [normal(5, 3, seed=13), normal(7, 3, seed=14)]
    found = []
    for function in (ours, theirs):
        value = function(*here)
        first = torch.autograd.grad(value, here, create_graph=True)
        product = sum((g * v).sum() for g, v in zip(first, along, strict=True))
        assert isinstance(product, Tensor)
        found.append([value, *first, *torch.autograd.grad(product, here)])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))


# naive loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_rg2_and_rgx_equal_the_loop(beta: float) -> None:
    """RG2 Eqs. 14-15, and Eq. 31 with beta for V."""
    scores, target = normal(4, 6) * 2, torch.tensor([0, 5, 2, 2])
    exact, printed = (rgx(scores, target, beta, interaction=i) for i in INTERACTIONS)
    for b, (o, y) in enumerate(zip(scores.tolist(), target.tolist(), strict=True)):
        squared = -o[y] + sum((x + 1) ** 2 for x in o) / 12
        assert rg2(scores, target)[b].item() == pytest.approx(squared)
        assert exact[b].item() == pytest.approx(squared - beta * sum(o) ** 2 / 72)
        assert printed[b].item() == pytest.approx(squared - beta * sum(x * x for x in o) / 12)


@pytest.mark.parametrize("interaction", INTERACTIONS)
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.0, 0.6), (0.4, 1.0)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rg_of_vectors_equals_the_sum_over_events_in_value_and_derivatives(
    interaction: str, alpha: float, beta: float, weighted: bool
) -> None:
    e = Events()
    weight = e.weight if weighted else torch.ones_like(e.weight)

    def fast(query: Tensor, items: Tensor) -> Tensor:
        given = e.weight if weighted else None
        options = {"weight": given, "alpha": alpha, "beta": beta, "interaction": interaction}
        return rg_of_vectors(query, items, *e.events, **options)

    def slow(query: Tensor, items: Tensor) -> Tensor:
        pull = (e.own(query, items) - 1) ** 2
        return (weight * (e.losses(query, items, beta, interaction) + alpha * pull)).sum()

    assert_same_function(fast, slow)


@pytest.mark.parametrize("weighted", [False, True])
def test_squared_of_vectors_equals_the_sum_over_cells_in_value_and_derivatives(
    weighted: bool,
) -> None:
    e = Events()
    weight = e.weight if weighted else torch.ones_like(e.weight)

    def fast(query: Tensor, items: Tensor) -> Tensor:
        given = e.weight if weighted else None
        return squared_of_vectors(query, items, *e.events, weight=given, background=0.2)

    def slow(query: Tensor, items: Tensor) -> Tensor:
        events = (weight * (e.own(query, items) - 1) ** 2).sum()
        return events + 0.2 * ((query @ items.T) ** 2).sum()

    assert_same_function(fast, slow)


def test_sums_over_vectors_never_hold_all_scores() -> None:
    """4e10 scores would take 320 GB; only four queries are not zero, so their rows are a check."""
    size, item = 200_000, torch.tensor([7, 199_999, 0, 12, 7])
    query, items = torch.zeros(size, 2, dtype=torch.float64), normal(size, 2)
    query[:4] = normal(4, 2, seed=1)
    row = torch.tensor([0, 1, 1, 2, 3])
    scores = query[:4] @ items.T
    ours = rg_of_vectors(query, items, row, item, beta=0.5)
    assert torch.allclose(ours, rgx(scores[row], item, 0.5).sum())
    ours = squared_of_vectors(query, items, row, item, background=0.1)
    expected = (scores[row, item] - 1).square().sum() + 0.1 * scores.square().sum()
    assert torch.allclose(ours, expected)


def test_squares_of_all_rows_equal_those_of_events_and_background() -> None:
    """iALS in the form of RG2 Eq. 11: an event's cell is wanted at c / (c + background)."""
    e, background = Events(), 0.2
    cells = torch.zeros(5, 7, dtype=torch.float64)
    cells.index_put_(e.events, e.weight, accumulate=True)
    differences = []
    for seed in range(3):
        query, items = normal(5, 3, seed=seed), normal(7, 3, seed=seed + 50)
        rows = weighted_squared(
            query @ items.T, cells / (cells + background), cells + background
        ).sum()
        ours = squared_of_vectors(query, items, *e.events, weight=e.weight, background=background)
        differences.append((ours - rows).item())
    assert differences == pytest.approx([differences[0]] * 3)


def test_frequency_reg_equals_the_loop_and_counts_rows_that_never_occur_only_without_nu() -> None:
    vectors, total = normal(4, 3), torch.tensor([0, 1, 5, 2])
    norms = [sum(x * x for x in v) for v in vectors.tolist()]
    for nu, powers in [(0.0, [1, 1, 1, 1]), (1.0, [0, 1, 5, 2]), (0.5, [0, 1, 5**0.5, 2**0.5])]:
        expected = 0.3 * sum(p * n for p, n in zip(powers, norms, strict=True))
        assert frequency_reg(vectors, total, 0.3, nu).item() == pytest.approx(expected)


def test_an_unknown_interaction_is_named() -> None:
    e = Events()
    with pytest.raises(ValueError, match="Did you mean 'exact'"):
        rgx(normal(2, 3), torch.tensor([0, 1]), interaction="exat")
    with pytest.raises(ValueError, match="Did you mean 'frobenius'"):
        rg_of_vectors(e.query, e.items, *e.events, interaction="frobenious")


# expansion of the softmax ------------------------------------------------------------------------


def test_rgx_is_the_softmax_up_to_third_order() -> None:
    """RG2 Eqs. 12-14: what is left is a sixth of the third central moment."""
    assert slope(rgx, SKEWED) == pytest.approx(3, abs=0.02)
    assert gap(rgx, SKEWED, 1e-3) / 1e-9 == pytest.approx(moment(SKEWED, 3) / 6, rel=0.02)


def test_along_symmetric_directions_rgx_is_the_softmax_up_to_fourth_order() -> None:
    """The third moment vanishes; the fourth cumulant is next."""
    assert slope(rgx, SYMMETRIC, 1e-2) == pytest.approx(4, abs=0.02)
    cumulant = moment(SYMMETRIC, 4) - 3 * moment(SYMMETRIC, 2) ** 2
    assert gap(rgx, SYMMETRIC, 1e-2) / 1e-8 == pytest.approx(cumulant / 24, rel=0.02)


@given(scores=st.lists(st.floats(-40, 40), min_size=1, max_size=12))
def test_rgx_is_within_a_cube_of_the_spread_of_scores(scores: list[float]) -> None:
    """Everywhere, not near 0 only: |l - RGx - c| <= (max o - min o)^3 / (36 sqrt 3)."""
    bound = (max(scores) - min(scores)) ** 3 / (36 * math.sqrt(3))
    assert abs(gap(rgx, torch.tensor(scores, dtype=torch.float64))) <= bound + 1e-10


def test_no_smaller_constant_bounds_rgx() -> None:
    """Two values, the higher at a share (1 - 1 / sqrt 3) / 2 of the items, reach it near 0."""
    scores = torch.zeros(71, dtype=torch.float64)
    scores[:15] = 1e-2  # 15 / 71 = 0.2113
    assert gap(rgx, scores) > 0.99 * 1e-6 / (36 * math.sqrt(3))


def test_rg2_leaves_half_the_squared_mean_at_second_order() -> None:
    """The paper drops this term after Eq. 14; it is of the order of what is kept."""
    assert slope(rg2, SKEWED) == pytest.approx(2, abs=0.02)
    left = -(SKEWED.mean().item() ** 2) / 2
    assert gap(rg2, SKEWED, 1e-4) / 1e-8 == pytest.approx(left, rel=0.02)


def test_where_scores_sum_to_zero_rg2_is_rgx_and_third_order() -> None:
    centred = SKEWED - SKEWED.mean()
    assert gap(rg2, centred) == pytest.approx(gap(rgx, centred))
    assert slope(rg2, centred) == pytest.approx(3, abs=0.02)


def test_rgx_is_blind_to_shifts_of_a_row_but_not_with_less_than_all_of_the_interaction() -> None:
    scores, target, shift = normal(4, 6) * 2, torch.tensor([0, 5, 2, 2]), normal(4, 1, seed=1)
    assert torch.allclose(rgx(scores + shift, target), rgx(scores, target))
    for loss in (rg2, lambda s, t: rgx(s, t, 0.9)):
        assert ((loss(scores + shift, target) - loss(scores, target)).abs() > 1e-3).all()


@pytest.mark.parametrize("shift", [-2.0, 0.0, 0.5])
def test_over_shifts_rg2_is_a_parabola_whose_minimum_is_rgx(shift: float) -> None:
    scores, target = normal(4, 6) * 2, torch.tensor([0, 5, 2, 2])
    moved = scores - scores.mean(1, keepdim=True) + shift
    assert torch.allclose(rg2(moved, target), rgx(scores, target) + shift**2 / 2)


def test_the_printed_interaction_is_no_expansion_of_the_softmax() -> None:
    """RG2 Eqs. 31, 38, 39: |o|^2 in place of (1'o)^2 is off at second order even at mean 0."""
    centred = SKEWED - SKEWED.mean()
    printed = lambda s, t: rgx(s, t, interaction="frobenius")  # noqa: E731
    assert slope(printed, centred) == pytest.approx(2, abs=0.02)
    assert gap(printed, centred, 1e-4) / 1e-8 == pytest.approx(moment(centred, 2) / 2, rel=0.02)


def test_the_sampled_expansion_needs_the_draws_and_the_target_in_its_second_order() -> None:
    """Before Eq. 18 the paper prints 1 / (2 n) for n draws and a target; right is 1 / (2 n + 2)."""
    n = len(SKEWED) - 1

    def printed(scores: Tensor, target: Tensor) -> Tensor:
        spread = (scores - scores.mean(1, keepdim=True)).square().sum(1)
        return rgx(scores, target) + spread / (2 * n) - spread / (2 * n + 2)

    assert slope(rgx, SKEWED) == pytest.approx(3, abs=0.02)
    assert slope(printed, SKEWED) == pytest.approx(2, abs=0.02)


def test_rg2_goes_below_every_softmax_loss_at_the_optimum_of_a_single_click() -> None:
    """RG2 Proposition 7 says above; at the very point of its proof it is not, from N = 4 on."""
    first = torch.zeros(1, dtype=torch.int64)
    for n in (4, 10, 20):
        best = torch.full((1, n), -1.0, dtype=torch.float64)
        best[0, 0] = n - 1
        least = rg2(best, first).item() + math.log(n) - 0.5
        assert least == pytest.approx(math.log(n) - (n - 1) / 2)
        assert least < 0 < full_softmax(best, first).item()


# squared forms -----------------------------------------------------------------------------------


def squared_form(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (3, 6), where r = 1, |I_x| (3, 1), and S = N r / |I_x| - 1."""
    wanted = torch.tensor([[1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0]])
    count = wanted.sum(1, keepdim=True).double()
    return normal(3, 6, seed=seed), wanted.bool(), count, 6 * wanted / count - 1


def over_targets(loss: Loss, scores: Tensor, wanted: Tensor) -> Tensor:
    """Each row's loss, summed over its targets."""
    row, item = wanted.nonzero(as_tuple=True)
    return scores.new_zeros(len(scores)).index_add(0, row, loss(scores[row], item))


def test_over_a_rows_targets_rg2_is_a_square_less_a_constant() -> None:
    """RG2 A.2 and Eq. 16 with W = |I_x| / (2 N); the constant is N / 2 - |I_x|."""
    scores, wanted, count, s = squared_form()
    square = weighted_squared(scores, s, count / 12)
    assert torch.allclose(over_targets(rg2, scores, wanted), square - (3 - count[:, 0]))


def test_over_a_rows_targets_rgx_is_the_square_of_what_is_centred() -> None:
    """RG2 Eqs. 14, 30: (o - S)' (I - 11'/N) (o - S), since S sums to 0."""
    scores, wanted, count, s = squared_form()
    square = weighted_squared(scores - scores.mean(1, keepdim=True), s, count / 12)
    assert torch.allclose(over_targets(rgx, scores, wanted), square - (3 - count[:, 0]))


def test_the_bregman_form_holds_with_the_identity_as_link_not_with_the_printed_one() -> None:
    """RG2 Eqs. 29-30: phi(o) = |I_x| o'Mo gives 2 N times the losses; g = 2 |I_x| M o does not."""
    centre = torch.eye(6, dtype=torch.float64) - 1 / 6
    for loss, matrix in ((rg2, torch.eye(6, dtype=torch.float64)), (rgx, centre)):
        left, printed = [], []
        for seed in range(3):
            scores, wanted, count, s = squared_form(seed)

            def bregman(at: Tensor, to: Tensor, matrix: Tensor = matrix) -> Tensor:
                """RG2 Definition 4, of the generator without its |I_x|."""
                phi = lambda v: ((v @ matrix) * v).sum(1)  # noqa: E731
                return phi(to) - phi(at) - 2 * ((at @ matrix) * (to - at)).sum(1)

            both = 12 * over_targets(loss, scores, wanted)
            left.append(both - count[:, 0] * bregman(scores, s))
            printed.append(both - count[:, 0] * bregman(2 * count * scores @ matrix, s))
        assert all(torch.allclose(d, left[0]) for d in left)
        assert not torch.allclose(printed[1], printed[0], atol=1)


def test_the_interactive_square_as_printed_is_beta_n_and_has_no_minimum() -> None:
    """RG2 Eq. 17 has (1'o)^2 / N inside the sum over items: N times too large."""
    scores, wanted, count, s = squared_form()

    def eq17(scores: Tensor) -> Tensor:
        inside = (scores - s) ** 2 - scores.sum(1, keepdim=True) ** 2 / 6
        return (count * inside).sum(1)

    ours = over_targets(lambda o, y: rgx(o, y, 6.0), scores, wanted)
    assert torch.allclose(eq17(scores), 12 * (ours + 3 - count[:, 0]))
    falling = torch.stack([eq17(scores + shift) for shift in (10.0, 1e3, 1e5)])
    assert (falling.diff(dim=0) < -1e3).all()
    assert (falling[-1] < -1e9).all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.01, 3.0])
def test_the_exact_interaction_is_bounded_below_up_to_beta_one(beta: float) -> None:
    """Along equal scores the loss is 1/2 + (1 - beta) o^2 / 2; elsewhere it curves upwards."""
    first = torch.zeros(1, dtype=torch.int64)
    for o in (-100.0, 3.0, 100.0):
        loss = rgx(torch.full((1, 6), o, dtype=torch.float64), first, beta).item()
        assert loss == pytest.approx(0.5 + (1 - beta) * o**2 / 2)
    curvature = hessian(lambda o: rgx(o[None], first, beta)[0], normal(6))
    assert (torch.linalg.eigvalsh(curvature).min().item() > -1e-12) == (beta <= 1)


def test_all_of_the_printed_interaction_leaves_a_straight_line() -> None:
    """No square is left at beta 1, so there is no minimum: o = t (e_y - 1/N) falls for ever."""
    direction = -torch.ones(1, 6, dtype=torch.float64) / 6
    direction[0, 2] += 1
    for t in (0.0, 10.0, 1e6):
        loss = rgx(t * direction, torch.tensor([2]), interaction="frobenius").item()
        assert loss == pytest.approx(0.5 - t * 5 / 6)


def test_the_printed_weight_of_the_interaction_is_next_to_nothing() -> None:
    """RG2 Eqs. 31-32, V_x = |I_x| / N on |o|^2: beta = 1 / N of the form it prints."""
    scores, wanted, count, s = squared_form()
    eq31 = weighted_squared(scores, s, count) - (count / 6 * scores**2).sum(1)
    printed = lambda o, y: rgx(o, y, 1 / 6, interaction="frobenius")  # noqa: E731
    ours = over_targets(printed, scores, wanted)
    assert torch.allclose(eq31, 12 * (ours + 3 - count[:, 0]))


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_the_expected_sampled_rg2_weighs_and_wants_otherwise_than_printed(draws: int) -> None:
    """RG2 Eqs. 18-19 against the mean over all N^n uniform draws of what they are said to be.

    Right: weights 1 + |I_x| n / N at targets and |I_x| n / N elsewhere, wanted
    (n + 1) / weight - 1 at targets.
    """
    n = 4
    wanted = torch.tensor([True, False, True, False])
    every = torch.tensor(list(itertools.product(range(n), repeat=draws)))

    def expected(scores: Tensor) -> Tensor:
        total = scores.new_zeros(())
        for y in wanted.nonzero()[:, 0]:
            seen = torch.cat([y.expand(len(every), 1), every], 1)  # the target comes first
            total = total + rg2(scores[seen], torch.zeros(len(every), dtype=torch.int64)).mean()
        return total

    weight = 2 * draws / n + wanted.double()
    right = wanted * (draws + 1) / weight - 1
    differences = [
        2 * (draws + 1) * expected(o) - weighted_squared(o[None], right[None], weight)[0]
        for o in normal(3, n)
    ]
    assert torch.allclose(torch.stack(differences), differences[0])

    curvature = hessian(expected, normal(n)).diagonal()
    assert curvature[0] / curvature[1] == pytest.approx(1 + n / (2 * draws))
    printed = n / (draws + 1)  # the ratio of Eq. 19; its wanted value is N / |I_x| - 1
    assert abs(printed - (1 + n / (2 * draws))) > 0.1
    assert abs(right[0].item() - (n / 2 - 1)) > 0.1


# what the losses are least at --------------------------------------------------------------------


def risk(loss: Loss, scores: Tensor, eta: Tensor) -> Tensor:
    """The expected loss of each row when its target is drawn from eta."""
    every = torch.arange(eta.shape[1])
    of = torch.stack([loss(scores, y.expand(len(scores))) for y in every], 1)
    return (eta * of).sum(1)


def minimiser(loss: Loss, eta: Tensor) -> Tensor:
    """One Newton step from 0, which is exact; the shortest where there are many."""
    zero = torch.zeros_like(eta, requires_grad=True)
    gradient = torch.autograd.grad(risk(loss, zero, eta).sum(), zero)[0]
    one = lambda o: risk(loss, o[None], eta[:1])[0]  # noqa: E731
    return -gradient @ torch.linalg.pinv(hessian(one, torch.zeros_like(eta[0])))


@pytest.fixture(scope="module")
def eta(world: World) -> Tensor:
    return torch.from_numpy(world.eta(np.arange(20)))


def test_expected_rg2_is_least_at_n_eta_minus_one(eta: Tensor) -> None:
    """The excess of any other scores is their squared distance from it over 2 N."""
    best = eta.shape[1] * eta - 1
    assert torch.allclose(minimiser(rg2, eta), best)
    scores = normal(*eta.shape) * 3
    excess = risk(rg2, scores, eta) - risk(rg2, best, eta)
    assert torch.allclose(excess, (scores - best).square().mean(1) / 2)


def test_expected_rgx_is_least_at_n_eta_plus_any_constant(eta: Tensor) -> None:
    best = eta.shape[1] * eta - 1
    assert torch.allclose(minimiser(rgx, eta), best)  # the one that sums to 0
    scores = normal(*eta.shape) * 3
    excess = risk(rgx, scores, eta) - risk(rgx, best + normal(len(eta), 1), eta)
    assert torch.allclose(excess, (scores - best).var(1, correction=0) / 2)


@pytest.mark.parametrize("loss", [rg2, rgx])
def test_items_ranked_by_the_minimiser_are_the_best_list(
    loss: Loss, eta: Tensor, world: World
) -> None:
    """RG2 Theorem 12 in the limit."""
    listed = minimiser(loss, eta).topk(10).indices
    assert (listed.numpy() == world.best(10, np.arange(20))[0]).all()


def discounts(scores: Tensor) -> Tensor:
    """The discount that each item's rank earns it."""
    rank = scores.argsort(1, descending=True).argsort(1)
    return 1 / torch.log2(rank.double() + 2)


def dcg_regret(scores: Tensor, eta: Tensor) -> Tensor:
    """Expected DCG of the best order less that of these scores (RG2 Eq. 24)."""
    return (eta * (discounts(eta) - discounts(scores))).sum(1)


def regret_constant(n: int) -> float:
    """sqrt(2 / N) |c - c reversed|, the smallest C; Lemma 9 gives the larger 2 |c| / sqrt N."""
    c = discounts(-torch.arange(n, dtype=torch.float64)[None])[0]
    smallest, of_lemma_9 = ((c - c.flip(0)).norm() * (2 / n) ** 0.5, 2 * c.norm() / n**0.5)
    assert smallest < of_lemma_9
    return float(smallest)


@pytest.mark.parametrize("loss", [rg2, rgx])
@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
def test_dcg_regret_is_bounded_by_the_root_of_the_excess(
    loss: Loss, noise: float, eta: Tensor
) -> None:
    """RG2 Theorem 12, with an explicit C; it holds for RGx too."""
    n = eta.shape[1]
    for seed in range(5):
        scores = n * eta + noise * normal(*eta.shape, seed=seed)
        excess = risk(loss, scores, eta) - risk(loss, n * eta - 1, eta)
        regret = dcg_regret(scores, eta)
        assert (regret > 0).any()
        assert (regret <= regret_constant(n) * excess.sqrt()).all()


@pytest.mark.parametrize("n", [2, 5, 40])
def test_no_smaller_constant_bounds_the_dcg_regret(n: int) -> None:
    """Reached by nearly equal scores in the wrong order, eta - 1/N being c - c reversed."""
    wrong = -torch.arange(n, dtype=torch.float64)[None]
    c = discounts(wrong)
    eta = (1 + (c - c.flip(1)) / 2) / n
    scores = -1e-9 * wrong
    excess = risk(rg2, scores, eta) - risk(rg2, n * eta - 1, eta)
    ratio = dcg_regret(scores, eta) / excess.sqrt()
    assert ratio.item() == pytest.approx(regret_constant(n), rel=1e-6)


def test_heavier_positives_leave_the_order_of_the_minimiser_alone() -> None:
    """After Eq. 30 the paper doubts it; with weight w at 1 it is w eta / (w eta + 1 - eta)."""
    eta = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero = torch.zeros(1, 30, dtype=torch.float64, requires_grad=True)
    for w in (1.0, 3.0, 50.0):
        one = weighted_squared(zero, torch.ones_like(zero), w * eta)
        none = weighted_squared(zero, torch.zeros_like(zero), 1 - eta)
        gradient = torch.autograd.grad((one + none).sum(), zero)[0][0]
        best = -gradient / (2 * (w * eta + 1 - eta))  # a Newton step, exact
        assert torch.allclose(best, w * eta / (w * eta + 1 - eta))
        assert torch.equal(best.argsort(), eta.argsort())


# vectors -----------------------------------------------------------------------------------------


def best_items(e: Events, beta: float, alpha: float, total: Tensor) -> Tensor:
    """The items that are best for the queries of e: a Newton step, exact, in all at once."""

    def objective(flat: Tensor) -> Tensor:
        items = flat.view_as(e.items)
        fit = rg_of_vectors(e.query, items, *e.events, weight=e.weight, alpha=alpha, beta=beta)
        return fit + frequency_reg(items, total, 0.1, 1.0)

    zero = torch.zeros(e.items.numel(), dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(objective(zero), zero)[0]
    return -torch.linalg.solve(hessian(objective, zero), gradient).view_as(e.items)


def test_the_exact_interaction_leaves_minimisers_alone_if_items_are_regularised_alike() -> None:
    """For any queries the best items sum to 0, where the interaction is 0 and flat."""
    e, alike = Events(), torch.ones(7, dtype=torch.float64)
    one, *others = (best_items(e, beta, 0.0, alike) for beta in (0.0, 0.4, 1.0))
    assert torch.allclose(one.sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert all(torch.allclose(one, other) for other in others)


@pytest.mark.parametrize("why", ["alpha", "frequency"])
def test_the_exact_interaction_moves_minimisers_otherwise(why: str) -> None:
    e, alike = Events(), torch.ones(7, dtype=torch.float64)
    total = torch.bincount(e.item, minlength=7).double() if why == "frequency" else alike
    alpha = 0.5 if why == "alpha" else 0.0
    one, other = (best_items(e, beta, alpha, total) for beta in (0.0, 0.4))
    assert one.sum(0).norm() > 0.01
    assert (one - other).norm() > 0.01


def test_centring_the_items_lowers_the_objective_and_ends_what_beta_does() -> None:
    """Hence all minimisers, over queries and items, are shared by every beta up to 1."""
    e = Events()
    mean = e.items.mean(0)
    shift = (e.query @ mean)[e.row]
    for beta in (0.0, 0.4, 1.0):
        run = lambda items, beta=beta: rg_of_vectors(  # noqa: E731
            e.query, items, *e.events, weight=e.weight, beta=beta
        )
        fall = run(e.items) - run(e.items - mean)
        assert torch.allclose(fall, (1 - beta) / 2 * (e.weight * shift**2).sum())
        assert torch.allclose(
            run(e.items - mean),
            rg_of_vectors(e.query, e.items - mean, *e.events, weight=e.weight),
        )


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_printed_interaction_is_rg2_of_smaller_scores(beta: float) -> None:
    """Less 1/2, the loss of no scores, it is rg2 at (1 - beta) o over 1 - beta."""
    scores, target = normal(4, 6) * 2, torch.tensor([0, 5, 2, 2])
    printed = rgx(scores, target, beta, interaction="frobenius") - 0.5
    assert torch.allclose(printed, (rg2((1 - beta) * scores, target) - 0.5) / (1 - beta))


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_printed_interaction_is_rg2_of_longer_vectors(alpha: float, beta: float) -> None:
    """RG2 Eq. 31 with both regularisers, at any vectors; alpha / (1 - beta) pulls to 1 - beta."""
    e, rest = Events(), 1 - beta
    total = torch.bincount(e.row, e.weight, minlength=5)
    offset = e.weight.sum() / 2

    def regularised(query: Tensor, items: Tensor) -> Tensor:
        return frequency_reg(query, total, 0.2, 1.0) + frequency_reg(
            items, torch.zeros(7), 0.2, 0.0
        )

    longer = e.query / rest**0.5, e.items / rest**0.5
    options = {"alpha": alpha, "beta": beta, "interaction": "frobenius"}
    ours = rg_of_vectors(*longer, *e.events, weight=e.weight, **options)
    ours = ours + regularised(*longer)
    squared = rg_of_vectors(e.query, e.items, *e.events, weight=e.weight)
    pull = (e.weight * (e.own(e.query, e.items) - rest) ** 2).sum()
    theirs = squared + alpha / rest * pull + regularised(e.query, e.items)
    assert torch.allclose(ours - offset, (theirs - offset) / rest)
