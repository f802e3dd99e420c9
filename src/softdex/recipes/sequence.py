"""Sequence models: what comes next, from what came before, in its order."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from softdex.data.interactions import Interactions
from softdex.encode.sequence import Dnn, Sequence
from softdex.errors import SoftdexError
from softdex.index.contract import Index
from softdex.index.flat import Flat
from softdex.index.imi.books import log_popularity
from softdex.machine import pick_device
from softdex.recipes.compose import (
    IDS,
    PROPOSALS,
    READ_BY_INDEX,
    Features,
    against,
    automatic,
    vectors_of,
)
from softdex.score.product import Dot
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch
from softdex.solve.gradient.trainer import Composition, Job, Settings
from softdex.solve.loop import Schedule

ABOUT = {
    "sasrec": "A history read in its order by self-attention: what comes next.",
    "youtube_dnn": "The mean of the history through three layers: what comes next.",
    "sequence": "What both are variants of, with every option.",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "sasrec": {"encoder": "attention"},
    "youtube_dnn": {
        "encoder": "dnn", "dim": 24, "objective": "ssm", "index": "uniform", "negatives": 1000,
    },
}  # fmt: skip
FIXED = {
    "sasrec": ("encoder",),
    "youtube_dnn": ("encoder", "layers", "heads", "hidden", "dropout"),
}
SPACE = {"lr": (0.0003, 0.01), "dropout": [0.1, 0.2, 0.4]}
SPACES = {"youtube_dnn": {"lr": (0.0003, 0.01), "negatives": [100, 1000]}}
READ_BY = (
    *((o, "objective", ("ssm",)) for o in ("negatives", "power", "codewords", "refit_every")),
    *((o, "encoder", ("attention",)) for o in ("layers", "heads", "hidden", "dropout")),
    *READ_BY_INDEX,
)
WORDS = {
    "encoder": ("attention", "dnn"),
    "objective": ("softmax", "ssm", *OBJECTIVES),
    "index": ("auto", *PROPOSALS, "full"),
    "ids": IDS,
    "precision": ("float32", "bf16"),
}
POSITIVE = (
    "dim", "layers", "heads", "hidden", "max_history", "negatives", "codewords", "refit_every",
    "epochs", "batch_size", "lr",
)  # fmt: skip
AT_LEAST_0 = ("positions", "power", "decay", "patience", "seed")
FROM_0_TO_1 = ("lr_end",)
BELOW_1 = ("dropout", "id_dropout")
WIDE, NARROW = 128, 64  # inner layers of youtube_dnn


def sequence(
    train: Interactions,
    *,
    encoder: str = "attention",
    objective: str = "softmax",
    dim: int = 128,
    layers: int = 2,
    heads: int = 2,
    hidden: int = 256,
    dropout: float = 0.2,
    max_history: int = 200,
    features: list[str] | str | None = None,
    ids: str = "add",
    id_dropout: float = 0.1,
    positions: int | None = None,
    index: str = "auto",
    negatives: int = 500,
    power: float = 0.5,
    codewords: int = 64,
    refit_every: int = 500,
    epochs: int = 60,
    batch_size: int | None = None,
    lr: float = 0.001,
    lr_end: float = 0.05,
    decay: float = 0.0,
    per_row: bool = False,
    patience: int = 10,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn to read a history in its order: every item of it is to be found from those before.

    Users need no vector of their own: whoever has a history is served.

    Args:
        encoder: `attention`, or `dnn` (the mean of the history through three layers).
        objective: `softmax` (all items), `ssm` (draws from `index`), or from the batch itself
            `ssl`, `ssl_pop`, `mns`, `g_tower`, `bir`, `xir`.
        dim: length of the vectors of items and of the query.
        layers: of attention.
        heads: of each layer; a divisor of dim.
        hidden: inner width of a layer.
        dropout: of embeddings and of what a layer adds.
        max_history: how many of the latest items are read.
        features: columns of the item table that items are made of, or `all`; new items are then
            served by them.
        ids: whether items also have a vector of their own: `add` or `drop`.
        id_dropout: share of the steps in which an item is its features alone.
        positions: how many of a batch's items are trained on in a step, drawn at random; 0 is all,
            None is all, but 2,048 against the batch itself.
        index: what proposes for `ssm`: `uniform`, `popularity`, `imi_uniform`, `imi_popularity`,
            `imi_exact` or `kernel`; `auto` chooses by the number of items and says why, and may
            take all items.
        negatives: draws, shared by a batch or one's own, as the index allows.
        power: of the counts, for `popularity`.
        codewords: of each of the two codebooks of the multi-index.
        refit_every: steps after which the multi-index follows the vectors.
        epochs: at most so many passes over the histories.
        batch_size: histories a step; None: 128, or fewer where there are few (64 steps an epoch).
        lr: learning rate.
        lr_end: what of it is left in the last epoch; it falls evenly.
        decay: weights shrink by lr * decay.
        per_row: one second moment a row: a third less memory and traffic, and wants a larger rate.
        patience: epochs without a better validation metric before stopping; 0 never stops.
        seed: of initial vectors, order, draws and dropout.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    batch_size = min(128, max(16, train.num_users // 64)) if batch_size is None else batch_size
    in_batch = objective in OBJECTIVES
    positions = (2048 if in_batch else 0) if positions is None else positions
    _check(locals())
    longest = max(1, min(max_history, int(train.histories.lengths.max(initial=1)) - 1))
    generator = torch.Generator().manual_seed(seed)
    made_of = Features(features, ids, id_dropout)
    scorer = Dot(vectors_of(train, "item", dim, dim**-0.5, made_of, generator))
    if encoder == "attention":
        made = _attention(scorer, longest, layers, heads, hidden, dropout, generator)
    else:
        made = _dnn(scorer, longest, generator)
    shape: dict[str, Any] = {"targets": longest, "ordered": True, "rows": positions}
    settings = Settings(
        batch_size, lr, decay, seed, precision, refit_every, lr_end, epochs, per_row
    )
    schedule = Schedule(epochs, patience, device)
    if in_batch:
        logp = log_popularity(torch.tensor(train.item_counts)).log_softmax(0).float()
        loss = InBatch(objective, logp, positions, cache_share=0.2, padded=True, seed=seed)
        flat: Index = Flat(scorer, torch.ones(train.num_items, dtype=torch.bool))
        parts = Composition(made, scorer, flat, loss, positions, proposes=False, **shape)
        return Job(parts, settings, schedule)
    if index == "auto" and objective == "ssm":
        rows = positions or batch_size * longest
        index = automatic(train.num_items, dim, rows, pick_device(device))
    rest = {"codewords": codewords, "power": power, "popularity": "power", "seed": seed}
    name = "full" if objective == "softmax" else index
    chosen = against(name, "ssm", scorer, train, negatives, correct="draws", **rest)
    return Job(Composition(made, scorer, *chosen, **shape), settings, schedule)


def _check(given: dict[str, Any]) -> None:
    """Refuse what makes no sense, before any work is done."""
    if given["encoder"] == "attention" and given["dim"] % given["heads"]:
        raise SoftdexError(
            f"sequence: expected heads to divide dim, got {given['heads']} and {given['dim']}."
        )
    if given["objective"] in OBJECTIVES and not given["positions"]:
        raise SoftdexError(
            f"sequence: {given['objective']} compares rows with each other, all of a batch are too "
            "many. Give positions=, such as 2048."
        )
    if given["objective"] != "ssm" and given["index"] not in ("auto", "full", "uniform"):
        raise SoftdexError(f"sequence: {given['objective']} draws nothing: no index=.")


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
