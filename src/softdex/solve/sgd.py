"""Stochastic gradient descent: a plain loop whose step costs what the batch costs.

Batches are index ranges on the device, tables are updated row by row, and nothing in a step waits
for the device. A run can be stopped anywhere and goes on bit by bit (on a CPU) from its last
checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softdex.encode.table import Table
from softdex.errors import SoftdexError
from softdex.index.contract import Index
from softdex.interactions import Interactions
from softdex.solve.checkpoint import Keeper
from softdex.solve.rowwise import RowAdam
from softdex.tables import say, ticker


@dataclass(frozen=True)
class Composition:
    """What is trained: an encoder, a scorer, the index that proposes, and a loss over them.

    `loss(index, query, target, generator)` gives a loss per row; `query` is what the encoder made
    of the users, so the loss does not know what a user is. `draws` is how many items it draws.
    """

    encoder: nn.Module
    scorer: nn.Module
    index: Index
    loss: Callable[[Index, Any, Tensor, torch.Generator], Tensor]
    draws: int


@dataclass(frozen=True)
class Settings:
    """How long and how fast.

    Attributes:
        epochs: at most so many passes over the events.
        batch_size, lr, decay: of each step; `decay` shrinks touched rows by lr * decay.
        patience: stop after so many epochs without a better metric; 0 never stops early.
        seed: decides initial vectors, order and draws.
        device: "auto" takes a GPU where there is one.
        precision: "float32", or "bf16" for the matrix products.
        checkpoint_seconds: also keep a checkpoint inside long epochs.
    """

    epochs: int = 100
    batch_size: int = 2048
    lr: float = 0.01
    decay: float = 0.0
    patience: int = 5
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"
    checkpoint_seconds: float = 300.0


class Job(NamedTuple):
    """What a recipe that learns returns: the composition, and how to train it."""

    parts: Composition
    settings: Settings


class Outcome(NamedTuple):
    """What a run came to: the epoch whose weights were restored, and a record per epoch."""

    best_epoch: int
    history: list[dict[str, Any]]


@dataclass
class Progress:
    """Where a run stands; everything in it is in the checkpoint."""

    epoch: int = 0
    step: int = 0
    best: float = -float("inf")
    best_epoch: int = -1
    history: list[dict[str, Any]] = field(default_factory=list)


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SoftdexError(f"device {name!r} cannot be used here ({str(error)[:100]}).") from None
    return device


class Trainer:
    """Weights, optimisers and generator of one run, as one thing to save and restore."""

    def __init__(self, parts: Composition, settings: Settings, device: torch.device) -> None:
        self.parts, self.settings, self.device = parts, settings, device
        self.modules = nn.ModuleDict({"encoder": parts.encoder, "scorer": parts.scorer}).to(device)
        tables = dict.fromkeys(m for m in self.modules.modules() if isinstance(m, Table))
        self.index = parts.index.to(device)
        self.optimizers = [RowAdam(t, settings.lr, decay=settings.decay) for t in tables]
        self.generator = torch.Generator(device).manual_seed(settings.seed + 1)
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def state(self) -> dict[str, Tensor]:
        """Weights, moments, generator and the loss summed so far."""
        state: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.modules.state_dict().items():
            if tensor.data_ptr() not in seen:  # a table that two parts share is kept once
                state[f"model.{name}"] = tensor
            seen.add(tensor.data_ptr())
        for i, optimizer in enumerate(self.optimizers):
            state |= {f"optimizer.{i}.{n}": t for n, t in optimizer.state().items()}
        return state | {"generator": self.generator.get_state(), "total": self.total}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        self.modules.load_state_dict(_under("model.", state), strict=False)
        for i, optimizer in enumerate(self.optimizers):
            head = f"optimizer.{i}."
            optimizer.load(
                {n.removeprefix(head): t for n, t in state.items() if n.startswith(head)}
            )
        self.generator.set_state(state["generator"].cpu())
        self.total = state["total"].to(self.device, torch.float64, copy=True)

    def step(self, users: Tensor, items: Tensor, weight: Tensor | None = None) -> None:
        """One batch; events count by their weight."""
        bf16 = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            query = self.parts.encoder(users, leave_out=items)
            losses = self.parts.loss(self.index, query, items, self.generator).float()
            loss = losses.mean() if weight is None else (losses * weight).sum() / weight.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        self.total += loss.detach()


def _under(head: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(head): t for n, t in state.items() if n.startswith(head)}


def train(
    parts: Composition,
    log: Interactions,
    settings: Settings,
    *,
    measure: Callable[[], float] | None = None,
    probe: Callable[[torch.Generator], dict[str, float]] | None = None,
    keeper: Keeper | None = None,
) -> Outcome:
    """Train in place; the weights of the best epoch are restored at the end.

    Args:
        parts: what is trained; its modules end up on the device of the settings.
        log: the training events.
        settings: how long and how fast.
        measure: called after each epoch; higher is better. Without it the last epoch is kept.
        probe: called after each epoch for figures that go into the record.
        keeper: keeps checkpoints; without one nothing is written.
    """
    device = pick_device(settings.device)
    trainer = Trainer(parts, settings, device)
    progress, best = Progress(), None
    if keeper is not None and (found := keeper.load()) is not None:
        progress = Progress(**found.progress)
        trainer.load(found.state)
        best = found.best
        say(f"resuming at epoch {progress.epoch + 1}, step {progress.step}")
    columns = (log.user, log.item) if log.weight is None else (log.user, log.item, log.weight)
    events = [torch.from_numpy(column.copy()).to(device) for column in columns]
    began = time.perf_counter()
    listening = keeper.interruptible() if keeper is not None else nullcontext(lambda: False)
    with ticker(settings.epochs, "training", progress.epoch) as tick, listening as asked_to_stop:
        while progress.epoch < settings.epochs and not _is_over(progress, settings):
            _run_epoch(trainer, progress, best, events, keeper, asked_to_stop)
            record = _close_epoch(trainer, progress, len(log), measure, probe)
            record["seconds"] = round(time.perf_counter() - began, 3)
            if measure is not None and progress.best_epoch == progress.epoch - 1:
                best = {n: t.detach().clone() for n, t in trainer.state().items()}
            if keeper is not None:
                keeper.save(vars(progress), trainer.state(), best)
            tick(record)
            if asked_to_stop():
                raise KeyboardInterrupt
    if best is not None:
        trainer.load(best)
    trainer.modules.eval()
    return Outcome(progress.best_epoch, progress.history)


def _is_over(progress: Progress, settings: Settings) -> bool:
    waited = progress.epoch - 1 - progress.best_epoch
    return settings.patience > 0 and progress.epoch > 0 and waited >= settings.patience


def _run_epoch(
    trainer: Trainer,
    progress: Progress,
    best: dict[str, Tensor] | None,
    events: list[Tensor],
    keeper: Keeper | None,
    asked_to_stop: Callable[[], bool],
) -> None:
    """The rest of an epoch, from `progress.step` on."""
    trainer.modules.train()
    settings = trainer.settings
    saved = time.monotonic()
    for batch in _batches(len(events[0]), progress, settings, trainer.device):
        user, item, *weight = (column[batch] for column in events)
        trainer.step(user.long(), item.long(), *weight)
        progress.step += 1
        stop = asked_to_stop()
        if keeper is not None and (stop or time.monotonic() - saved > settings.checkpoint_seconds):
            keeper.save(vars(progress), trainer.state(), best)
            saved = time.monotonic()
        if stop:
            raise KeyboardInterrupt


def _batches(
    size: int, progress: Progress, settings: Settings, device: torch.device
) -> Iterator[Tensor]:
    """Index ranges of this epoch's order, which seed and epoch alone decide."""
    shuffle = torch.Generator().manual_seed(settings.seed * 1_000_003 + progress.epoch)
    order = torch.randperm(size, generator=shuffle).to(device)
    for start in range(progress.step * settings.batch_size, size, settings.batch_size):
        yield order[start : start + settings.batch_size]


def _close_epoch(
    trainer: Trainer,
    progress: Progress,
    size: int,
    measure: Callable[[], float] | None,
    probe: Callable[[torch.Generator], dict[str, float]] | None,
) -> dict[str, Any]:
    """Measure, remember, and move on to the next epoch."""
    trainer.modules.eval()
    loss = float(trainer.total) / max(1, progress.step)
    if loss != loss:
        raise SoftdexError(
            f"training: the loss is not a number in epoch {progress.epoch + 1}. Lower lr."
        )
    record: dict[str, Any] = {"epoch": progress.epoch + 1, "loss": round(loss, 6)}
    metric = measure() if measure is not None else float(progress.epoch)
    if measure is not None:
        record["metric"] = round(metric, 6)
    if probe is not None:
        record |= probe(torch.Generator(trainer.device).manual_seed(trainer.settings.seed))
    if metric > progress.best:
        progress.best, progress.best_epoch = metric, progress.epoch
    progress.history.append(record)
    progress.epoch, progress.step = progress.epoch + 1, 0
    trainer.total = torch.zeros_like(trainer.total)
    return record
