"""Two towers trained from the items that a batch already holds: the in-batch family."""

from __future__ import annotations

from typing import Any

import torch

from softdex.data.interactions import Interactions
from softdex.index.contract import Index
from softdex.index.flat import Flat
from softdex.index.imi.books import codewords_for, log_popularity
from softdex.index.imi.index import build
from softdex.objective.in_batch import CORRECTIONS
from softdex.recipes.compose import ENCODERS, IDS, READ_BY_TOWERS, SCORES, Features, towers
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch
from softdex.solve.gradient.trainer import Composition, Job, Settings
from softdex.solve.loop import Schedule

ABOUT = {
    "ssl": "Two towers by a softmax over the batch's own items: popular ones are pushed down.",
    "ssl_pop": "The same with every item divided by its popularity.",
    "mns": "The batch's items joined by uniform ones, corrected for the mixture.",
    "g_tower": "The batch's items, divided by how often they come in an endless stream.",
    "bir": "The batch's items drawn again, so that they act like draws from the softmax.",
    "xir": "The same, with a cache of informative items of earlier batches.",
    "two_tower": "What all of these are variants of, with every option.",
}
PLAIN = {"temperature": 0.1, "prior": 0.7}  # of a softmax that is not taken twice
VARIANTS: dict[str, dict[str, Any]] = {
    "ssl": {"objective": "ssl", "temperature": 0.1, "prior": 0.0},
    "ssl_pop": {"objective": "ssl_pop", **PLAIN},
    "mns": {"objective": "mns", **PLAIN},
    "g_tower": {"objective": "g_tower", **PLAIN},
    "bir": {"objective": "bir"},
    "xir": {"objective": "xir"},
}
FIXED = dict.fromkeys(VARIANTS, ("objective",))
SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
READ_BY = (
    ("negatives", "objective", ("mns", "bir", "xir")),
    ("correction", "objective", ("bir", "xir")),
    ("cache_share", "objective", ("xir",)),
    ("cache_weight", "objective", ("xir",)),
    ("cache_decay", "objective", ("xir",)),
    ("rate", "objective", ("g_tower",)),
    ("popularity", "objective", ("ssl_pop", "mns", "bir", "xir")),
    ("power", "popularity", ("power",)),
    *READ_BY_TOWERS,
)
WORDS = {
    "objective": OBJECTIVES,
    "encoder": ENCODERS,
    "score": SCORES,
    "popularity": ("count", "log", "power"),
    "correction": CORRECTIONS,
    "own": ("drop", "keep"),
    "hits": ("drop", "keep"),
    "cache_weight": ("pop", "occurrence"),
    "index": ("flat", "imi"),
    "ids": IDS,
    "precision": ("float32", "bf16"),
}
POSITIVE = ("dim", "negatives", "temperature", "max_history", "epochs", "batch_size", "lr")
FROM_0_TO_1 = ("share", "cache_share", "cache_decay", "rate", "lr_end", "smooth")
BELOW_1 = ("id_dropout",)
AT_LEAST_0 = ("block", "prior", "power", "decay", "patience", "seed")


