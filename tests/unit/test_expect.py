"""Wrong objects: every public function names what it expected, what came and what to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import softdex as sdx
from softdex.data.split import SPLITS

DIVIDE = "Split the log: train, valid, test = sdx.split.per_user(log)."
READ = "Read a log first: sdx.read(...)."
PART = "Pass split.valid or split.test."
TRAIN = "Pass split.train."
LOG_OR_TRAIN = "Pass a log, or the train part of the split."

Call = Callable[[sdx.Split, sdx.Retriever, sdx.synthetic.World], Any]
CASES: list[tuple[Call, str]] = [
    (lambda p, m, w: sdx.fit("popular", p), f"fit: expected a log as train, got a split. {TRAIN}"),
    (lambda p, m, w: sdx.fit("popular", p.test), f"got a holdout. {LOG_OR_TRAIN}"),
    (
        lambda p, m, w: sdx.fit("popular", "log.csv"),
        f"as train, got str. {READ}",
    ),
    (
        lambda p, m, w: sdx.fit("popular", p.train, valid=p.train),
        f"fit: expected a holdout as valid, got a log. {DIVIDE}",
    ),
    (lambda p, m, w: sdx.fit("popular", p.train, p), f"as valid, got a split. {PART}"),
    (
        lambda p, m, w: sdx.fit("ials", p.train, start=m.card),
        "fit: expected a model as start, got Card.",
    ),
    (
        lambda p, m, w: sdx.tune("ials", p.train, p.train),
        "tune: expected a holdout as valid",
    ),
    (lambda p, m, w: sdx.tune("ials", p, p.valid), "tune: expected a log as train, got a split."),
    (lambda p, m, w: m.evaluate(p), f"evaluate: expected a holdout, got a split. {PART}"),
    (lambda p, m, w: m.evaluate(p.train), f"evaluate: expected a holdout, got a log. {DIVIDE}"),
    (
        lambda p, m, w: m.evaluate(None),
        "evaluate: expected a holdout, got None. The split has no such part; choose one that has.",
    ),
    (lambda p, m, w: m.calibrate(p.train), "calibrate: expected a holdout, got a log."),
    (
        lambda p, m, w: m.add_users(p.test),
        "add_users: expected a log, got a holdout.",
    ),
    (lambda p, m, w: m.evaluate(p.test).compare(m), "compare: expected a result, got a model."),
    (
        lambda p, m, w: sdx.evaluate([("u", "i", 1)], p.train),
        "evaluate: expected a holdout, got a log",
    ),
    (
        lambda p, m, w: sdx.compare(p.test, ["popular"]),
        "compare: expected a log or a split",
    ),
    (
        lambda p, m, w: sdx.compare(m, ["popular"]),
        "a log or a split, got a model.",
    ),
    (lambda p, m, w: w.evaluate(p.train), f"world: expected a holdout, got a log. {DIVIDE}"),
]


@pytest.mark.parametrize(("call", "words"), CASES, ids=[words[:50] for _, words in CASES])
def test_a_wrong_object_is_one_clear_error(
    call: Call,
    words: str,
    parts: sdx.Split,
    model: sdx.Retriever,
    world: sdx.synthetic.World,
) -> None:
    with pytest.raises(sdx.DataError) as refusal:
        call(parts, sdx.fit("ials", parts.train, dim=2, epochs=1, device="cpu"), world)
    assert words in str(refusal.value)


@pytest.mark.parametrize("name", list(SPLITS))
def test_every_split_refuses_what_is_no_log(name: str, parts: sdx.Split) -> None:
    for wrong, came in ((parts.test, f"a holdout. {LOG_OR_TRAIN}"), (parts, f"a split. {TRAIN}")):
        with pytest.raises(sdx.DataError, match=r"^split\.\w+: expected a log, got ") as refusal:
            SPLITS[name](wrong)
        assert str(refusal.value).endswith(came)


def test_train_valid_and_test_carry_cards_of_one_kind(parts: sdx.Split) -> None:
    kinds = {type(part.card) for part in (parts, *parts)}
    assert len(kinds) == 1
    assert [part.card.part for part in (parts, *parts)] == ["", "train", "valid", "test"]
    assert len({part.card.sha256 for part in parts}) == 1
