"""Convergence of ALS, Newton-CG and Adam on RG2: the rates of the RG2 paper's Table 2, measured.

    python bench/convergence.py [PICTURE.png]

A pass reads all events once: half a sweep of ALS, a gradient, a Hessian product, or a trial step.
The gap is (loss - least) / (start - least), with the least loss that any solver reaches. Table 2
states: SGD sublinear, ALS linear, Newton-CG locally superlinear.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from _data import need
from _harness import report, sized
from _options import parser, run, written
from softdex.encode.history import Mixed
from softdex.encode.table import Users
from softdex.objective.squared import frequency_reg
from softdex.objective.taylor import rg_of_vectors
from softdex.score.product import Dot
from softdex.solve.closed import normal_equations as ne
from softdex.solve.closed.newton import Newton, NewtonSettings, NewtonSteps, penalty
from softdex.solve.closed.newton_cg import newton_step
from softdex.solve.closed.row_systems import solve_exactly
from softdex.solve.loop import Schedule

DIM, ALPHA, LAM, LENGTH, USERS, LR = 16, 0.01, 0.1, 50, 64, 0.02
FLOOR = 1e-13  # below it a gap is rounding
TARGETS = (1e-1, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10)
SECONDS, STEPS = sized(18, 0.1), 10  # per solver: at most, unless the steps are fewer

PARSER = parser(__file__, __doc__)
PARSER.add_argument("picture", **{"nargs": "?"} | written("convergence.png"))


def problem(log: sdx.Interactions, history: bool) -> Newton:
    """RG2 with a vector per user, or with the mean of each user's last items."""
    generator = torch.Generator().manual_seed(0)
    users, items = (
        torch.randn(n, DIM, generator=generator) / DIM**0.5 for n in (log.num_users, log.num_items)
    )
    scorer = Dot(items)
    mean = Mixed(users, torch.tensor(0.0), torch.tensor(LENGTH), scorer.items)
    quadratic = ne.rg(log.num_items, alpha=ALPHA, lam=LAM, nu=1.0)
    loss, settings = partial(rg_of_vectors, alpha=ALPHA), NewtonSettings(precision="float64")
    kept = penalty(quadratic, log)
    encoder, schedule = mean if history else Users(users), Schedule(device="cpu")
    return Newton(encoder, scorer, loss, kept, schedule, settings)


