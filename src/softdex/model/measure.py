"""Measure a model on a holdout: what it may be asked, and whose queries are made of what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from softdex.data.holdout import Holdout
from softdex.data.keys import as_list
from softdex.data.ragged import Ragged
from softdex.encode.contract import Encoder
from softdex.encode.counting import Unpersonalised
from softdex.errors import SoftdexError
from softdex.evaluate.evaluate import Search, check_rules, evaluate
from softdex.evaluate.result import Result
from softdex.index.contract import MAX_MEMORY, Filter, Index
from softdex.machine import parse_bytes
from softdex.model.asking import batch_size, events, query, query_of, whole
from softdex.model.honest import audit
from softdex.solve.closed.fold_in import FoldIn

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

FEW = 8  # users whose scores of cold items are compared
MOST_PLACES = 1000  # of a list that `evaluate` ranks, or as many as there are items


def evaluated(
    model: Retriever,
    holdout: Holdout,
    k: int | Sequence[int],
    *,
    leak: str = "refuse",
    known_users: str = "history",
    max_memory: int | str = MAX_MEMORY,
    keep: list[np.ndarray] | None = None,
    **rules: Any,
) -> Result:
    """Return the metrics of a model on a holdout; see `Retriever.evaluate`.

    `keep` gets the lists of each block of users.
    """
    check_rules({"leak": leak, "known_users": known_users})
    model.check(holdout)
    notes = [*model.card.warnings, *audit("evaluate", model.card, model.seen, holdout, leak)]
    limit, cutoffs = parse_bytes(max_memory), [whole("evaluate", c) for c in as_list(k)]
    longest, most = max(cutoffs, default=1), max(MOST_PLACES, len(model.items))
    if longest > most:
        raise SoftdexError(f"evaluate: expected k of at most {most:,}, got {longest:,}.")
    by_features, by_history = model.user_tower is not None, known_users == "history"
    search = searcher(
        model.encoder, model.index, model.seen, by_features=by_features, by_history=by_history,
        max_memory=limit,
    )  # fmt: skip
    result = evaluate(
        search, holdout, item_counts=model.item_counts, k=cutoffs, notes=notes,
        batch=batch_size(model.encoder, limit, longest), keep=keep, **rules,
    )  # fmt: skip
    if holdout.candidates is not None and scores_alike(model, holdout):
        note = (
            "the model gives all cold items one score, so that their order, and every cold metric, "
            "is that of their keys"
        )
        result = replace(result, notes=(*result.notes, note)).noted([note])
    return result.noted(ranked_by(model, holdout, by_history=by_history))


def scores_alike(model: Retriever, holdout: Holdout) -> bool:
    """Return whether the model gives all candidates of a holdout one score, for a few users."""
    assert holdout.candidates is not None
    part = holdout.take(np.flatnonzero(holdout.targets.lengths)[:FEW])
    asked = query_of(model, part.users, part.history)
    with torch.inference_mode():
        scores = model.index.scorer(asked, torch.from_numpy(np.flatnonzero(holdout.candidates)))
    return bool((scores == scores[:, :1]).all())


def searcher(
    encoder: Encoder,
    index: Index,
    seen: Ragged,
    *,
    by_features: bool = False,
    by_history: bool = True,
    effort: float | None = None,
    max_memory: int = MAX_MEMORY,
) -> Search:
    """Return a search for `softdex.evaluate`, of an encoder and an index that may be in training.

    Args:
        encoder, index: parts to measure, as they are at each search.
        seen: training events per user.
        by_features: whether users have vectors by their features.
        by_history: whether known users with later events are solved for anew.
        effort: of a search that is not exact; None: as tuned.
        max_memory: bytes of scores held at a time.
    """

    solves = by_history and encoder.history_first and not weighted(encoder, seen)

    def found(part: Holdout, k: int, exact: bool) -> np.ndarray:
        users = np.where(has_more(seen, part), -1, part.users) if solves else part.users
        asked = query(encoder, seen, users, part.history, by_features=by_features)
        allow = None if part.candidates is None else torch.from_numpy(part.candidates)
        filter, spent = Filter(part.masked, allow), np.inf if exact else effort
        hits = index.search(asked, k, filter=filter, effort=spent, max_memory=max_memory)
        return hits.ids.cpu().numpy()

    return found


def has_more(seen: Ragged, part: Holdout) -> np.ndarray:
    """Return which users have more events in their history than in training, (B,)."""
    trained = events(seen, part.users)
    return (part.history.lengths > trained) & (trained > 0)


def weighted(encoder: Encoder, seen: Ragged) -> bool:
    """Return whether a closed form was trained with weights, which the histories of holdouts do not
    have: its users' confidences do not add up to their number of items."""
    if not isinstance(encoder, FoldIn):
        return False
    total = float(encoder.total.double().sum())
    return total != len(seen.ids) and total != seen.csr(len(encoder.items)).nnz


def ranked_by(model: Retriever, holdout: Holdout, *, by_history: bool) -> list[str]:
    """Say what the queries of known users with later events were made of."""
    count = int((has_more(model.seen, holdout) & (holdout.targets.lengths > 0)).sum())
    encoder = model.encoder
    if not count or isinstance(encoder, Unpersonalised):
        return []
    reads = encoder.reads_history
    if encoder.history_first:
        reads = by_history and not weighted(encoder, model.seen)
    if reads:
        return [f"{count:,} known users are ranked by their history, with events after training"]
    return [f"{count:,} known users are ranked as trained, without their events after training"]
