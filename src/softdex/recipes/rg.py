"""RG2 and RGx: the softmax expanded to second order, so that closed forms can minimise it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from softdex.data.interactions import Interactions
from softdex.encode.history import Mixed
from softdex.errors import SoftdexError
from softdex.objective.taylor import rg_of_vectors
from softdex.score.product import Dot
from softdex.solve.closed import newton, normal_equations
from softdex.solve.closed.als import Alternating, from_svd, initial, with_fold_in
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import Quadratic
from softdex.solve.closed.row_systems import CG_STEPS
from softdex.solve.loop import Schedule

ABOUT = {
    "rg2": "Vectors by the softmax expanded to squares, in closed form: fast, few sweeps.",
    "rgx": "RG2 that keeps the interaction of the items' scores as well.",
    "rg": "What rg2 and rgx are variants of, with every option.",
}
SPACE = {"alpha": (0.003, 0.3), "lam": (0.01, 0.3), "dim": [64, 128, 256]}
VARIANTS: dict[str, dict[str, Any]] = {"rg2": {}, "rgx": {"beta": 1.0}}
FIXED = {"rg2": ("beta", "interaction")}
READ_BY = (
    ("share", "encoder", ("mix",)),
    ("max_history", "encoder", ("history", "mix")),
    ("steps", "solver", ("als",)),
    ("epochs", "solver", ("als", "newton_cg")),
    ("patience", "solver", ("als", "newton_cg")),
)
WORDS = {
    "reg": normal_equations.REGULARISERS,
    "interaction": normal_equations.INTERACTIONS,
    "solver": ("als", "svd", "newton_cg"),
    "encoder": ("user", "history", "mix"),
}
POSITIVE = ("dim", "epochs", "max_history")
AT_LEAST_0 = ("steps", "patience", "seed")
FROM_0_TO_1 = ("beta", "share")
FROM_0_TO_9 = ("nu",)
FROM_0_TO_1E9 = ("alpha", "lam")


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
    encoder: str = "user",
    share: float = 0.5,
    max_history: int = 200,
    epochs: int = 8,
    patience: int = 2,
    steps: int = CG_STEPS,
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
        solver: `als`; `svd` (one closed form for everything; needs alpha=0); or `newton_cg`, for
            encoders that have none.
        encoder: a user is a vector of their own (`user`); with `newton_cg` also the mean of their
            history (`history`), or both (`mix`).
        share: weight of the own vector in `mix`.
        max_history: how many of the latest items the history holds.
        epochs: at most so many sweeps over users and items, or Newton steps.
        patience: sweeps without a better validation metric before stopping; 0 never stops.
        steps: of conjugate gradients in each system; 0 solves it exactly.
        seed: of initial vectors.
        device: `auto`, `cpu`, `cuda`.
    """
    if encoder != "user" and solver != "newton_cg":
        raise SoftdexError(f"rg: encoder={encoder!r} has no closed form. Use solver='newton_cg'.")
    if sampled is not None and solver == "newton_cg":
        raise SoftdexError("rg: newton_cg takes all items. Leave sampled out, or use solver='als'.")
    loss = normal_equations.rg(
        train.num_items,
        alpha=alpha,
        lam=lam,
        nu=normal_equations.reg_exponent("rg", reg, nu),
        beta=beta,
        interaction=interaction,
        sampled=sampled,
    )
    if solver == "svd":
        return from_svd(train, loss, dim, seed)
    schedule = Schedule(epochs, patience, device)
    if solver == "newton_cg":
        length = None if encoder == "user" else max_history
        parts = _random(train, loss, dim, seed, share if encoder == "mix" else 0.0, length)
        score = partial(rg_of_vectors, alpha=alpha, beta=beta, interaction=interaction)
        return newton.Newton(*parts, score, newton.penalty(loss, train), schedule)
    return Alternating(*initial(train, loss, dim, seed), loss, steps, schedule)


def _random(
    train: Interactions, loss: Quadratic, dim: int, seed: int, share: float, length: int | None
) -> tuple[FoldIn | Mixed, Dot]:
    """Encoder and scorer with random vectors; a length makes the encoder read histories."""
    generator = torch.Generator().manual_seed(seed)
    users, items = (
        torch.randn(n, dim, generator=generator) / dim**0.5
        for n in (train.num_users, train.num_items)
    )
    if length is None:
        return with_fold_in(train, loss, users, items)
    scorer = Dot(items)
    return Mixed(users, torch.tensor(share), torch.tensor(length), scorer.items), scorer
