"""What every benchmark shares: the machine, the versions, the clock, one JSON line."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import torch

from softdex.model.card import versions

DATA = Path(os.environ.get("SOFTDEX_DATA", Path(__file__).parents[2] / "shared" / "data"))


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"processor": model, "cores": os.cpu_count(), "system": platform.platform()}


def report(name: str, protocol: str, **figures: Any) -> None:
    """Print the one JSON line of a benchmark."""
    about = {"benchmark": name, "protocol": protocol, **figures}
    about |= {"versions": versions() | {"numba": numba.__version__}, "machine": machine()}
    print(json.dumps(about), flush=True)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def milliseconds(work: Callable[[], Any], repeats: int, warm: int = 5) -> float:
    """The median time of a piece of work, the device waited for."""
    times = []
    for i in range(repeats + warm):
        wait()
        spent = seconds(lambda: (work(), wait()))
        if i >= warm:
            times.append(spent * 1e3)
    return round(statistics.median(times), 4)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(work: Callable[[], Any]) -> float:
    """Peak memory in GB: of the process while it works, or of the GPU since the last reset."""
    if not torch.cuda.is_available():
        return peak_of(work)[1]["peak_gb"]
    work()
    return round(torch.cuda.max_memory_allocated() / 1e9, 3)


def alternating(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Time several pieces of work in turn, so that a busy moment hits them all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(round(seconds(work), 3))
    return times


def peak_of(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Run work: its result, seconds, peak memory of the whole process and above its start in GB."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, began = _status("VmRSS"), time.perf_counter()
    answer = work()
    spent, peak = time.perf_counter() - began, _status("VmHWM")
    figures = {"seconds": spent, "peak_gb": peak, "peak_above_start_gb": peak - before}
    return answer, {name: round(value, 3) for name, value in figures.items()}


def _status(field: str) -> float:
    """A line of /proc/self/status in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) * 1024 / 1e9


def need(name: str) -> Path:
    """A real data set, or a clear end."""
    path = DATA / name
    if not path.exists():
        raise SystemExit(f"{name} is not in {DATA}: set SOFTDEX_DATA to the folder that holds it")
    return path
