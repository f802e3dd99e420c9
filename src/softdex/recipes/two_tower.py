"""Two towers trained from the items that a batch already holds: the in-batch family."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch

from softdex.data.interactions import Interactions
from softdex.index.contract import Index
from softdex.index.flat import Flat
from softdex.index.imi.books import codewords_for, log_popularity
from softdex.index.imi.index import build
from softdex.objective.in_batch import CORRECTIONS
from softdex.options import at_least_0, count, from_0_to_1, one_of, only, up_to
from softdex.recipes.compose import Towers, cold_items
from softdex.recipes.variant import Guide, Variant
from softdex.solve.gradient.composition import Composition, Negatives
from softdex.solve.gradient.feed import Events
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training

SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
PLAIN = {"temperature": 0.1, "prior": 0.7}  # of a softmax that is not taken twice


def _variant(objective: str, what: str, about: str, **options: Any) -> Variant:
    speed: Literal["minutes", "hours"] = "hours" if objective == "xir" else "minutes"
    guide = Guide("features", what, speed, "encoder=mix", "features=", "yes")
    return Variant(about, {"objective": objective, **options}, ("objective",), SPACE, {}, guide)


VARIANTS = {
    "two_tower": Variant("Every in-batch objective on two towers.", space=SPACE),
    "ssl": _variant(
        "ssl", "softmax over the batch",
        "Two towers by a softmax over the batch's own items: popular items are pushed down.",
        temperature=0.1, prior=0.0,
    ),
    "ssl_pop": _variant(
        "ssl_pop", "ssl, corrected for popularity",
        "Two towers: softmax over the batch, corrected for popularity.", **PLAIN,
    ),
    "mns": _variant(
        "mns", "ssl_pop with uniform items as well",
        "Two towers: softmax over the batch and uniform items.", **PLAIN,
    ),
    "g_tower": _variant(
        "g_tower", "ssl_pop, popularity estimated online",
        "Two towers: softmax over the batch, popularity estimated online.", **PLAIN,
    ),
    "bir": _variant(
        "bir", "the batch resampled towards the softmax",
        "Two towers: the batch's items resampled to approximate the softmax.",
    ),
    "xir": _variant(
        "xir", "bir with a cache of earlier batches",
        "As bir, with a cache of informative items of earlier batches.",
    ),
}  # fmt: skip
CACHED = only(objective="xir")


def two_tower(
    train: Interactions,
    *,
    objective: Annotated[str, one_of(*OBJECTIVES)] = "bir",
    negatives: Annotated[int | None, count, only(objective=("mns", "bir", "xir"))] = None,
    popularity: Annotated[
        Literal["count", "log", "power"], only(objective=("ssl_pop", "mns", "bir", "xir"))
    ] = "count",
    power: Annotated[float, up_to(10), only(popularity="power")] = 0.5,
    correction: Annotated[str, one_of(*CORRECTIONS), only(objective=("bir", "xir"))] = "none",
    own: Literal["drop", "keep"] = "drop",
    hits: Literal["drop", "keep"] = "drop",
    cache_share: Annotated[float, from_0_to_1, CACHED] = 0.2,
    cache_weight: Annotated[Literal["pop", "occurrence"], CACHED] = "pop",
    cache_decay: Annotated[float, from_0_to_1, CACHED] = 1.0,
    rate: Annotated[float, from_0_to_1, only(objective="g_tower")] = 0.01,
    block: Annotated[int, at_least_0] = 0,
    index: Literal["flat", "imi"] = "flat",
    smooth: Annotated[float, from_0_to_1] = 0.0,
    towers: Towers = Towers(temperature=0.2, prior=0.5),
    training: Training = Training(lr_end=0.05, patience=10),
) -> Descent:
    """Learn a tower for users and one for items from what each batch holds.

    Args:
        objective: `ssl` (softmax over the batch), `ssl_pop` (corrected for popularity), `mns`
            (mixed with uniform items), `g_tower` (popularity estimated from the stream), `bir`
            (resampled by importance), `xir` (also from a cache).
        negatives: candidates resampled per row (`bir`, `xir`), or uniform items that join the batch
            (`mns`). None: as many as the batch has rows.
        popularity: an item's probability of being in a batch: by its `count`, its `log` or its
            `power`.
        power: of the counts, for `popularity="power"`.
        correction: of resampled items: `none` (as published), `uniform` or `proposal`.
        own: whether a row's own target is among its negatives: `drop` or `keep`.
        hits: whether other rows' targets that are the same item are: `drop` or `keep`; the
            `uniform` correction keeps both.
        cache_share: weight of the loss on the cache.
        cache_weight: what a cached item's weight is divided by: `pop` or its `occurrence`.
        cache_decay: fraction of an occurrence that remains after a step.
        rate: of the moving average that estimates popularity from the stream.
        block: rows whose scores are held at a time: less memory for twice the products. 0 holds
            all.
        index: what serves the model: `flat` (exact) or `imi`.
        smooth: fraction of the events in which one of the ten items most similar to the target
            stands in for it.
    """
    size = training.batch_size or min(2048, max(128, len(train) // 64))
    encoder, scorer = towers.build(train, training.seed)
    logp = log_popularity(torch.tensor(train.item_counts), popularity, power).log_softmax(0)
    loss = InBatch(
        objective,
        logp.float(),
        size,
        draws=negatives,
        correction=correction,
        own=own,
        hits=hits,
        cache_share=cache_share,
        cache_weight=cache_weight,
        cache_decay=cache_decay,
        rate=rate,
        block=block,
        seed=training.seed,
        warm=torch.from_numpy(np.setdiff1d(np.arange(train.num_items), cold_items(scorer, train))),
    )
    served: Index = Flat(scorer, torch.ones(train.num_items, dtype=torch.bool))
    if index == "imi":
        generator = torch.Generator().manual_seed(training.seed)
        words = codewords_for(train.num_items)
        served = build(scorer, codewords=words, residual=True, generator=generator)
    joined = {"mns": negatives or size, "xir": size}
    candidates = size + joined.get(objective, 0)
    at_once = max(1, candidates * (block or size) // size)  # scores per row, on average
    against = Negatives(served, loss, at_once, proposes=False)
    parts = Composition(encoder, scorer, Events(train, smooth), against)
    return Descent(parts, replace(training, batch_size=size))
