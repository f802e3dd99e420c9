"""Trees against DTR (Liu et al., 2024), by loops in float64 over its equations.

Paper: o a node's score, q the probability of a walk to come by it, p the softmax of its level, eta
the probability of an item. Level 1 here is what the root of the paper branches into. Trees have
free slots, whole empty nodes and some dead items, and what stands there scores high.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from cut_tree import cut
from softdex import synthetic
from softdex.data.ragged import Ragged
from softdex.index.contract import Filter
from softdex.index.tree.tree import Tree
from softdex.objective.layerwise import level_binary, level_softmax
from softdex.solve.tree.loss import TreeLoss

QUERIES, GARBAGE, SURE, WIDE = 3, 9.0, 40.0, 10.0**6
SHAPES = {2: (3, 4), 3: (4, 3), 8: (3, 3)}  # arity: (nodes of level 1, levels)
Law = dict[int, float]

SEEDS = pytest.mark.parametrize("seed", range(3))
ARITIES = pytest.mark.parametrize("arity", list(SHAPES))
RULES = pytest.mark.parametrize("product", [False, True], ids=["score", "product"])


class Table:
    """Look scores up in a table (U, nodes); a query is a row."""

    pair_bytes = 64

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    def seen(self, query: Tensor, *rows: Callable[[Tensor], Tensor]) -> Tensor:
        return query.repeat(len(rows), *[1] * (query.ndim - 1))

    def __call__(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        mine = self.scores[query]
        return mine.gather(1, ids) if isinstance(ids, Tensor) and ids.ndim == 2 else mine[:, ids]


class Grown(NamedTuple):
    """A tree with its scores, living nodes and items, for the oracles."""

    tree: Tree
    query: Tensor
    scores: Tensor  # (U, nodes)
    nodes: list[dict[int, int]]  # of each level: living node -> its column
    items: dict[int, int]  # living item -> its slot

    def level(self, user: int, level: int) -> Law:
        """Return the scores of the living nodes of a level."""
        return {n: self.scores[user, at].item() for n, at in self.nodes[level].items()}

    def children(self, level: int, node: int) -> list[int]:
        """Return the living children, on the next level."""
        return [n for n in self.nodes[level + 1] if n // self.tree.arity == node]

    def mass(self, eta: np.ndarray, fold: Callable[[list[float]], float] = sum) -> list[Law]:
        """Sum the probabilities (I,) of the leaves below, per level and node."""
        return [
            {
                n: fold([float(eta[i]) for i, slot in self.items.items() if slot // width == n])
                for n in here
            }
            for here, width in zip(self.nodes, self.widths, strict=True)
        ]

    @property
    def widths(self) -> list[int]:
        return [self.tree.arity ** (len(self.nodes) - 1 - j) for j in range(len(self.nodes))]


def planted(
    seed: int,
    arity: int,
    *,
    places: list[int] | None = None,
    dead: int = 0,
    roots: int | None = None,
    depth: int | None = None,
    product: bool = False,
    queries: int = QUERIES,
) -> Grown:
    """Make a tree with items in these slots, or in two thirds of those outside one first node."""
    generator = torch.Generator().manual_seed(seed)
    first, levels = SHAPES[arity] if roots is None or depth is None else (roots, depth)
    sizes = [first * arity**j for j in range(levels)]
    if places is None:
        under = sizes[-1] // first
        slots = [s for s in range(sizes[-1]) if s // under != 1]
        order = torch.randperm(len(slots), generator=generator)[: len(slots) * 2 // 3]
        places = [slots[i] for i in order.tolist()]
    item_of = torch.full((sizes[-1],), -1)
    item_of[places] = torch.arange(len(places))
    alive = torch.ones(len(places), dtype=torch.bool)
    alive[torch.randperm(len(places), generator=generator)[:dead]] = False
    items = {i: slot for i, slot in enumerate(places) if alive[i]}
    starts, nodes = np.cumsum([0, *sizes]).tolist(), []
    for size, start in zip(sizes, starts, strict=False):
        here = sorted({slot // (sizes[-1] // size) for slot in items.values()})
        nodes.append({n: start + n for n in here})
    scores = torch.full((queries, starts[-1]), GARBAGE, dtype=torch.float64)
    living = [at for level in nodes for at in level.values()]
    scores[:, living] = torch.randn(
        queries, len(living), dtype=torch.float64, generator=generator
    ).mul(1.5)
    numbers = {"arity": arity, "depth": levels, "effort": 3.0, "product": product}
    tree = Tree(Table(scores), item_of, alive, **{k: torch.tensor(v) for k, v in numbers.items()})
    return Grown(tree, torch.arange(queries), scores, nodes, items)


def filled(g: Grown, values: Callable[[int, int, int], float]) -> Grown:
    """Set the score of each living node to values(user, level, node)."""
    for user in range(len(g.scores)):
        for level, here in enumerate(g.nodes):
            for n, at in here.items():
                g.scores[user, at] = values(user, level, n)
    return g


def lifted(g: Grown, fold: Callable[[list[float]], float], seed: int) -> Grown:
    """Set exp o of a node to this fold of its children's exp o, times a factor per level."""
    draw = np.random.default_rng(seed)
    for level in reversed(range(len(g.nodes) - 1)):
        for user in range(len(g.scores)):
            factor, below = draw.normal(), g.level(user, level + 1)
            for n, at in g.nodes[level].items():
                under = fold([math.exp(below[c]) for c in g.children(level, n)])
                g.scores[user, at] = math.log(under) + factor
    return g


