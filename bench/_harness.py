"""What every benchmark shares: sizes, the clock, memory, the machine and the JSON line."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
TINY = "--tiny" in sys.argv  # read here, because sizes are set before options are parsed
PACKAGES = ("softdex", "torch", "numpy", "scipy", "pyarrow", "numba")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


def sized(full: T, tiny: T) -> T:
    """Return `full`, or with --tiny a size that takes a moment and yields no figure."""
    return tiny if TINY else full


@cache
def scratch() -> Path:
    """A temporary folder for what a tiny run writes."""
    return Path(tempfile.mkdtemp(prefix="softdex-bench-"))


# reports -----------------------------------------------------------------------------------------


def report(name: str, protocol: str, **figures: Any) -> None:
    """Print the JSON line of a result."""
    print(json.dumps({"benchmark": name, "protocol": protocol, **figures, **surroundings()}))
    sys.stdout.flush()


def surroundings() -> dict[str, Any]:
    """Versions, machine and device, and whether the sizes are tiny."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "tiny": TINY,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "machine": {"processor": model, "cores": os.cpu_count(), "system": platform.platform()},
        "device": torch.cuda.get_device_name() if GPU else "cpu",
        "threads": torch.get_num_threads(),
    }


# time --------------------------------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def milliseconds(work: Callable[[], Any], repeats: int, warm: int = 5) -> float:
    """Median milliseconds per call, each call synchronised with the device."""
    times = []
    repeats, warm = sized((repeats, warm), (1, 1))
    for i in range(repeats + warm):
        wait()
        spent = seconds(lambda: (work(), wait()))
        if i >= warm:
            times.append(spent * 1e3)
    return round(statistics.median(times), 4)


def alternating(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work per round, timed in turn so that a busy moment slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(sized(repeats, 1)):
        for name, work in works.items():
            times[name].append(round(seconds(work), 6))
    return times


def wait() -> None:
    """Synchronise with the GPU, if there is one."""
    if GPU:
        torch.cuda.synchronize()


# memory ------------------------------------------------------------------------------------------


def reset_peak() -> None:
    """Free cached memory and forget the GPU's peak."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(work: Callable[[], Any]) -> float:
    """Peak memory in GB: of the process during the call, or of the GPU since the last reset."""
    if not GPU:
        return peak_of(work)[1]["peak_gb"]
    work()
    return round(torch.cuda.max_memory_allocated() / 1e9, 3)


def peak_of(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of a call, its seconds, and the peak memory of the process in GB: in all, and
    above its start."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, began = _status("VmRSS"), time.perf_counter()
    answer = work()
    spent, most = time.perf_counter() - began, _status("VmHWM")
    figures = {"seconds": spent, "peak_gb": most, "peak_above_start_gb": most - before}
    return answer, {name: round(value, 3) for name, value in figures.items()}


def _status(field: str) -> float:
    """A field of /proc/self/status in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) * 1024 / 1e9
