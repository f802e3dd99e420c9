"""Fuzzers run, a small share of each here and the rest in bench/fuzz.py; the harness counts."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import pytest

KINDS = harness.kinds()
SHARE = 3  # inputs per kind
BENCH = Path(__file__).parents[2] / "bench" / "fuzz.py"


@pytest.fixture(scope="module")
def share() -> tuple[dict[str, Any], str]:
    """What became of a share of every kind: figures, and what was said of those that failed."""
    inputs = str(SHARE * len(KINDS))
    words = [sys.executable, str(BENCH), "--inputs", inputs, "--workers", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["kinds"], done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_traceback_a_crash_a_hang_a_partial_output_or_a_misread(
    kind: str, share: tuple[dict[str, Any], str]
) -> None:
    figures, said = share
    found = figures[kind]
    assert found["done"] + found["refused"] == found["tried"] == SHARE, said


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
    if seed == 8:
        raise harness.Partial("half a file")
    if seed == 9:
        ctypes.string_at(0)
    return "done"


@pytest.mark.parametrize("workers", [1, 2])
def test_every_outcome_is_counted_and_a_dead_child_is_replaced(workers: int) -> None:
    tally = harness.run(mixed, range(12), workers=workers, limit=0.5)
    outcomes = {"done": 3, "refused": 1, "traceback": 3, "crash": 2, "hang": 1, "partial": 1}
    assert tally.counts == outcomes | {"misread": 1}
    assert tally.tried == 12
    assert [(seed, outcome) for seed, outcome, _ in sorted(tally.failed)] == [
        (2, "traceback"), (3, "crash"), (4, "hang"), (5, "misread"), (6, "traceback"),
        (7, "traceback"), (8, "partial"), (9, "crash"),
    ]  # fmt: skip
    said = {seed: text for seed, _, text in tally.failed}
    assert "KeyError: 'no such thing'" in said[2]
    assert said[3].startswith("ended with -6\n")
    assert "AssertionError: read 5 as 6" in said[5]
    assert "MemoryError" in said[7]
    assert said[9].startswith("ended with -11\n")
