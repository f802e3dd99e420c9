"""Rectified labels: their expected weights, and that beams over them are optimal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from softdex.index.tree.tree import Tree
from softdex.solve.tree.loss import TreeLoss
from softdex.solve.tree.rectify import rectified

SHAPES = {2: (3, 4), 3: (2, 3), 8: (2, 2)}  # arity: nodes of level 1, and levels
SEEDS = pytest.mark.parametrize("seed", range(5))
ARITIES = pytest.mark.parametrize("arity", list(SHAPES))
KINDS = pytest.mark.parametrize("kind", ["path", "child"])


def tree_of(item_of: list[int], arity: int, roots: int, scorer: Any = None) -> Tree:
    depth = 1 + round(np.log(len(item_of) / roots) / np.log(arity))
    slots = torch.tensor(item_of)
    numbers = {"arity": arity, "depth": depth, "effort": 3.0, "product": False}
    kept = {name: torch.tensor(value) for name, value in numbers.items()}
    return Tree(scorer, slots, torch.ones(int(slots.max()) + 1, dtype=torch.bool), **kept)


def world(seed: int, arity: int) -> tuple[Tree, np.ndarray]:
    """A tree with free leaves, and eta of its items."""
    draw = np.random.default_rng(seed)
    roots, depth = SHAPES[arity]
    slots = roots * arity ** (depth - 1)
    taken = draw.permutation(slots)[: slots * 3 // 4]
    item_of = np.full(slots, -1)
    item_of[taken] = np.arange(len(taken))
    return tree_of(item_of.tolist(), arity, roots), draw.dirichlet(np.full(len(taken), 0.7))


def expectation(tree: Tree, eta: np.ndarray, kind: str, **options: Any) -> list[np.ndarray]:
    """Return the expected weight of the labels, per level and node."""
    items = torch.arange(tree.num_items)
    scores = torch.from_numpy(eta).log().clamp(min=-1e9).expand(len(items), -1)
    counts = rectified(tree, scores, items, kind, **options).numpy()
    found = []
    for level in range(1, tree.depth + 1):
        node = tree.slot_of.numpy() // tree.width(level)
        size = tree.sizes[level - 1]
        found.append(np.bincount(node, eta * counts[:, level - 1], minlength=size))
    return found


def below(tree: Tree, eta: np.ndarray, level: int, node: int) -> np.ndarray:
    """Return eta of the items below a node."""
    return eta[tree.slot_of.numpy() // tree.width(level) == node]


def plain(tree: Tree, eta: np.ndarray) -> list[np.ndarray]:
    """Return the expected weight of plain labels: the sum of eta below."""
    return [
        np.array([below(tree, eta, level, n).sum() for n in range(tree.sizes[level - 1])])
        for level in range(1, tree.depth + 1)
    ]


def beam(tree: Tree, scores: list[np.ndarray], k: int) -> set[int]:
    """Return the items that a beam of width k finds, from scores of all nodes."""
    kept = list(range(tree.sizes[0]))
    for level in range(1, tree.depth + 1):
        if level > 1:
            kept = [n * tree.arity + c for n in kept for c in range(tree.arity)]
        kept = sorted(kept, key=lambda n: -scores[level - 1][n])[:k]
    return {int(tree.item_of[n]) for n in kept}


def best(eta: np.ndarray, k: int) -> set[int]:
    return set(np.argsort(-eta, kind="stable")[:k].tolist())


@SEEDS
@ARITIES
def test_the_labels_of_a_path_are_expected_to_count_what_the_likeliest_item_below_does(
    seed: int, arity: int
) -> None:
    """Eq. 16."""
    tree, eta = world(seed, arity)
    for level, found in enumerate(expectation(tree, eta, "path"), 1):
        for node, value in enumerate(found):
            assert value == pytest.approx(below(tree, eta, level, node).max(initial=0))


@SEEDS
@ARITIES
def test_the_labels_of_a_child_are_expected_to_count_what_the_likelier_child_does(
    seed: int, arity: int
) -> None:
    tree, eta = world(seed, arity)
    found = expectation(tree, eta, "child")
    for level in range(1, tree.depth):
        for node in range(tree.sizes[level - 1]):
            children = [
                below(tree, eta, level + 1, node * arity + c) for c in range(arity)
            ]  # the one with the likeliest item counts, with its whole mass
            most = max(children, key=lambda each: each.max(initial=0))
            assert found[level - 1][node] == pytest.approx(most.sum())
    assert found[-1] == pytest.approx(plain(tree, eta)[-1])


@SEEDS
@ARITIES
def test_normalised_labels_of_a_level_are_expected_to_sum_to_one(seed: int, arity: int) -> None:
    """Eq. 17, with the sum of expectations as its constant."""
    tree, eta = world(seed, arity)
    for found in expectation(tree, eta, "path", normalise=True):
        assert found.sum() == pytest.approx(1)


@SEEDS
@ARITIES
def test_a_beam_over_the_labels_of_a_path_is_optimal_for_every_k(seed: int, arity: int) -> None:
    """Lemma 1 and Proposition 3."""
    tree, eta = world(seed, arity)
    scores = expectation(tree, eta, "path")
    for k in range(1, len(eta) + 1):
        assert beam(tree, scores, k) == best(eta, k)


@pytest.mark.parametrize(("arity", "depth"), [(2, 3), (2, 4), (3, 3)])
def test_plain_labels_and_those_of_a_child_fail_just_where_k_is_small(
    arity: int, depth: int
) -> None:
    """In a full tree under one root `child` is optimal from k = B^(H-2), plain from B^(H-1)."""
    tree = tree_of(list(range(arity**depth)), arity, arity)
    fails: dict[str, set[int]] = {"child": set(), "plain": set()}
    for seed in range(400):
        eta = np.random.default_rng(seed).dirichlet(np.full(arity**depth, 0.5))
        scores = {"child": expectation(tree, eta, "child"), "plain": plain(tree, eta)}
        for kind, k in itertools.product(fails, range(1, arity**depth)):
            if beam(tree, scores[kind], k) != best(eta, k):
                fails[kind].add(k)
    assert fails["child"] == set(range(1, arity ** (depth - 2)))
    assert fails["plain"] == set(range(1, arity ** (depth - 1)))


def test_the_smallest_tree_on_which_the_labels_of_a_child_fail() -> None:
    eta = np.array([0.30, 0.20, 0, 0, 0.35, 0.05, 0.06, 0.04])
    tree = tree_of(list(range(8)), 2, 2)
    assert expectation(tree, eta, "child")[0] == pytest.approx([0.5, 0.4])
    assert beam(tree, expectation(tree, eta, "child"), 1) == {0}
    assert beam(tree, expectation(tree, eta, "path"), 1) == {4}


@KINDS
def test_of_equal_items_just_one_counts(kind: str) -> None:
    eta = np.full(8, 1 / 8)
    for found in expectation(tree_of(list(range(8)), 2, 2), eta, kind):
        assert (found > 0).all()
    for found in expectation(tree_of(list(range(8)), 2, 2), eta, "path"):
        assert found == pytest.approx(1 / 8)


class Table:
    """Scores of nodes (1, nodes) for every query."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def seen(self, query: Tensor, *rows: Any) -> Tensor:
        return query.repeat(len(rows))

    def __call__(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        return self.scores[:, ids].expand(len(query), -1)


def weighted(
    seed: int, arity: int, scores: Callable[[list[np.ndarray]], np.ndarray], *, normalise: bool
) -> tuple[Tree, np.ndarray, Tensor, Tensor, Tensor]:
    """Return a tree, eta, node scores, and per item and level the labels and Eq. 9, (I, J).

    `scores` makes node scores from Eq. 16, the probability of the likeliest item below each."""
    tree, eta = world(seed, arity)
    expected = [
        np.array([below(tree, eta, j, n).max(initial=0) for n in range(tree.sizes[j - 1])])
        for j in range(1, tree.depth + 1)
    ]
    o = torch.from_numpy(scores(expected))[None].requires_grad_()
    tree = tree_of(tree.item_of.tolist(), arity, SHAPES[arity][0], Table(o))
    every = torch.arange(len(eta))
    likely = torch.from_numpy(eta).log().clamp(min=-1e9).expand(len(eta), -1)
    labels = rectified(tree, likely, every, "path", normalise=normalise)
    loss = TreeLoss("softmax", "uniform", 10**6)(tree, every, every, torch.Generator())
    return tree, eta, o, labels, tree.depth * loss


@SEEDS
@ARITIES
@pytest.mark.parametrize("normalise", [False, True])
def test_the_weighted_softmax_is_a_bregman_divergence(
    seed: int, arity: int, normalise: bool
) -> None:
    """Proposition 2: w times the cross-entropy, plus w log w - w + 1 (Eq. 18 prints + w - 1, which
    is below 0 for w < 1 and does not meet the divergence for any other w than 1)."""
    random = np.random.default_rng(seed + 50)
    tree, eta, o, labels, loss = weighted(
        seed, arity, lambda e: random.normal(size=sum(map(len, e))), normalise=normalise
    )

    def entropy(z: np.ndarray) -> float:
        return float(sum(x * np.log(x) for x in z if x > 0))

    for item in range(len(eta)):
        for level in range(1, tree.depth + 1):
            start, size = tree.starts[level - 1], tree.sizes[level - 1]
            full = tree.full[start : start + size].numpy()
            p = np.exp(o.detach().numpy()[0, start : start + size]) * full
            p, w = p[full] / p.sum(), float(labels[item, level - 1])
            own = int(tree.slot_of[item]) // tree.width(level)
            label = np.where(np.arange(size) == own, w, 0.0)[full]
            divergence = entropy(label) - entropy(p) - (np.log(p) + 1) @ (label - p)
            ours, rest = w * loss[item, level - 1].item(), entropy(np.array([w]))
            assert ours + rest - w + 1 == pytest.approx(divergence)
            assert divergence >= 0
            assert (ours + rest + w - 1 == pytest.approx(divergence)) == (abs(w - 1) < 1e-9)


@SEEDS
@ARITIES
@pytest.mark.parametrize("normalise", [False, True])
def test_the_weighted_softmax_of_a_level_is_least_where_nodes_weigh_what_their_best_item_does(
    seed: int, arity: int, normalise: bool
) -> None:
    """Theorem 1 with Eq. 19: the labels times the loss of the tree are flat at o = log E[z], for
    any constant per level, and not beside it."""

    def best(expected: list[np.ndarray]) -> np.ndarray:
        logs = [np.log(np.maximum(e, 1e-300)) + 0.3 * j for j, e in enumerate(expected)]
        return np.concatenate(logs)

    for shift in (0.0, 0.1):

        def beside(expected: list[np.ndarray], shift: float = shift) -> np.ndarray:
            o = best(expected)
            o[int(np.argmax(expected[0]))] += shift
            return o

        _, eta, o, labels, loss = weighted(seed, arity, beside, normalise=normalise)
        risk = torch.from_numpy(eta) @ (labels * loss).sum(1)
        (slope,) = torch.autograd.grad(risk, o)
        assert slope.abs().max() < 1e-12 if not shift else slope.abs().max() > 1e-3
