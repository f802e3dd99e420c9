"""RG2 and RGx: the softmax expanded to second order, so that closed forms can minimise it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import torch

from softdex.data.interactions import Interactions
from softdex.encode.history import Mixed
from softdex.errors import SoftdexError
from softdex.objective.taylor import rg_of_vectors
from softdex.options import at_least_0, count, from_0_to_1, one_of, only, up_to, width
from softdex.recipes.variant import Guide, Variant
from softdex.score.product import Dot
from softdex.solve.closed import newton, normal_equations
from softdex.solve.closed.als import Alternating, from_svd, initial, with_fold_in
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import Quadratic
from softdex.solve.closed.row_systems import CG_STEPS
from softdex.solve.loop import Schedule

SPACE = {"alpha": (0.003, 0.3), "lam": (0.01, 0.3), "dim": [64, 128, 256]}
PRINTED = {"interaction": ["exact", "frobenius"], "beta": [0.1, 0.5, 0.9]}


def _guide(what: str) -> Guide:
    return Guide("log", what, "seconds", "yes", "few events", "yes")


VARIANTS = {
    "rg": Variant("The softmax expanded to second order, with every option.", space=SPACE),
    "rg2": Variant(
        "Vectors by the softmax expanded to squares, in closed form: fast, few sweeps.",
        {}, ("beta", "interaction"), SPACE, {}, _guide("the softmax as squares, in closed form"),
    ),
    "rgx": Variant(
        "RG2 that keeps the interaction of the items' scores as well.",
        {"beta": 1.0}, (), {**SPACE, **PRINTED},
        {}, _guide("rg2 with the items' interaction"),
    ),
}  # fmt: skip
ITERATED = only(solver=("als", "newton_cg"))


def rg(
    train: Interactions,
    *,
    dim: Annotated[int, width] = 128,
    alpha: Annotated[float, up_to(1e9)] = 0.03,
    lam: Annotated[float, up_to(1e9)] = 0.1,
    reg: Annotated[str, one_of(*normal_equations.REGULARISERS, "scores")] = "frequency",
    nu: Annotated[float, up_to(9), only(reg="frequency")] = 1.0,
    beta: Annotated[float, from_0_to_1] = 0.0,
    interaction: Annotated[str, one_of(*normal_equations.INTERACTIONS)] = "exact",
    sampled: int | None = None,
    solver: Literal["als", "svd", "newton_cg"] = "als",
    encoder: Literal["user", "history", "mix"] = "user",
    share: Annotated[float, from_0_to_1, only(encoder="mix")] = 0.5,
    max_history: Annotated[int, count, only(encoder=("history", "mix"))] = 200,
    epochs: Annotated[int, count, ITERATED] = 8,
    patience: Annotated[int, at_least_0, ITERATED] = 2,
    steps: Annotated[int, up_to(1e4), only(solver="als")] = CG_STEPS,
    seed: Annotated[int, at_least_0] = 0,
    device: str = "auto",
) -> Any:
    """Fit vectors by the second-order expansion of the softmax, in closed form.

    Weights of the log are confidences: an event of weight c counts c times.

    Args:
        dim: length of the vectors.
        alpha: extra weight of an event, whose score is pulled to 1; 0, the expansion alone, ranks
            worse.
        lam: strength of the regulariser.
        reg: `l2` (lam per row), `sum_w` (times the row's sum of weights), `frequency` (times its
            number of events to the power nu); or `scores` (lam per squared score of the full
            matrix, RG2 Eq. 48; needs solver="svd").
        nu: that power.
        beta: fraction of the interaction between items that is kept: 0 is RG2, above 0 RGx.
        interaction: `exact` (of the expansion) or `frobenius` (as the paper prints it).
        sampled: number of sampled negatives that weights are for (RG2, Eq. 19); None: all items.
        solver: `als`; `svd` (one closed form for everything; needs alpha=0); or `newton_cg`, for
            encoders without a closed form.
        encoder: a user is a vector of their own (`user`); with `newton_cg` also the mean of the
            vectors of their history (`history`), or both (`mix`).
        share: weight of the user's own vector in `mix`.
        max_history: number of the latest items in the history.
        epochs: maximum number of sweeps over users and items, or of Newton steps.
        patience: sweeps without a better validation metric before training stops; 0 never stops
            early.
        steps: conjugate gradient steps per system; 0 solves it exactly.
        seed: of initial vectors.
        device: `auto`, `cpu`, `cuda`.
    """
    if encoder != "user" and solver != "newton_cg":
        raise SoftdexError(f"rg: encoder={encoder!r} has no closed form. Use solver='newton_cg'.")
    if sampled is not None and solver == "newton_cg":
        raise SoftdexError("rg: newton_cg takes all items. Leave sampled out, or use solver='als'.")
    full = reg == "scores"
    if full and solver != "svd":
        raise SoftdexError(
            f"rg: reg='scores' is solved for the full matrix, not by {solver!r}. Use solver='svd' "
            "with alpha=0."
        )
    loss = normal_equations.rg(
        train.num_items,
        alpha=alpha,
        lam=0.0 if full else lam,
        scores=lam if full else 0.0,
        nu=normal_equations.reg_exponent(reg, nu),
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
    """An encoder and a scorer with random vectors; with a length, the encoder reads histories."""
    generator = torch.Generator().manual_seed(seed)
    users, items = (
        torch.randn(n, dim, generator=generator) / dim**0.5
        for n in (train.num_users, train.num_items)
    )
    if length is None:
        return with_fold_in(train, loss, users, items)
    scorer = Dot(items)
    return Mixed(users, torch.tensor(share), torch.tensor(length), scorer.items), scorer
