"""Honest evaluation: what a model was trained on is not what it is measured on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hostile
import softdex as sdx
from softdex.errors import DataError
from softdex.model.honest import leaked

LEAK = r"evaluate: ([\d,]+) of the ([\d,]+) targets are among the events that the model was trained"
LISTENS = [(u, f"i{(u + 3 * n) % 7}", n) for u in range(20) for n in range(12)]  # each song twice


def count(words: str) -> int:
    return int(words.replace(",", ""))


def test_a_model_of_the_whole_log_is_not_evaluated(log: sdx.Interactions) -> None:
    test = sdx.split.leave_last(log).test
    with pytest.raises(DataError, match=LEAK) as refusal:
        sdx.fit("item_cf", log).evaluate(test)
    found = re.search(LEAK, str(refusal.value))
    assert found is not None
    assert count(found[1]) == count(found[2]) == len(test.targets.ids)
    assert "or pass leak='allow' to measure all the same." in str(refusal.value)


def test_a_model_of_another_split_of_the_log_is_not_evaluated(
    model: sdx.Retriever, log: sdx.Interactions
) -> None:
    test = sdx.split.per_user(log).test
    trained = {*zip(*model.seen.csr(120).nonzero(), strict=True)}
    theirs = zip(test.users[test.targets.row_of], test.targets.ids, strict=True)
    among = sum((u, i) in trained for u, i in theirs)
    with pytest.raises(DataError, match=LEAK) as refusal:
        model.evaluate(test)
    assert str(refusal.value).startswith(f"evaluate: {among} of the {len(test.targets.ids)} ")
    assert leaked(model.seen, test) == among > 0


def test_a_leak_that_is_allowed_is_on_the_card_and_in_print(log: sdx.Interactions) -> None:
    test = sdx.split.leave_last(log).test
    result = sdx.fit("item_cf", log).evaluate(test, leak="allow")
    size = len(test.targets.ids)
    note = (
        f"leak allowed: {size} of the {size} targets are among the events that the model was "
        "trained on"
    )
    assert note in result.card.notes
    assert str(result).splitlines()[-1] == f"note: {note}"
    with pytest.raises(sdx.SoftdexError, match=r"unknown value of leak 'alow'\. Did you mean"):
        sdx.fit("item_cf", log).evaluate(test, leak="alow")


@pytest.mark.parametrize("name", ["leave_last", "per_user", "by_user", "dtr", "xir", "next_item"])
def test_a_model_of_the_train_part_is_honest(log: sdx.Interactions, name: str) -> None:
    extra = {"min_events": 5} if name == "dtr" else {}
    train, valid, test = sdx.split.by_name(name, log, **extra)
    model = sdx.fit("item_cf", train, valid=valid)
    assert model.evaluate(test).notes == ()


def test_a_model_of_train_and_validation_is_honest_on_test_but_not_on_validation(
    parts: sdx.Split,
) -> None:
    model = sdx.fit(
        "ials", parts.train, valid=parts.valid, refit=True, dim=4, epochs=2, device="cpu"
    )
    assert model.card.refitted
    assert model.evaluate(parts.test).notes == ()
    with pytest.raises(DataError, match=LEAK):
        model.evaluate(parts.valid)


def test_a_log_of_its_own_without_the_targets_is_honest(parts: sdx.Split) -> None:
    """A train part that was filtered carries no card; its events decide."""
    some = parts.train.select(np.arange(0, len(parts.train), 2))
    assert some.card is None
    assert sdx.fit("item_cf", some).evaluate(parts.test).notes == ()


def test_repeats_are_honest_after_the_own_train_part_and_a_leak_after_the_whole_log() -> None:
    log = sdx.read(LISTENS)
    split = sdx.split.next_item(log, (0.5, 0.5), order="rows")
    assert sdx.fit("item_cf", split.train).evaluate(split.test).notes == ()
    with pytest.raises(DataError, match=LEAK):
        sdx.fit("item_cf", log).evaluate(split.test)


def test_targets_known_from_another_log_are_repeats_if_its_users_repeat_themselves() -> None:
    """In spring everybody heard tea and jam twice, nearly half of all events; in summer 4 of 10
    hear tea again."""
    spring = [
        (f"u{u}", i, n) for u in range(10) for n, i in enumerate(["tea", "tea", "jam", "jam"])
    ]
    summer = [(f"u{u}", "pie", 0) for u in range(10)]
    summer += [(f"u{u}", "tea" if u < 4 else "egg", 1) for u in range(10)]
    log = sdx.read([*spring, ("zoe", "pie", 0), ("zoe", "egg", 1)])
    test = sdx.split.leave_last(sdx.read([*summer, ("zoe", "jam", 0)]), valid=False).test
    assert sdx.fit("item_cf", log).evaluate(test, 1).notes == (
        "4 of the 10 targets are among the events that the model was trained on, in another log: "
        "taken as repeats",
    )
    with pytest.raises(DataError, match=LEAK):
        sdx.fit("item_cf", log.deduplicate()).evaluate(test, 1)


def test_targets_that_chose_the_epoch_are_warned_of(parts: sdx.Split) -> None:
    options = {"dim": 4, "epochs": 2, "device": "cpu"}
    model = sdx.fit("ials", parts.train, valid=parts.test, **options)
    result = model.evaluate(parts.test.take(np.arange(50)))
    assert result.notes == (
        "these very targets were valid= of this model, where epoch and options are chosen, so its "
        "metrics are too good; report those of a part that chose nothing",
    )
    assert result.notes[0] in str(result)
    assert result.notes[0] in result.card.notes
    assert (
        sdx.fit("ials", parts.train, valid=parts.valid, **options).evaluate(parts.test).notes == ()
    )


def test_targets_that_a_solved_model_was_given_are_warned_of_too(parts: sdx.Split) -> None:
    model = sdx.fit("item_cf", parts.train, valid=parts.test)
    (note,) = model.evaluate(parts.test).notes
    assert note.startswith("these very targets were valid= of this model")


def test_a_choice_is_known_after_saving(parts: sdx.Split, tmp_path: Path) -> None:
    model = sdx.fit("ials", parts.train, valid=parts.test, dim=4, epochs=2, device="cpu")
    model.save(tmp_path / "m.sdx")
    assert (
        "these very targets were valid= of this model"
        in sdx.load(tmp_path / "m.sdx").evaluate(parts.test).notes[0]
    )


ORIGIN = (
    "the model started from one (start= or leaves=) that was trained on the log that these targets "
    "are of, in another split or in none"
)
QUICK = {"dim": 4, "epochs": 1, "device": "cpu", "quiet": True}


def test_a_leak_through_start_is_refused_at_once_and_after_saving(
    parts: sdx.Split, log: sdx.Interactions, tmp_path: Path
) -> None:
    whole = sdx.fit("ials", log, **QUICK)
    with pytest.raises(DataError, match=re.escape(f"fit: {ORIGIN}, so its metrics would")):
        sdx.fit("ials", parts.train, parts.valid, start=whole, **QUICK)
    again = sdx.fit("ials", parts.train, start=whole, **QUICK)
    sdx.fit("ials", parts.train, start=again, **QUICK).save(tmp_path / "m.sdx")
    model = sdx.load(tmp_path / "m.sdx")
    with pytest.raises(DataError, match=re.escape(f"evaluate: {ORIGIN}, so its metrics would")):
        model.evaluate(parts.test)
    assert model.evaluate(parts.test, leak="allow").notes == (f"leak allowed: {ORIGIN}",)


def test_a_start_of_the_same_split_is_honest_and_one_of_another_log_is_noted(
    parts: sdx.Split, log: sdx.Interactions
) -> None:
    honest = sdx.fit("ials", parts.train, parts.valid, **QUICK)
    assert sdx.fit("ials", parts.train, start=honest, **QUICK).evaluate(parts.test).notes == ()
    chosen = sdx.fit("ials", parts.train, parts.test, **QUICK)
    (note,) = sdx.fit("ials", parts.train, start=chosen, **QUICK).evaluate(parts.test).notes
    assert "these very targets were valid= of this model" in note
    older = sdx.fit("ials", log.select(np.arange(0, len(log), 2)), **QUICK)
    result = sdx.fit("ials", parts.train, start=older, **QUICK).evaluate(parts.test)
    assert result.notes == (
        "the model started from one of another log (start= or leaves=): whether that was trained "
        "on these targets is not known",
    )


def test_a_start_that_was_refitted_leaks_validation_but_not_test(parts: sdx.Split) -> None:
    start = sdx.fit("ials", parts.train, parts.valid, refit=True, **QUICK)
    model = sdx.fit("ials", parts.train, start=start, **QUICK)
    assert model.evaluate(parts.test).notes == ()
    with pytest.raises(DataError, match="started from one"):
        model.evaluate(parts.valid)


def test_a_leak_through_the_tree_of_another_model_is_refused(
    parts: sdx.Split, log: sdx.Interactions, tmp_path: Path
) -> None:
    quick = QUICK | {"max_history": 3}
    sdx.fit("plt", log, leaves="random", **quick).save(tmp_path / "m.sdx")
    path = str(tmp_path / "m.sdx")
    model = sdx.fit("plt", parts.train, leaves=path, **quick)
    with pytest.raises(DataError, match="evaluate: the model started from one"):
        model.evaluate(parts.test)
    with pytest.raises(DataError, match="tune: the model started from one"):
        sdx.tune("plt", parts.train, parts.valid, space={"lr": [0.1]}, leaves=path, **quick)


@pytest.mark.parametrize("origin", [1, {}, {"data": 1}, ["data"]])
def test_a_file_with_a_broken_origin_is_refused(
    parts: sdx.Split, tmp_path: Path, origin: object
) -> None:
    path = tmp_path / "m.sdx"
    sdx.fit("popular", parts.train).save(path)
    path.write_bytes(hostile.with_manifest(path, origins=[origin]))
    with pytest.raises(sdx.SoftdexError, match="is damaged"):
        sdx.load(path)


def test_a_temperature_is_not_fitted_to_targets_that_were_trained_on(
    parts: sdx.Split, log: sdx.Interactions
) -> None:
    model = sdx.fit("ials", log, **QUICK)
    with pytest.raises(DataError, match=r"calibrate: \d+ of the \d+ targets are among the events"):
        model.calibrate(parts.valid)
    assert model.temperature == 1.0
    assert model.calibrate(parts.valid, leak="allow") == model.temperature != 1.0
    with pytest.raises(sdx.SoftdexError, match="calibrate: unknown value of leak 'alow'"):
        model.calibrate(parts.valid, leak="alow")


def test_a_validation_part_that_is_trained_on_is_refused_before_training(
    parts: sdx.Split, log: sdx.Interactions
) -> None:
    for call in (sdx.fit, sdx.tune):
        with pytest.raises(DataError, match=rf"{call.__name__}: \d+ of the \d+ targets are among"):
            call("ials", log, parts.valid)


def test_a_file_of_an_earlier_version_is_evaluated_with_a_note(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    path, test = tmp_path / "m.sdx", sdx.split.leave_last(log).test
    sdx.fit("item_cf", log).save(path)
    old = sdx.load(path)
    old.card = replace(old.card, selected=None)
    old.save(path)
    assert b'"selected"' not in hostile.members(path)["manifest.json"]
    (note,) = sdx.load(path).evaluate(test).notes
    assert note.endswith("its file is of an earlier version and does not say on what")
