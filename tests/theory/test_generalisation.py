"""DTR section 5: what it says of generalisation, by enumeration in float64.

R is the empirical Rademacher complexity, E over signs s of sup (1/m) sum s_i f(u_i, n_i); p the
softmax of a level, q its proposal, N_j its nodes, M its draws, B the arity, I the items, H the
levels, and tau^2 = (2 B - 1) I / (B - 1). Norms of weights are row sums, c the slope of PReLU.
Vectors of histories are given, and layers have no bias.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from softdex.index.tree import build
from softdex.index.tree.tree import Tree
from softdex.objective.layerwise import level_softmax
from softdex.objective.sampled import sampled_softmax
from softdex.score.din import Din
from softdex.solve.tree.loss import TreeLoss
from softdex.solve.tree.rectify import rectified

LAYERS = 4  # of Din, the output included
SEEDS = pytest.mark.parametrize("seed", range(3))


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def signs(m: int) -> Tensor:
    """Return all vectors of signs (2^m, m)."""
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=m)), dtype=torch.float64)


class Table:
    """Look scores up in a table (U, nodes); a query is a row."""

    pair_bytes = 64

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    def seen(self, query: Tensor, *rows: Callable[[Tensor], Tensor]) -> Tensor:
        return query.repeat(len(rows))

    def __call__(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        mine = self.scores[query]
        return mine.gather(1, ids) if isinstance(ids, Tensor) and ids.ndim == 2 else mine[:, ids]


def tree_of(item_of: list[int], arity: int, depth: int, scores: Tensor | None = None) -> Tree:
    alive = torch.ones(max(item_of) + 1, dtype=torch.bool)
    numbers = {"arity": arity, "depth": depth, "effort": 3.0, "product": False}
    kept = {name: torch.tensor(value) for name, value in numbers.items()}
    scorer = None if scores is None else Table(scores)
    return Tree(scorer, torch.tensor(item_of), alive, **kept)  # type: ignore[arg-type]


# the complexity of DIN ---------------------------------------------------------------------------


def din(
    table: Tensor,
    *,
    norm: float = 1.0,
    attention: float = 0.0,
    part: int = 2,
    length: int = 1,
    last: Tensor | None = None,
) -> Din:
    """A member of the class: it passes the vector of a node, or its attention, to the output.

    `norm` and `attention` are B_1 and B_2; `part` is what the attention looks at: the history, the
    product or the node.
    """
    dim = table.shape[1]
    zero, eye = table.new_zeros, torch.eye(dim, dtype=table.dtype)
    see, units, blocks = zero(3, dim, 1), zero(3, 1), zero(2, dim, dim)
    see[part, 0], units[1], units[2] = attention, 1.0, attention
    blocks[0 if attention else 1] = norm * eye
    plain = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=table.dtype)[:, None].repeat(1, dim)
    stats = torch.tensor([0.0, 1.0], dtype=table.dtype)[:, None].repeat(1, dim)
    return Din(
        table, see, units, torch.tensor([0.0, 1.0], dtype=table.dtype), torch.tensor([length]),
        blocks.flatten(0, 1), plain, stats, norm * eye, plain, stats, norm * eye, plain, stats,
        norm * eye[0] if last is None else last, zero(()), torch.tensor(0),
    )  # fmt: skip


def lemma_2(
    m: int, nodes: int, norm: float, node: float, attention: float, item: float, length: int,
    dim: int,
) -> float:  # fmt: skip
    """Lemma 2 with a proof, for c = 1 and samples on this many nodes.

    One factor 2 per contraction, the square root of the number of nodes with B_0 as well, and
    sqrt(D) for the largest of the D coordinates of an attended vector.
    """
    spread = math.sqrt(nodes)
    look = 4 * attention**2 * (item**2 + node * (item**2 + item) * spread)
    inner = node * spread + math.sqrt(dim) * length * look
    return 2.0 ** (LAYERS - 1) * norm**LAYERS * inner / math.sqrt(m)


def printed_lemma_2(
    m: int, tau: float, norm: float, node: float, attention: float, item: float, length: int
) -> float:
    """Eq. 33 for c = 1."""
    look = attention**2 * (item**2 + node * (item**2 + item) * tau)
    return 2 * norm**LAYERS * (node + length * look) / math.sqrt(m)


def reached(
    place: list[int], norm: float, node: float, attention: float, item: float, length: int
) -> float:
    """Return R of samples on these nodes over the nodes' vectors along one direction."""
    dim, count = 2, max(place) + 1
    every = signs(len(place))
    load = torch.zeros(len(every), count, dtype=torch.float64)
    load.index_add_(1, torch.tensor(place), every)
    table = torch.zeros(len(every) * count + 1, dim, dtype=torch.float64)
    table[:-1, 0] = node * torch.where(load < 0, -1.0, 1.0).flatten()
    table[-1, 0] = item
    history = torch.full((1, length), len(table) - 1)
    scorer = din(table, norm=norm, attention=attention, length=length)
    with torch.no_grad():
        scores = scorer(history, slice(0, len(table) - 1)).view(len(every), count)
    return (every * scores[:, place]).mean(1).mean().item()


