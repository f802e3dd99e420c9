"""Fit: train a recipe on a log and return a model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from softdex import group
from softdex.data.expect import expect, expect_log
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.machine import parse_bytes, parse_seconds, within_memory
from softdex.messages import at_volume, say
from softdex.model.card import Card
from softdex.model.honest import check_origins, check_train
from softdex.model.learn import assemble, learn
from softdex.model.retriever import Retriever
from softdex.model.saving import load
from softdex.options import names_model
from softdex.recipes.catalogue import Recipe, checked, entry, make, options
from softdex.recipes.catalogue import kinds as recipe_kinds
from softdex.solve.loop import Job


@at_volume
def fit(
    recipe: Recipe,
    train: Interactions,
    valid: Holdout | None = None,
    start: Retriever | None = None,
    *,
    refit: bool = False,
    folder: str | Path | None = None,
    resume: bool = False,
    max_memory: int | str | None = None,
    max_seconds: float | str | None = None,
    quiet: bool = False,
    verbose: bool = False,
    **given: Any,
) -> Retriever:
    """Train a recipe and return a model that recommends.

    Args:
        recipe: a name (`softdex.recipes.names()` lists them), or a function of your own.
        train: the training part of a split, or a whole log.
        valid: a holdout. Recipes that train in epochs stop early by its NDCG@20; its metrics are
            stored on the model's card.
        start: an earlier model; the vectors of users and items known to both are taken over.
        refit: train again on train and valid together, for the number of epochs that was best.
        folder: where checkpoints and the training log are written; None writes nothing.
        resume: continue from the checkpoint in `folder`; on a CPU the model is bit-identical.
        max_memory: bytes (or "4GB"); a training that needs more is refused before it starts.
        max_seconds: seconds (or "10m") after which a recipe that trains in epochs stops; the best
            epoch is kept.
        quiet, verbose: print warnings only, or every epoch too.
        given: options of the recipe; `softdex recipes NAME` lists them.

    Example:
        >>> import softdex as sdx
        >>> log = sdx.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea")])
        >>> model = sdx.fit("item_cf", log, neighbours=10)
        >>> model.recommend("bob", k=1)["item"].to_pylist()
        ['milk']
    """
    given, name = checked(recipe, given), entry(recipe).name
    expect_log("fit", train, "train")
    if valid is not None:
        expect(Holdout, "fit", valid, "valid")
        check_train("fit", train, valid)
    if start is not None:
        expect(Retriever, "fit", start, "start")
    if valid is not None and not len(valid.targets.ids):
        valid = None
    if refit and valid is None:
        raise SoftdexError("fit: refit=True needs valid= to find the number of epochs.")
    if resume and folder is None:
        raise SoftdexError("fit: resume=True needs folder=, where the checkpoint is.")
    chosen = options(recipe) | given
    limit = None if max_memory is None else parse_bytes(max_memory)
    until = math.inf
    if max_seconds is not None:
        until = time.monotonic() + parse_seconds("fit: max_seconds", max_seconds)
    place, began = None if folder is None else Path(folder), time.monotonic()
    model = train_once(
        recipe, chosen, train, valid, start=start, folder=place, resume=resume, max_memory=limit,
        until=until,
    )  # fmt: skip
    if model.card.training is None:
        say(f"{name}: trained in {time.monotonic() - began:.1f} s")
    if model.card.training is None and (start is not None or refit):
        raise SoftdexError(
            f"fit: {name} is found in one step with these options: no start= and no refit=."
        )
    if valid is not None:
        metrics = dict(model.evaluate(valid)) if group.is_first() else None
        model.card = model.card.measured("valid", group.broadcast_json(metrics))
    if not refit or valid is None:
        return model
    return refitted(recipe, chosen, train, valid, model, start=start, max_memory=limit)


def train_once(
    recipe: Recipe,
    chosen: Mapping[str, Any],
    train: Interactions,
    valid: Holdout | None = None,
    *,
    start: Retriever | None = None,
    folder: Path | None = None,
    resume: bool = False,
    max_memory: int | None = None,
    until: float = math.inf,
) -> Retriever:
    """Train a recipe with all its options; the arguments are those of `fit` and of `learn`."""
    made, origins = make_job(recipe, train, chosen)
    origins += [] if start is None else [start.card]
    if valid is not None:
        check_origins("fit", origins, valid)
    name = entry(recipe).name
    if not isinstance(made, Job):
        model = assemble(name, chosen, train, *made)
        model.card = model.card if valid is None else model.card.chosen_by(valid)
    else:
        model = learn(
            name, chosen, made, train, valid=valid, start=start, folder=folder, resume=resume,
            max_memory=max_memory, until=until,
        )  # fmt: skip
    model.card = model.card.started_from(origins)
    return model


@within_memory("fit")
def make_job(
    recipe: Recipe, train: Interactions, chosen: Mapping[str, Any]
) -> tuple[Any, list[Card]]:
    """What a recipe makes of a log, and the cards of the saved models that its options name: those
    options become the models."""
    kinds = recipe_kinds(recipe)
    loaded = {n: load(v) for n, v in chosen.items() if names_model(kinds[n], v)}
    made = make(recipe, train, {**chosen, **loaded})
    return made, [model.card for model in loaded.values()]


def refitted(
    recipe: Recipe,
    chosen: Mapping[str, Any],
    train: Interactions,
    valid: Holdout,
    model: Retriever,
    **kept: Any,
) -> Retriever:
    """Train the recipe again on train and validation together, for the best number of epochs."""
    assert model.card.training is not None
    best, history = model.card.training["best_epoch"], model.card.training["history"]
    if not best:
        raise SoftdexError("fit: refit= needs one whole epoch. Raise max_seconds.")
    again = dict(chosen) | {"epochs": best, "patience": 0}
    if "rounds" in again:  # trees: as many rounds, and labels, as until then
        again["rounds"] = 1 + sum("moved" in record for record in history[:best])
        if best <= again["warm_up"]:
            again |= {"rectify": "none", "warm_up": 0}
    whole = extend(train, valid)
    made, _ = make_job(recipe, whole, again)
    new = learn(entry(recipe).name, again, made, whole, **kept)
    card = model.card
    new.card = replace(new.card, metrics=card.metrics, origins=card.origins, refitted=True)
    new.card = new.card.chosen_by(valid)
    return new


def extend(log: Interactions, valid: Holdout) -> Interactions:
    """The training log with the targets of a holdout appended to each user's events.

    Targets have no weight of their own: in a log with weights they get its mean.
    """
    user = valid.users[valid.targets.row_of].astype(np.int32)
    item = valid.targets.ids.astype(np.int32)
    time = None
    if log.time is not None:
        last = np.full(log.num_users, log.time.min(), log.time.dtype)
        np.maximum.at(last, log.user, log.time)
        place = np.arange(len(item)) - valid.targets.indptr[:-1][valid.targets.row_of]
        time = np.append(log.time, last[user] + 1 + place.astype(log.time.dtype))
    weight = None
    if log.weight is not None:
        weight = np.append(log.weight, np.full(len(item), log.weight.mean(), np.float32))
    return replace(
        log,
        user=np.append(log.user, user),
        item=np.append(log.item, item),
        time=time,
        rating=None,
        weight=weight,
        extra={},
    )
