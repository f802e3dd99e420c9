"""Holdouts: what a model may see of a user, what it is asked for, what is left out of its list.

A split gives every event of a log a part; `assemble` turns the parts into train and holdouts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged, group
from softdex.errors import DataError
from softdex.messages import say
from softdex.tables import Record

TRAIN, VALID, TEST, VALID_INPUT, TEST_INPUT, DROPPED = range(6)


@final
@dataclass(frozen=True)
class Card:
    """How a split was made, so that a number can be traced to it.

    `data_sha256` names the log, `sha256` the split of it.
    """

    name: str
    arguments: dict[str, Any]
    counts: dict[str, int]
    data_sha256: str
    sha256: str
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The card as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        facts = {"split": self.name, **self.arguments, **self.counts}
        facts |= {"data sha256": self.data_sha256[:16], "split sha256": self.sha256[:16]}
        facts |= {f"note {i}": note for i, note in enumerate(self.notes, 1)}
        return str(Record("Protocol card", facts))


@final
@dataclass(frozen=True, eq=False)
class Holdout:
    """What a model is asked, fixed by the split. Row b of each part belongs to `users[b]`.

    Attributes:
        users: user rows.
        history: what the model may see of the user, oldest first.
        targets: what it is asked for.
        masked: what is left out of its list.
        conventions: defaults for `evaluate` that belong to the protocol.
    """

    user_keys: Keys
    item_keys: Keys
    users: np.ndarray
    history: Ragged
    targets: Ragged
    masked: Ragged
    card: Card
    conventions: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        asked = int((self.targets.lengths > 0).sum())
        return f"Holdout({asked:,} users with {len(self.targets.ids):,} targets, {self.card.name})"

    def __len__(self) -> int:
        return len(self.users)

    def csr(self) -> sp.csr_matrix:
        """Users x items matrix of the targets, on the same rows as `train.csr()`."""
        shape = (len(self.user_keys), len(self.item_keys))
        rows = self.users[self.targets.row_of]
        ones = np.ones(len(rows), np.float32)
        return sp.csr_matrix((ones, (rows, self.targets.ids)), shape=shape)

    def take(self, rows: np.ndarray) -> Holdout:
        """Only these rows."""
        return replace(
            self,
            users=self.users[rows],
            history=self.history.take(rows),
            targets=self.targets.take(rows),
            masked=self.masked.take(rows),
        )


class _Three(NamedTuple):
    train: Interactions
    valid: Holdout | None
    test: Holdout


@final
class Split(_Three):
    """`train, valid, test`; `valid` is None where the protocol has none."""

    card: Card


def assemble(
    log: Interactions,
    name: str,
    arguments: dict[str, Any],
    part: np.ndarray,
    *,
    has_valid: bool,
    ordered: bool = False,
    whole_users: bool = False,
    mask: bool = True,
    train_inputs: bool = False,
) -> Split:
    """Build train and holdouts from the part of each row.

    Args:
        ordered: what comes before the test is history, so validation belongs to it.
        whole_users: holdouts hold their own users only; otherwise everybody, so that a user
            without a target can count as 0 where a protocol wants that.
        mask: leave what the user is known to have out of the lists.
        train_inputs: what held-out users put in is trained on as well.
    """
    notes: list[str] = []
    inputs = [TRAIN, VALID_INPUT, TEST_INPUT] if train_inputs else [TRAIN]
    train = log.select(np.isin(part, inputs))
    if not len(train):
        raise DataError(f"split.{name}: no event is left for training in {log!r}.")
    blank = Card(name, arguments, {}, log.sha256, "")

    def holdout(target: int, given: list[int], masked: list[int], what: str) -> Holdout:
        asked = part == target
        members = np.isin(part, [target, given[0]] if whole_users else [TRAIN, target])
        users = np.flatnonzero(np.bincount(log.user[members], minlength=log.num_users))
        targets = _histories(log, asked).take(users)
        masks = _histories(log, np.isin(part, masked)).take(users)
        reachable = ~np.isin(targets.cells(log.num_items), masks.cells(log.num_items))
        if not reachable.all():
            notes.append(
                f"{int((~reachable).sum()):,} {what} events repeat a masked item and are not asked"
            )
            targets = targets.where(reachable)
        history = _histories(log, np.isin(part, given)).take(users)
        return Holdout(log.users, log.items, users, history, targets, masks, blank)

    valid_input, test_input = (VALID_INPUT, TEST_INPUT) if whole_users else (TRAIN, TRAIN)
    seen_at_test = [test_input, VALID] if ordered and has_valid else [test_input]
    all_known = [test_input] if whole_users else [TRAIN, VALID]
    valid = holdout(VALID, [valid_input], [valid_input] if mask else [], "validation")
    test = holdout(TEST, seen_at_test, all_known if mask else [], "test")
    if not len(test.targets.ids):
        raise DataError(f"split.{name}: nothing is held out of {log!r}. Give users more events.")
    leak = _leakage(log, part)
    if leak:
        notes.append(leak)
        say(f"split.{name}: {leak}")
    dropped = int((part == DROPPED).sum())
    if dropped:
        notes.append(f"{dropped:,} events are in no part")
    return join(train, valid if has_valid else None, test, replace(blank, notes=notes))


def _histories(log: Interactions, rows: np.ndarray) -> Ragged:
    time = None if log.time is None else log.time[rows]
    return group(log.user[rows], log.item[rows], log.num_users, by=time)


def _leakage(log: Interactions, part: np.ndarray) -> str:
    """A sentence when test events lie before training events of the same user."""
    if log.time is None or log.time.min() == log.time.max():
        return ""
    last = np.full(log.num_users, -np.inf)
    known = np.isin(part, (TRAIN, VALID_INPUT, TEST_INPUT))
    np.maximum.at(last, log.user[known], log.time[known])
    tested = part == TEST
    early = float((log.time[tested] < last[log.user[tested]]).mean())
    if not early:
        return ""
    return (
        f"this split ignores time: {early:.0%} of the test events happen before the user's last "
        "training event. For a forecast use leave_last, global_time or order='time'"
    )


def join(train: Interactions, valid: Holdout | None, test: Holdout, card: Card) -> Split:
    """Count, hash and number the parts; every part carries the same card."""
    digest = hashlib.sha256(train.user.tobytes() + train.item.tobytes())
    counts = {"train events": len(train), "train users": int((train.user_counts > 0).sum())}
    counts["items"] = train.num_items
    for what, part in (("valid", valid), ("test", test)):
        if part is None:
            continue
        counts[f"{what} users"] = int((part.targets.lengths > 0).sum())
        counts[f"{what} targets"] = len(part.targets.ids)
        for ragged in (part.history, part.targets, part.masked):
            digest.update(part.users.tobytes() + ragged.indptr.tobytes() + ragged.ids.tobytes())
    card = replace(card, counts=counts, sha256=digest.hexdigest())
    split = Split(
        replace(train, card=card.json()),
        None if valid is None else replace(valid, card=card),
        replace(test, card=card),
    )
    split.card = card
    return split
