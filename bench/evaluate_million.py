"""Evaluating 1,000 users over a million items, beside a bare matrix product and topk."""

from __future__ import annotations

import statistics

import numpy as np
import torch

import softdex as sdx
from _harness import alternating, peak_of, report
from softdex.data.keys import range_keys
from softdex.data.ragged import Ragged, empty
from softdex.encode.counting import Unpersonalised
from softdex.model.retriever import Retriever
from softdex.score.product import Dot

USERS, ITEMS, DIM, K = 1000, 1_000_000, 64, 50


class Given(torch.nn.Module):
    """An encoder whose queries are given vectors."""

    query_bytes = 4 * DIM
    reads_history = True

    def __init__(self, vectors: torch.Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, users: np.ndarray, history: Ragged) -> torch.Tensor:
        return self.vectors[torch.from_numpy(users)]

    similar = Unpersonalised.similar


def main() -> None:
    torch.manual_seed(0)
    queries, items = torch.randn(USERS, DIM), torch.randn(ITEMS, DIM)
    draw = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS, dtype=np.int32), 20)
    item = draw.integers(0, ITEMS, len(user)).astype(np.int32)
    log = sdx.Interactions(range_keys(USERS), range_keys(ITEMS), user, item)
    test = sdx.split.per_user(log, (0.5, 0.5)).test
    model = Retriever(
        "given", {}, log.users, log.items, Given(queries), Dot(items),  # type: ignore[arg-type]
        empty(USERS), log.item_counts,
    )  # fmt: skip

    def ours() -> sdx.Result:
        return model.evaluate(test, K, max_memory="1GB")

    def bare() -> None:
        width = 8192
        best = [(queries @ items[s : s + width].T).topk(K) for s in range(0, ITEMS, width)]
        torch.cat([b.values for b in best], 1).topk(K)

    _, memory = peak_of(ours)
    times = alternating({"matmul + topk": bare, "evaluate": ours}, 5)
    middle = {name: statistics.median(t) for name, t in times.items()}
    report(
        "evaluate_million",
        f"{USERS} users x {ITEMS} items, {DIM}-d float32, flat, k={K}, 10 masked and 10 targets a "
        "user, all metrics; bare: blocked product + topk, nothing masked; median of 5 in turn",
        seconds=times,
        ratio=round(middle["evaluate"] / middle["matmul + topk"], 2),
        **{name: memory[name] for name in ("peak_gb", "peak_above_start_gb")},
        vectors_gb=round(items.nbytes / 1e9, 3),
    )


if __name__ == "__main__":
    main()