def softmax(scores: Law) -> Law:
    total = sum(math.exp(s) for s in scores.values())
    return {i: math.exp(s) / total for i, s in scores.items()}


def walked(g: Grown, user: int) -> list[Law]:
    """q of every level: products of softmaxes among siblings along the path, Eqs. 23 and 24."""
    laws: list[Law] = [softmax(g.level(user, 0))]
    for level in range(1, len(g.nodes)):
        scores, law = g.level(user, level), {}
        for parent, q in laws[-1].items():
            local = softmax({c: scores[c] for c in g.children(level - 1, parent)})
            law |= {c: q * p for c, p in local.items()}
        laws.append(law)
    return laws


def asked(g: Grown, level: int) -> list[Law]:
    """q as the tree says; nothing else may have a probability."""
    above = cut(g.tree, level + 1)
    logq = above.log_prob(g.query, torch.arange(above.num_items)).double()
    gone = [n for n in range(above.num_items) if n not in g.nodes[level]]
    assert (logq[:, gone] == -math.inf).all()
    return [{n: math.exp(row[n]) for n in g.nodes[level]} for row in logq.tolist()]


def same(ours: Law, theirs: Law, rel: float = 3e-6) -> bool:
    """Assert that they are equal; the tree gives logarithms in float32."""
    return ours.keys() == theirs.keys() and all(
        math.isclose(ours[i], theirs[i], rel_tol=rel, abs_tol=1e-15) for i in ours
    )


def kl(q: Law, p: Law) -> float:
    return sum(q[i] * math.log(q[i] / p[i]) for i in q)


def logit(p: float) -> float:
    return SURE if p > 1 - 1e-12 else math.log(p) - math.log1p(-p)


def truth(items: int, seed: int) -> np.ndarray:
    """Return eta (QUERIES, I) of a synthetic world."""
    made = synthetic.world(users=QUERIES, items=items, seed=seed, depth=2)
    return made.eta(np.arange(QUERIES))


def expected(g: Grown, loss: Callable[..., Tensor], eta: np.ndarray) -> Tensor:
    """Return the expected loss under eta, as a function of the node scores."""
    users = g.query.repeat_interleave(eta.shape[1])
    items = torch.arange(eta.shape[1]).repeat(len(g.query))
    each = loss(g.tree, users, items, torch.Generator().manual_seed(0))
    return each.sum(1) @ torch.from_numpy(eta).flatten()


def steepest(g: Grown, loss: Callable[..., Tensor], eta: np.ndarray) -> float:
    """Return the largest derivative of the expected loss."""
    g.scores.requires_grad_()
    (slope,) = torch.autograd.grad(expected(g, loss, eta), g.scores)
    g.scores.requires_grad_(False)
    return slope.abs().max().item()


