"""Sequence models: what comes next, from what came before, in its order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.interactions import Interactions
from softdex.encode.sequence import Dnn, Sequence
from softdex.errors import SoftdexError
from softdex.index.flat import Flat
from softdex.index.imi.books import log_popularity
from softdex.options import at_least_0, below_1, count, few, one_of, only, width
from softdex.recipes.compose import Ids, Sampling, cold_items, vectors_of
from softdex.recipes.variant import Guide, Variant
from softdex.score.product import Dot
from softdex.solve.gradient.composition import Composition, Negatives
from softdex.solve.gradient.feed import Sequences
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training

SPACE = {"lr": (0.0003, 0.01), "dropout": [0.1, 0.2, 0.4]}
VARIANTS = {
    "sequence": Variant("A history read in its order, with every option.", space=SPACE),
    "sasrec": Variant(
        "A history read in its order by self-attention predicts the next item.",
        {"encoder": "attention"}, ("encoder",), SPACE, {},
        Guide("order", "self-attention over the history", "hours", "yes", "features=", "best"),
    ),
    "youtube_dnn": Variant(
        "The mean of the history, through three layers, predicts the next item.",
        {"encoder": "dnn", "dim": 24, "objective": "ssm", "index": "uniform", "negatives": 1000},
        ("encoder", "layers", "heads", "hidden", "dropout"),
        {"lr": (0.0003, 0.01), "negatives": [100, 1000]}, {},
        Guide("order", "the history's mean, through layers", "minutes", "yes", "features=", "best"),
    ),
}  # fmt: skip
WIDE, NARROW = 128, 64  # inner layers of youtube_dnn
ATTENTION = only(encoder="attention")


def sequence(
    train: Interactions,
    *,
    encoder: Literal["attention", "dnn"] = "attention",
    objective: Annotated[str, one_of("softmax", "ssm", *OBJECTIVES)] = "softmax",
    dim: Annotated[int, width] = 128,
    layers: Annotated[int, few, ATTENTION] = 2,
    heads: Annotated[int, width, ATTENTION] = 2,
    hidden: Annotated[int, width, ATTENTION] = 256,
    dropout: Annotated[float, below_1, ATTENTION] = 0.2,
    max_history: Annotated[int, count] = 200,
    features: list[str] | str | None = None,
    ids: Literal["add", "drop"] = "add",
    id_dropout: Annotated[float, below_1] = 0.1,
    positions: Annotated[int | None, at_least_0] = None,
    sampling: Annotated[Sampling, only(objective="ssm")] = Sampling(index="auto", negatives=500),
    training: Training = Training(lr=0.001, lr_end=0.05, patience=10),
) -> Descent:
    """Learn to predict every item of a history from those before it, in their order.

    Users need no vector of their own: every user with a history is served.

    Args:
        encoder: `attention`, or `dnn` (the mean of the history through three layers).
        objective: `softmax` (all items), `ssm` (draws from `index`), or from the batch itself
            `ssl`, `ssl_pop`, `mns`, `g_tower`, `bir`, `xir`.
        dim: length of the item vectors and of the query.
        layers: of attention.
        heads: per layer; a divisor of dim.
        hidden: inner width of a layer.
        dropout: of embeddings and of what a layer adds.
        max_history: number of the latest items that are read.
        features: columns of the item table that item vectors are made of, or `all`; new items are
            then served by their columns.
        ids: whether items also have a vector of their own: `add` or `drop`.
        id_dropout: fraction of the steps in which that vector is left out.
        positions: random positions of a batch that are trained on per step; 0 is all. None: all,
            but 2,048 for the objectives on the batch itself.
    """
    size = training.batch_size or min(128, max(16, train.num_users // 64))
    in_batch = objective in OBJECTIVES
    positions = (2048 if in_batch else 0) if positions is None else positions
    if encoder == "attention" and dim % heads:
        raise SoftdexError(f"sequence: expected heads to divide dim, got {heads} and {dim}.")
    if in_batch and not positions:
        raise SoftdexError(
            f"sequence: {objective} compares rows with each other, all of a batch are too many. "
            "Give positions=, such as 2048."
        )
    longest = max(1, min(max_history, int(train.histories.lengths.max(initial=1)) - 1))
    generator = torch.Generator().manual_seed(training.seed)
    own = Ids(ids, id_dropout)
    scorer = Dot(vectors_of(train, "item", dim, dim**-0.5, features, own, generator))
    made: nn.Module
    if encoder == "attention":
        made = _attention(scorer, longest, layers, heads, hidden, dropout, generator)
    else:
        made = _dnn(scorer, longest, generator)
    if in_batch:
        logp = log_popularity(torch.tensor(train.item_counts)).log_softmax(0).float()
        seed = training.seed
        warm = torch.from_numpy(np.setdiff1d(np.arange(train.num_items), cold_items(scorer, train)))
        loss = InBatch(
            objective, logp, positions, cache_share=0.2, padded=True, seed=seed, warm=warm
        )
        flat = Flat(scorer, torch.ones(train.num_items, dtype=torch.bool))
        against = Negatives(flat, loss, positions, proposes=False)
    else:
        if objective == "ssm":
            rows = positions or size * longest
            sampling = sampling.chosen(train.num_items, dim, rows, training.device)
        against = sampling.against(objective, scorer, train, seed=training.seed)
    parts = Composition(made, scorer, Sequences(train, longest, positions), against)
    return Descent(parts, replace(training, batch_size=size))


def _attention(
    scorer: Dot,
    longest: int,
    layers: int,
    heads: int,
    hidden: int,
    dropout: float,
    generator: torch.Generator,
) -> nn.Module:
    dim = scorer.items.dim

    def random(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    norm = torch.zeros(2 * layers + 1, 2, dim)
    norm[:, 0] = 1.0
    deep = (2 * layers) ** -0.5  # what layers add stays of the size of what they are added to
    return Sequence(
        random(longest, dim, scale=0.02),
        random(layers, dim, 3 * dim, scale=dim**-0.5),
        torch.zeros(layers, 3 * dim),
        random(layers, dim, dim, scale=deep * dim**-0.5),
        torch.zeros(layers, dim),
        random(layers, dim, hidden, scale=dim**-0.5),
        torch.zeros(layers, hidden),
        random(layers, hidden, dim, scale=deep * hidden**-0.5),
        torch.zeros(layers, dim),
        norm,
        torch.tensor(heads),
        scorer.items,
        dropout=dropout,
    )


def _dnn(scorer: Dot, longest: int, generator: torch.Generator) -> nn.Module:
    widths = scorer.items.dim, WIDE, NARROW, scorer.items.dim
    layers: dict[str, Tensor] = {}
    for name, (here, there) in zip(
        ("first", "second", "third"), itertools.pairwise(widths), strict=True
    ):
        layers[name] = torch.randn(here, there, generator=generator) * (2 / here) ** 0.5
        layers[f"{name}_bias"] = torch.zeros(there)
    return Dnn(**layers, length=torch.tensor(longest), items=scorer.items)
