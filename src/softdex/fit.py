"""Learn: train what a recipe composed, and wrap it as a model that recommends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.encode.features.tower import Tower
from softdex.encode.table import Table
from softdex.errors import DataError, SoftdexError, some
from softdex.index.tree.tree import Tree
from softdex.machine import parse_bytes, pick_device
from softdex.messages import say
from softdex.model.artifact import plain
from softdex.model.kinds import letters_of, saved_tensors
from softdex.model.retriever import Retriever, from_training
from softdex.recipes.catalogue import checked, make, options
from softdex.score.din import Din
from softdex.shapes import not_finite
from softdex.solve.checkpoint import Keeper
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.loop import Job, Outcome, Run

METRIC = "ndcg@20"
BLOCK = 2**18  # rows whose vectors a tower writes out at a time
MEASURED_USERS = 2000  # a fixed sample of the holdout is measured after each epoch


def fit(
    name: str,
    train: Interactions,
    valid: Holdout | None = None,
    start: Retriever | None = None,
    *,
    refit: bool = False,
    folder: str | Path | None = None,
    resume: bool = False,
    max_memory: int | str | None = None,
    **given: Any,
) -> Retriever:
    """Train a recipe and return a model that recommends.

    Args:
        name: a recipe; `softdex.recipes.names()` lists them.
        train: the training part of a split, or a whole log.
        valid: a holdout to measure on: recipes that learn stop early by it, and the metrics are
            stored with the model.
        start: an earlier model; the vectors of users and items that both know are its own.
        refit: once `valid` has shown how many epochs are best, train again on train and valid.
        folder: where checkpoints and the log of a run go.
        resume: go on from the checkpoint in `folder`, to the very same model (on a CPU).
        max_memory: bytes (or "4GB") the training may hold; more is refused before it starts.
        given: options of the recipe, see `softdex recipes`.
    """
    given = checked(name, given)
    check_log("fit", train)
    if valid is not None and not len(valid.targets.ids):
        valid = None
    if refit and valid is None:
        raise SoftdexError("fit: refit=True needs valid= to find the number of epochs.")
    if resume and folder is None:
        raise SoftdexError("fit: resume=True needs folder=, where the checkpoint is.")
    chosen = options(name) | given
    limit = None if max_memory is None else parse_bytes(max_memory)
    made = make(name, train, chosen)
    if not isinstance(made, Job):
        if start is not None or refit:
            raise SoftdexError(
                f"fit: {name} is found in one step with these options: no start= and no refit=."
            )
        model = from_training(name, chosen, train, *made)
    else:
        place = None if folder is None else Path(folder)
        keep = {"start": start, "resume": resume, "max_memory": limit}
        model = learn(name, chosen, made, train, valid=valid, folder=place, **keep)  # type: ignore[arg-type]
    if valid is not None:
        model.info["metrics"]["valid"] = dict(model.evaluate(valid))
    if not refit or valid is None:
        return model
    return refitted(name, chosen, train, valid, model, start=start, max_memory=limit)


def check_log(where: str, log: Any) -> None:
    """Refuse what nothing can be learned from."""
    if not isinstance(log, Interactions):
        raise DataError(
            f"{where}: expected a log, got {type(log).__name__}. Read it first: sdx.read(...)."
        )
    if not len(log):
        raise DataError(f"{where}: the training log is empty.")


def refitted(
    name: str,
    chosen: Mapping[str, Any],
    train: Interactions,
    valid: Holdout,
    model: Retriever,
    **kept: Any,
) -> Retriever:
    """The same recipe on train and validation, for as many epochs as were best."""
    best, history = model.info["training"]["best_epoch"], model.info["training"]["history"]
    again = dict(chosen) | {"epochs": best, "patience": 0}
    if "rounds" in again:  # trees: as often learned as until then, labels as they were
        again["rounds"] = 1 + sum("moved" in record for record in history[:best])
        if best <= again["warm_up"]:
            again |= {"rectify": "none", "warm_up": 0}
    whole = extend(train, valid)
    new = learn(name, again, make(name, whole, again), whole, **kept)
    new.info["metrics"] = model.info["metrics"]
    new.info["refitted"] = True
    return new


def learn(
    name: str,
    options: Mapping[str, Any],
    made: Job,
    log: Interactions,
    *,
    valid: Holdout | None = None,
    start: Retriever | None = None,
    folder: Path | None = None,
    resume: bool = False,
    max_memory: int | None = None,
) -> Retriever:
    """Train a job on a log.

    Args:
        name, options: of the recipe, for the model's card.
        made: what the recipe returned.
        log: the training events.
        valid: stops the training early (NDCG@20 on a fixed sample of its users).
        start: an earlier model; vectors of keys that both know are taken over.
        folder: where checkpoints and the log go; None writes nothing.
        resume: go on from the checkpoint in the folder.
        max_memory: bytes the training may hold; more is refused before it starts.
    """
    model = from_training(name, options, log, made.encoder, made.scorer)  # type: ignore[arg-type]
    if start is not None:
        take_over(model, start)
    needed, where = made.memory(log), pick_device(made.schedule.device)
    say(f"training on {where}, about {needed / 1e9:.2f} GB beside the libraries")
    check_memory(options, needed, max_memory)
    keeper = None
    if folder is not None:
        asked = None if valid is None else valid.card.sha256
        identity = {"recipe": name, "data": log.sha256, "options": options, "valid": asked}
        identity["start"] = None if start is None else start.info.get("data")
        identity["device"] = pick_device(made.schedule.device).type
        keeper = Keeper(folder, plain(identity), resume=resume)
    run = begin(model, made, log, valid, keeper=keeper)
    run.advance(made.schedule.epochs)
    return finish(model, run)


def begin(
    model: Retriever, made: Job, log: Interactions, valid: Holdout | None, **options: Any
) -> Run:
    """The run that trains a model, which it searches with and is measured by from the start on."""
    run = Run(made, log, measure=None if valid is None else measurer(model, valid), **options)
    if isinstance(index := getattr(run.trainer, "index", None), Tree):
        model.index = index
    return run


def finish(model: Retriever, run: Run) -> Retriever:
    """The model of a run's best epoch."""
    outcome = run.finish()
    model.info["training"] = _summary(outcome)
    _silence(model, run.trainer)
    if (index := run.trainer.served()) is not None:
        model.index = index  # type: ignore[assignment]
    _write_out(model)
    if wrong := not_finite(saved_tensors(model.encoder, model.index.scorer)):
        raise SoftdexError(
            f"fit: the training ended in {some(wrong)} not finite. Choose less extreme options (a "
            "lower lr, if there is one)."
        )
    return model


