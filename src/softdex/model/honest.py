"""Honest: refuse to measure a model on events that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.data.ragged import Ragged, among
from softdex.errors import DataError
from softdex.model.card import Card, card_of

ALLOW = (
    "Train on the train part of the split that the holdout is of, or pass leak='allow' to measure "
    "all the same."
)
ORIGIN = (
    "Start from a model of the train part of the same split; evaluate and calibrate also take "
    "leak='allow'."
)
BLOCK = 8192  # users looked up at a time


def audit(
    where: str, card: Card, seen: Ragged, holdout: Holdout, leak: str, advice: str = ALLOW
) -> list[str]:
    """Refuse a holdout whose targets the model was trained on, and return what to warn of.

    A model of the very split is honest by its card. Any other is refused if targets lie among its
    training events, unless that can be users who repeat themselves: its log is of another source,
    and repeats at least as large a share of its events.

    Args:
        where: the function called, for errors.
        card: of the model.
        seen: the model's training events per user.
        holdout: to be evaluated on.
        leak: `refuse`, or `allow` and warn.
        advice: what to do about a refusal.
    """
    notes = []
    chosen_by = [card.selected, *(origin["selected"] for origin in card.origins)]
    if holdout.card.sha256 and holdout.card.identity in chosen_by:
        notes.append(
            "these very targets were valid= of this model, where epoch and options are chosen, so "
            "its metrics are too good; report those of a part that chose nothing"
        )
    notes += _inherited(where, card, holdout, leak)
    split = card.split or {}
    same = split.get("sha256") == holdout.card.sha256 and bool(holdout.card.sha256)
    if same and not (card.refitted and holdout.card.part == "valid"):
        return notes
    known, asked = leaked(seen, holdout), len(holdout.targets.ids)
    if not known:
        return notes
    found = f"{known:,} of the {asked:,} targets are among the events that the model was trained on"
    if card.selected is None:
        return [*notes, f"{found}; its file is of an earlier version and does not say on what"]
    here = holdout.card.data_sha256 in (card.data, split.get("data_sha256"))
    if not here and known / asked <= repeated(seen, len(holdout.item_keys)):
        return [*notes, f"{found}, in another log: taken as repeats"]
    if leak == "allow":
        return [*notes, f"leak allowed: {found}"]
    raise DataError(f"{where}: {found}, so its metrics would be too good. {advice}")


def check_origins(where: str, cards: Sequence[Card], valid: Holdout) -> None:
    """Refuse models to start from that were trained on the log of a validation part."""
    _inherited(where, Card("").started_from(cards), valid, "refuse")


def check_train(where: str, train: Interactions, part: Holdout, name: str = "valid") -> None:
    """Refuse a holdout whose targets are in the training log; `name` is its part of the split."""
    if (part.user_keys, part.item_keys) != (train.users, train.items):
        raise DataError(
            f"{where}: {name} is of another log than train (its users or items differ). Use the "
            f"train and {name} of one split."
        )
    advice = f"Pass train and {name} of one split."
    audit(where, card_of("", {}, train), train.histories, part, "refuse", advice)


def _inherited(where: str, card: Card, holdout: Holdout, leak: str) -> list[str]:
    """Refuse a model that started from one of the log that the targets are of, unless that was of
    the same split; warn of one that started from a model of another log."""
    this, notes = holdout.card, []
    for origin in card.origins:
        same = origin["split"] == this.sha256 and bool(this.sha256)
        if same and not (origin["refitted"] and this.part == "valid"):
            continue
        if this.data_sha256 not in (origin["data"], origin["log"]):
            notes.append(
                "the model started from one of another log (start= or leaves=): whether that was "
                "trained on these targets is not known"
            )
            continue
        found = (
            "the model started from one (start= or leaves=) that was trained on the log that these "
            "targets are of, in another split or in none"
        )
        if leak != "allow":
            raise DataError(f"{where}: {found}, so its metrics would be too good. {ORIGIN}")
        notes.append(f"leak allowed: {found}")
    return list(dict.fromkeys(notes))


def leaked(seen: Ragged, holdout: Holdout) -> int:
    """Return the number of targets among their user's training events, unless the history that the
    holdout shows has them too."""
    count, items = 0, len(holdout.item_keys)
    for start in range(0, len(holdout), BLOCK):
        part = holdout.take(np.arange(start, min(start + BLOCK, len(holdout))))
        asked = part.targets.cells(items)
        known = among(asked, seen.take(part.users).cells(items))
        count += int((known & ~among(asked, part.history.cells(items))).sum())
    return count


def repeated(seen: Ragged, items: int) -> float:
    """Return the share of a log's events that repeat another event of the same user and item."""
    cells = np.sort(seen.cells(items))
    return float((cells[1:] == cells[:-1]).sum()) / max(1, len(cells))
