"""Variational autoencoders of histories: Mult-VAE (full softmax) and FastVAE (sampled softmax)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.encode.vae import Vae
from softdex.options import at_least_0, below_1, count, up_to, width
from softdex.recipes.compose import Sampling
from softdex.recipes.variant import Guide, Variant
from softdex.score.product import Dot
from softdex.solve.gradient.composition import Composition
from softdex.solve.gradient.feed import Histories
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training

SPACE = {"lr": (0.0005, 0.01), "beta": (0.02, 1.0), "dropout": [0.3, 0.5, 0.7]}
VARIANTS = {
    "vae": Variant("A variational autoencoder of histories, with every option.", space=SPACE),
    "mult_vae": Variant(
        "A variational autoencoder of histories, full softmax: its cost grows with the items.",
        {"index": "full"}, ("index",), SPACE, {},
        Guide("log", "an autoencoder of histories", "minutes", "yes", "few events", "yes"),
    ),
    "fastvae": Variant(
        "A variational autoencoder on draws from a multi-index: its cost does not grow.",
        {"index": "imi_popularity", "per_row": True, "lr": 0.003}, (), SPACE, {},
        Guide("large", "mult_vae on draws of a multi-index", "hours", "yes", "few events", "best"),
    ),
}  # fmt: skip


def vae(
    train: Interactions,
    *,
    dim: Annotated[int, width] = 200,
    hidden: Annotated[int, width] = 200,
    latent: Annotated[int, width] = 64,
    activation: Literal["tanh", "relu"] = "tanh",
    dropout: Annotated[float, below_1] = 0.5,
    beta: Annotated[float, up_to(1e6)] = 0.3,
    anneal: Annotated[int, at_least_0] = 0,
    max_history: Annotated[int, count] = 200,
    sampling: Sampling = Sampling(index="auto", negatives=500),
    training: Training = Training(lr=0.002, lr_end=0.05, patience=10),
) -> Descent:
    """Learn to reconstruct a history from a normal distribution over a few latent numbers.

    Users need no vector of their own: every user with a history is served.

    Args:
        dim: length of the item vectors and of the query.
        hidden: length of the vectors that a history is read with.
        latent: number of latent numbers per user.
        activation: of the layer that a history is read with: `tanh` (Mult-VAE) or `relu` (FastVAE).
        dropout: fraction of the history that is left out in training.
        beta: weight of the Kullback-Leibler term.
        anneal: steps in which that weight rises from 0.
        max_history: items of a history per step; they count for all of it.
    """
    size = training.batch_size or min(256, max(16, train.num_users // 64))
    sampling = sampling.chosen(train.num_items, dim, size, training.device)
    generator = torch.Generator().manual_seed(training.seed)

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
        activation == "relu",
        dropout=dropout,
        beta=beta,
        anneal=anneal,
    )
    against = sampling.against("ssm", scorer, train, correct="all", seed=training.seed)
    parts = Composition(encoder, scorer, Histories(train, max_history, training.seed), against)
    return Descent(parts, replace(training, batch_size=size))