def _write_out(model: Retriever) -> None:
    """Serve what towers of features say from plain tables; the towers stay for what is new."""
    scorer: Any = model.index.scorer
    encoder: Any = model.encoder
    if model.tower is not None:
        scorer.items = _table(model.tower.eval())
        if getattr(encoder, "items", None) is model.tower:
            encoder.items = scorer.items
    if model.user_tower is not None:
        encoder.vectors = _table(model.user_tower.eval())


def _silence(model: Retriever, trainer: Any) -> None:
    """Items without an event, which in-batch training never meets, are given no direction."""
    scorer: Any = model.index.scorer
    meets_all = getattr(getattr(trainer, "parts", None), "proposes", True)
    if not meets_all and model.tower is None and hasattr(scorer, "items"):
        scorer.items.weight[torch.from_numpy(model.item_counts == 0)] = 0.0


def _table(tower: Tower) -> Table:
    """The vectors of all rows."""
    starts = range(0, len(tower), BLOCK)
    with torch.no_grad():
        return Table(torch.cat([tower(slice(start, start + BLOCK)) for start in starts])).eval()


def measurer(model: Retriever, valid: Holdout) -> Callable[[], float]:
    """NDCG@20 on a sample of users that is the same in every epoch and every run."""
    asked = np.flatnonzero(valid.targets.lengths)
    if len(asked) > MEASURED_USERS:
        drawn = np.random.default_rng(0).choice(asked, MEASURED_USERS, replace=False)
        asked = np.sort(drawn)
    sample = valid.take(asked)
    model.check(sample)
    return lambda: model.evaluate(sample, 20)[METRIC]


