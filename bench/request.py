"""Microseconds of a recommend of one user, by part, beside the bare matrix product and top-k.

python bench/request.py [--threads N] [RECIPE=ITEMS ...]
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _data import random_log
from _harness import report, sized
from _options import parser, run, size
from softdex.encode.table import Table
from softdex.machine import set_threads
from softdex.model.asking import query_of, who
from softdex.model.learn import assemble
from softdex.model.rules import Rules
from softdex.model.wanted import wanted

USERS, HISTORY, K, REQUESTS = sized((20_000, 50, 20, 500), (50, 10, 10, 3))
GIVEN: dict[str, dict[str, Any]] = {
    "rg2": {"dim": 64},
    "fastvae": {"dim": 64},
    "sasrec": {"dim": 64, "hidden": 128, "max_history": HISTORY},
}
MODELS = sized(["rg2=20000", "fastvae=1e5", "sasrec=1e5"], ["rg2=300", "fastvae=300", "sasrec=300"])

PARSER = parser(__file__, __doc__)
PARSER.add_argument("models", nargs="*", default=MODELS, metavar="RECIPE=ITEMS")
PARSER.add_argument("--threads", type=size, default=1)


def model_of(recipe: str, items: int) -> sdx.Retriever:
    """An untrained model with random vectors."""
    log = random_log(USERS, items, HISTORY + 1)
    options = sdx.recipes.options(recipe) | GIVEN.get(recipe, {}) | {"device": "cpu"}
    job = sdx.recipes.make(recipe, log, options)
    draw = torch.Generator().manual_seed(0)
    for part in (job.encoder, job.scorer):
        for module in part.modules():
            if isinstance(module, Table):
                module.weight.data += 0.1 * torch.randn(module.weight.shape, generator=draw)
    return assemble(recipe, {}, log, job.encoder, job.scorer)


def bare(model: sdx.Retriever, query: torch.Tensor) -> Callable[[], Any]:
    """The scores of all items, as one product, and the best k of them."""
    vectors, offsets = model.index.scorer.everything()
    projected = model.index.scorer.project(query)

    @torch.inference_mode()
    def work() -> Any:
        scores = projected @ vectors.T
        return torch.topk(scores if offsets is None else scores + offsets, K)

    return work


def timed(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of CPU time of each work, one after another as in a request."""
    found, began = {}, process_time()
    for name, work in works.items():
        work()
        now = process_time()
        found[name], began = (now - began) * 1e6, now
    return found


def measured(model: sdx.Retriever, user: Any, history: Any) -> dict[str, Any]:
    """Medians over requests; what no part names (tables, bookkeeping) is the rest."""
    kept: dict[str, Any] = {}

    def keys() -> None:
        kept["asked"] = who(model, "recommend", user, history)

    def rules() -> None:
        kept["like"] = wanted(model, "recommend", K, (), Rules(), kept["asked"])
        past = kept["asked"].history
        kept["filter"] = kept["like"].filter(np.arange(1), past, len(model.items))

    def query() -> None:
        kept["query"] = query_of(model, kept["asked"].rows, kept["asked"].history)

    def search() -> None:
        model.index.search(kept["query"], K, filter=kept["filter"])

    parts = {"keys": keys, "rules": rules, "query": query, "search": search}
    timed(parts)
    product = bare(model, kept["query"])
    each = {
        "recommend": lambda: model.recommend(user, K, history=history),
        "bare": product,
        "sample": lambda: model.recommend(user, K, history=history, mode="sample"),
    }
    for _ in range(sized(20, 1)):
        timed(each)
    rounds = [timed(each) | timed(parts) for _ in range(REQUESTS)]
    found = {name: float(np.median([r[name] for r in rounds])) for name in rounds[0]}
    found["rest"] = found["recommend"] - sum(found[name] for name in parts)
    found["overhead"] = found["recommend"] - found["bare"] - found["query"]
    return {f"{name}, us": round(value, 1) for name, value in found.items()}


def main(given: Namespace) -> None:
    set_threads(given.threads)
    figures: dict[str, Any] = {}
    for text in given.models:
        recipe, _, items = text.partition("=")
        model = model_of(recipe, size(items or "20000"))
        user = model.users.take(np.array([USERS // 2])).to_pylist()[0]
        history = [model.items.take(model.seen[USERS // 2]).to_pylist()]
        figures[f"{recipe} {len(model.items):,}, user"] = measured(model, user, None)
        figures[f"{recipe} {len(model.items):,}, history"] = measured(model, None, history)
    report(
        "request",
        f"one user of {USERS:,}, histories of {HISTORY + 1}, {K} items; medians of {REQUESTS} "
        "requests, the works in turn, in CPU time; overhead: recommend without the query and the "
        "bare product",
        figures=figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
