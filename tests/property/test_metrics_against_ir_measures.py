"""Our metrics equal ir-measures (trec_eval's definitions) on random lists and targets."""

from __future__ import annotations

import ir_measures
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG

from softdex.evaluate.metrics import user_metrics

ITEMS = 30
CUTOFFS = (1, 3, 10)
OURS = {P: "precision", R: "recall", nDCG: "ndcg", RR: "mrr", Success: "hit"}


@given(seed=st.integers(0, 10**6), users=st.integers(1, 6))
def test_every_metric_equals_ir_measures(seed: int, users: int) -> None:
    draw = np.random.default_rng(seed)
    lists = np.stack([draw.permutation(ITEMS)[:10] for _ in range(users)])
    targets = [draw.choice(ITEMS, draw.integers(1, 15), replace=False) for _ in range(users)]
    hits = np.stack([np.isin(row, t) for row, t in zip(lists, targets, strict=True)])
    sizes = np.array([len(t) for t in targets])
    run = {str(u): {str(i): 100.0 - r for r, i in enumerate(row)} for u, row in enumerate(lists)}
    truth = {str(u): {str(i): 1 for i in t} for u, t in enumerate(targets)}
    truncated = user_metrics(hits, sizes, CUTOFFS)
    full = user_metrics(hits, sizes, CUTOFFS, ideal="full")
    asked = [m @ k for m in OURS for k in CUTOFFS] + [AP @ k for k in CUTOFFS]
    for metric in ir_measures.iter_calc(asked, truth, run):
        name = metric.measure.NAME
        k = metric.measure.params["cutoff"]
        if name == "AP":
            ours = full[f"map@{k}"]
        else:
            ours = truncated[f"{next(v for m, v in OURS.items() if name == m.NAME)}@{k}"]
        assert abs(ours[int(metric.query_id)] - metric.value) < 1e-6, (name, k)
