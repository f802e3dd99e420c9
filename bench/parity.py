"""Differences between CPU and GPU: losses, metrics and lists of the same run on both.

Ends with exit code 1 if they exceed the tolerances. Without a GPU --tiny compares the CPU twice.
"""

from __future__ import annotations

from argparse import Namespace

import numpy as np

import softdex as sdx
from _harness import DEVICE, GPU, TINY, report, sized
from _options import parser, run

EXACT = ("softmax", "ials", "rg2", "rgx")  # nothing is drawn after the start
TOLERANCES = {"loss": 1e-3, "ndcg@20": 5e-3, "overlap@20": 0.95}
USERS, ITEMS, DIM = sized((2000, 1000, 32), (100, 60, 8))

PARSER = parser(__file__, __doc__)


def main(given: Namespace) -> None:
    if not (GPU or TINY):
        PARSER.error("needs a GPU to compare with")
    world = sdx.synthetic.world(users=USERS, items=ITEMS, seed=3)
    train, _, test = sdx.split.leave_last(world.interactions())
    figures = {}
    for objective in ("softmax", "ials", "rg2", "rgx", "bpr", "bce", "ssm"):
        # draws come from each device's own generator: where the loss samples, the devices agree to
        # sampling noise only; without draws, to rounding
        models = [
            sdx.fit(objective, train, device=device, epochs=3, dim=DIM, patience=0)
            for device in ("cpu", DEVICE.type)
        ]
        losses = [m.card.training["history"][-1]["loss"] for m in models]
        ndcg = [m.evaluate(test, 20)["ndcg@20"] for m in models]
        lists = [m.search(test.users, test.history, 20, test.masked) for m in models]
        same = [len(set(a) & set(b)) / len(set(a)) for a, b in zip(*lists, strict=True)]
        figures[objective] = {
            "loss": round(abs(losses[0] - losses[1]) / abs(losses[0]), 6),
            "ndcg@20": round(abs(ndcg[0] - ndcg[1]), 6),
            "overlap@20": round(float(np.mean(same)), 4),
        }
    same_model = sdx.fit("softmax", train, device="cpu", epochs=3, patience=0, dim=DIM)
    on_cpu = same_model.search(test.users, test.history, 50, test.masked)
    same_model.encoder.to(DEVICE)
    same_model.index.scorer.to(DEVICE)
    on_gpu = same_model.search(test.users, test.history, 50, test.masked)
    good = all(
        figures[name]["loss"] < TOLERANCES["loss"]
        and figures[name]["ndcg@20"] < TOLERANCES["ndcg@20"]
        and figures[name]["overlap@20"] > TOLERANCES["overlap@20"]
        for name in EXACT
    )
    report(
        "parity",
        f"world({USERS}, {ITEMS}, seed 3), 3 epochs, dim {DIM}; relative difference of the last "
        "loss, difference of ndcg@20, mean overlap of the top 20; one model served on both",
        tolerances=TOLERANCES,
        trained_apart=figures,
        served_lists_equal=round(float((on_cpu == on_gpu).mean()), 6),
        agrees=bool(good),
    )
    if not good:
        raise SystemExit("parity: CPU and GPU are further apart than the tolerances allow")


if __name__ == "__main__":
    run(PARSER, main)
