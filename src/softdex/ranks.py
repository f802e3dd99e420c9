"""Ranks: the number of this process in its group; asks nothing of torch until it is loaded."""

from __future__ import annotations

import os
import sys
from typing import Any


def initialised() -> Any:
    """torch.distributed with a process group, else None."""
    dist = sys.modules.get("torch.distributed")
    there = dist is not None and dist.is_available() and dist.is_initialized()
    return dist if there else None


def rank() -> int:
    """Return the number of this process in its group, from 0."""
    dist = initialised()
    return 0 if dist is None else int(dist.get_rank())


def size() -> int:
    """Return the number of processes in the group; 1 outside a group."""
    dist = initialised()
    return 1 if dist is None else int(dist.get_world_size())


def is_first() -> bool:
    """Whether this process is the one that speaks and writes files."""
    return rank() == 0


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def was_restarted() -> bool:
    """Whether torchrun started this process again after a rank had failed."""
    return is_launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
