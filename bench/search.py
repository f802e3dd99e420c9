"""Recall@100 by queries per second on one thread: `scan` beside faiss, all by inner product.

    python bench/search.py [gowalla | VECTORS.npz | ITEMS]

`gowalla` trains `rg2` with 64 dimensions on FastVAE's Gowalla; VECTORS.npz holds `items` (I, D) and
`queries` (B, D); ITEMS vectors (1e6) are drawn from a mixture. All indexes are built first; then
all settings of all of them are timed in turn, five times, on one batch of all queries, and query by
query where recall reaches .95.
faiss's inverted lists for inner products use cells by direction; `euclidean` gives them the cells
of plain k-means, which are better here. Its multi-index has no inner product: an extra coordinate
makes all vectors equally long.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _data import need
from _harness import report, seconds, sized
from _options import parser, run, size
from softdex.index.imi.index import build
from softdex.kernels.scan import prepare, scan
from softdex.score.product import Dot

K, GOAL = 100, 0.95
QUERIES, REPEATS, SINGLE = sized((2000, 5, 300), (20, 1, 3))
SLOWEST = 200  # queries per second at which a curve ends
Search = Callable[[np.ndarray, float], np.ndarray]  # queries, setting -> ids
STEPS = [2**j for j in range(17)]  # of nprobe, efSearch, or effort


def source(text: str) -> Path | int | str:
    """`gowalla`, a file of vectors, or a number of items."""
    if text == "gowalla":
        return text
    return Path(text) if text.endswith(".npz") else size(text)


PARSER = parser(__file__, __doc__)
PARSER.add_argument("vectors", nargs="?", type=source, default=sized(10**6, 700))


def mixture(items: int, dim: int = 64, centres: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Directions around Zipf-weighted centres; coordinate j has scale j^-1/2; log-normal norms."""
    draw = np.random.default_rng(0)
    scale = np.arange(1, dim + 1) ** -0.5
    middle = draw.normal(size=(centres, dim)) * scale
    weight = draw.permutation(1 / (np.arange(centres) + 10))

    def some(n: int) -> np.ndarray:
        which = draw.choice(centres, n, p=weight / weight.sum())
        x = middle[which] + 0.5 * draw.normal(size=(n, dim)) * scale
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    vectors = some(items) * np.exp(0.3 * draw.normal(size=(items, 1)))
    return vectors.astype(np.float32), some(QUERIES).astype(np.float32)


def ours(items: np.ndarray, codewords: int) -> Search:
    generator = torch.Generator().manual_seed(0)
    made = build(
        Dot(torch.from_numpy(items)), codewords=codewords, residual=True, generator=generator
    )
    ids = made.order.numpy()
    lists = prepare(made.words.numpy(), made.starts.numpy(), ids, items[ids])
    return lambda query, effort: scan(query, lists, K, effort)[0]


def inverted(items: np.ndarray, cells: int, euclidean: bool) -> Search:
    import faiss

    dim, product = items.shape[1], faiss.METRIC_INNER_PRODUCT
    index: Any = faiss.index_factory(dim, f"IVF{cells},Flat", product)
    if euclidean:
        quantizer = faiss.IndexFlatL2(dim)
        index = faiss.IndexIVFFlat(quantizer, dim, cells, product)
        index.cp.spherical = False
    index.train(items)
    index.add(items)
    if euclidean:
        centres: Any = faiss.IndexFlatIP(dim)
        centres.add(quantizer.reconstruct_n(0, cells))
        centres.this.disown()
        index.quantizer, index.own_fields = centres, True
    return probing(index)


def probing(index: Any) -> Search:
    def search(query: np.ndarray, probes: float) -> np.ndarray:
        index.nprobe = int(min(probes, index.nlist))
        return index.search(query, K)[1]

    return search


def multi(items: np.ndarray) -> Search:
    import faiss

    norms = np.square(items).sum(1, keepdims=True)
    wide = np.hstack([items, np.sqrt(norms.max() - norms), np.zeros_like(norms)])
    index = faiss.index_factory(wide.shape[1], "IMI2x8,Flat", faiss.METRIC_L2)
    index.train(wide)
    index.add(wide)
    search = probing(index)
    return lambda query, probes: search(np.pad(query, ((0, 0), (0, 2))), probes)


def graph(items: np.ndarray) -> Search:
    import faiss

    index: Any = faiss.index_factory(items.shape[1], "HNSW32", faiss.METRIC_INNER_PRODUCT)
    index.add(items)

    def search(query: np.ndarray, width: float) -> np.ndarray:
        index.hnsw.efSearch = int(width)
        return index.search(query, K)[1]

    return search


def recall(found: np.ndarray, best: np.ndarray) -> float:
    return float(np.mean([np.isin(b, f).mean() for f, b in zip(found, best, strict=True)]))


