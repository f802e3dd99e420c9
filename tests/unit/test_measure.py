"""Known users: ranked by the history that the split allows, or as they were trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import softdex as sdx
from softdex.data.holdout import Holdout

FAST = {"dim": 8, "epochs": 3, "device": "cpu"}


def recall(model: sdx.Retriever, test: Holdout, lists: np.ndarray) -> float:
    """Mean recall@10 of these lists."""
    asked = np.flatnonzero(test.targets.lengths)
    found = [np.isin(test.targets[b], lists[b]).mean() for b in asked]
    return float(np.mean(found))


@pytest.mark.parametrize("name", ["ials", "rg2", "rgx"])
def test_a_closed_form_solves_for_users_with_their_validation_event(
    name: str, parts: sdx.Split
) -> None:
    model = sdx.fit(name, parts.train, **FAST)
    test, strangers = parts.test, np.full(len(parts.test), -1)
    by_history = model.search(strangers, test.history, 10, test.masked)
    as_trained = model.search(test.users, test.history, 10, test.masked)
    lengths = model.seen.take(test.users).lengths
    more = test.history.lengths > lengths
    oracle = np.where(more[:, None], by_history, as_trained)
    found, before = model.evaluate(test, 10), model.evaluate(test, 10, known_users="trained")
    assert found["recall@10"] == pytest.approx(recall(model, test, oracle))
    assert before["recall@10"] == pytest.approx(recall(model, test, as_trained))
    assert dict(found) != dict(before)
    count = int((more & (test.targets.lengths > 0)).sum())
    with_history = f"{count} known users are ranked by their history, with events after training"
    without = f"{count} known users are ranked as trained, without their events after training"
    assert found.card.notes[-1] == with_history
    assert before.card.notes[-1] == without


def test_users_without_later_events_keep_their_trained_vector(parts: sdx.Split) -> None:
    model = sdx.fit("ials", parts.train, **FAST)
    found, before = (model.evaluate(parts.valid, known_users=w) for w in ("history", "trained"))
    assert dict(found) == dict(before)
    assert not any("known users" in note for note in found.card.notes)


def test_a_history_encoder_reads_the_validation_event_and_a_table_says_it_does_not(
    parts: sdx.Split,
) -> None:
    small = {"dim": 4, "epochs": 1, "device": "cpu"}
    reader = sdx.fit("ssm", parts.train, encoder="history", **small)
    table = sdx.fit("ssm", parts.train, **small)
    assert "are ranked by their history" in reader.evaluate(parts.test).card.notes[-1]
    assert "are ranked as trained" in table.evaluate(parts.test).card.notes[-1]
    assert sdx.fit("popular", parts.train).evaluate(parts.test).card.notes == []


def test_weights_are_not_mixed_with_a_history_that_has_none(log: sdx.Interactions) -> None:
    weight = np.linspace(1, 9, len(log)).round()
    weighted = sdx.read({**log.to_arrow().to_pydict(), "weight": weight}, quiet=True)
    split = sdx.split.leave_last(weighted)
    result = sdx.fit("ials", split.train, **FAST).evaluate(split.test)
    assert not any("by their history" in note for note in result.card.notes)


def test_a_choice_of_users_that_is_none_is_refused(parts: sdx.Split) -> None:
    model = sdx.fit("popular", parts.train)
    with pytest.raises(sdx.SoftdexError, match="unknown value of known_users 'both'"):
        model.evaluate(parts.test, known_users="both")


def test_a_history_that_was_cut_does_not_replace_the_trained_vector(parts: sdx.Split) -> None:
    model = sdx.fit("ials", parts.train, **FAST)
    many = np.flatnonzero(model.seen.take(parts.test.users).lengths >= 2)
    short = replace(parts.test, history=parts.test.history.last(2)).take(many)
    found, before = (model.evaluate(short, known_users=w) for w in ("history", "trained"))
    assert dict(found) == dict(before)
