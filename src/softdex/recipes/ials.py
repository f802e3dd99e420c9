"""iALS, also known as WRMF: weighted least squares over all items, in closed form."""

from __future__ import annotations

from softdex.data.interactions import Interactions
from softdex.solve.closed import normal_equations
from softdex.solve.closed.als import Alternating, initial
from softdex.solve.closed.row_systems import CG_STEPS
from softdex.solve.loop import Schedule

SPACE = {"alpha": (0.001, 0.3), "lam": (0.0005, 0.05), "dim": [64, 128, 256]}
WORDS = {"reg": normal_equations.REGULARISERS}
POSITIVE = ("dim", "epochs")
AT_LEAST_0 = ("patience", "steps", "seed")
FROM_0_TO_9 = ("nu",)
FROM_0_TO_1E9 = ("alpha", "lam")


def ials(
    train: Interactions,
    *,
    dim: int = 128,
    alpha: float = 0.03,
    lam: float = 0.005,
    reg: str = "frequency",
    nu: float = 1.0,
    epochs: int = 8,
    patience: int = 2,
    steps: int = CG_STEPS,
    seed: int = 0,
    device: str = "auto",
) -> Alternating:
    """Vectors by weighted least squares over all items (WRMF), alternating closed forms.

    Weights of the log are confidences: an event of weight c pulls its score to 1 with weight c.

    Args:
        dim: length of the vectors.
        alpha: weight of every item, pulled to 0, beside 1 of an event.
        lam: strength of the regulariser.
        reg: `l2` (lam for all), `sum_w` (times the row's sum of weights) or `frequency` (times
            its power nu).
        nu: that power.
        epochs: at most so many sweeps over users and items.
        patience: sweeps without a better validation metric before stopping; 0 never stops.
        steps: of conjugate gradients in each system; 0 solves it exactly.
        seed: of initial vectors.
        device: `auto`, `cpu`, `cuda`.
    """
    power = normal_equations.reg_exponent("ials", reg, nu)
    loss = normal_equations.ials(train.num_items, alpha=alpha, lam=lam, nu=power)
    schedule = Schedule(epochs, patience, device)
    return Alternating(*initial(train, loss, dim, seed), loss, steps, schedule)
