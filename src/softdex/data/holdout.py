"""Holdouts: per held-out user, the history a model may see, its targets, and the masked items.

A split assigns every event of a log to a part; `assemble` turns the parts into a training log and
holdouts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from softdex import notebook
from softdex.data.card import Card
from softdex.data.fingerprint import Coded, fingerprint, key_hashes
from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.data.ragged import Ragged, among, group
from softdex.errors import DataError, counted
from softdex.messages import say

TRAIN, VALID, TEST, VALID_INPUT, TEST_INPUT, DROPPED = range(6)


@final
@dataclass(frozen=True, eq=False)
class Holdout:
    """What a model is evaluated on: per user, a history, targets and masked items.

    Row b of `history`, `targets` and `masked` belongs to `users[b]`.

    Attributes:
        user_keys, item_keys: the keys of the log.
        users: row numbers of the users.
        history: items the model may see, oldest first.
        targets: items it should recommend.
        masked: items excluded from its recommendations.
        card: how the split was made.
        conventions: defaults for `evaluate` that belong to the protocol.
        candidates: mask (I,) of items that `evaluate` also ranks alone, as cold ones; None: none.
    """

    user_keys: Keys
    item_keys: Keys
    users: np.ndarray
    history: Ragged
    targets: Ragged
    masked: Ragged
    card: Card
    conventions: Mapping[str, str] = field(default_factory=dict)
    candidates: np.ndarray | None = None

    def __repr__(self) -> str:
        asked = counted(self.num_asked, "users")
        return (
            f"Holdout({asked} with {counted(len(self.targets.ids), 'targets')}, {self.card.name})"
        )

    def __len__(self) -> int:
        return len(self.users)

    @property
    def num_asked(self) -> int:
        """Number of users with targets, who may have several rows."""
        return len(np.unique(self.users[self.targets.lengths > 0]))

    def csr(self) -> sp.csr_matrix:
        """Users x items (float32) matrix of the targets, in the rows of `train.csr()`."""
        shape = (len(self.user_keys), len(self.item_keys))
        rows = self.users[self.targets.row_of]
        ones = np.ones(len(rows), np.float32)
        return sp.csr_matrix((ones, (rows, self.targets.ids)), shape=shape)

    def take(self, rows: np.ndarray) -> Holdout:
        """Keep these rows."""
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
    """The named tuple `(train, valid, test)`; `valid` is None if the split makes none.

    Attributes:
        train: the training log.
        valid, test: the holdouts.
    """

    @property
    def card(self) -> Card:
        """How the split was made; its parts carry the same card."""
        return self.test.card.of("")

    def _repr_html_(self) -> str:
        card, train = self.card, self.train
        rows: list[list[Any]] = [["train", (train.user_counts > 0).sum(), len(train)]]
        for name, part in (("valid", self.valid), ("test", self.test)):
            if part is not None:
                rows.append([name, part.num_asked, len(part.targets.ids)])
        given = ", ".join(f"{name} {value}" for name, value in card.arguments.items())
        return notebook.page(
            notebook.title(f"{card.name} split {card.sha256[:8]}"),
            notebook.table(["", "users", "events"], [[n, f"{u:,}", f"{e:,}"] for n, u, e in rows]),
            notebook.notes([*([given] if given else []), *card.notes]),
        )


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
    """Build the training log and the holdouts from the part of each event.

    Args:
        log: the log to split.
        name, arguments: for the card.
        part: TRAIN, VALID, TEST, VALID_INPUT, TEST_INPUT or DROPPED per event.
        has_valid: whether the split has a validation part.
        ordered: the parts follow one another in time, so the history at test includes validation.
        whole_users: each user is in one part, and a holdout has its own users only. Otherwise a
            holdout has all training users, so that those without a target can count as 0.
        mask: exclude items the user is known to have interacted with from recommendations.
        train_inputs: also train on the input events of held-out users.
    """
    notes: list[str] = []
    inputs = [TRAIN, VALID_INPUT, TEST_INPUT] if train_inputs else [TRAIN]
    train = log.select(np.isin(part, inputs))
    if not len(train):
        raise DataError(f"split.{name}: no event is left for training in {log!r}.")
    blank = Card(name, arguments, {}, log.sha256, "")

    def holdout(target: int, given: list[int], masked: list[int], what: str) -> Holdout:
        held_out = part == target
        members = np.isin(part, [target, given[0]] if whole_users else [TRAIN, target])
        users = np.flatnonzero(np.bincount(log.user[members], minlength=log.num_users))
        targets = _histories(log, held_out).take(users)
        masks = _histories(log, np.isin(part, masked)).take(users)
        reachable = ~among(targets.cells(log.num_items), masks.cells(log.num_items))
        if not reachable.all():
            notes.append(
                f"{int((~reachable).sum()):,} {what} events repeat a masked item and are no targets"
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
        raise DataError(
            f"split.{name}: nothing is held out of {log!r}. Use a log with more events."
        )
    early, ties = _before_and_after(log, part)
    if early:
        leak = (
            f"this split ignores time: {early:.0%} of the test events happen before the user's "
            "last training event. For a forecast use leave_last, global_time or order='time'"
        )
        notes.append(leak)
        say(f"split.{name}: {leak}")
    elif ties:
        notes.append(
            f"{ties:,} users have a test event at the time of an event before it: the order of the "
            "rows divides these"
        )
    dropped = int((part == DROPPED).sum())
    if dropped:
        notes.append(f"{dropped:,} events are in no part")
    return join(train, valid if has_valid else None, test, replace(blank, notes=notes))


def _histories(log: Interactions, rows: np.ndarray) -> Ragged:
    time = None if log.time is None else log.time[rows]
    return group(log.user[rows], log.item[rows], log.num_users, by=time)


def _before_and_after(log: Interactions, part: np.ndarray) -> tuple[float, int]:
    """Return the share of test events before their user's last training event, and how many users
    have a test event at the very time of their last event before test."""
    if log.time is None or log.time.min() == log.time.max():
        return 0.0, 0
    tested = part == TEST
    user, time = log.user[tested], log.time[tested]
    trained = _last(log, np.isin(part, (TRAIN, VALID_INPUT, TEST_INPUT)))
    before = np.maximum(trained, _last(log, part == VALID))
    return float((time < trained[user]).mean()), len(np.unique(user[time == before[user]]))


def _last(log: Interactions, rows: np.ndarray) -> np.ndarray:
    """Return the time of each user's last event among these rows."""
    assert log.time is not None
    last = np.full(log.num_users, -np.inf)
    np.maximum.at(last, log.user[rows], log.time[rows])
    return last


def join(train: Interactions, valid: Holdout | None, test: Holdout, card: Card) -> Split:
    """Make a split of its parts: fill in the counts and the hash, and give every part the card."""
    users, items = key_hashes(train.users), key_hashes(train.items)
    prints = [fingerprint({"user": Coded(users, train.user), "item": Coded(items, train.item)})]
    counts = {"train events": len(train), "train users": int((train.user_counts > 0).sum())}
    counts["items"] = train.num_items
    for what, part in (("valid", valid), ("test", test)):
        if part is None:
            continue
        counts[f"{what} users"] = part.num_asked
        counts[f"{what} targets"] = len(part.targets.ids)
        prints.append(fingerprint({"user": Coded(users, part.users)}))
        for ragged in (part.history, part.targets, part.masked):
            asked = Coded(users, part.users[ragged.row_of])
            prints.append(fingerprint({"user": asked, "item": Coded(items, ragged.ids)}))
    digest = hashlib.sha256(" ".join(prints).encode()).hexdigest()
    card = replace(card, counts=counts, sha256=digest)
    return Split(
        replace(train, card=card.of("train")),
        None if valid is None else replace(valid, card=card.of("valid")),
        replace(test, card=card.of("test")),
    )
