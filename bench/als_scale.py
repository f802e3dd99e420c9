"""Seconds per sweep of RG2, by the number of events and by `dim`.

    python bench/als_scale.py                           both curves, on the GPU if there is one
    python bench/als_scale.py USERS ITEMS EVENTS DIM    one size (1e6 1e6 1e8 64 on a GPU)

Events are synthetic: uniform users, items by Zipf's law with exponent 0.8, repeats dropped.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from _harness import DEVICE, GPU, report, reset_peak, sized, wait
from _options import parser, run, size
from softdex.encode.table import Table
from softdex.solve.closed.als import solve_side
from softdex.solve.closed.blocks import Blocks
from softdex.solve.closed.normal_equations import Side, rg, shared_by_items, shared_by_users

ALPHA, LAM, STEPS, SWEEPS = 0.015, 0.02, 4, sized(3, 1)
USERS, ITEMS, EVENTS = sized(
    (100_000, 50_000, (250_000, 10**6, 4 * 10**6)), (300, 200, (2000, 4000))
)
DIMS = sized((32, 64, 128, 256), (8, 16))

PARSER = parser(__file__, __doc__)
for name in ("users", "items", "events", "dim"):
    PARSER.add_argument(name, nargs="?", type=size)


def events(users: int, items: int, count: int) -> torch.Tensor:
    """Distinct (user, item) pairs as user * items + item, sorted."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    cdf = torch.arange(1, items + 1, device=DEVICE, dtype=torch.float64).pow(-0.8).cumsum(0)
    pairs = torch.empty(0, dtype=torch.int64, device=DEVICE)
    while len(pairs) < count:
        missing = count - len(pairs)
        user = torch.randint(users, (missing,), generator=generator, device=DEVICE)
        at = torch.rand(missing, generator=generator, device=DEVICE, dtype=torch.float64)
        item = torch.searchsorted(cdf, at * cdf[-1]).clamp(max=items - 1)
        pairs = torch.cat([pairs, user * items + item]).unique()
    return pairs


def side(row: torch.Tensor, other: torch.Tensor, rows: int, weight: Any, fixed: Any) -> Side:
    counts = torch.bincount(row, minlength=rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    extra = torch.full((len(row),), ALPHA, device=row.device)
    total = weight * fixed.sum() + ALPHA * counts
    return Side(indptr, other.int(), extra, extra + 0.5, weight, LAM * total + 1e-6, fixed)


def measure(users: int, items: int, count: int, dim: int) -> dict[str, Any]:
    pairs = events(users, items, count)
    user, item = pairs // items, pairs % items
    weight = torch.bincount(user, minlength=users).float() / (2 * items)
    ones = torch.ones(items, device=DEVICE)
    of_users = side(user, item, users, weight, ones)
    order = torch.argsort(item, stable=True)
    of_items = side(item[order], user[order], items, ones, weight)
    longest = int(of_items.indptr.diff().max())
    del pairs, user, item, order
    loss = rg(items, alpha=ALPHA, lam=LAM, nu=1.0)
    p = Table(torch.zeros(users, dim, device=DEVICE))
    q = Table(torch.randn(items, dim, device=DEVICE) * 0.1 / dim**0.5)
    users_block = Blocks(p, of_users.indptr.cpu().numpy())
    items_block = Blocks(q, of_items.indptr.cpu().numpy())
    reset_peak()
    times = []
    for _ in range(SWEEPS + 1):  # the first one compiles and warms up
        began = time.perf_counter()
        solve_side(of_users, shared_by_users(loss, q.weight), users_block, items_block, STEPS)
        shared = shared_by_items(loss, p.weight, of_items.fixed, q.weight.sum(0))
        solve_side(of_items, shared, items_block, users_block, STEPS)
        wait()
        times.append(time.perf_counter() - began)
    assert bool(q.weight.isfinite().all())
    row = {"users": users, "items": items, "events": count, "dim": dim, "longest_item": longest}
    row["seconds_per_sweep"] = round(float(np.median(times[1:])), 4)
    if GPU:
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return row


def slope(rows: list[dict[str, Any]], by: str) -> float:
    """Slope of log seconds against log size."""
    x, y = (np.log([row[name] for row in rows]) for name in (by, "seconds_per_sweep"))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def main(given: Namespace) -> None:
    protocol = "RG2, 4 conjugate-gradient steps, float32, median of 3 sweeps after one to warm up"
    sizes = [given.users, given.items, given.events, given.dim]
    if given.users is not None:
        if None in sizes:
            PARSER.error("give all of USERS ITEMS EVENTS DIM, or none")
        report("als_scale", protocol, rows=[measure(*sizes)])
        return
    big = 10 if GPU else 1
    by_events = [measure(USERS, ITEMS, big * n, 64) for n in EVENTS]
    by_dim = [measure(USERS, ITEMS, big * EVENTS[1], dim) for dim in DIMS]
    slopes = {"events": slope(by_events, "events"), "dim": slope(by_dim, "dim")}
    report("als_scale", protocol, by_events=by_events, by_dim=by_dim, slopes=slopes)


if __name__ == "__main__":
    run(PARSER, main)
