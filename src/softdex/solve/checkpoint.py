"""Checkpoints: everything needed to resume a run, written completely or not at all."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from softdex import group
from softdex.errors import ArtifactError, SoftdexError
from softdex.files import locked, write_atomically
from softdex.messages import say

FILE, LOG = "checkpoint.safetensors", "log.jsonl"


class Found(NamedTuple):
    """A checkpoint: the progress of the run, its state, and the best state so far."""

    progress: dict[str, Any]
    state: dict[str, Tensor]
    best: dict[str, Tensor] | None


class Checkpointer:
    """Keeps the last checkpoint and the log of one run in a folder.

    Of a group the first rank alone reads and writes; the others hold what it read.

    Args:
        folder: holds `checkpoint.safetensors` and `log.jsonl`.
        identity: data and options of the run; only a checkpoint with the same ones is resumed.
        resume: look for a checkpoint at the start.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], *, resume: bool) -> None:
        self.folder, self.identity, self.resume = folder, identity, resume

    def save(
        self, progress: dict[str, Any], state: dict[str, Tensor], best: dict[str, Tensor] | None
    ) -> None:
        """Replace the checkpoint, and write the log up to it."""
        if not group.is_first():
            return
        tensors = {f"now.{n}": t.detach().cpu().contiguous() for n, t in state.items()}
        for name, tensor in (best or {}).items():
            tensors[f"best.{name}"] = tensor.detach().cpu().contiguous()
        about = {"progress": progress, "identity": self.identity}
        blob = safetensors.torch.save(tensors, metadata={"softdex": json.dumps(about)})
        write_atomically(self.folder / FILE, lambda file: file.write(blob))
        lines = "".join(json.dumps(record) + "\n" for record in progress["history"])
        write_atomically(self.folder / LOG, lambda file: file.write(lines.encode()))

    def load(self) -> Found | None:
        """The checkpoint to resume from, or None to start afresh; the same on all ranks."""
        if not self.resume:
            return None
        mine = self._read() if group.is_first() else None
        progress = group.broadcast_json(None if mine is None else mine.progress)
        if progress is None:
            return None
        state = group.broadcast_tensors(None if mine is None else mine.state)
        best = group.broadcast_tensors(None if mine is None else mine.best)
        return Found(progress, state, best or None)

    def _read(self) -> Found | None:
        path = self.folder / FILE
        if not path.exists():
            say(f"resume: no checkpoint in {self.folder}, starting afresh")
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["softdex"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
            raise ArtifactError(
                f"resume: {path} is damaged ({str(error)[:100]}). Start again without --resume."
            ) from None
        if about["identity"] != self.identity:
            changed = [k for k, v in self.identity.items() if about["identity"].get(k) != v]
            raise SoftdexError(
                f"resume: {path} belongs to another run ({', '.join(changed)} differ). Use the "
                "same data and options, or another folder."
            )
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}}
        for name, tensor in tensors.items():
            head, _, rest = name.partition(".")
            parts[head][rest] = tensor
        return Found(about["progress"], parts["now"], parts["best"] or None)

    @contextmanager
    def interruptible(self) -> Iterator[Callable[[], bool]]:
        """Hold the folder, and let Ctrl-C and SIGTERM request a stop after the present step.

        Yields a function that tells whether a stop was requested. A second signal stops at once. A
        SIGTERM is delivered again at the end, to whatever answers it elsewhere.
        """
        with locked(self.folder) if group.is_first() else nullcontext():
            if threading.current_thread() is not threading.main_thread():
                yield lambda: False
                return
            asked: list[int] = []

            def ask(number: int, frame: object) -> None:
                asked.append(number)
                restore()

            def restore() -> None:
                for number, handler in before.items():
                    signal.signal(number, handler)

            before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield lambda: bool(asked)
            finally:
                restore()
                if signal.SIGTERM in asked:
                    signal.raise_signal(signal.SIGTERM)
