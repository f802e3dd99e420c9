"""Sum of weights and seconds of assigning items to nodes: auction and greedy beside the optimum.

Random weights, and some on which all items partly agree. The optimum is scipy's assignment, which
takes minutes where these take milliseconds from about ten thousand items on.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from _harness import report, seconds, sized
from _options import parser, run
from softdex.index.tree.deal import RULES, deal

PROBLEMS = {  # groups, columns per group, room per column, whether items agree
    "16 leaves per node": (20, 16, 1, False),
    "16 nodes of 8": (5, 16, 8, False),
    "232 nodes of 16": (1, 232, 16, False),
    "232 nodes of 16, many want the same": (1, 232, 16, True),
    "128 nodes of 4, many want the same": (20, 128, 4, True),
}

PARSER = parser(__file__, __doc__)


def measured(groups: int, columns: int, most: int, agree: bool) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    room = draw.integers(max(1, most - 1), most + 1, (groups, columns))
    group = draw.permutation(np.repeat(np.arange(groups), room.sum(1)))
    weight = 3 * draw.normal(size=(len(group), columns))
    if agree:
        loud = draw.random((len(group), 1))
        weight = weight * 10 * loud**2 + 5 * draw.normal(size=columns) * loud
    best = 0.0
    for g in range(groups):
        mine = weight[group == g][:, np.repeat(np.arange(columns), room[g])]
        best += float(mine[linear_sum_assignment(mine, maximize=True)].sum())
    given = torch.from_numpy(weight).float(), torch.from_numpy(group), torch.from_numpy(room)
    stays = torch.full((len(group),), -1)
    row: dict[str, Any] = {"items": len(group)}
    for rule in RULES:
        chosen = deal(*given, stays, rule=rule).numpy()
        row[f"{rule}, share of the best"] = round(
            float(np.take_along_axis(weight, chosen[:, None], 1).sum()) / best, 5
        )
        row[f"{rule} s"] = round(seconds(lambda rule=rule: deal(*given, stays, rule=rule)), 3)
    return row


def main(given: Namespace) -> None:
    report(
        "tree_deal",
        "random weights; the best is scipy.optimize.linear_sum_assignment",
        figures={
            name: measured(*problem) for name, problem in list(PROBLEMS.items())[: sized(None, 2)]
        },
    )


if __name__ == "__main__":
    run(PARSER, main)
