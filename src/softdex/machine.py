"""The machine: threads of every pool (torch, numba, Arrow), the device, and memory sizes."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch

from softdex.errors import SoftdexError

MOST_THREADS = 1024
NO_MEMORY = re.compile("alloc|out of memory|overflow", re.IGNORECASE)  # as torch says it
CGROUP = Path("/sys/fs/cgroup")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit in UNITS))


def set_threads(n: int) -> None:
    """Use n threads from now on in torch, numba and Arrow.

    Give each of several processes on one machine its own share: thread pools that compete for
    cores can be many times slower than a single thread.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SoftdexError(f"threads: expected a whole number of at least 1, got {n!r}.")
    if n > MOST_THREADS:
        raise SoftdexError(f"threads: expected at most {MOST_THREADS:,}, got {n:,}.")
    import numba  # takes a while

    torch.set_num_threads(n)
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(min(n, most))
    pa.set_cpu_count(n)
    pa.set_io_thread_count(n)


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        meant = (
            " Did you mean 'cuda'?" if name.lower().startswith(("gpu", "cuda", "nvidia")) else ""
        )
        raise SoftdexError(
            f"device: expected 'auto', 'cpu', 'cuda' or 'cuda:1', got {name!r}.{meant}"
        )
    device = torch.device(name)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SoftdexError(f"device {name!r} cannot be used here ({_no_cuda(error)}).") from None
    return device


def _no_cuda(error: Exception) -> str:
    """Why a GPU cannot be used: the first sentence that torch says."""
    if torch.version.cuda is None:
        return "this torch is a CPU build"
    count = torch.cuda.device_count()
    return f"torch sees {count} GPUs" if count else re.split(r"[.\n]", str(error))[0][:100]


def memory_of(device: torch.device) -> int:
    """Bytes of memory that a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def hardware() -> dict[str, str]:
    """The system, the processor, threads, memory and GPU, in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {cores} cores",
        "threads": str(torch.get_num_threads()),
        "memory": f"{memory_of(torch.device('cpu')) / 1e9:.0f} GB",
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def _processor() -> str:
    """The name of the processor, as the kernel tells it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    return platform.machine()


@contextlib.contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Measure the most memory that is held inside, in bytes, once the block has ended.

    Fills `memory` of this process, libraries included, where the kernel tells it, and `gpu_memory`
    where torch uses a GPU.
    """
    found: dict[str, int] = {}
    gpu = torch.cuda.is_available()
    with contextlib.suppress(OSError):
        RESET.write_text("5")  # the high-water mark of the kernel starts anew
        found["memory"] = 0
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        yield found
    finally:
        peak = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text()) if found else None
        found |= {} if peak is None else {"memory": 1024 * int(peak[1])}
        found |= {"gpu_memory": torch.cuda.max_memory_allocated()} if gpu else {}


def free_memory() -> int:
    """Bytes that can still be allocated here: of the machine, and of the container around us."""
    free = memory_of(torch.device("cpu"))
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        most, used = (int((CGROUP / f"memory.{x}").read_text()) for x in ("max", "current"))
        free = min(free, most - used)
    return max(0, free)


@contextlib.contextmanager
def within_memory(where: str) -> Iterator[None]:
    """Turn a refused allocation into one sentence; also decorates a function."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        raise SoftdexError(
            f"{where}: this machine has too little memory for these options. Choose smaller ones "
            "(such as dim, hidden, batch_size, negatives or max_history)."
        ) from None


def parse_bytes(size: int | str, where: str = "max_memory") -> int:
    """A number of bytes, from an integer or a size such as "2GB" or "500 MiB"."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*", size.lower())
        if not match:
            raise SoftdexError(f"{where}: expected a size such as '2GB', got {size!r}.")
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** " kmgt".index(match[2] or " "))
    if not isinstance(size, int) or isinstance(size, bool):
        raise SoftdexError(f"{where}: expected bytes or a size such as '2GB', got {size!r}.")
    if size < 2**20:
        raise SoftdexError(f"{where}: expected at least 1 MiB, got {size} bytes.")
    return size


def parse_network(rate: str) -> float:
    """Bytes per second, from bits per second such as "100Gbps".

    Example:
        >>> parse_network("100Gbps")
        12500000000.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)bps\s*", rate.lower())
    if not match or not float(match[1]):
        raise SoftdexError(f"network: expected bits per second such as '100Gbps', got {rate!r}.")
    return float(match[1]) * 1000 ** " kmgt".index(match[2] or " ") / 8


def parse_seconds(where: str, time: float | str) -> float:
    """A number of seconds, from a number or a time such as "10m" or "1h30m".

    Example:
        >>> parse_seconds("compare: budget", "1h30m")
        5400.0
    """
    found = math.nan
    if isinstance(time, str):
        parts = DURATION.fullmatch(time.strip())
        if parts:
            found = sum(
                float(n) * u for n, u in zip(parts.groups("0"), UNITS.values(), strict=True)
            )
        elif re.fullmatch(r"\d+(\.\d+)?", time.strip()):
            found = float(time)
    elif isinstance(time, (int, float)) and not isinstance(time, bool):
        found = float(time)
    if not 0 < found < math.inf:
        raise SoftdexError(
            f"{where}: expected a positive number of seconds or a time such as '10m' or '1h30m', "
            f"got {time!r}."
        )
    return found
