"""Regret of a beam search over exact node scores, by the labels that define them.

    python bench/tree_regret.py [ITEMS] [USERS]

In a synthetic world the truth eta is known: a node scores exactly the expectation of its label
(plain: the sum of eta below; `path`: the most likely item below; `child`: the sum below the child
that holds it), so that only the labels matter. Trees: of the world's own categories, and random.
Regret: the share of the best k items' probability that the beam's k items lack.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import numpy as np

import softdex as sdx
from _harness import report, sized
from _options import parser, run, size

ASKED = (20, 150)  # k
BEAMS = {k: sorted({k, 2 * k, 4 * k, 150}) for k in ASKED}

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="?", type=size, default=sized(16384, 256))
PARSER.add_argument("users", nargs="?", type=size, default=sized(300, 10))


def lowered(eta: np.ndarray, kind: str) -> list[np.ndarray]:
    """Scores (U, nodes) per level of a binary tree, from two nodes down to the leaves."""
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


def main(given: Namespace) -> None:
    items, users = given.items, given.users
    world = sdx.synthetic.world(users=users, items=items, seed=0, depth=7, skew=0.6)
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
    run(PARSER, main)
