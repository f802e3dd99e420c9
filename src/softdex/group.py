"""Group: the processes that train one model together; a single process is a group of one.

Every function but `rank`, `size`, `is_first`, `edges` and `own_rows` is a collective: all ranks
call it equally often and in the same order. Alone, each returns what it was given.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from softdex.errors import SoftdexError, ToldElsewhere
from softdex.ranks import initialised, is_first, is_launched, rank, size, was_restarted

__all__ = [
    "agreeing",
    "all_reduce_max",
    "all_reduce_sum",
    "barrier",
    "broadcast",
    "broadcast_bytes",
    "broadcast_json",
    "broadcast_tensors",
    "edges",
    "exchange_rows",
    "gather_all",
    "gather_rows",
    "is_first",
    "is_launched",
    "joined",
    "own_rows",
    "rank",
    "size",
    "sizes_of",
    "stacked",
    "was_restarted",
]
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by torchrun, for every process
PATIENCE = datetime.timedelta(hours=4)  # while one rank evaluates or writes; a lost rank is noticed
LOST = re.compile("connection (closed|reset|refused)|broken pipe|nccl|timed? ?out", re.IGNORECASE)
ALIGNED = 16  # bytes: where a tensor in a message begins


def edges(rows: int, parts: int | None = None) -> list[int]:
    """Return where the blocks of the ranks begin, and where the last one ends (ranks + 1 numbers).

    Blocks are contiguous, in rank order, and differ by at most one row.
    """
    parts = size() if parts is None else parts
    return [rows * part // parts for part in range(parts + 1)]


def own_rows(rows: int) -> slice:
    """Return the block of rows of this rank."""
    cuts = edges(rows)
    return slice(cuts[rank()], cuts[rank() + 1])


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place; the sum is the same on all, bit for bit."""
    dist = _running()
    if dist is not None:
        moved = _carried(tensor)
        dist.all_reduce(moved)
        if moved is not tensor:
            tensor.copy_(moved)
    return tensor


def all_reduce_max(tensor: Tensor) -> Tensor:
    """Take the maximum over all ranks, in place."""
    dist = _running()
    if dist is not None:
        moved = _carried(tensor)
        dist.all_reduce(moved, dist.ReduceOp.MAX)
        if moved is not tensor:
            tensor.copy_(moved)
    return tensor


def sizes_of(rows: int) -> list[int]:
    """Return a number of every rank, in rank order; the host waits for it."""
    if _running() is None:
        return [rows]
    return [int(n) for n in stacked(torch.tensor(rows)).tolist()]


def stacked(tensor: Tensor) -> Tensor:
    """Stack the tensors of all ranks, of one shape, along a new first dimension."""
    dist = _running()
    if dist is None:
        return tensor.unsqueeze(0)
    moved = _carried(tensor)
    out = moved.new_empty(dist.get_world_size(), *tensor.shape)
    dist.all_gather(list(out), moved)
    return out.to(tensor.device)


