"""implicit's ALS and our closed forms behind one function that trains and times each sweep."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from threadpoolctl import threadpool_limits

import softdex as sdx
from _harness import sized
from softdex.encode.table import Users
from softdex.model.learn import assemble
from softdex.score.product import Dot
from softdex.solve.loop import Progress

COUNT = sized(24, 2)  # settings per system
SPACES = {
    "implicit": {"alpha": (1.0, 300.0), "regularization": (0.1, 200.0)},
    "ials": {"alpha": (0.001, 0.3), "lam": (0.0005, 0.1)},
    "rg2": {"alpha": (0.003, 0.3), "lam": (0.01, 0.3)},
    "rgx": {"alpha": (0.003, 0.3), "lam": (0.01, 0.3)},
}
FIXED = {"ials": {"nu": 1.0}}  # what these spaces were searched with


def settings(system: str, count: int) -> list[dict[str, float]]:
    """So many settings, spread evenly over the system's space on a logarithmic scale."""
    space = SPACES[system]
    points = qmc.Halton(len(space), seed=0).random(count)
    return [
        {
            name: float(f"{low * (high / low) ** at:.3g}")
            for (name, (low, high)), at in zip(space.items(), point, strict=True)
        }
        for point in points
    ]


Sweep = tuple[float, sdx.Retriever]


def sweeps(
    system: str, train: sdx.Interactions, dim: int, most: int, seed: int, options: dict[str, Any]
) -> Iterator[Sweep]:
    """After each sweep: the seconds since training began at the log's columns, and the model."""
    train = train.select(slice(None))  # drops what an earlier run has cached
    if system == "implicit":
        yield from _implicit(train, dim, most, seed, options)
        return
    began = time.perf_counter()
    given = {"dim": dim, "seed": seed, "epochs": most, "device": "cpu"}
    given |= FIXED.get(system, {}) | options
    job = sdx.recipes.make(system, train, sdx.recipes.options(system) | given)
    trainer = job.trainer(train)
    spent = time.perf_counter() - began
    model = assemble(system, given, train, job.encoder, job.scorer)
    for epoch in range(most):
        began = time.perf_counter()
        trainer.run_epoch(Progress(epoch), lambda: None)
        spent += time.perf_counter() - began
        yield spent, model


def _implicit(
    train: sdx.Interactions, dim: int, most: int, seed: int, options: dict[str, Any]
) -> Iterator[Sweep]:
    from implicit.als import AlternatingLeastSquares

    clock = {"began": time.perf_counter(), "spent": 0.0}
    matrix = train.csr(binary=True)
    model = AlternatingLeastSquares(
        factors=dim, iterations=most, random_state=seed, use_gpu=False, **options
    )
    found: list[tuple[float, np.ndarray, np.ndarray]] = []

    def after(iteration: int, elapsed: float, *rest: Any) -> None:
        clock["spent"] += time.perf_counter() - clock["began"]
        found.append((clock["spent"], model.user_factors.copy(), model.item_factors.copy()))
        clock["began"] = time.perf_counter()

    with warnings.catch_warnings(), threadpool_limits(1, "blas"):  # implicit asks for it
        warnings.simplefilter("ignore")
        model.fit(matrix, show_progress=False, callback=after)
    for spent, users, items in found:
        parts = Users(torch.from_numpy(users)), Dot(torch.from_numpy(items))
        yield spent, assemble("implicit", options, train, *parts)


def sample(valid: sdx.Holdout, users: int) -> sdx.Holdout:
    """A fixed sample of the users of a holdout."""
    asked = np.flatnonzero(valid.targets.lengths)
    if len(asked) > users:
        asked = np.sort(np.random.default_rng(0).choice(asked, users, replace=False))
    return valid.take(asked)


def tuned(
    system: str,
    train: sdx.Interactions,
    score: Callable[[sdx.Retriever], float],
    *,
    dim: int,
    most: int,
) -> dict[str, Any]:
    """The best of COUNT settings on validation, each at its best number of sweeps."""
    best: dict[str, Any] = {"score": -1.0}
    for options in settings(system, COUNT):
        waited, top = 0, -1.0
        for sweep, (_, model) in enumerate(sweeps(system, train, dim, most, 0, options), 1):
            now = score(model)
            waited, top = (0, now) if now > top else (waited + 1, top)
            if now > best["score"]:
                best = {"score": round(now, 5), "sweeps": sweep, "options": options}
            if waited == 4:
                break
    return best