@pytest.mark.parametrize("place", [list(range(8)), [0, 0, 1, 1, 2, 2, 3, 3], [0] * 8])
@pytest.mark.parametrize(("norm", "attention", "length"), [(1.0, 0.0, 1), (0.7, 1.3, 4)])
def test_the_complexity_of_din_is_at_most_the_corrected_bound(
    place: list[int], norm: float, attention: float, length: int
) -> None:
    """Lemma 2; the signs that a node sums can all be met by its own vector."""
    node, item, m, count = 0.8, 1.5, len(place), max(place) + 1
    found = reached(place, norm, node, attention, item, length)
    loads = signs(m).unsqueeze(2) * torch.eye(count, dtype=torch.float64)[place]
    met = loads.sum(1).abs().sum(1).mean().item() / m  # E sum over nodes |sum of signs| / m
    one = node if not attention else length * attention**2 * node * item
    assert found == pytest.approx(norm**LAYERS * one * met)
    assert met <= math.sqrt(count / m) + 1e-12
    assert found <= lemma_2(m, count, norm, node, attention, item, length, 2)


def test_the_printed_complexity_of_din_forgets_that_nodes_have_vectors_of_their_own() -> None:
    """Eq. 47 takes w_n for given: B_0 / sqrt(m). On m nodes it is B_0 for every m."""
    found = [reached(list(range(m)), 1.0, 0.8, 0.0, 1.5, 1) for m in (2, 5, 8)]
    assert found == pytest.approx([0.8] * 3)
    assert found[-1] > printed_lemma_2(8, 5.0, 1.0, 0.8, 0.0, 1.5, 1)


