"""How far a beam search stays behind the best k items, by the labels its nodes were told.

    python bench/tree_regret.py [items, default 16384] [users]

A synthetic world, whose truth is known: nodes score exactly what their labels are expected to count
(plain: the sum of eta below; `path`: the most likely item below; `child`: the sum below the child
that holds it), so nothing but the labels is to blame. Trees: of the world's own categories, and
random. Regret: the share of the best k items' probability that the beam's k items lack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from _harness import report
from softdex import synthetic

ASKED = (20, 150)  # k
BEAMS = {k: sorted({k, 2 * k, 4 * k, 150}) for k in ASKED}


def lowered(eta: np.ndarray, kind: str) -> list[np.ndarray]:
    """Scores of all levels of a binary tree (U, nodes), from two nodes on to the leaves."""
    best, total, found = eta, eta, [eta]
    while best.shape[1] > 2:
        pair = best.reshape(len(eta), -1, 2)
        sums = total.reshape(len(eta), -1, 2)
        chosen = np.take_along_axis(sums, pair.argmax(2)[:, :, None], 2)[:, :, 0]
        best, total = pair.max(2), sums.sum(2)
        found.append({"plain": total, "path": best, "child": chosen}[kind])
    return found[::-1]


def beam(scores: list[np.ndarray], width: int, k: int) -> np.ndarray:
    """The k best leaves that a beam finds (U, k)."""
    users = np.arange(len(scores[0]))[:, None]
    kept = np.tile(np.arange(2), (len(users), 1))
    for level, of_level in enumerate(scores):
        if level:
            kept = (2 * kept[:, :, None] + np.arange(2)).reshape(len(users), -1)
        most = k if level == len(scores) - 1 else width
        if kept.shape[1] > most:
            order = np.argsort(-of_level[users, kept], axis=1, kind="stable")[:, :most]
            kept = kept[users, order]
    return kept


def regret(eta: np.ndarray, scores: list[np.ndarray], width: int, k: int) -> float:
    most = np.sort(eta, axis=1)[:, -k:].sum(1)
    found = np.take_along_axis(eta, beam(scores, width, k), 1).sum(1)
    return round(abs(float((1 - found / most).mean())), 5)


def main() -> None:
    given = [int(float(a)) for a in sys.argv[1:]]
    items, users = [*given, *(16384, 300)[len(given) :]]
    world = synthetic.world(users=users, items=items, seed=0, depth=7, skew=0.6)
    eta = world.eta(np.arange(users))
    slots = 2 ** int(np.ceil(np.log2(items)))
    draw = np.random.default_rng(0)
    places: dict[str, Callable[[], np.ndarray]] = {
        "categories": lambda: np.argsort(world.slot_of, kind="stable"),
        "random": lambda: draw.permutation(items),
    }
    figures = {}
    for tree, order in places.items():
        laid = np.zeros((users, slots))
        laid[:, np.arange(items) * slots // items] = eta[:, order()]
        for kind in ("plain", "child", "path"):
            scores = lowered(laid, kind)
            for k, widths in BEAMS.items():
                figures[f"{tree}, {kind}, top {k}"] = {
                    f"beam {width}": regret(laid, scores, width, k) for width in widths
                }
    report(
        "tree_regret",
        f"{items:,} items, {users} users of a synthetic world, binary tree; share of the best "
        "items' probability that is not found",
        figures=figures,
    )


if __name__ == "__main__":
    main()
