"""Seconds and memory to build a tree from item vectors, beside bare passes over the rows.

    python bench/tree_build.py [ITEMS ...]

ITEMS (1e5, 1e6 and 1e7) vectors of 32 dimensions. A round halves all ranges once; the limit is a
pass that reads every row once in random order, times the number of rounds. One JSON line per size.
"""

from __future__ import annotations

import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numba
import numpy as np
import torch

from _harness import alternating, peak_of, report, sized
from _options import parser, run, size
from softdex.index.tree.build import Shape, by_vectors, item_of, shape_for

DIM, ARITY, BEAM, REPEATS = 32, 2, 200, 3

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="*", type=size, default=sized([10**5, 10**6, 10**7], [1000]))


@numba.njit(nogil=True, fastmath=True)
def read(vectors, order, first, last):
    total = np.float32(0)
    for i in range(first, last):
        row = vectors[order[i]]
        for d in range(len(row)):
            total += row[d]
    return total


def gather(vectors: np.ndarray, order: np.ndarray) -> float:
    threads = torch.get_num_threads()
    cuts = np.linspace(0, len(order), 8 * threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda span: read(vectors, order, *span), pairwise(cuts)))


def rounds(shape: Shape) -> int:
    halvings = [(n - 1).bit_length() for n in (shape.roots, shape.arity)]
    return halvings[0] + (shape.depth - 1) * halvings[1]


def measure(items: int) -> dict[str, object]:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((items, DIM), dtype=np.float32)
    shape, order = shape_for(items, ARITY, BEAM), draw.permutation(items)

    def build() -> np.ndarray:
        return item_of(by_vectors(vectors, shape), shape)

    began = time.process_time()
    slots, first = peak_of(build)
    first["cpu_seconds"] = round(time.process_time() - began, 3)
    assert np.count_nonzero(slots >= 0) == items
    times = alternating({"build": build, "gather": lambda: gather(vectors, order)}, REPEATS)
    best = {name: min(found) for name, found in times.items()}
    return {
        "shape": shape._asdict(),
        "vectors_gb": round(vectors.nbytes / 1e9, 3),
        "first": first,
        "seconds": times,
        "rounds": rounds(shape),
        "limit_seconds": round(best["gather"] * rounds(shape), 3),
        "times_limit": round(best["build"] / (best["gather"] * rounds(shape)), 2),
    }


def main(given: Namespace) -> None:
    small = np.random.default_rng(0).standard_normal((5000, DIM), dtype=np.float32)
    by_vectors(small, shape_for(5000, ARITY, BEAM))  # compiles
    gather(small, np.arange(5000))
    for items in given.items:
        report(
            "tree_build",
            f"{items} normal vectors of {DIM} dimensions, arity {ARITY}, beam {BEAM}: by_vectors + "
            f"item_of, once with its peak of memory and {REPEATS} times in turn with a random "
            "gather of all rows; compiled beforehand; limit = best gather x rounds",
            items=items,
            **measure(items),
        )


if __name__ == "__main__":
    run(PARSER, main)