def test_the_norms_of_din_are_row_sums_not_those_induced_by_the_sum_of_entries() -> None:
    """Eq. 32 bounds the largest column sum, which for the last row is its largest entry."""
    dim, m = 64, 8
    load = signs(m).sum(1)
    table = torch.where(load < 0, -1.0, 1.0).double()[:, None].repeat(1, dim) / math.sqrt(dim)
    ones = torch.ones(dim, dtype=torch.float64)
    with torch.no_grad():
        scores = din(table, last=ones)(torch.zeros(1, 1, dtype=torch.int64), slice(None))[0]
    found = (signs(m) * scores[:, None]).mean().item()
    assert found > printed_lemma_2(m, 5.0, 1.0, 1.0, 0.0, 1.0, 1)
    assert found > lemma_2(m, 1, 1.0, 1.0, 0.0, 1.0, 1, dim) / 4
    assert found <= lemma_2(m, 1, dim ** (1 / LAYERS), 1.0, 0.0, 1.0, 1, dim)  # by row sums


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize(("node", "item"), [(0.5, 2.0), (2.0, 0.5), (3.0, 2.0)])
def test_scores_of_din_have_a_bound_and_reach_it(part: int, node: float, item: float) -> None:
    """B_M = B_1^L max(B_0, K B_2^2 B_a max(B_a, B_0 B_a, B_0)) of Lemma 3, c = 1."""
    norm, attention, length = 1.2, 0.9, 3
    table = torch.tensor([[node, 0.0], [item, 0.0]], dtype=torch.float64)
    seen = (item, item * node, node)[part]
    scorer = din(table, norm=norm, attention=attention, part=part, length=length)
    history = torch.ones(1, length, dtype=torch.int64)
    expected = norm**LAYERS * length * attention**2 * item * seen
    assert scorer(history, slice(0, 1)).item() == pytest.approx(expected)
    plain = din(table, norm=norm)(history, slice(0, 1)).item()
    assert plain == pytest.approx(norm**LAYERS * node)


# the loss of a level -----------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 7, 40])
@pytest.mark.parametrize("most", [0.0, 0.5, 4.0])
def test_the_softmax_of_a_level_is_at_most_twice_the_bound_plus_a_logarithm(
    nodes: int, most: float
) -> None:
    """Before Eq. 53: |loss| <= 2 B_M + ln N_j, nearly reached."""
    worst = torch.full((1, nodes), most, dtype=torch.float64)
    worst[0, 0] = -most
    found = level_softmax(worst[:, 0], worst).item()
    assert found <= 2 * most + math.log(nodes) + 1e-12
    assert found == pytest.approx(2 * most + math.log(nodes - 1 + math.exp(-2 * most)))


@SEEDS
def test_the_softmax_of_a_level_is_one_lipschitz_in_the_sum_of_differences(seed: int) -> None:
    """Before Eq. 55 "1-Lipschitz" names no norm: it is sqrt(2) in the Euclidean one."""
    scores = (5 * normal(50, 6, seed=seed)).requires_grad_()
    (slope,) = torch.autograd.grad(level_softmax(scores[:, 0], scores).sum(), scores)
    assert slope.abs().max() <= 1
    assert 1.2 < slope.norm(dim=1).max() <= math.sqrt(2)
    assert slope.abs().sum(1).max() <= 2


