"""softdex doctor: what this installation has, and what makes it slow."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
import time

import torch
import typer

from softdex.cli.options import AsJson
from softdex.cli.output import print_json
from softdex.model.card import versions
from softdex.tables import Record

CORE = ("torch", "numpy", "scipy", "pyarrow", "numba", "safetensors", "typer", "rich")


def doctor(as_json: AsJson = False) -> None:
    """Check the installation: versions, hardware, and what makes it slow."""
    record, troubles = examine()
    if as_json:
        print_json({**record, "troubles": troubles})
    else:
        typer.echo(str(record))
        typer.echo(
            "\n" + ("\n".join(f"! {t}" for t in troubles) if troubles else "Everything is fine.")
        )


def examine() -> tuple[Record, list[str]]:
    """Return facts about machine and installation, and troubles with their fix."""
    troubles: list[str] = []
    facts: dict[str, str] = {"softdex": versions()["softdex"], "python": platform.python_version()}
    for name in CORE:
        facts[name] = importlib.metadata.version(name)
    facts["processor"] = f"{platform.machine()}, {os.cpu_count()} cores"
    facts["threads"] = str(torch.get_num_threads())
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    elif torch.version.cuda is None:
        facts["gpu"] = "none: this torch is a CPU build"
        if shutil.which("nvidia-smi"):
            troubles.append(
                "There is an NVIDIA driver but torch is a CPU build: install a CUDA build."
            )
    else:
        facts["gpu"] = "none: torch sees no CUDA device"
        troubles.append("torch has CUDA but sees no device: check the driver with nvidia-smi.")
    if torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        troubles.append("torch uses one thread: unset OMP_NUM_THREADS to use all cores.")
    facts["matrix product"] = f"{_gflops():.0f} GFLOP/s (float32)"
    free = shutil.disk_usage(tempfile.gettempdir()).free
    facts["free for temporary files"] = f"{free / 2**30:.1f} GiB"
    if free < 2**30:
        troubles.append(f"Less than 1 GiB is free in {tempfile.gettempdir()}: set TMPDIR.")
    return Record("softdex doctor", facts), troubles


def _gflops(size: int = 1024) -> float:
    """Measure the speed of a matrix product, in GFLOP per second."""
    a = torch.randn(size, size)
    a @ a
    began = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * size**3 / (time.perf_counter() - began) / 1e9
