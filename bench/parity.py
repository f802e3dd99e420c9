"""The same run on CPU and GPU: how far losses, vectors, metrics and lists are apart."""

from __future__ import annotations

import numpy as np
import torch

import softdex as sdx
from _harness import report

EXACT = ("softmax", "ials", "rg2", "rgx")  # nothing is drawn after the start
TOLERANCES = {"loss": 1e-3, "ndcg@20": 5e-3, "overlap@20": 0.95}


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("parity: there is no GPU here to compare with")
    world = sdx.synthetic.world(users=2000, items=1000, seed=3)
    train, _, test = sdx.split.leave_last(world.interactions())
    figures = {}
    for objective in ("softmax", "ials", "rg2", "rgx", "bpr", "bce", "ssm"):
        # draws come from each device's own generator: the losses agree to sampling noise only
        # where they are drawn, exactly (to rounding) for the full softmax
        models = {
            device: sdx.fit(objective, train, device=device, epochs=3, patience=0, dim=32)
            for device in ("cpu", "cuda")
        }
        losses = {d: m.card.training["history"][-1]["loss"] for d, m in models.items()}
        results = {d: m.evaluate(test, 20) for d, m in models.items()}
        lists = {d: m.search(test.users, test.history, 20, test.masked) for d, m in models.items()}
        same = [len(set(a) & set(b)) / 20 for a, b in zip(*lists.values(), strict=True)]
        figures[objective] = {
            "loss": round(abs(losses["cpu"] - losses["cuda"]) / abs(losses["cpu"]), 6),
            "ndcg@20": round(abs(results["cpu"]["ndcg@20"] - results["cuda"]["ndcg@20"]), 6),
            "overlap@20": round(float(np.mean(same)), 4),
        }
    same_model = sdx.fit("softmax", train, device="cpu", epochs=3, patience=0, dim=32)
    on_cpu = same_model.search(test.users, test.history, 50, test.masked)
    same_model.encoder.to("cuda")
    same_model.index.scorer.to("cuda")  # type: ignore[attr-defined]
    on_gpu = same_model.search(test.users, test.history, 50, test.masked)
    good = all(
        figures[name]["loss"] < TOLERANCES["loss"]
        and figures[name]["ndcg@20"] < TOLERANCES["ndcg@20"]
        and figures[name]["overlap@20"] > TOLERANCES["overlap@20"]
        for name in EXACT
    )
    report(
        "parity",
        "world(2000, 1000, seed 3), 3 epochs, dim 32; relative difference of the last loss, "
        "absolute difference of ndcg@20, mean overlap of the top 20; one model served on both",
        device=torch.cuda.get_device_name(),
        tolerances=TOLERANCES,
        trained_apart=figures,
        served_lists_equal=round(float((on_cpu == on_gpu).mean()), 6),
        agrees=bool(good),
    )
    if not good:
        raise SystemExit("parity: CPU and GPU are further apart than the tolerances allow")


if __name__ == "__main__":
    main()
