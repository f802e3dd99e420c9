"""Train what a recipe made, and make a model of it when the training is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softdex import group
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.encode.features.tower import Tower, tower_in
from softdex.encode.learned import Learned
from softdex.encode.table import Table
from softdex.errors import SoftdexError, first_few
from softdex.evaluate.evaluate import evaluate
from softdex.index.contract import MAX_MEMORY
from softdex.machine import memory_of, pick_device
from softdex.messages import METRIC, say
from softdex.model.artifact import plain
from softdex.model.asking import batch_size, check
from softdex.model.card import Card, card_of
from softdex.model.kinds import check_parts
from softdex.model.measure import searcher
from softdex.model.parts import Known, Parts, known_from, parts_from
from softdex.model.retriever import Retriever
from softdex.model.start import take_over
from softdex.shapes import not_finite
from softdex.solve.checkpoint import Checkpointer
from softdex.solve.gradient.feed import Sequences, Windows
from softdex.solve.gradient.trainer import Descent
from softdex.solve.loop import CLOCKS, Job, Measure, Outcome, Run, Trainer

IN_ROW_ORDER = "the log has no time, so histories were read in the order of its rows"
REPLICATED = "replicated"  # every rank holds all vectors
CUTOFF = 20
MEASURED_USERS = 2000  # of the holdout, after each epoch
BLOCK = 2**18  # rows that a feature tower makes vectors of at a time


def learn(
    recipe: str,
    options: Mapping[str, Any],
    made: Job,
    log: Interactions,
    *,
    valid: Holdout | None = None,
    start: Retriever | None = None,
    folder: Path | None = None,
    resume: bool = False,
    max_memory: int | None = None,
    until: float = math.inf,
) -> Retriever:
    """Train a job on a log and return the model of its best epoch.

    Args:
        recipe, options: for the model's card.
        made: the job that the recipe returned.
        log: the training events.
        valid: a holdout; training stops early by NDCG@20 on a fixed sample of its users.
        start: an earlier model, whose vectors of known users and items are taken over.
        folder: where checkpoints and the training log are written; None writes nothing.
        resume: continue from the checkpoint in `folder`.
        max_memory: bytes; a training that needs more is refused before it starts.
        until: moment of the monotonic clock at which the training stops.
    """
    card = warned(card_of(recipe, options, log), made, log)
    card = card if valid is None else card.chosen_by(valid)
    for warning in card.warnings:
        say(f"{recipe}: {warning}")
    check_finite(card, made.encoder, made.scorer)
    if start is not None:
        take_over(recipe, made.encoder, made.scorer, log, start)
    needed, where = made.memory(log), pick_device(made.schedule.device)
    say(f"training on {spread(where)}, about {needed / 1e9:.2f} GB beside the libraries")
    check_memory(options, needed, max_memory)
    checkpointer = None
    if folder is not None:
        identity = {
            "recipe": recipe,
            "data": log.sha256,
            "options": options,
            "valid": None if valid is None else valid.card.sha256,
            "start": None if start is None else start.card.data,
            "device": where.type,
        }
        checkpointer = Checkpointer(folder, plain(identity), resume=resume)
    run = begin(card, made, log, valid, checkpointer=checkpointer)
    run.advance(made.schedule.epochs, until=until)
    return finish(card, run, log)


def spread(device: torch.device) -> str:
    """Return where a training happens, in words."""
    if group.size() == 1:
        return str(device)
    return f"{group.size()} ranks ({device}), tables {REPLICATED}, per rank"


def begin(
    card: Card,
    made: Job,
    log: Interactions,
    valid: Holdout | None,
    *,
    checkpointer: Checkpointer | None = None,
    quiet: bool = False,
) -> Run:
    """Start a run, to be measured on a holdout after each epoch; advance it, then `finish` it."""
    made.encoder.eval()
    made.scorer.eval()
    run = Run(made, log, name=card.recipe, checkpointer=checkpointer, quiet=quiet)
    if valid is not None:
        parts = parts_from(made.encoder, made.scorer, run.trainer.searched())
        run.measure = measurer(card.recipe, parts, known_from(log), valid)
    return run


def warned(card: Card, made: Job, log: Interactions) -> Card:
    """Return the card with what to know of this training before trusting its metrics."""
    ordered = isinstance(made, Descent) and isinstance(made.parts.feed, (Sequences, Windows))
    if not ordered or log.time is not None:
        return card
    return replace(card, warnings=[IN_ROW_ORDER])


def finish(card: Card, run: Run, log: Interactions) -> Retriever:
    """End a run and return the model of its best epoch."""
    outcome = run.finish()
    encoder, scorer = run.parts
    _zero_untrained(scorer, run.trainer, log.item_counts)
    parts = _materialised(parts_from(encoder, scorer, run.trainer.served()))
    _check(parts, "after training, ")
    return Retriever(replace(card, training=_record(outcome)), parts, known_from(log))


def assemble(
    recipe: str, options: Mapping[str, Any], log: Interactions, encoder: Any, scorer: Any
) -> Retriever:
    """Make a model of parts that need no training, with the keys and histories of a log."""
    card = card_of(recipe, options, log)
    check_finite(card, encoder, scorer)
    parts = parts_from(encoder, scorer)
    _check(parts)
    return Retriever(card, parts, known_from(log))


def measurer(recipe: str, parts: Parts, known: Known, valid: Holdout) -> Measure:
    """Return a function that measures NDCG@20 of the parts as they are when it is called.

    It always asks about the same users of the holdout: all of them, or a sample of 2000, of which
    each rank asks its part.
    """
    asked = np.flatnonzero(valid.targets.lengths)
    if len(asked) > MEASURED_USERS:
        drawn = np.random.default_rng(0).choice(asked, MEASURED_USERS, replace=False)
        asked = np.sort(drawn)
    sample, by_features = valid.take(asked), parts.user_tower is not None
    check("fit", known, sample, parts.encoder, recipe, by_features=by_features)
    search = searcher(parts.encoder, parts.index, known.seen, by_features=by_features)
    batch = batch_size(parts.encoder, MAX_MEMORY, CUTOFF)

    shared = group.size() > 1 and len(sample) >= group.size()
    mine = sample.take(np.arange(len(sample))[group.own_rows(len(sample))]) if shared else sample

    def measure() -> float:
        result = evaluate(search, mine, item_counts=known.item_counts, k=CUTOFF, batch=batch)
        if not shared:
            return result[METRIC]
        values = group.gather_rows(torch.from_numpy(result.per_user[METRIC])).numpy()
        return float(values.mean(dtype=np.float64))

    return measure


def check_finite(card: Card, encoder: nn.Module, scorer: nn.Module) -> None:
    """Refuse parts whose numbers are not finite as the recipe made them."""
    wrong = not_finite(dict(encoder.state_dict()) | dict(scorer.state_dict()))
    if wrong:
        raise SoftdexError(
            f"fit: {card.recipe} with {dict(card.options)} gave {first_few(wrong)} that are not "
            "finite. Choose less extreme options."
        )


def check_memory(options: Mapping[str, Any], needed: int, most: int | None) -> None:
    """Refuse a training that needs more than `most` bytes, or than its device has."""
    device = pick_device(str(options.get("device", "auto")))
    limits = {
        "max_memory": most or math.inf,
        f"the memory of this {device.type}": memory_of(device),
    }
    knobs = [name for name in ("dim", "batch_size", "negatives") if name in options] or ["dim"]
    for what, limit in limits.items():
        if needed > limit:
            raise SoftdexError(
                f"fit: the training needs about {needed / 1e9:.2f} GB, {what} is "
                f"{limit / 1e9:.2f} GB. Lower {' or '.join(knobs)}."
            )


def _check(parts: Parts, when: str = "") -> None:
    """Refuse parts that no file could hold: every model that is returned can be saved and used."""
    try:
        check_parts(parts.encoder, parts.index)
    except ValueError as error:
        raise SoftdexError(
            f"fit: {when}{error}. Choose less extreme options (a lower lr, if there is one)."
        ) from None


# inside ------------------------------------------------------------------------------------------


def _zero_untrained(scorer: nn.Module, trainer: Trainer, item_counts: np.ndarray) -> None:
    """Zero the vectors of items that in-batch training never updates: those without events."""
    items: Any = getattr(scorer, "items", None)
    if trainer.updates_all or items is None or tower_in(scorer, "items") is not None:
        return
    items.weight[torch.from_numpy(item_counts == 0)] = 0.0


def _materialised(parts: Parts) -> Parts:
    """Materialise what stands for a table as one, for serving; feature towers stay for new items
    and users."""
    encoder: Any = parts.encoder
    known: dict[int, Table] = {}
    for part in (parts.index.scorer, encoder):
        for name, made in list(part.named_children()):
            if isinstance(made, Tower | Learned):
                known.setdefault(id(made), _table(made))
                setattr(part, name, known[id(made)])
    return parts


def _table(made: Tower | Learned) -> Table:
    """Return the vectors of all rows."""
    starts = range(0, len(made), BLOCK)
    with torch.no_grad():
        blocks: list[Tensor] = [made(slice(start, start + BLOCK)) for start in starts]
        return Table(torch.cat(blocks)).eval()


def _record(outcome: Outcome) -> dict[str, Any]:
    """Return the record of a run for the card, without times: equal runs write equal files."""
    history = [{n: v for n, v in r.items() if n not in CLOCKS} for r in outcome.history]
    record = {"best_epoch": outcome.best_epoch + 1, "history": history}
    if group.size() > 1:
        record |= {"ranks": group.size(), "tables": REPLICATED}
    return {**record, "cut": True} if outcome.cut else record
