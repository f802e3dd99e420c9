"""Learn: train what a recipe composed, and wrap it as a model that recommends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softdex.artifact import plain
from softdex.encode.table import Table
from softdex.errors import SoftdexError, some
from softdex.holdout import Holdout
from softdex.interactions import Interactions
from softdex.keys import Keys
from softdex.objective.softmax import BLOCK_CELLS
from softdex.parts import letters_of, not_finite, saved_tensors
from softdex.retrieve import Retriever, from_training
from softdex.solve.checkpoint import Keeper
from softdex.solve.probe import proposal_report
from softdex.solve.sgd import Job, Outcome, pick_device, train
from softdex.tables import say

METRIC = "ndcg@20"
MEASURED_USERS = 2000  # a fixed sample of the holdout is measured after each epoch
PROBE_USERS, PROBE_CELLS = 16, 10_000_000


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
    """Train a composition on a log.

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
    parts, settings = made
    model = from_training(name, options, log, parts.encoder, parts.scorer)  # type: ignore[arg-type]
    if start is not None:
        take_over(model, start)
    _say_plan(made, log, max_memory)
    keeper = None
    if folder is not None:
        asked = None if valid is None else valid.card.sha256
        identity = {"recipe": name, "data": log.sha256, "options": options, "valid": asked}
        identity["start"] = None if start is None else start.info.get("data")
        identity["device"] = pick_device(settings.device).type
        keeper = Keeper(folder, plain(identity), resume=resume)
    outcome = train(
        parts,
        log,
        settings,
        measure=None if valid is None else _measure(model, valid),
        probe=_probe(made, log),
        keeper=keeper,
    )
    model.info["training"] = _summary(outcome)
    if wrong := not_finite(saved_tensors(parts.encoder, parts.scorer)):
        raise SoftdexError(f"fit: the training ended in {some(wrong)} not finite. Lower lr.")
    return model


def _measure(model: Retriever, valid: Holdout) -> Callable[[], float]:
    """NDCG@20 on a sample of users that is the same in every epoch and every run."""
    asked = np.flatnonzero(valid.targets.lengths)
    if len(asked) > MEASURED_USERS:
        drawn = np.random.default_rng(0).choice(asked, MEASURED_USERS, replace=False)
        asked = np.sort(drawn)
    sample = valid.take(asked)
    model.check(sample)
    return lambda: model.evaluate(sample, 20)[METRIC]


def _probe(made: Job, log: Interactions) -> Callable[[torch.Generator], dict[str, float]] | None:
    """The live report of a sampled run; a full softmax has no proposal to report on."""
    parts, settings = made
    if parts.draws == 0:
        return None
    most = max(1, min(PROBE_USERS, len(log), PROBE_CELLS // log.num_items))
    at = np.random.default_rng(settings.seed).choice(len(log), most, replace=False)
    device = pick_device(settings.device)
    users = torch.from_numpy(log.user[at].astype(np.int64)).to(device)
    items = torch.from_numpy(log.item[at].astype(np.int64)).to(device)

    def report(generator: torch.Generator) -> dict[str, float]:
        index = parts.index.to(device)
        with torch.no_grad():
            query = parts.encoder(users, leave_out=items)
        return proposal_report(index, query, items, parts.draws, generator)

    return report


def _summary(outcome: Outcome) -> dict[str, Any]:
    """What the model's card says of its training; times are left out, files must repeat."""
    history = [{n: v for n, v in r.items() if n != "seconds"} for r in outcome.history]
    return {"best_epoch": outcome.best_epoch + 1, "history": history}


def predicted_memory(made: Job, log: Interactions) -> int:
    """Bytes a training will hold at its peak, about.

    Tables, their two moments and the copy of the best epoch; the events and their order; the
    scores of a batch with their gradients.
    """
    modules = nn.ModuleDict({"encoder": made.parts.encoder, "scorer": made.parts.scorer})
    tables = {m for m in modules.modules() if isinstance(m, Table)}
    weights = sum(t.weight.nbytes for t in tables)
    past = sum(b.nbytes for b in modules.buffers()) - weights
    batch = made.settings.batch_size
    draws = made.parts.draws or max(1, min(log.num_items, BLOCK_CELLS // batch))
    weights += 0 if made.parts.draws else weights // 3  # a sum over all items has a dense gradient
    rows = batch * 3 + draws
    dim = max(t.dim for t in tables)
    return 6 * weights + past + 24 * len(log) + 4 * (5 * batch * draws + 12 * rows * dim)


def _say_plan(made: Job, log: Interactions, max_memory: int | None) -> None:
    needed = predicted_memory(made, log)
    where = pick_device(made.settings.device)
    say(f"training on {where}, about {needed / 1e9:.2f} GB beside the libraries")
    if max_memory is not None and needed > max_memory:
        raise SoftdexError(
            f"fit: the training needs about {needed / 1e9:.2f} GB, max_memory is "
            f"{max_memory / 1e9:.2f} GB. Lower dim, batch_size or negatives."
        )


def take_over(model: Retriever, start: Retriever) -> None:
    """Copy the vectors of the users and items that an earlier model knows, found by key."""
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
        copied += _copy_rows(tensor, known[name], *keys[letters[0]])
    if not copied:
        raise SoftdexError(
            f"fit: start= is {start.recipe}, which shares no vectors with {model.recipe}. Start "
            "from a model of the same recipe."
        )
    say(f"took over {copied:,} vectors from the earlier model")


def _copy_rows(to: Tensor, source: Tensor, keys: Keys, old_keys: Keys) -> int:
    rows = torch.from_numpy(old_keys.lookup(keys.all()))
    shared = rows >= 0
    to[shared] = source[rows[shared]]
    return int(shared.sum())


def extend(log: Interactions, valid: Holdout) -> Interactions:
    """The training log with the targets of a validation part behind each user's events."""
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
        weight = np.append(log.weight, np.ones(len(item), np.float32))
    return replace(
        log,
        user=np.append(log.user, user),
        item=np.append(log.item, item),
        time=time,
        rating=None,
        weight=weight,
        extra={},
    )