def two_tower(
    train: Interactions,
    *,
    objective: str = "bir",
    encoder: str = "user",
    score: str = "cosine",
    dim: int = 64,
    temperature: float = 0.2,
    prior: float = 0.5,
    share: float = 0.5,
    max_history: int = 50,
    features: list[str] | str | None = None,
    user_features: list[str] | str | None = None,
    ids: str = "add",
    id_dropout: float = 0.1,
    negatives: int | None = None,
    popularity: str = "count",
    power: float = 0.5,
    correction: str = "none",
    own: str = "drop",
    hits: str = "drop",
    cache_share: float = 0.2,
    cache_weight: str = "pop",
    cache_decay: float = 1.0,
    rate: float = 0.01,
    block: int = 0,
    index: str = "flat",
    epochs: int = 60,
    batch_size: int | None = None,
    lr: float = 0.01,
    lr_end: float = 0.05,
    decay: float = 0.0,
    per_row: bool = False,
    smooth: float = 0.0,
    patience: int = 0,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn a tower for users and one for items from what each batch holds.

    Args:
        objective: `ssl` (softmax over the batch), `ssl_pop` (divided by popularity), `mns` (joined
            by uniform items), `g_tower` (popularity estimated from the stream), `bir` (drawn again
            by importance), `xir` (and from a cache).
        encoder: a user is a vector of their own (`user`), the mean of their history (`history`),
            or both (`mix`); the last two also serve users never seen.
        score: `cosine` (with temperature), `dot`, or `dot_bias`.
        dim: length of the vectors.
        temperature: of the cosine.
        prior: the cosine's score gets prior * log(count + 1); 0 leaves it out.
        share: weight of the own vector in `mix`.
        max_history: how many of the latest items the history holds.
        features: columns of the item table that items are made of, or `all`; new items are then
            served by them.
        user_features: columns of the user table, likewise; not with encoder="history".
        ids: whether items and users also have a vector of their own: `add` or `drop`.
        id_dropout: share of the steps in which these are left out.
        negatives: how many of the batch's items a row draws again (`bir`, `xir`), or how many
            uniform items join the batch (`mns`); None: as many as there are rows.
        popularity: how likely an item is taken to come into a batch: by its `count`, its `log` or
            its `power`.
        power: of the counts, for `popularity="power"`.
        correction: of items drawn again: `none` (as published), `uniform` or `proposal`.
        own: whether a row's own target stands among its negatives: `drop` or `keep`.
        hits: whether other places of the batch that hold the same item do; the `uniform`
            correction keeps both.
        cache_share: weight of the loss against the cache (`xir`).
        cache_weight: what a cached item's weight is divided by: `pop`, or its `occurrence`.
        cache_decay: what is left of an occurrence after a step.
        rate: how fast the stream's estimate follows (`g_tower`).
        block: rows of a batch whose scores are held at a time, for little memory at twice the
            products; 0 holds all.
        index: what the model is served from: `flat` (exact) or `imi`.
        epochs: at most so many passes over the log.
        batch_size: events a step; None: 2048, or fewer on a small log (64 steps an epoch).
        lr: learning rate.
        lr_end: what of it is left in the last epoch; it falls evenly.
        decay: touched rows shrink by lr * decay.
        per_row: one second moment a row: a third less memory and traffic, and wants a larger rate.
        smooth: share of the events whose target becomes one of the ten items most like it.
        patience: epochs without a better validation metric before stopping; 0 never stops: the rate
            falls to the end, and the best epoch is kept.
        seed: of initial vectors, order and draws.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    batch_size = min(2048, max(128, len(train) // 64)) if batch_size is None else batch_size
    made, scorer = towers(
        train, encoder, score, dim=dim, temperature=temperature, prior=prior, share=share,
        max_history=max_history, seed=seed, features=Features(features, ids, id_dropout),
        user_features=Features(user_features, ids, id_dropout),
    )  # fmt: skip
    logp = log_popularity(torch.tensor(train.item_counts), popularity, power).log_softmax(0)
    loss = InBatch(
        objective,
        logp.float(),
        batch_size,
        draws=negatives,
        correction=correction,
        own=own,
        hits=hits,
        cache_share=cache_share,
        cache_weight=cache_weight,
        cache_decay=cache_decay,
        rate=rate,
        block=block,
        seed=seed,
    )
    served: Index = Flat(scorer, torch.ones(train.num_items, dtype=torch.bool))
    if index == "imi":
        generator = torch.Generator().manual_seed(seed)
        words = codewords_for(train.num_items)
        served = build(scorer, codewords=words, residual=True, generator=generator)
    joined = {"mns": batch_size if negatives is None else negatives, "xir": batch_size}
    candidates = batch_size + joined.get(objective, 0)
    at_once = max(1, candidates * (block or batch_size) // batch_size)  # scores a row, on average
    parts = Composition(made, scorer, served, loss, at_once, proposes=False)
    settings = Settings(
        batch_size, lr, decay, seed, precision, lr_end=lr_end, epochs=epochs, per_row=per_row,
        smooth=smooth,
    )  # fmt: skip
    return Job(parts, settings, Schedule(epochs, patience, device))