class Solvers:
    """Solvers from one start. Each yields, per step, the passes it took and the point reached."""

    def __init__(self, log: sdx.Interactions, history: bool) -> None:
        self.log, self.job = log, problem(log, history)
        self.trainer: NewtonSteps = self.job.trainer(log)
        self.start = self.trainer.at.clone()
        self.gradients: list[float] = []

    def loss(self, x: Tensor) -> float:
        with torch.no_grad():
            return float(self.trainer.objective(x))

    def als(self) -> Iterator[tuple[float, Tensor]]:
        loss = ne.rg(self.log.num_items, alpha=ALPHA, lam=LAM, nu=1.0)
        matrix = self.log.csr(binary=True)
        total = np.asarray(matrix.sum(1, dtype=np.float64)).ravel()
        of_users, of_items = (
            ne.Side(s.indptr, s.other, *(t.double() for t in s[2:]))
            for s in (ne.users_side(matrix, loss), ne.items_side(matrix.T.tocsr(), total, loss))
        )
        items = self.start[self.log.num_users * DIM :].view(-1, DIM)
        while True:
            users = solve_exactly(of_users, ne.shared_by_users(loss, items), items)[0]
            shared = ne.shared_by_items(loss, users, of_items.fixed, items.sum(0))
            items = solve_exactly(of_items, shared, users)[0]
            yield 2, torch.cat([users, items]).reshape(-1)

    def newton(self) -> Iterator[tuple[float, Tensor]]:
        trainer, at, walks = self.trainer, self.start, 0

        def counted(x: Tensor) -> Tensor:
            nonlocal walks
            walks += 1
            return trainer.objective(x)

        trust = trainer.trust
        while True:
            walks, last = 0, at
            at, step = newton_step(counted, at, trainer.scale, trust, products=400, tolerance=1e-12)
            trust = step.trust
            self.gradients.append(step.gradient)
            yield walks + step.products, at
            if at is last:
                return

    def adam(self) -> Iterator[tuple[float, Tensor]]:
        """Full batches at a constant learning rate."""
        x = self.start.clone().requires_grad_()
        optimizer = torch.optim.Adam([x], LR)
        while True:
            for _ in range(5):
                optimizer.zero_grad()
                self.trainer.objective(x).backward()
                optimizer.step()
            yield 5, x.detach()

    def minibatch(self) -> Iterator[tuple[float, Tensor]]:
        """Adam on batches of users, shuffled per pass; the rate falls as 1 / sqrt(pass)."""
        n, both = self.log.num_users, self.start.view(-1, DIM)
        own, items = (t.clone().requires_grad_() for t in (both[:n], both[n:]))
        total, kept = self.job.penalty, partial(frequency_reg, lam=LAM, nu=1.0)
        optimizer = torch.optim.Adam([own, items], LR)
        draw = np.random.default_rng(0)
        for done in count():
            optimizer.param_groups[0]["lr"] = LR / (1 + done) ** 0.5
            for batch in np.array_split(draw.permutation(n), -(-n // USERS)):
                met = self.log.histories.take(batch)
                row, item = (torch.from_numpy(x.astype(np.int64)) for x in (met.row_of, met.ids))
                query = own[torch.from_numpy(batch)]
                loss = rg_of_vectors(query, items, row, item, alpha=ALPHA)
                loss = loss + kept(query, total.users[batch])
                optimizer.zero_grad()
                (loss * n / len(batch) + kept(items, total.items)).backward()
                optimizer.step()
            yield 1, torch.cat([own.detach(), items.detach()]).reshape(-1)

    def run(self, steps: Iterator[tuple[float, Tensor]]) -> list[tuple[float, ...]]:
        """(passes, seconds, loss) after each step until time is up; the loss is not timed."""
        passes, seconds, out = 0.0, 0.0, [(0.0, 0.0, self.loss(self.start))]
        while seconds < SECONDS or len(out) <= STEPS:
            began = time.perf_counter()
            cost, at = next(steps, (0, None))
            seconds += time.perf_counter() - began
            if at is None:
                break
            passes += cost
            out.append((passes, seconds, self.loss(at)))
            if 0 <= out[-2][2] - out[-1][2] <= 1e-15 * abs(out[-1][2]):
                break
        return out


def gaps(runs: dict[str, list[tuple[float, ...]]]) -> dict[str, np.ndarray]:
    """Columns passes, seconds, gap; ends at the first row below the floor, clipped to it."""
    least = min(loss for run in runs.values() for *_, loss in run)
    out = {}
    for name, rows in runs.items():
        table = np.array(rows)
        table[:, 2] = (table[:, 2] - least) / (table[0, 2] - least)
        below = np.flatnonzero(table[:, 2] < FLOOR)
        out[name] = table[: below[0] + 1 if len(below) else None]
        out[name][:, 2] = out[name][:, 2].clip(FLOOR)
    return out


def fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of the least-squares line, and R2."""
    slope = float(np.polyfit(x, y, 1)[0])
    return slope, float(np.corrcoef(x, y)[0, 1] ** 2)


def tail(table: np.ndarray) -> dict[str, float]:
    """Fits to the last half of the digits gained: rho^t (linear) and t^-a (sublinear)."""
    t, gap = table[1:, 0], np.log10(table[1:, 2])
    late = gap < gap[-1] / 2
    if late.sum() < 8:
        late[-8:] = True
    steps = np.diff(table[:, 0]).mean()
    linear, linear_fit = fit(t[late], gap[late])
    power, power_fit = fit(np.log10(t[late]), gap[late])
    return {
        "passes per step": round(steps, 1),
        "factor per step": round(10 ** (linear * steps), 4),
        "R2 of rho^t": round(linear_fit, 4),
        "exponent of t^a": round(power, 3),
        "R2 of t^a": round(power_fit, 4),
        "passes per digit": round(-1 / linear, 1),
    }


def order(gradients: list[float]) -> dict[str, Any]:
    """Slope of log |g_k+1| against log |g_k| over the last steps: 1 is linear."""
    sizes = np.array(gradients[-5:])
    slope, explained = fit(np.log10(sizes[:-1]), np.log10(sizes[1:]))
    return {
        "|g_k+1| / |g_k|, last steps": [float(f"{r:.2g}") for r in sizes[1:] / sizes[:-1]],
        "order fitted to them": round(slope, 2),
        "R2": round(explained, 4),
        "steps": len(gradients),
    }


def reach(table: np.ndarray) -> dict[str, dict[str, float] | None]:
    """Passes and seconds until each gap is reached."""
    out: dict[str, dict[str, float] | None] = {}
    for target in TARGETS:
        hit = np.flatnonzero(table[:, 2] <= target)
        row = table[hit[0]] if len(hit) else None
        out[f"{target:.0e}"] = (
            None if row is None else {"passes": int(row[0]), "seconds": round(float(row[1]), 2)}
        )
    return out


def draw(path: Path, both: dict[str, dict[str, np.ndarray]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(18, 4), sharey=True)
    for i, (name, tables) in enumerate(both.items()):
        for j, label in enumerate(("passes", "seconds")):
            axis = axes[2 * i + j]
            for solver, table in tables.items():
                axis.semilogy(table[:, j], table[:, 2], label=solver, marker=".", markersize=3)
            axis.set(xlabel=label, title=name)
            axis.legend()
    axes[0].set_ylabel("objective gap, share of the start's")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(given: Namespace) -> None:
    torch.set_num_threads(1)
    log = sdx.read(need("ml-100k.parquet"), quiet=True)
    both, figures = {}, {}
    for name, history in (("own vectors", False), ("mean of history", True)):
        solvers = Solvers(log, history)
        works: dict[str, Callable[[], Iterator[tuple[float, Tensor]]]] = {
            "Newton-CG": lambda s=solvers: s.newton(),
            "Adam, all events": lambda s=solvers: s.adam(),
        }
        if not history:
            works["ALS"] = lambda s=solvers: s.als()
            works["Adam, batches"] = lambda s=solvers: s.minibatch()
        runs = {solver: solvers.run(work()) for solver, work in works.items()}
        both[name] = gaps(runs)
        figures[name] = {
            solver: {"to gap": reach(t), "tail": tail(t), "least": min(r[2] for r in runs[solver])}
            for solver, t in both[name].items()
        }
        figures[name]["Newton-CG"]["order"] = order(solvers.gradients)
    if given.picture is not None:
        draw(given.picture, both)
    report(
        "convergence",
        f"ml-100k, RG2, dim {DIM}, alpha {ALPHA}, lam {LAM}, sum_w; same start N(0, 1/dim); "
        f"float64, 1 thread; Adam lr {LR}, constant with all events, / sqrt(pass) with batches of "
        f"{USERS} users; history: mean of the last {LENGTH} items; at most {SECONDS} s per solver",
        picture=str(given.picture),
        **figures,
    )


if __name__ == "__main__":
    run(PARSER, main)
