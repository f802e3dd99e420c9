"""Seconds a sweep of RG2 takes, against the number of events and against dim; one JSON line.

    python bench/als_scale.py             cost curves on this machine's CPU, or on its GPU
    python bench/als_scale.py USERS ITEMS EVENTS DIM    one size only (10^6 10^6 10^8 64 on a GPU)

Events are synthetic: users uniform, items by Zipf's law with exponent 0.8, repeats dropped.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

from _harness import report
from softdex.encode.table import Table
from softdex.solve.closed.als import solve_side
from softdex.solve.closed.normal_equations import Side, rg, shared_by_items, shared_by_users

ALPHA, LAM, STEPS, SWEEPS = 0.015, 0.02, 4, 3


def events(users: int, items: int, count: int, device: torch.device) -> torch.Tensor:
    """Distinct (user, item) pairs as user * items + item, sorted."""
    generator = torch.Generator(device).manual_seed(0)
    cdf = torch.arange(1, items + 1, device=device, dtype=torch.float64).pow(-0.8).cumsum(0)
    pairs = torch.empty(0, dtype=torch.int64, device=device)
    while len(pairs) < count:
        missing = count - len(pairs)
        user = torch.randint(users, (missing,), generator=generator, device=device)
        at = torch.rand(missing, generator=generator, device=device, dtype=torch.float64)
        item = torch.searchsorted(cdf, at * cdf[-1]).clamp(max=items - 1)
        pairs = torch.cat([pairs, user * items + item]).unique()
    return pairs


def side(row: torch.Tensor, other: torch.Tensor, rows: int, weight: Any, fixed: Any) -> Side:
    counts = torch.bincount(row, minlength=rows)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    extra = torch.full((len(row),), ALPHA, device=row.device)
    total = weight * fixed.sum() + ALPHA * counts
    return Side(indptr, other.int(), extra, extra + 0.5, weight, LAM * total + 1e-6, fixed)


def measure(users: int, items: int, count: int, dim: int, device: torch.device) -> dict[str, Any]:
    pairs = events(users, items, count, device)
    user, item = pairs // items, pairs % items
    weight = torch.bincount(user, minlength=users).float() / (2 * items)
    ones = torch.ones(items, device=device)
    of_users = side(user, item, users, weight, ones)
    order = torch.argsort(item, stable=True)
    of_items = side(item[order], user[order], items, ones, weight)
    longest = int(of_items.indptr.diff().max())
    del pairs, user, item, order
    loss = rg(items, alpha=ALPHA, lam=LAM, nu=1.0)
    p = Table(torch.zeros(users, dim, device=device))
    q = Table(torch.randn(items, dim, device=device) * 0.1 / dim**0.5)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(SWEEPS + 1):  # the first one compiles and warms up
        began = time.perf_counter()
        solve_side(of_users, shared_by_users(loss, q.weight), p, q, STEPS)
        shared = shared_by_items(loss, p.weight, of_items.fixed, q.weight.sum(0))
        solve_side(of_items, shared, q, p, STEPS)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    assert bool(q.weight.isfinite().all())
    row = {"users": users, "items": items, "events": count, "dim": dim, "longest_item": longest}
    row["seconds_per_sweep"] = round(float(np.median(times[1:])), 4)
    if device.type == "cuda":
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return row


def slope(rows: list[dict[str, Any]], by: str) -> float:
    """Of log seconds against log size."""
    x, y = (np.log([row[name] for row in rows]) for name in (by, "seconds_per_sweep"))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    protocol = "RG2, 4 conjugate-gradient steps, float32, median of 3 sweeps after one to warm up"
    if len(sys.argv) > 1:
        size = [int(float(x)) for x in sys.argv[1:]]
        report("als_scale", protocol, device=name, rows=[measure(*size, device)])  # type: ignore[call-arg]
        return
    big = 10 if device.type == "cuda" else 1
    nnz = [measure(100_000, 50_000, big * n, 64, device) for n in (250_000, 10**6, 4 * 10**6)]
    dims = [measure(100_000, 50_000, big * 10**6, d, device) for d in (32, 64, 128, 256)]
    slopes = {"events": slope(nnz, "events"), "dim": slope(dims, "dim")}
    report("als_scale", protocol, device=name, by_events=nnz, by_dim=dims, slopes=slopes)


if __name__ == "__main__":
    main()
