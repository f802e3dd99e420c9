"""Matrix factorisation by gradient descent: one table of users, one of items, many objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.machine import pick_device
from softdex.recipes.compose import (
    ENCODERS,
    IDS,
    PROPOSALS,
    READ_BY_INDEX,
    READ_BY_TOWERS,
    SCORES,
    Features,
    against,
    automatic,
    is_shared,
    towers,
)
from softdex.solve.gradient.trainer import Composition, Job, Settings
from softdex.solve.loop import Schedule

ABOUT = {
    "softmax": "Vectors by the full softmax over all items: the best loss, cost grows with them.",
    "ssm": "Vectors by sampled softmax: nearly as good, cost does not grow. Start here.",
    "bpr": "Vectors by Bayesian personalised ranking: each target above random items.",
    "bce": "Vectors by binary cross-entropy against random items.",
    "dns": "Vectors by ranking each target above the best-scored of a few random items.",
    "self_adversarial": "Vectors by ranking targets above random items, hard ones weighing more.",
    "mf": "What all of these are variants of, with every option.",
}
DRAWN = ("ssm", "bpr", "bce", "dns", "self_adversarial")
WORDS = {
    "objective": ("softmax", *DRAWN),
    "encoder": ENCODERS,
    "score": SCORES,
    "index": ("auto", *PROPOSALS, "full"),
    "correct": ("draws", "all"),
    "ids": IDS,
    "precision": ("float32", "bf16"),
}
POSITIVE = (
    "dim", "negatives", "codewords", "refit_every", "epochs", "batch_size", "lr", "temperature",
    "max_history",
)  # fmt: skip
FROM_0_TO_1 = ("share", "lr_end", "smooth")
AT_LEAST_0 = ("seed", "decay", "patience", "power", "prior")
BELOW_1 = ("id_dropout",)
SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
READ_BY = (
    *((o, "objective", DRAWN) for o in ("negatives", "power", "codewords", "refit_every")),
    *READ_BY_INDEX,
    *READ_BY_TOWERS,
)
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"objective": "softmax", "lr": 0.005, "batch_size": 4096},
    "ssm": {"objective": "ssm"},
    "bpr": {"objective": "bpr", "negatives": 100},
    "bce": {"objective": "bce", "score": "dot", "lr": 0.002, "negatives": 20, "decay": 0.1},
    "dns": {"objective": "dns", "negatives": 20},
    "self_adversarial": {"objective": "self_adversarial", "negatives": 100},
}
FIXED = dict.fromkeys(VARIANTS, ("objective",))
SPACES = {"bce": {"lr": (0.0005, 0.05), "decay": (0.001, 1.0), "negatives": [5, 20, 100]}}


def mf(
    train: Interactions,
    *,
    objective: str = "ssm",
    encoder: str = "user",
    score: str = "cosine",
    dim: int = 64,
    temperature: float = 0.1,
    prior: float = 0.7,
    share: float = 0.5,
    max_history: int = 50,
    features: list[str] | str | None = None,
    user_features: list[str] | str | None = None,
    ids: str = "add",
    id_dropout: float = 0.1,
    negatives: int | None = None,
    index: str = "uniform",
    power: float = 0.5,
    codewords: int = 64,
    refit_every: int = 500,
    correct: str = "draws",
    epochs: int = 200,
    batch_size: int | None = None,
    lr: float = 0.01,
    lr_end: float = 1.0,
    decay: float = 0.0,
    per_row: bool = False,
    smooth: float = 0.0,
    patience: int = 5,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn a vector for each user and item by a softmax, or by what stands in for it.

    Args:
        objective: `softmax` (all items), `ssm` (sampled softmax), `bpr`, `bce`, `dns` or
            `self_adversarial`.
        encoder: a user is a vector of their own (`user`), the mean of their history (`history`),
            or both (`mix`); the last two also serve users never seen.
        score: `cosine` (with temperature), `dot`, or `dot_bias`.
        dim: length of the vectors.
        temperature: of the cosine.
        prior: the cosine's score gets prior * log(count + 1), so that popularity need not be
            written into directions; 0 leaves it out.
        share: weight of the own vector in `mix`.
        max_history: how many of the latest items the history holds.
        features: columns of the item table that items are made of, or `all`; new items are then
            served by them.
        user_features: columns of the user table, likewise; not with encoder="history".
        ids: whether items and users also have a vector of their own: `add` or `drop`.
        id_dropout: share of the steps in which these are left out.
        negatives: draws a step, shared by the batch where the index allows it, else of each event.
            None: 2000 shared, 100 of their own.
        index: what proposes them: `uniform` or `popularity` (shared), `imi_uniform`,
            `imi_popularity`, `imi_exact` (the multi-index) or `kernel`; `full` takes all items, and
            `auto` chooses by the number of items and says why.
        power: of the counts, for `popularity`.
        codewords: of each of the two codebooks of the multi-index.
        refit_every: steps after which the multi-index follows the vectors.
        correct: how `ssm` corrects for the proposal: `draws` or `all`.
        epochs: at most so many passes over the log.
        batch_size: events a step; None: 8192, or fewer on a small log (64 steps an epoch).
        lr: learning rate.
        lr_end: what of it is left in the last epoch; it falls evenly.
        decay: touched rows shrink by lr * decay.
        per_row: one second moment a row: a third less memory and traffic, and wants a larger rate.
        smooth: share of the events whose target becomes one of the ten items most like it.
        patience: epochs without a better validation metric before stopping; 0 never stops.
        seed: of initial vectors, order and draws.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    batch_size = min(8192, max(128, len(train) // 64)) if batch_size is None else batch_size
    if index == "auto":
        softmax = objective in ("softmax", "ssm")
        where = pick_device(device)
        index = automatic(train.num_items, dim, batch_size, where, softmax=softmax)
        index = "uniform" if objective == "softmax" else index
    negatives = (2000 if is_shared(index) else 100) if negatives is None else negatives
    _check(locals())
    made, scorer = towers(
        train, encoder, score, dim=dim, temperature=temperature, prior=prior, share=share,
        max_history=max_history, seed=seed, features=Features(features, ids, id_dropout),
        user_features=Features(user_features, ids, id_dropout),
    )  # fmt: skip
    rest = {"codewords": codewords, "power": power, "seed": seed}
    chosen = against(index, objective, scorer, train, negatives, correct=correct, **rest)
    settings = Settings(
        batch_size, lr, decay, seed, precision, refit_every, lr_end, epochs, per_row, smooth
    )
    return Job(Composition(made, scorer, *chosen), settings, Schedule(epochs, patience, device))


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what makes no sense, before any work is done."""
    objective, index = given["objective"], given["index"]
    if index == "full" and objective not in ("ssm", "softmax"):
        raise SoftdexError(f"mf: {objective} needs draws, so index='full' is not for it.")
    if objective == "softmax" and index not in ("uniform", "full"):
        raise SoftdexError(f"mf: softmax takes all items and draws none: no index={index!r}.")
    if given["correct"] != "draws" and objective != "ssm":
        raise SoftdexError(f"mf: correct= is for ssm, {objective} corrects nothing.")
