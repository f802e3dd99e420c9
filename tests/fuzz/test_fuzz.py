"""Fuzzers run, a small share of each here and the rest in bench/fuzz.py; the harness counts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import harness
import pytest

KINDS = harness.kinds()
SHARE = 12  # inputs per kind


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_traceback_a_crash_a_hang_or_a_misread(kind: str) -> None:
    tally = harness.run(KINDS[kind], range(SHARE))
    assert tally.failed == []
    assert tally.counts["done"] + tally.counts["refused"] == SHARE


def mixed(seed: int, folder: Path) -> str:
    assert not list(folder.iterdir())
    (folder / "left behind").touch()
    if seed == 1:
        return "refused"
    if seed == 2:
        raise KeyError("no such thing")
    if seed == 3:
        os.abort()
    if seed == 4:
        time.sleep(60)
    assert seed != 5, "read 5 as 6"
    if seed == 6:
        raise SystemExit(0)
    if seed == 7:
        bytearray(2**50)
    return "done"


@pytest.mark.parametrize("workers", [1, 2])
def test_every_outcome_is_counted_and_a_dead_child_is_replaced(workers: int) -> None:
    tally = harness.run(mixed, range(10), workers=workers, limit=0.5)
    outcomes = {"done": 3, "refused": 1, "traceback": 3, "crash": 1, "hang": 1, "misread": 1}
    assert tally.counts == outcomes
    assert tally.tried == 10
    assert [(seed, outcome) for seed, outcome, _ in sorted(tally.failed)] == [
        (2, "traceback"), (3, "crash"), (4, "hang"), (5, "misread"), (6, "traceback"),
        (7, "traceback"),
    ]  # fmt: skip
    said = {seed: text for seed, _, text in tally.failed}
    assert "KeyError: 'no such thing'" in said[2]
    assert said[3].startswith("ended with -6\n")
    assert "AssertionError: read 5 as 6" in said[5]
    assert "MemoryError" in said[7]