def _summary(outcome: Outcome) -> dict[str, Any]:
    """What the model's card says of its training; times are left out, files must repeat."""
    history = [{n: v for n, v in r.items() if n != "seconds"} for r in outcome.history]
    return {"best_epoch": outcome.best_epoch + 1, "history": history}


def check_memory(options: Mapping[str, Any], needed: int, most: int | None) -> None:
    """Refuse a training that is too large, before it starts."""
    if most is None or needed <= most:
        return
    knobs = [name for name in ("dim", "batch_size", "negatives") if name in options] or ["dim"]
    raise SoftdexError(
        f"fit: the training needs about {needed / 1e9:.2f} GB, max_memory is {most / 1e9:.2f} GB. "
        f"Lower {' or '.join(knobs)}."
    )


def take_over(model: Retriever, start: Retriever) -> None:
    """Copy the vectors of the users and items that an earlier model knows, found by key."""
    if model.tower is not None or model.user_tower is not None:
        raise SoftdexError("fit: start= and features= do not go together. Leave one of them out.")
    if isinstance(model.index.scorer, Din):
        raise SoftdexError(
            "fit: start= finds vectors by their keys, and the nodes of trees have none. To begin "
            "with the tree of a saved model give leaves='MODEL.sdx'."
        )
    keys = {"U": (model.users, start.users), "I": (model.items, start.items)}
    known = saved_tensors(start.encoder, start.index.scorer)
    copied = 0
    for name, tensor in saved_tensors(model.encoder, model.index.scorer).items():
        letters = letters_of(name, model.encoder, model.index.scorer)
        if name not in known or letters[:1] not in keys or tensor.ndim != 2:
            continue
        if tensor.shape[1] != known[name].shape[1]:
            raise SoftdexError(
                f"fit: start= has vectors of length {known[name].shape[1]}, this model of "
                f"{tensor.shape[1]}. Use the same dim."
            )
        folds = isinstance(model.encoder, FoldIn)  # its users are solved for first of all
        new = letters[0] == "I" and folds
        count = _copy_rows(tensor, known[name], *keys[letters[0]], zero_others=new)
        copied += count if new or not folds else 0
    if not copied:
        raise SoftdexError(
            f"fit: start= is {start.recipe}, which shares no vectors with {model.recipe}. Start "
            "from a model of the same recipe."
        )
    _copy_layers(model, known)
    say(f"took over {copied:,} vectors from the earlier model")


def _copy_layers(model: Retriever, known: Mapping[str, Tensor]) -> None:
    """Weights that belong to no user and no item."""
    for name, layer in model.encoder.named_parameters():
        old = known.get(f"encoder.{name}")
        if old is not None and name == "positions":  # counted from the end
            most = min(len(old), len(layer))
            layer.data[len(layer) - most :] = old[len(old) - most :]
            continue
        if old is None or old.shape != layer.shape:
            had = "none" if old is None else tuple(old.shape)
            raise SoftdexError(
                f"fit: start= has {had} where this model has {tuple(layer.shape)} ({name}). Use "
                "the same recipe and the same sizes of its layers."
            )
        layer.data.copy_(old)


def _copy_rows(to: Tensor, source: Tensor, keys: Keys, old_keys: Keys, *, zero_others: bool) -> int:
    rows = torch.from_numpy(old_keys.lookup(keys.all()))
    shared = rows >= 0
    if zero_others:
        to.zero_()
    to[shared] = source[rows[shared]]
    return int(shared.sum())


def extend(log: Interactions, valid: Holdout) -> Interactions:
    """The training log with the targets of a validation part behind each user's events.

    Targets carry no weight: in a log with weights they count as much as the mean event.
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