# walks -------------------------------------------------------------------------------------------


@SEEDS
@ARITIES
@pytest.mark.parametrize("dead", [0, 3], ids=["all alive", "some dead"])
def test_on_every_level_the_probabilities_of_walks_sum_to_one(
    seed: int, arity: int, dead: int
) -> None:
    """Proposition 4, and Eqs. 23 and 24 node by node."""
    g = planted(seed, arity, dead=dead)
    for level, here in enumerate(g.nodes):
        assert len(here) < g.tree.sizes[level]  # the tree is incomplete
        for user, ours in enumerate(asked(g, level)):
            law = walked(g, user)[level]
            assert sum(law.values()) == pytest.approx(1, abs=1e-12)
            assert sum(ours.values()) == pytest.approx(1, abs=1e-6)
            assert same(ours, law)


@SEEDS
@ARITIES
def test_walks_come_by_nodes_as_often_as_they_say(seed: int, arity: int) -> None:
    """Each draw of each level, and the path to a given item, has the probability of Eq. 24."""
    g = planted(seed, arity, dead=3)
    n, to = 20_000, torch.tensor(list(g.items))[:QUERIES]
    paths = g.tree.walk(g.query, n, generator=torch.Generator().manual_seed(seed), to=to)
    assert len(paths) == len(g.nodes)
    for user in range(QUERIES):
        before = None
        for level, law in enumerate(walked(g, user)):
            (nodes, logq), own, own_logq = paths[level]
            drawn = nodes[user].tolist()
            assert set(drawn) <= law.keys()
            told = dict(zip(drawn, logq[user].double().exp().tolist(), strict=True))
            assert same(told, {i: law[i] for i in told})
            for node, q in law.items():
                error = math.sqrt(q * (1 - q) / n)
                assert abs(drawn.count(node) / n - q) < 5 * error + 2 / n
            mine = int(own[user])
            assert mine == g.items[int(to[user])] // g.widths[level]
            assert math.exp(own_logq[user]) == pytest.approx(law[mine], rel=3e-6)
            if before is not None:  # a walk goes from parent to child
                assert [i // arity for i in drawn] == before
            before = drawn


def test_the_products_along_the_paths_of_figure_1_are_as_printed() -> None:
    """Node 4 is reached with 0.3 * 0.6 = 0.18, node 9 with 0.3 * 0.6 * 0.8 = 0.144."""
    g = planted(0, 2, places=list(range(8)), roots=2, depth=3, queries=1)
    local = {1: 0.3, 2: 0.7, 3: 0.4, 4: 0.6, 5: 0.9, 6: 0.1}
    local |= {7: 0.5, 8: 0.5, 9: 0.8, 10: 0.2, 11: 0.35, 12: 0.65, 13: 0.25, 14: 0.75}
    level = {node: math.floor(math.log2(node + 1)) for node in local}  # numbered from the top
    names = {node: node + 1 - 2 ** level[node] for node in local}
    score = {  # a parent's children may be shifted alike
        (level[node] - 1, names[node]): math.log(p) + (node - 1) // 2 for node, p in local.items()
    }
    filled(g, lambda user, level, node: score[level, node])
    assert asked(g, 1)[0][names[4]] == pytest.approx(0.18, rel=3e-6)
    assert asked(g, 2)[0][names[9]] == pytest.approx(0.144, rel=3e-6)


@SEEDS
@ARITIES
def test_if_nodes_weigh_what_their_children_weigh_a_walk_is_the_softmax_of_each_level(
    seed: int, arity: int
) -> None:
    """Theorem 3, Eqs. 25 and 26."""
    g = lifted(planted(seed, arity, dead=3), sum, seed)
    for level in range(len(g.nodes)):
        for user, ours in enumerate(asked(g, level)):
            exact = softmax(g.level(user, level))
            assert same(walked(g, user)[level], exact, rel=1e-12)
            assert same(ours, exact)


@SEEDS
@ARITIES
def test_otherwise_it_is_not(seed: int, arity: int) -> None:
    """One factor per node instead of one per level separates them below the first level."""
    g = lifted(planted(seed, arity), sum, seed)
    node = next(n for n in g.nodes[0] if g.children(0, n))
    g.scores[:, g.nodes[0][node]] += 1
    for user in range(QUERIES):
        first, *others = walked(g, user)
        assert same(first, softmax(g.level(user, 0)), rel=1e-12)
        for level, law in enumerate(others, 1):
            assert kl(law, softmax(g.level(user, level))) > 1e-3
            assert same(asked(g, level)[user], law)


@SEEDS
@ARITIES
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_if_nodes_weigh_what_their_best_child_weighs_a_walk_stays_near_the_softmax(
    seed: int, arity: int, scale: float
) -> None:
    """Proposition 5: |q - p| <= (j - 1) eps / (1 - eps), with 1 - eps the least share of the best
    child among its siblings (Eq. 27; 1 for an only child, which is printed as < 1). Sharper:
    |ln q / p| <= -(j - 1) ln(1 - eps).

    Corollary 1: KL <= ln(1 + (j - 1) eps / (1 - eps) N exp 2B), |o| <= B. Sharper: KL is at most
    that bound of the logarithm, and at most half its square."""
    g = planted(seed, arity, dead=3)
    g.scores.mul_(scale)
    lifted(g, max, seed)
    for user in range(QUERIES):
        share = 1.0  # 1 - eps
        for level, here in enumerate(g.nodes):
            scores, far = g.level(user, level), level * (1 - share) / share
            q, p = asked(g, level)[user], softmax(scores)
            assert same(walked(g, user)[level], q)
            sharp = -level * math.log(share)
            for n in here:
                assert abs(q[n] - p[n]) <= far + 1e-6
                assert abs(math.log(q[n] / p[n])) <= sharp + 1e-5
            highest = max(abs(s) for s in scores.values())
            printed = math.log1p(far * len(here) * math.exp(2 * highest))
            away = kl(q, p)
            assert -1e-5 <= away <= min(sharp, sharp**2 / 2) + 1e-5
            assert away <= printed + 1e-5
            assert sharp <= printed + 1e-12
            if level + 1 < len(g.nodes):
                below = {n: math.exp(s) for n, s in g.level(user, level + 1).items()}
                for n in here:
                    mine = [below[c] for c in g.children(level, n)]
                    share = min(share, max(mine) / sum(mine))


# minimisers --------------------------------------------------------------------------------------


@SEEDS
@ARITIES
def test_the_softmax_of_a_level_equals_the_loop(seed: int, arity: int) -> None:
    """Eq. 9, with empty nodes at -inf."""
    g = planted(seed, arity, dead=3)
    for level in range(len(g.nodes)):
        scores = g.tree.scores(g.query, level + 1)
        for node in g.nodes[level]:
            loss = level_softmax(scores[:, node], scores)
            for user in range(QUERIES):
                p = softmax(g.level(user, level))[node]
                assert loss[user].item() == pytest.approx(-math.log(p), rel=1e-12)


@SEEDS
@ARITIES
def test_the_expected_softmax_of_levels_is_least_where_nodes_weigh_what_their_items_do(
    seed: int, arity: int
) -> None:
    """Eqs. 12 and 15: softmax of o = the summed eta of the leaves below, flat there and convex."""
    g = planted(seed, arity)
    eta, loss = truth(len(g.items), seed), TreeLoss("softmax", "uniform", 10**6)
    mass = [g.mass(row) for row in eta]
    filled(g, lambda user, level, n: math.log(mass[user][level][n]) + 0.3 * level)
    assert steepest(g, loss, eta) < 1e-12
    least = expected(g, loss, eta).item()
    g.scores[:, next(iter(g.nodes[-1].values()))] += 0.1
    assert steepest(g, loss, eta) > 1e-5
    assert expected(g, loss, eta).item() > least


@ARITIES
def test_and_a_search_for_the_minimum_ends_there(arity: int) -> None:
    """Eqs. 12 and 15, from random scores by L-BFGS."""
    g = planted(0, arity)
    eta, loss = truth(len(g.items), 0), TreeLoss("softmax", "uniform", 10**6)
    free = g.scores.requires_grad_()
    search = torch.optim.LBFGS(
        [free], max_iter=120, tolerance_grad=1e-10, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        search.zero_grad()
        value = expected(g, loss, eta)
        value.backward()
        return value

    search.step(closure)
    free.requires_grad_(False)
    for user, row in enumerate(eta):
        for level, mass in enumerate(g.mass(row)):
            assert softmax(g.level(user, level)) == pytest.approx(mass, abs=1e-5)


@SEEDS
@ARITIES
def test_there_a_walk_draws_items_by_eta(seed: int, arity: int) -> None:
    """After Theorem 3: the minimiser of the softmax meets its condition."""
    g = planted(seed, arity)
    eta = truth(len(g.items), seed)
    mass = [g.mass(row) for row in eta]
    filled(g, lambda user, level, n: math.log(mass[user][level][n]) - 0.7 * level)
    logq = g.tree.log_prob(g.query, torch.arange(len(g.items))).double()
    assert logq.exp().numpy() == pytest.approx(eta, rel=3e-6)


@SEEDS
@ARITIES
def test_binary_cross_entropy_against_the_whole_level_learns_each_probability(
    seed: int, arity: int
) -> None:
    """Eq. 8 with all nodes: sigmoid of o = the summed eta of the leaves below."""
    g = planted(seed, arity)
    eta, loss = truth(len(g.items), seed), TreeLoss("binary", "uniform", 10**6)
    mass = [g.mass(row) for row in eta]
    filled(g, lambda user, level, n: logit(mass[user][level][n]))
    assert steepest(g, loss, eta) < 1e-12
    g.scores.add_(0.1)
    assert steepest(g, loss, eta) > 1e-5


@SEEDS
@ARITIES
@pytest.mark.parametrize("negatives", [0, 70])
def test_binary_cross_entropy_against_siblings_learns_the_product_along_a_path(
    seed: int, arity: int, negatives: int
) -> None:
    """Probabilistic label trees: the sigmoid of a node is its probability given its parent, the
    product of them along a path is eta of the leaf, and so it is found."""
    g = planted(seed, arity, product=True)
    eta, loss = truth(len(g.items), seed), TreeLoss("binary", "siblings", negatives)
    mass = [g.mass(row) for row in eta]

    def given_parent(user: int, level: int, n: int) -> float:
        above = mass[user][level - 1][n // arity] if level else 1.0
        return logit(mass[user][level][n] / above)

    filled(g, given_parent)
    assert steepest(g, loss, eta) < 1e-12
    everything = torch.arange(len(g.items))
    assert g.tree.score(g.query, everything).exp().numpy() == pytest.approx(eta, rel=1e-10)
    for effort in (WIDE, math.inf):
        hits = g.tree.search(g.query, len(g.items), effort=effort)
        for user, row in enumerate(eta):
            assert hits.ids[user].tolist() == sorted(g.items, key=lambda i, row=row: -row[i])
            told = hits.scores[user].double().exp().numpy()
            assert told == pytest.approx(np.sort(row)[::-1], rel=3e-6)
    g.scores.add_(0.1)
    assert steepest(g, loss, eta) > 1e-5


@SEEDS
@ARITIES
def test_binary_cross_entropy_against_siblings_equals_the_loop(seed: int, arity: int) -> None:
    g = planted(seed, arity)
    items = torch.tensor(list(g.items))
    users = torch.arange(len(items)) % QUERIES
    ours = TreeLoss("binary", "siblings", 0)(g.tree, users, items, torch.Generator()).sum(1)
    for row, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        total = 0.0
        for level, here in enumerate(g.nodes):
            own, scores = g.items[item] // g.widths[level], g.level(user, level)
            around = g.children(level - 1, own // arity) if level else list(here)
            total += math.log1p(math.exp(-scores[own]))
            total += sum(math.log1p(math.exp(scores[n])) for n in around if n != own)
        assert ours[row].item() == pytest.approx(total / len(g.nodes), rel=1e-12)


@SEEDS
@ARITIES
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_binary_cross_entropy_of_the_candidates_of_a_beam_equals_the_loop(
    seed: int, arity: int, beam: int
) -> None:
    """OTM trains on the candidates of a beam alone; a parent's target is that of its best child."""
    g = planted(seed, arity)
    items = torch.tensor(list(g.items))
    users = torch.arange(len(items)) % QUERIES
    made = TreeLoss("binary", "beam", arity * beam, own=True)
    ours = made(g.tree, users, items, torch.Generator()).sum(1)
    for row, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        path = [g.items[item] // width for width in g.widths]
        target = [1.0]
        for level in range(len(g.nodes) - 1, 0, -1):
            scores = g.level(user, level)
            best = max(g.children(level - 1, path[level - 1]), key=lambda n: scores[n])
            target.insert(0, target[0] * (best == path[level]))
        total, looked = 0.0, list(g.nodes[0])
        for level in range(len(g.nodes)):
            scores = g.level(user, level)
            for n in looked:
                yes = target[level] if n == path[level] else 0.0
                total += math.log1p(math.exp(scores[n])) - yes * scores[n]
            kept = sorted(looked, key=lambda n: -scores[n])[:beam]
            if level < len(g.nodes) - 1:
                looked = [c for n in kept for c in g.children(level, n)]
        assert ours[row].item() == pytest.approx(total / len(g.nodes), rel=1e-6)


def test_binary_cross_entropy_of_a_level_equals_the_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    pos, neg = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in ((4,), (4, 6)))
    hit = torch.rand(4, 6, generator=generator) < 0.3
    label, there = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    plain, asked = level_binary(pos, neg, hit), level_binary(pos, neg, hit, label, there)
    for b, loss in enumerate(plain.tolist()):
        others = [o for o, left in zip(neg[b].tolist(), hit[b].tolist(), strict=True) if not left]
        no = sum(-math.log(1 - 1 / (1 + math.exp(-o))) for o in others)
        assert loss == pytest.approx(math.log1p(math.exp(-pos[b].item())) + no)
        own = math.log1p(math.exp(pos[b].item() * (-1 if label[b] else 1))) * float(there[b])
        assert asked[b].item() == pytest.approx(own + no)


# sampled -----------------------------------------------------------------------------------------


def full_loss(g: Grown, user: int, item: int) -> list[float]:
    """Eq. 9 of each level."""
    return [
        -math.log(softmax(g.level(user, level))[g.items[item] // width])
        for level, width in enumerate(g.widths)
    ]


@SEEDS
@ARITIES
@pytest.mark.parametrize("n", [1, 4])
def test_where_a_walk_is_the_softmax_every_draw_off_the_target_gives_the_full_loss(
    seed: int, arity: int, n: int
) -> None:
    """Eqs. 21 and 22 under Theorem 3's condition. A level where walks hit only the target has no
    negatives, and no loss."""
    g = lifted(planted(seed, arity, dead=3), sum, seed)
    items = torch.tensor(list(g.items)).repeat_interleave(QUERIES)
    users = g.query.repeat(len(g.items))
    walks = torch.Generator().manual_seed(seed)
    paths = g.tree.walk(users, n, generator=walks, to=items)
    ours = TreeLoss("softmax", "tree", n)(g.tree, users, items, walks.manual_seed(seed)).sum(1)
    sampled, alone = 0, 0
    for row, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        losses = full_loss(g, user, item)
        for level, path in enumerate(paths):
            if g.tree.sizes[level] > n + 1:
                hits = path.draws.nodes[row] == path.node[row]
                losses[level] *= not hits.all()
                sampled += int(not hits.all())
                alone += int(hits.all())
        assert ours[row].item() == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert sampled > alone


@pytest.mark.parametrize("sampling", ["tree", "uniform"])
def test_for_any_scores_the_sampled_softmax_tends_to_the_full_one(sampling: str) -> None:
    """Eqs. 21 and 22: the error falls with the root of the number of draws."""
    roots, depth, rows = 400, 3, 300
    places = [s for s in range(roots * 4) if s % 5]
    g = planted(0, 2, places=places, roots=roots, depth=depth, queries=10)
    g.scores.mul_(0.5)
    draw = torch.Generator().manual_seed(1)
    users = torch.randint(10, (rows,), generator=draw)
    items = torch.randint(len(places), (rows,), generator=draw)
    whole = TreeLoss("softmax", "uniform", 10**6)(g.tree, users, items, draw).sum(1)
    for row in range(3):
        losses = full_loss(g, int(users[row]), int(items[row]))
        assert whole[row].item() == pytest.approx(sum(losses) / depth, rel=1e-12)
    errors = []
    for n in (6, 24, 96, 384):
        assert n + 1 < roots  # no level is taken whole
        off = TreeLoss("softmax", sampling, n)(g.tree, users, items, draw).sum(1) - whole
        errors.append(off.square().mean().sqrt().item())
    for more, less in zip(errors[1:], errors, strict=False):
        assert more < 0.65 * less
    assert errors[-1] < 0.1


# search ------------------------------------------------------------------------------------------


def example(fold: Callable[[list[float]], float]) -> Grown:
    """Return the eight leaves of Proposition 1, with nodes scored by this fold of the eta below."""
    g = planted(0, 2, places=list(range(8)), roots=2, depth=3, queries=1)
    mass = g.mass(np.array([0.21, 0, 0.12, 0.18, 0.19, 0, 0.16, 0.14]), fold)
    return filled(g, lambda user, level, n: math.log(max(mass[level][n], 1e-300)))


def leaves(g: Grown, k: int, effort: float) -> set[int]:
    """Return the leaves found, counted from 1."""
    return {i + 1 for i in g.tree.search(g.query, k, effort=effort).ids[0].tolist()}


def test_a_beam_over_summed_probabilities_misses_one_of_the_best_three_of_eight_leaves() -> None:
    """Proposition 1: {1, 4, 7} comes back, {1, 4, 5} is best; a beam that holds level 2 finds
    it."""
    g = example(sum)
    assert sorted(math.exp(s) for s in g.level(0, 0).values()) == pytest.approx([0.49, 0.51])
    second = [math.exp(s) for s in g.level(0, 1).values()]
    assert second == pytest.approx([0.21, 0.3, 0.19, 0.3])
    looked = g.tree.beam(g.query, 3, beam=3)[-1]
    assert {n // 2 + 1 for n in looked.nodes[0].tolist()} == {1, 2, 4}
    assert leaves(g, 3, 3) == {1, 4, 7}
    assert leaves(g, 3, 4) == leaves(g, 3, WIDE) == leaves(g, 3, math.inf) == {1, 4, 5}


def test_a_beam_over_the_best_probability_below_finds_them() -> None:
    """Eq. 16 and Proposition 3 on the same leaves."""
    assert leaves(example(max), 3, 3) == {1, 4, 5}


@SEEDS
@ARITIES
def test_if_nodes_score_what_their_best_leaf_scores_every_beam_is_optimal(
    seed: int, arity: int
) -> None:
    """Proposition 3: for all k, with a beam of k."""
    g = lifted(planted(seed, arity, dead=3), max, seed)
    for k in range(1, len(g.items) + 1):
        found, best = (g.tree.search(g.query, k, effort=e) for e in (k, math.inf))
        assert torch.equal(found.ids, best.ids)


def filters(g: Grown, seed: int) -> list[tuple[Filter | None, list[set[int]]]]:
    """Return filters and, per query, the items that each allows."""
    draw, items = np.random.default_rng(seed), g.tree.num_items
    allow = draw.random(items) < 0.6
    lists = [draw.choice(items, draw.integers(items // 2), replace=True) for _ in range(QUERIES)]
    exclude = Ragged(np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32))
    some = set(np.flatnonzero(allow).tolist())
    left = [set(range(items)) - set(x.tolist()) for x in lists]
    mask = torch.from_numpy(allow)
    each = draw.random((QUERIES, items)) < 0.4
    mine = [set(np.flatnonzero(row).tolist()) for row in each]
    cases = [
        (None, [set(range(items))] * QUERIES),
        (Filter(allow=mask), [some] * QUERIES),
        (Filter(exclude=exclude), left),
        (Filter(exclude, mask), [some & x for x in left]),
        (Filter(allow=torch.from_numpy(each)), mine),
        (Filter(exclude, torch.from_numpy(each)), [m & x for m, x in zip(mine, left, strict=True)]),
    ]
    return [(f, [open_ & g.items.keys() for open_ in allowed]) for f, allowed in cases]


def values(g: Grown, user: int) -> list[Law]:
    """Return the scores by which a search ranks the nodes, per level."""
    ranks = [g.level(user, level) for level in range(len(g.nodes))]
    if g.tree.product:
        above: Law = {}
        for level, scores in enumerate(ranks):
            for n, s in scores.items():
                scores[n] = -math.log1p(math.exp(-s)) + above.get(n // g.tree.arity, 0.0)
            above = ranks[level]
    return ranks


def followed(g: Grown, user: int, k: int, width: int, open_: set[int]) -> list[int]:
    """Beam search, Eq. 6: the best `width` children of those kept, and more where these have not k
    items that may come back."""
    kept: list[int] | None = None
    for level, scores in enumerate(values(g, user)):
        counts = dict.fromkeys(scores, 0)
        for item in open_:
            counts[g.items[item] // g.widths[level]] += 1
        looked = [n for n in scores if counts[n] and (kept is None or n // g.tree.arity in kept)]
        looked.sort(key=lambda n, scores=scores: -scores[n])
        kept = []
        for n in looked:
            if len(kept) < width or sum(counts[i] for i in kept) < k:
                kept.append(n)
    item_of = {slot: item for item, slot in g.items.items()}
    return [item_of[n] for n in looked[:k]]


@SEEDS
@ARITIES
@RULES
def test_a_beam_of_full_width_is_brute_force(seed: int, arity: int, product: bool) -> None:
    g = planted(seed, arity, dead=3, product=product)
    for filter, allowed in filters(g, seed):
        for k in (1, 5, g.tree.num_items + 2):
            wide, exact = (
                g.tree.search(g.query, k, filter=filter, effort=e) for e in (WIDE, math.inf)
            )
            assert torch.equal(wide.ids, exact.ids)
            assert torch.allclose(wide.scores, exact.scores.float())
            for user, open_ in enumerate(allowed):
                scores = values(g, user)[-1]
                best = sorted(open_, key=lambda i, scores=scores: -scores[g.items[i]])[:k]
                assert wide.ids[user].tolist() == best + [-1] * (k - len(best))
                told = wide.scores[user, : len(best)].tolist()
                assert told == pytest.approx([scores[g.items[i]] for i in best], rel=1e-6)


@SEEDS
@ARITIES
@RULES
def test_a_narrower_beam_finds_what_the_loop_does(seed: int, arity: int, product: bool) -> None:
    """Each query of a batch is searched as if it were alone."""
    g = planted(seed, arity, dead=3, product=product)
    for filter, allowed in filters(g, seed):
        for width, k in ((1, 1), (2, 2), (3, 1), (2, 6), (1, g.tree.num_items)):
            hits = g.tree.search(g.query, k, filter=filter, effort=width)
            for user, open_ in enumerate(allowed):
                found = followed(g, user, k, width, open_)
                assert len(found) == min(k, len(open_))
                assert hits.ids[user].tolist() == found + [-1] * (k - len(found))


@SEEDS
@ARITIES
@RULES
def test_a_beam_sees_nothing_but_children_of_what_it_kept(
    seed: int, arity: int, product: bool
) -> None:
    g = planted(seed, arity, dead=3, product=product)
    width = k = 2
    levels = g.tree.beam(g.query, k, beam=width)
    found = g.tree.search(g.query, k, effort=width).ids.tolist()
    for user in range(QUERIES):
        looked = set(g.nodes[0])
        for level, (nodes, scores) in enumerate(levels):
            there, ranks = scores[user] > -math.inf, values(g, user)[level]
            assert nodes[user, there].tolist() == sorted(looked, key=lambda n, r=ranks: -r[n])
            kept = nodes[user, there][:width].tolist()
            if level + 1 < len(levels):
                looked = {c for n in kept for c in g.children(level, n)}
        assert [g.items[i] for i in found[user]] == kept
