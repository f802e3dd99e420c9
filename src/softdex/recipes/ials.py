"""iALS, also known as WRMF: weighted least squares over all items, in closed form."""

from __future__ import annotations

from typing import Annotated

from softdex.data.interactions import Interactions
from softdex.options import at_least_0, count, one_of, only, up_to, width
from softdex.recipes.variant import Guide, Variant
from softdex.solve.closed import normal_equations
from softdex.solve.closed.als import Alternating, initial
from softdex.solve.closed.row_systems import CG_STEPS
from softdex.solve.loop import Schedule

SHARE = 16.0  # of the events' weight: what all items weigh together by default
SPACE = {"alpha": (0.003, 1.0), "lam": (0.03, 1.0), "dim": [64, 128, 256]}
VARIANTS = {
    "ials": Variant(
        "Vectors by weighted least squares over all items, in closed form.",
        space=SPACE,
        guide=Guide("log", "weighted least squares (WRMF)", "seconds", "yes", "few events", "yes"),
    )
}


def ials(
    train: Interactions,
    *,
    dim: Annotated[int, width] = 128,
    alpha: Annotated[float | None, up_to(1e9)] = None,
    lam: Annotated[float, up_to(1e9)] = 0.2,
    reg: Annotated[str, one_of(*normal_equations.REGULARISERS)] = "frequency",
    nu: Annotated[float, up_to(9), only(reg="frequency")] = 0.5,
    epochs: Annotated[int, count] = 8,
    patience: Annotated[int, at_least_0] = 2,
    steps: Annotated[int, up_to(1e4)] = CG_STEPS,
    seed: Annotated[int, at_least_0] = 0,
    device: str = "auto",
) -> Alternating:
    """Fit vectors by weighted least squares over all items (WRMF), alternating in closed form.

    Weights of the log are confidences: an event of weight c pulls its score to 1 with weight c.

    Args:
        dim: length of the vectors.
        alpha: weight of every item, whose score is pulled to 0; an event has weight 1. None: such
            that all items together weigh 16 times as much as the events.
        lam: strength of the regulariser.
        reg: `l2` (lam per row), `sum_w` (times the row's sum of weights, those of all items among
            them) or `frequency` (times that sum to the power nu).
        nu: that power.
        epochs: maximum number of sweeps over users and items.
        patience: sweeps without a better validation metric before training stops; 0 never stops
            early.
        steps: conjugate gradient steps per system; 0 solves it exactly.
        seed: of initial vectors.
        device: `auto`, `cpu`, `cuda`.
    """
    if alpha is None:
        alpha = SHARE * float(train.confidences[0].sum()) / (train.num_users * train.num_items)
    power = normal_equations.reg_exponent(reg, nu)
    loss = normal_equations.ials(train.num_items, alpha=alpha, lam=lam, nu=power)
    schedule = Schedule(epochs, patience, device)
    return Alternating(*initial(train, loss, dim, seed), loss, steps, schedule)
