"""RG2 and RGx: the softmax expanded to second order, so that closed forms can minimise it."""

from __future__ import annotations

from typing import Any

from softdex.errors import choose
from softdex.interactions import Interactions
from softdex.options import at_least
from softdex.solve import normal_equations
from softdex.solve.als import Job, closed, initial
from softdex.solve.loop import Schedule
from softdex.solve.rows import STEPS

ABOUT = {
    "rg2": "Vectors by the softmax expanded to squares, in closed form: fast, few sweeps.",
    "rgx": "RG2 that keeps the interaction of the items' scores as well.",
    "rg": "What rg2 and rgx are variants of, with every option.",
}
SPACE = {"alpha": (0.003, 0.3), "lam": (0.01, 0.3), "dim": [64, 128, 256]}
VARIANTS: dict[str, dict[str, Any]] = {"rg2": {}, "rgx": {"beta": 1.0}}


def rg(
    train: Interactions,
    *,
    dim: int = 128,
    alpha: float = 0.03,
    lam: float = 0.1,
    reg: str = "frequency",
    nu: float = 1.0,
    beta: float = 0.0,
    interaction: str = "exact",
    sampled: int | None = None,
    solver: str = "als",
    epochs: int = 8,
    patience: int = 2,
    steps: int = STEPS,
    seed: int = 0,
    device: str = "auto",
) -> Any:
    """Vectors by the second-order expansion of the softmax, in closed form.

    Weights of the log are confidences: an event of weight c counts c times.

    Args:
        dim: length of the vectors.
        alpha: extra weight of an event, pulled to 1; 0 is the expansion alone, which ranks worse.
        lam: strength of the regulariser.
        reg: `l2` (lam for all), `sum_w` (times the row's sum of weights) or `frequency` (times
            its power nu).
        nu: that power.
        beta: how much of the interaction between items is kept: 0 is RG2, above it RGx.
        interaction: `exact` (of the expansion), or `frobenius` (as the paper prints it).
        sampled: weights for so many sampled negatives (Eq. 19) instead of all items.
        solver: `als`, or `svd` (one closed form for everything; needs alpha=0).
        epochs: at most so many sweeps over users and items.
        patience: sweeps without a better validation metric before stopping; 0 never stops.
        steps: of conjugate gradients in each system; 0 solves it exactly.
        seed: of initial vectors.
        device: `auto`, `cpu`, `cuda`.
    """
    choose("rg", "solver", solver, ("als", "svd"))
    at_least("rg", 1, dim=dim, epochs=epochs)
    least = {"alpha": alpha, "lam": lam, "nu": nu, "beta": beta, "steps": steps}
    at_least("rg", 0, patience=patience, seed=seed, **least)
    loss = normal_equations.rg(
        train.num_items,
        alpha=alpha,
        lam=lam,
        nu=normal_equations.power("rg", reg, nu),
        beta=beta,
        interaction=interaction,
        sampled=sampled,
    )
    if solver == "svd":
        return closed(train, loss, dim, seed)
    schedule = Schedule(epochs, patience, device)
    return Job(*initial(train, loss, dim, seed), loss, steps, schedule)
