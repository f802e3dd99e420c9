"""One setting for every thread pool."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pyarrow as pa
import pytest
import torch

import softdex as sdx
from softdex.machine import pick_device


def test_one_setting_governs_every_pool() -> None:
    before = torch.get_num_threads(), numba.get_num_threads(), pa.cpu_count()
    try:
        sdx.set_threads(1)
        assert (torch.get_num_threads(), numba.get_num_threads(), pa.cpu_count()) == (1, 1, 1)
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
        pa.set_cpu_count(before[2])


def test_idle_threads_soon_sleep_unless_the_user_says_otherwise() -> None:
    code = """
import os, sys
sys.modules["torch"] = None  # loading it fails, and by then the setting must be there
try:
    import softdex
    softdex.fit
except ImportError:
    print(os.environ.get("GOMP_SPINCOUNT"))
"""
    settings = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    plain = {k: v for k, v in os.environ.items() if k not in settings}
    cases = [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
    for own, expected in cases:
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=plain | own, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.parametrize("n", [0, -1, True, 1.5])
def test_senseless_numbers_of_threads_are_refused(n: object) -> None:
    with pytest.raises(sdx.SoftdexError, match="at least 1"):
        sdx.set_threads(n)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu", "got 'gpu'. Did you mean 'cuda'?"),
        ("CUDA", "got 'CUDA'. Did you mean 'cuda'?"),
        ("meta", "got 'meta'."),
    ],
)
def test_an_unknown_device_is_one_sentence_that_names_the_devices(name: str, words: str) -> None:
    with pytest.raises(sdx.SoftdexError) as caught:
        pick_device(name)
    assert str(caught.value) == f"device: expected 'auto', 'cpu', 'cuda' or 'cuda:1', {words}"
