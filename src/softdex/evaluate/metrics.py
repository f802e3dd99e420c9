"""Per-user metrics of ranked lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

METRICS = ("precision", "recall", "f", "ndcg", "mrr", "map", "hit")
CONVENTIONS = {
    "empty": ("skip", "zero"),
    "repeats": ("once", "count"),
    "ideal": ("truncated", "full"),
}


def user_metrics(
    hits: np.ndarray, sizes: np.ndarray, cutoffs: Sequence[int], ideal: str = "truncated"
) -> dict[str, np.ndarray]:
    """Return each metric per user (B,), by name and cut-off ("recall@20").

    Args:
        hits: whether the item at each rank is a target, (B, K).
        sizes: number of targets per user, (B,); without targets every metric is 0.
        cutoffs: list lengths to measure, each at most K.
        ideal: `truncated` normalises NDCG and MAP by min(k, number of targets), `full` by the
            number of targets.
    """
    places = np.arange(1, hits.shape[1] + 1)
    discount = 1 / np.log2(places + 1)
    found = np.cumsum(hits, 1)
    gain = np.cumsum(hits * discount, 1)
    precisions = np.cumsum(hits * found / places, 1)
    first = np.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0)
    longest = max(int(sizes.max(initial=1)), hits.shape[1])
    ideals = np.concatenate([[1.0], np.cumsum(1 / np.log2(np.arange(2, longest + 2)))])
    targets = np.maximum(sizes, 1)
    out: dict[str, np.ndarray] = {}
    for k in cutoffs:
        n = found[:, k - 1]
        reach = np.minimum(targets, k) if ideal == "truncated" else targets
        precision, recall = n / k, n / targets
        out[f"precision@{k}"] = precision
        out[f"recall@{k}"] = recall
        out[f"f@{k}"] = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        out[f"ndcg@{k}"] = gain[:, k - 1] / ideals[reach]
        out[f"mrr@{k}"] = np.where(first * k >= 1 - 1e-12, first, 0.0)
        out[f"map@{k}"] = precisions[:, k - 1] / reach
        out[f"hit@{k}"] = (n > 0).astype(np.float64)
    return out


def overlap(lists: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the fraction of each exact list that the served list contains, (B,)."""
    rows = np.arange(len(lists))[:, None] * (np.int64(max(lists.max(), exact.max())) + 1)
    both = np.isin(rows + exact, (rows + lists)[lists >= 0]) & (exact >= 0)
    return both.sum(1) / np.maximum(1, (exact >= 0).sum(1))
