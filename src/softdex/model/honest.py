"""Honest: refuse to measure a model on events that it was trained on."""

from __future__ import annotations

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
    if card.selected and card.selected == holdout.card.identity:
        notes.append(
            "the epoch or the options of this model were chosen on these very targets, so its "
            "metrics are too good; report those of a part that chose nothing"
        )
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


def check_train(where: str, train: Interactions, valid: Holdout) -> None:
    """Refuse a validation part whose targets are in the training log."""
    if (valid.user_keys, valid.item_keys) != (train.users, train.items):
        raise DataError(
            f"{where}: the validation part is of another log (its users or items differ). Use the "
            "train and valid of one split."
        )
    advice = "Pass train and valid of one split."
    audit(where, card_of("", {}, train), train.histories, valid, "refuse", advice)


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