def gather_rows(tensor: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Join the rows of all ranks in rank order.

    Args:
        tensor: rows of this rank; types and other dimensions are the same on all ranks.
        sizes: rows per rank, if known; else they are exchanged first.
    """
    if _running() is None:
        return tensor
    sizes = sizes_of(len(tensor)) if sizes is None else sizes
    most = max(sizes)
    if min(sizes) == most:
        return stacked(tensor).flatten(0, 1)
    pad = tensor.new_zeros(most - len(tensor), *tensor.shape[1:])
    parts = stacked(torch.cat([tensor, pad]))  # collectives need one shape
    return torch.cat([part[:rows] for part, rows in zip(parts, sizes, strict=True)])


def gather_all(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors of every rank, in rank order, sent as one message.

    Args:
        tensors: as many on all ranks, with the same types; the first dimensions may differ.
    """
    if _running() is None:
        return [list(tensors)]
    rows = torch.tensor([len(t) for t in tensors])
    counts = stacked(rows)
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    fill = flat[0].new_zeros(ALIGNED)
    parts = [part for t in flat for part in (t, fill[: -len(t) % ALIGNED])]
    whole = gather_rows(torch.cat(parts), [_bytes(tensors, n) for n in counts.tolist()])
    found, at = [], 0
    for lengths in counts.tolist():
        mine = []
        for tensor, length in zip(tensors, lengths, strict=True):
            size = _size(tensor, length)
            piece = whole[at : at + size].view(tensor.dtype)
            mine.append(piece.view(length, *tensor.shape[1:]))
            at += size + -size % ALIGNED
        found.append(mine)
    return found


def exchange_rows(
    tensor: Tensor, counts: Sequence[int], expected: Sequence[int] | None = None
) -> tuple[Tensor, list[int]]:
    """Send rows to ranks, and return the rows that were sent here, in rank order.

    Args:
        tensor: the rows for rank 0, then those for rank 1, and so on.
        counts: rows for each rank.
        expected: rows from each rank, if known; else they are exchanged first.

    Returns:
        the rows, and how many of them came from each rank.
    """
    dist = _running()
    if dist is None:
        return tensor, list(counts)
    moved = _carried(tensor)
    if expected is None:
        asked = torch.tensor(list(counts), device=moved.device)
        came = torch.empty_like(asked)
        dist.all_to_all_single(came, asked)
        expected = came.tolist()
    out = moved.new_empty(sum(expected), *tensor.shape[1:])
    dist.all_to_all_single(out, moved, list(expected), list(counts))
    return out.to(tensor.device), list(expected)


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Copy a tensor of one rank to all ranks, in place."""
    dist = _running()
    if dist is not None:
        moved = _carried(tensor)
        dist.broadcast(moved, source)
        if moved is not tensor:
            tensor.copy_(moved)
    return tensor


def broadcast_bytes(data: bytes | None, source: int = 0) -> bytes:
    """Return the bytes that one rank gives; the others' are not read."""
    if _running() is None:
        return data or b""
    mine = (data or b"") if rank() == source else b""
    length = int(broadcast(torch.tensor(len(mine)), source))
    held = torch.zeros(length, dtype=torch.uint8)
    if mine:
        held.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
    return bytes(broadcast(held, source).numpy()) if length else b""


def broadcast_json(value: Any, source: int = 0) -> Any:
    """Return the plain value (numbers, text, lists, dicts) that one rank gives."""
    if _running() is None:
        return value
    given = json.dumps(value).encode() if rank() == source else None
    return json.loads(broadcast_bytes(given, source))


def broadcast_tensors(tensors: Mapping[str, Tensor] | None, source: int = 0) -> dict[str, Tensor]:
    """Return the named tensors that one rank gives, on every other rank on the CPU."""
    if _running() is None:
        return dict(tensors or {})
    given = dict(tensors or {}) if rank() == source else {}
    about = [[name, str(t.dtype).partition(".")[2], list(t.shape)] for name, t in given.items()]
    found = {}
    for name, dtype, shape in broadcast_json(about, source):
        empty = torch.empty(shape, dtype=getattr(torch, dtype))
        found[name] = broadcast(given.get(name, empty), source)
    return found


def barrier() -> None:
    """Wait until every rank is here."""
    sizes_of(0)


@contextmanager
def agreeing() -> Iterator[None]:
    """Let an error of one rank in here be an error of all; there is nothing collective inside.

    The first rank tells it; the others raise `ToldElsewhere`.
    """
    error = ""
    try:
        yield
    except (SoftdexError, OSError) as found:
        if _running() is None:
            raise
        error = str(found) or type(found).__name__
    wrong = [number for number, length in enumerate(sizes_of(len(error))) if length]
    if wrong:
        text = broadcast_bytes(error.encode(errors="surrogateescape"), wrong[0])
        told = text.decode(errors="surrogateescape")
        told = f"rank {wrong[0]}: {told}" if wrong[0] else told
        raise (SoftdexError if is_first() else ToldElsewhere)(told)


@contextmanager
def joined(device: str = "auto") -> Iterator[None]:
    """Be in the group that torchrun's environment names, while this lasts.

    A process that torchrun did not start stays alone; a group that is there already is used.

    Args:
        device: "auto" or "cuda" communicates by NCCL, with one GPU per rank, where there is one.
    """
    if not is_launched() or initialised() is not None:
        yield
        return
    import torch.distributed as dist

    missing = [name for name in LAUNCHED if name not in os.environ]
    if missing:
        raise SoftdexError(
            f"group: expected torchrun's environment, {', '.join(missing)} is not set. Start with "
            "torchrun --nproc-per-node=N -m softdex fit ..."
        )
    _take_device(device)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise SoftdexError(
            f"group: rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} cannot meet the others"
            f" at {where} ({str(error).splitlines()[0][:100]}). Check that all can reach this "
            "address, and GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME if there are several networks."
        ) from None
    try:
        yield
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise SoftdexError(
            "group: another rank has ended or cannot be reached; its own message says why. The run "
            "resumes from its last checkpoint with --resume, or by itself with torchrun "
            "--max-restarts."
        ) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


# inside ------------------------------------------------------------------------------------------


def _running() -> Any:
    """torch.distributed with a group of several processes, else None."""
    dist = initialised()
    return dist if dist is not None and dist.get_world_size() > 1 else None


def _carried(tensor: Tensor) -> Tensor:
    """The tensor where the group can send it from: NCCL alone reads GPUs only, Gloo alone CPUs."""
    dist = _running()
    backends, tensor = dist.get_backend_config(), tensor.detach().contiguous()
    if "gloo" not in backends and not tensor.is_cuda:
        return tensor.cuda()
    return tensor.cpu() if "nccl" not in backends and tensor.is_cuda else tensor


def _size(tensor: Tensor, rows: int) -> int:
    """Bytes of so many rows of a tensor."""
    return rows * math.prod(tensor.shape[1:]) * tensor.element_size()


def _bytes(tensors: Sequence[Tensor], rows: Sequence[int]) -> int:
    """Bytes of a message of tensors with so many rows each."""
    sizes = (_size(tensor, count) for tensor, count in zip(tensors, rows, strict=True))
    return sum(size + -size % ALIGNED for size in sizes)


def _take_device(device: str) -> None:
    """Give each rank of this machine a GPU of its own."""
    if device == "cpu" or not torch.cuda.is_available():
        return
    local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local >= there:
        raise SoftdexError(
            f"group: expected a GPU per process, got {local + 1} processes or more and {there} "
            "GPUs on this machine. Lower --nproc-per-node, or train with device=cpu."
        )
    torch.cuda.set_device(local)
