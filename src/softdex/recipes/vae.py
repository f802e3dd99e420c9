"""Variational autoencoders of histories: against all items (Mult-VAE), or draws (FastVAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.encode.vae import Vae
from softdex.machine import pick_device
from softdex.recipes.compose import PROPOSALS, READ_BY_INDEX, against, automatic
from softdex.score.product import Dot
from softdex.solve.gradient.trainer import Composition, Job, Settings
from softdex.solve.loop import Schedule

ABOUT = {
    "mult_vae": "A history read by a variational autoencoder, full softmax: cost grows with items.",
    "fastvae": "The same against draws from a multi-index: cost does not grow with the catalogue.",
    "vae": "What mult_vae and fastvae are variants of.",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "mult_vae": {"index": "full"},
    "fastvae": {"index": "imi_popularity", "per_row": True, "lr": 0.003},
}
FIXED = {"mult_vae": ("index",)}
SPACE = {"lr": (0.0005, 0.01), "beta": (0.02, 1.0), "dropout": [0.3, 0.5, 0.7]}
READ_BY = (*READ_BY_INDEX, ("popularity", "index", ("auto", "imi_popularity")))
WORDS = {
    "index": ("auto", *PROPOSALS, "full"),
    "popularity": ("count", "log", "power"),
    "precision": ("float32", "bf16"),
}
POSITIVE = (
    "dim", "hidden", "latent", "negatives", "codewords", "refit_every", "max_history", "epochs",
    "batch_size", "lr",
)  # fmt: skip
AT_LEAST_0 = ("beta", "anneal", "decay", "patience", "seed", "power")
FROM_0_TO_1 = ("lr_end",)
BELOW_1 = ("dropout",)


def vae(
    train: Interactions,
    *,
    index: str = "auto",
    dim: int = 200,
    hidden: int = 200,
    latent: int = 64,
    dropout: float = 0.5,
    beta: float = 0.3,
    anneal: int = 0,
    max_history: int = 200,
    negatives: int = 500,
    popularity: str = "power",
    power: float = 0.5,
    codewords: int = 64,
    refit_every: int = 500,
    epochs: int = 60,
    batch_size: int | None = None,
    lr: float = 0.002,
    lr_end: float = 0.05,
    decay: float = 0.0,
    per_row: bool = False,
    patience: int = 0,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn to read a history: it becomes a normal law over a few numbers, and these a query.

    Users need no vector of their own: whoever has a history is served.

    Args:
        index: what proposes the negatives: `imi_uniform`, `imi_popularity`, `imi_exact` (the
            multi-index), `uniform`, `popularity` or `kernel`; `full` takes all items, and `auto`
            chooses by the number of items and says why.
        dim: length of the items' vectors and of the query.
        hidden: length of the vectors with which a history is read.
        latent: how many numbers describe a user.
        dropout: share of the history that is left out in training.
        beta: weight of the Kullback-Leibler term.
        anneal: steps in which it rises from 0.
        max_history: how many items of a history a step takes; they count for all of it.
        negatives: draws a user.
        popularity: how an item of a cell is drawn: by its `count`, its `log` or its `power`.
        power: of the counts, for `popularity` and `power`.
        codewords: of each of the two codebooks of the multi-index.
        refit_every: steps after which the multi-index follows the vectors.
        epochs: at most so many passes over the users.
        batch_size: users a step; None: 256, or fewer where there are few (64 steps an epoch).
        lr: learning rate.
        lr_end: what of it is left in the last epoch; it falls evenly.
        decay: weights shrink by lr * decay.
        per_row: one second moment a row: a third less memory and traffic, and wants a larger rate.
        patience: epochs without a better validation metric before stopping; 0 never stops: the rate
            falls to the end, and the best epoch is kept.
        seed: of initial vectors, order and draws.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    batch_size = min(256, max(16, train.num_users // 64)) if batch_size is None else batch_size
    if index == "auto":
        index = automatic(train.num_items, dim, batch_size, pick_device(device))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    scorer = Dot(random(train.num_items, dim, scale=dim**-0.5))
    encoder = Vae(
        random(train.num_items, hidden, scale=hidden**-0.5),
        torch.zeros(hidden),
        random(hidden, 2 * latent, scale=hidden**-0.5),
        torch.zeros(2 * latent),
        random(latent, dim, scale=latent**-0.5),
        torch.zeros(dim),
        dropout=dropout,
        beta=beta,
        anneal=anneal,
    )
    rest = {"codewords": codewords, "popularity": popularity, "power": power, "seed": seed}
    chosen = against(index, "ssm", scorer, train, negatives, correct="all", **rest)
    settings = Settings(
        batch_size, lr, decay, seed, precision, refit_every, lr_end, epochs, per_row
    )
    parts = Composition(encoder, scorer, *chosen, targets=max_history)
    return Job(parts, settings, Schedule(epochs, patience, device))