def family(seed: int, size: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores (F, U, N) of random DINs and their negatives, targets (U,) and weights (U,)."""
    users, nodes, dim, length = 3, 4, 3, 2
    history = torch.tensor([[4, 5], [5, 6], [6, 4]])
    found = []
    for each in range(size):
        table = 0.8 * normal(nodes + 3, dim, seed=100 * seed + each)
        last = normal(dim, seed=100 * seed + each + 50)
        made = [din(table, length=length, attention=a, part=a, last=last) for a in (0, 1)]
        with torch.no_grad():
            found += [scorer(history, slice(0, nodes)) for scorer in made]
    scores = torch.stack(found)
    return torch.cat([scores, -scores]), torch.arange(users), torch.tensor([1.0, 0.0, 1.0]).double()


def losses(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return Eq. 19 (F, U)."""
    own = scores.gather(2, target.expand(len(scores), -1).unsqueeze(2)).squeeze(2)
    return torch.stack([weight * level_softmax(o, s) for o, s in zip(own, scores, strict=True)])


def complexity(values: Tensor) -> float:
    """Return R of the functions (F, m)."""
    return (signs(values.shape[1]) @ values.T / values.shape[1]).amax(1).mean().item()


@SEEDS
def test_the_complexity_of_the_loss_is_at_most_that_of_the_scores_times_twice_the_nodes(
    seed: int,
) -> None:
    """Eqs. 54 and 55: rectified labels of 0 and 1 only lower it."""
    scores, target, weight = family(seed)
    sample = torch.tensor([0, 0, 1, 2, 2, 0])
    plain = complexity(losses(scores, target, torch.ones_like(weight))[:, sample])
    lower = complexity(losses(scores, target, weight)[:, sample])
    of_nodes = [complexity(scores[:, sample, n]) for n in range(scores.shape[2])]
    assert 0 < lower <= plain
    assert plain <= 2 * sum(of_nodes) <= 2 * len(of_nodes) * max(of_nodes)


@SEEDS
def test_the_largest_gap_is_expected_to_be_at_most_twice_the_complexity(seed: int) -> None:
    """Lemma 3 in the mean, over all samples of 4 of three users, and over all signs."""
    scores, target, weight = family(seed)
    of, law = losses(scores, target, weight), torch.tensor([0.5, 0.3, 0.2]).double()
    gap = bound = 0.0
    for sample in itertools.product(range(3), repeat=4):
        at = list(sample)
        chance = law[at].prod().item()
        gap += chance * (of @ law - of[:, at].mean(1)).max().item()
        bound += chance * 2 * complexity(of[:, at])
    assert 0.2 * bound < gap <= bound


# sampled softmax ---------------------------------------------------------------------------------


def laws(seed: int, *, exact: bool = False) -> list[tuple[Tensor, Tensor, int]]:
    """Return scores, q and the label of each level of a tree, q as its walks say."""
    sizes = [3, 6, 12]
    levels = [normal(size, seed=seed + size) for size in sizes]
    if exact:  # Theorem 3
        for at in (1, 0):
            levels[at] = levels[at + 1].view(-1, 2).logsumexp(1) + at
    tree = tree_of(list(range(12)), 2, 3, torch.cat(levels)[None])
    query, to = torch.zeros(1, dtype=torch.int64), torch.tensor([seed + 4])
    paths = tree.walk(query, 4000, generator=torch.Generator().manual_seed(seed), to=to)
    found = []
    for scores, (draws, own, _) in zip(levels, paths, strict=True):
        law = torch.full_like(scores, math.nan)
        law[draws.nodes[0]] = draws.values[0].double().exp()
        assert law.sum().item() == pytest.approx(1, abs=1e-5)  # all nodes were drawn
        found.append((scores, law / law.sum(), int(own)))
    return found


def expected_loss(scores: Tensor, law: Tensor, own: int, draws: int) -> Tensor:
    """Return the mean of `sampled_softmax` over all draws, given that one is not the label."""
    ids = torch.tensor(list(itertools.product(range(len(law)), repeat=draws)))
    hit, chance = ids == own, law[ids].prod(1)
    loss = sampled_softmax(
        scores[own].expand(len(ids)), scores[ids], law.log()[ids], law.log()[own].expand(len(ids)),
        hit,
    )  # fmt: skip
    counts = ~hit.all(1)
    return (chance * loss)[counts].sum() / chance[counts].sum()


def off_target(law: Tensor, own: int) -> Tensor:
    others = torch.arange(len(law)) != own
    return law[others] / law[others].sum()


def kl(q: Tensor, p: Tensor) -> Tensor:
    return (q * (q / p).log()).sum()


@SEEDS
@pytest.mark.parametrize("draws", [1, 3])
def test_the_sampled_softmax_is_below_the_full_one_by_at_most_the_divergence(
    seed: int, draws: int
) -> None:
    """Lemma 4, q given that it is not the label. Sharper: (1 - p_y) KL of both laws off the label;
    and from below, the sampled loss is not expected to exceed the full one."""
    for scores, law, own in laws(seed):
        full = level_softmax(scores[own][None], scores[None])[0]
        missing = full - expected_loss(scores, law, own, draws)
        p, q = scores.softmax(0), off_target(law, own)
        others = torch.arange(len(p)) != own
        sharp, printed = (1 - p[own]) * kl(q, off_target(p, own)), kl(q, p[others])
        assert -1e-6 <= missing <= sharp + 1e-6  # q is told in float32
        assert sharp < printed
        assert missing > sharp / (12 * draws) - 1e-6


@SEEDS
def test_where_a_walk_is_the_softmax_nothing_is_missing_though_the_printed_divergence_is_not_zero(
    seed: int,
) -> None:
    for scores, law, own in laws(seed, exact=True):
        full = level_softmax(scores[own][None], scores[None])[0]
        assert expected_loss(scores, law, own, 2).item() == pytest.approx(full.item(), abs=1e-5)
        p, q = scores.softmax(0), off_target(law, own)
        others = torch.arange(len(p)) != own
        assert kl(q, off_target(p, own)).abs() < 1e-9
        assert kl(q, p[others]).item() == pytest.approx(-math.log1p(-p[own]), abs=1e-5)


def test_draws_of_walks_leave_the_range_of_the_full_softmax_and_uniform_ones_do_not() -> None:
    """Eq. 58 has 2 B_M + ln N_j for both; for any q it is ln(1 + exp(2 B_M) / min q)."""
    most = 3.0
    levels = [torch.tensor([most, -most]), torch.tensor([-most, most, most, -most])]
    levels = [level.double() for level in levels]
    tree = tree_of(list(range(4)), 2, 2, torch.cat(levels)[None])
    query, own = torch.zeros(1, dtype=torch.int64), 0
    walks = tree.log_prob(query, torch.arange(4))[0].double()
    found = {}
    for name, logq in {"walks": walks, "uniform": torch.full((4,), -math.log(4)).double()}.items():
        ids, scores = torch.arange(1, 4)[:, None], levels[1]
        loss = sampled_softmax(
            scores[own].expand(3), scores[ids], logq[ids], logq[own].expand(3), ids == own
        )
        assert (loss <= math.log1p(math.exp(2 * most) / logq.exp().min().item())).all()
        found[name] = loss.max().item()
    assert found["uniform"] <= 2 * most + math.log(4) < found["walks"]


# all levels --------------------------------------------------------------------------------------


def tau_squared(items: int, arity: int) -> float:
    return (2 * arity - 1) * items / (arity - 1)


@pytest.mark.parametrize("arity", [2, 3, 8])
@pytest.mark.parametrize("beam", [1, 5])
def test_a_tree_has_at_most_tau_squared_nodes(arity: int, beam: int) -> None:
    """After Eq. 51. Lemma 2 prints sqrt(B - 1) for B - 1 in tau^2, which would grow with B."""
    for items in range(1, 260, 7):
        shape = build.shape_for(items, arity, beam)
        slots = build.item_of(np.arange(items), shape).tolist()
        living = tree_of(slots, arity, shape.depth).living
        assert sum(living) + 1 <= tau_squared(items, arity)
        assert all(n <= items for n in living)
    printed = [(2 * b - 1) / math.sqrt(b - 1) for b in (3, 8, 64)]
    assert printed == sorted(printed)


def zero_world(depth: int) -> list[tuple[float, float]]:
    """Return the values of Eq. 20 with their probabilities, in a full binary tree with scores of 0.

    The first item has probability .35 and the others share the rest. The library's labels, of which
    the first of equal items counts, times its loss.
    """
    items = 2**depth
    tree = tree_of(list(range(items)), 2, depth, torch.zeros(1, 2 * items - 2).double())
    eta = torch.full((items,), 0.65 / (items - 1), dtype=torch.float64)
    eta[0] = 0.35
    every = torch.arange(items)
    weight = rectified(tree, eta.log().expand(items, -1), every, "path")
    of = TreeLoss("softmax", "uniform", 10**6)(
        tree, torch.zeros_like(every), every, torch.Generator()
    )
    return list(zip(eta.tolist(), (weight * of * tree.depth).sum(1).tolist(), strict=True))


def logarithms(depth: int) -> list[float]:
    return [level * math.log(2) for level in range(1, depth + 1)]


def counted_world(depth: int) -> list[tuple[float, float]]:
    """`zero_world` for any depth: an item that 2^t divides counts on the last t + 1 levels."""
    logs, others = logarithms(depth), 0.65 / (2**depth - 1)
    found = [(others * 2 ** (depth - 1 - t), sum(logs[depth - 1 - t :])) for t in range(depth)]
    return [(0.35, sum(logs)), *found]


def confidence(logs: list[float], most: float, delta: float) -> float:
    """The last term of Eq. 35 for one sample, corrected: a sum over levels, with delta / H each."""
    return sum(4 * each + 8 * most for each in logs) * math.sqrt(
        2 * math.log(4 * len(logs) / delta)
    )


def printed_confidence(log_tau: float, levels: int, most: float, delta: float) -> float:
    return (8 * log_tau + 8 * levels * most) * math.sqrt(2 * math.log(4 / delta))


def test_the_weighted_loss_of_a_tree_ranges_over_the_sum_of_logarithms() -> None:
    """Eq. 20 with scores of 0: the likeliest item counts on every level, most on the last alone."""
    for depth in (3, 6):
        ours: dict[float, float] = {}
        for chance, value in zero_world(depth):
            ours[round(value, 9)] = ours.get(round(value, 9), 0.0) + chance
        theirs: dict[float, float] = {}
        for chance, value in counted_world(depth):
            theirs[round(value, 9)] = theirs.get(round(value, 9), 0.0) + chance
        assert ours == pytest.approx(theirs)
        assert max(ours) == pytest.approx(sum(logarithms(depth)))
        assert min(ours) == pytest.approx(depth * math.log(2))
    assert sum(logarithms(6)) > math.log(tau_squared(2**6, 2))


def test_theorem_4_as_printed_fails_in_deep_trees_and_with_the_sum_it_does_not() -> None:
    """Eq. 35 prints 8 ln tau = 4 ln tau^2 for 4 sum_j ln N_j, and delta for delta / H.

    With scores of 0 as the only function, R and B_M are 0, and the loss depends on y alone. Uniform
    draws leave it as it is. One sample exceeds the bound with a probability of at most delta.
    """
    depth, delta = 60, 0.5
    world, logs = counted_world(depth), logarithms(depth)
    assert sum(chance for chance, _ in world) == pytest.approx(1)
    expected = sum(chance * value for chance, value in world)
    divergence = sum(-math.log1p(-math.exp(-each)) for each in logs)
    log_tau = math.log(tau_squared(2**depth, 2)) / 2

    def wrong(bound: float) -> float:
        return sum(c for c, value in world if expected > value + divergence + bound)

    assert wrong(printed_confidence(log_tau, depth, 0.0, delta)) > delta
    assert wrong(confidence(logs, 0.0, delta)) == 0


def test_what_theorem_4_says_of_the_arity_is_that_no_tree_is_best() -> None:
    """Of 4,096 items: what stands for the levels hardly moves as printed, and falls six-fold as it
    should be; so do the nodes that are counted, by half. Both are least for one level of all items.
    """
    printed, logs, nodes = [], [], []
    for arity in (2, 4, 8, 16, 64, 4096):
        depth = round(math.log(4096, arity))
        living = tree_of(list(range(4096)), arity, depth).living
        assert living[-1] == arity**depth == 4096
        printed.append(4 * math.log(tau_squared(4096, arity)))
        logs.append(4 * sum(math.log(n) for n in living))
        nodes.append(sum(living))
        assert logs[-1] == pytest.approx(2 * (depth + 1) * math.log(4096))
    for each in (printed, logs, nodes):
        assert each == sorted(each, reverse=True)
    assert printed[0] < 1.06 * printed[-2] < 1.15 * printed[-1]
    assert logs[0] > 6 * logs[-1]
    assert nodes[0] == 2 * (nodes[-1] - 1)