def at_goal(curve: list[dict[str, float]]) -> float | None:
    """Queries per second at the goal, interpolated between the settings on either side."""
    for low, high in pairwise(curve):
        if low["recall"] < GOAL <= high["recall"]:
            part = (GOAL - low["recall"]) / (high["recall"] - low["recall"])
            return float(low["qps"] ** (1 - part) * high["qps"] ** part)
    return None


def trained() -> tuple[np.ndarray, np.ndarray]:
    """Item vectors of `rg2` on Gowalla, and a sample of its users as queries."""
    log = sdx.read(need("gowalla-fastvae.parquet"), quiet=True)
    train = sdx.split.fastvae(log, seed=0, max_users=None).train
    model = sdx.fit("rg2", train, dim=64)
    users = np.random.default_rng(0).permutation(train.num_users)[:QUERIES]
    return model.index.scorer.items.weight.numpy(), model.encoder(users).numpy()


def single(search: Search, query: np.ndarray, setting: float) -> float:
    """Median microseconds of a single query."""
    times = []
    for j in range(min(SINGLE, len(query))):
        began = time.perf_counter()
        search(query[j : j + 1], setting)
        times.append(time.perf_counter() - began)
    return round(1e6 * float(np.median(times)), 1)


def main(given: Namespace) -> None:
    import faiss

    name = given.vectors
    if name == "gowalla":
        items, query = trained()
    elif isinstance(name, int):
        name, (items, query) = "mixture", mixture(name)
    else:
        if not name.exists():
            raise sdx.DataError(
                f"no file {name}. Save `items` and `queries` in it with numpy.savez."
            )
        held, name = np.load(name), name.name
        items, query = (np.ascontiguousarray(held[n], np.float32) for n in ("items", "queries"))
        query = query[np.random.default_rng(0).permutation(len(query))[:QUERIES]]
    large = len(items) > 200_000
    codewords, lists = ((256, 512), (1024, 4096)) if large else ((64, 128), (256, 1024))
    makers: dict[str, Callable[[], Search]] = {
        f"scan {c}": partial(ours, items, c) for c in sized(codewords, (8,))
    }
    for cells in sized(lists, (8,)):
        makers[f"IVF{cells},Flat"] = partial(inverted, items, cells, False)
        makers[f"IVF{cells},Flat euclidean"] = partial(inverted, items, cells, True)
    makers |= {"IMI2x8,Flat": partial(multi, items), "HNSW32": partial(graph, items)}
    systems, built = {}, {}
    for system, make in makers.items():
        began = time.perf_counter()
        systems[system] = make()
        built[system] = round(time.perf_counter() - began, 1)
        print(f"{system}: built in {built[system]} s", file=sys.stderr)
    flat = faiss.IndexFlatIP(items.shape[1])
    flat.add(items)
    best = flat.search(query, K)[1]
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    curves: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    for system, search in systems.items():
        for setting in STEPS[6:] if system.startswith("scan") else STEPS:
            began = time.process_time()
            found = recall(search(query, setting), best)
            if found > 0.4:
                curves[system].append({"setting": setting, "recall": round(found, 4), "qps": 0.0})
            if found > 0.985 or len(query) / (time.process_time() - began) < SLOWEST:
                break
    points = [(systems[system], point) for system, curve in curves.items() for point in curve]
    times = [[seconds(partial(s, query, p["setting"])) for s, p in points] for _ in range(REPEATS)]
    for (_, point), spent in zip(points, np.median(times, axis=0), strict=True):
        point["qps"] = round(len(query) / float(spent))
    reached = {}
    for system, curve in curves.items():
        first = next((p["setting"] for p in curve if p["recall"] >= GOAL), None)
        qps = at_goal(curve)
        reached[system] = {
            "qps": None if qps is None else round(qps),
            "single_us": None if first is None else single(systems[system], query, first),
            "single_setting": first,
        }
    report(
        f"search {name}",
        f"{len(items):,} items of {items.shape[1]} dimensions, {len(query):,} queries, recall@{K}; "
        f"one thread, median of {REPEATS} interleaved runs; reached: queries per second at recall "
        f"{GOAL}, interpolated in log qps, and the median of single queries at the first setting "
        "beyond it. mixture: directions = one of 2,000 Zipf-weighted Gaussian centres + 0.5 "
        "Gaussian, coordinate j scaled by j^-1/2; item norms exp(0.3 normal), queries alike. "
        "Settings: effort, nprobe, efSearch; a curve ends at recall .985 or at "
        f"{SLOWEST} queries per second",
        reached=reached,
        build_seconds=built,
        curves=curves,
    )


if __name__ == "__main__":
    run(PARSER, main)
