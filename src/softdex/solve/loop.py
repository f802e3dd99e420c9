"""The training loop: epochs, early stop, the best moment kept, checkpoints, Ctrl-C.

A trainer decides what an epoch does: a pass of gradient steps, or a sweep of closed-form steps. A
run can be stopped anywhere and resumes from its last checkpoint, on a CPU bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from softdex import group
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.index.contract import Index
from softdex.machine import within_memory
from softdex.messages import say
from softdex.progress import Meter, training
from softdex.solve.checkpoint import Checkpointer

Measure = Callable[[], float]
Probe = Callable[[], dict[str, float]]
ASKED = 16  # steps between two moments at which ranks agree to stop or to write a checkpoint
CLOCKS = ("seconds", "trained")  # of a record: all seconds since the call, those of training alone


@dataclass
class Progress:
    """The position of a run; all of it is in the checkpoint."""

    epoch: int = 0
    step: int = 0
    best: float = -float("inf")
    best_epoch: int = -1
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)  # for the record of this epoch


class Trainer(Protocol):
    """Weights and optimiser of one run, as one thing to train, save and restore."""

    @property
    def unit(self) -> str:
        """What an epoch is called where progress is shown."""
        ...

    @property
    def updates_all(self) -> bool:
        """Whether every item is trained; in-batch training leaves out those without events."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All tensors that the run needs to go on."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a saved state."""
        ...

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """The rest of an epoch from `progress.step` on, and its mean loss.

        Calls `pause` after every step, when state and progress fit together.
        """
        ...

    def so_far(self, progress: Progress) -> tuple[float, float | None]:
        """The part of the present epoch that is done, and its mean loss until now if known."""
        ...

    def searched(self) -> Index | None:
        """The index to measure by during training; None: every item is scored."""
        ...

    def served(self) -> Index | None:
        """The index that serves the trained model; None: every item is scored."""
        ...


@runtime_checkable
class Job(Protocol):
    """What a recipe that trains returns: the parts of the model, and how to train them."""

    @property
    def encoder(self) -> nn.Module:
        """Makes queries."""
        ...

    @property
    def scorer(self) -> nn.Module:
        """Scores items."""
        ...

    @property
    def schedule(self) -> Schedule:
        """How long the run is, and where it happens."""
        ...

    def trainer(self, log: Interactions) -> Trainer:
        """The run, ready to start; the parts are moved to its device."""
        ...

    def memory(self, log: Interactions) -> int:
        """The estimated peak memory of the training in bytes."""
        ...

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """A function that reports figures after each epoch, or None."""
        ...


class Schedule(NamedTuple):
    """How long a run is, and where it happens.

    Attributes:
        epochs: maximum number of epochs.
        patience: epochs without a better metric before the run stops; 0 never stops early.
        device: "auto" takes a GPU where there is one.
        checkpoint_seconds: interval of checkpoints inside long epochs.
    """

    epochs: int = 100
    patience: int = 5
    device: str = "auto"
    checkpoint_seconds: float = 300.0


class Outcome(NamedTuple):
    """The result of a run: the epoch whose weights were restored, a record per epoch, and whether
    the time was over first."""

    best_epoch: int
    history: list[dict[str, Any]]
    cut: bool


class _TimeIsOver(Exception):
    """Ends an epoch that would take longer than a run may."""


class Run:
    """One training, in parts: call `advance` any number of times, then `finish`."""

    @within_memory("training")
    def __init__(
        self,
        job: Job,
        log: Interactions,
        *,
        name: str = "training",
        measure: Measure | None = None,
        checkpointer: Checkpointer | None = None,
        quiet: bool = False,
        spread: bool = False,
    ) -> None:
        self.schedule, self.measure, self.checkpointer = job.schedule, measure, checkpointer
        self.name, self.quiet = name, quiet
        self.until, self.cut = math.inf, False
        self.trainer = job.trainer(log)
        self.parts = nn.ModuleList([job.encoder, job.scorer])
        self.probe = job.probe(log, self.trainer)
        self.progress, self.best = Progress(), None
        self.steps = 0
        if group.size() > 1:  # what is not the same everywhere, such as sums on a GPU, becomes so
            self.trainer.load(group.broadcast_tensors(self.trainer.state()))
        if checkpointer is not None and (found := checkpointer.load()) is not None:
            self.progress = Progress(**found.progress)
            self.trainer.load(found.state)
            self.best = found.best
            say(f"resuming at epoch {self.progress.epoch + 1}, step {self.progress.step}")
        self.is_spread = spread and group.size() > 1
        if self.is_spread:
            self._spread()

    def is_over(self) -> bool:
        """Whether the epochs or the patience are used up."""
        progress, schedule = self.progress, self.schedule
        waited = progress.epoch - 1 - progress.best_epoch
        out_of_patience = 0 < schedule.patience <= waited
        return out_of_patience or progress.epoch >= schedule.epochs

    def advance(self, epochs: int, *, until: float = math.inf) -> None:
        """Train up to `epochs` more epochs, and not beyond the moment `until` of the monotonic
        clock: an epoch that it ends counts only in the checkpoint, from where it can go on."""
        last, self.until = self.progress.epoch + epochs, until
        began = time.perf_counter()
        keeps = self.checkpointer
        listening = keeps.interruptible() if keeps is not None else nullcontext(lambda: False)
        done, total, unit = self.progress.epoch, self.schedule.epochs, self.trainer.unit
        with (
            training(self.name, unit, total, done, quiet=self.quiet) as meter,
            listening as asked_to_stop,
        ):
            while self.progress.epoch < last and not self.is_over():
                try:
                    record = self._epoch(asked_to_stop, meter)
                except _TimeIsOver:
                    self.cut = True
                    self._keep()
                    return
                record["seconds"] = round(time.perf_counter() - began, 3)
                self._keep()
                meter.epoch(record)
                more = self.progress.epoch < last and not self.is_over()
                over = more and time.monotonic() >= self.until
                stop, over = self._agree(asked_to_stop(), over, always=True)
                if stop:
                    raise KeyboardInterrupt
                if over:
                    self.cut = True
                    return

    def finish(self) -> Outcome:
        """Restore the best epoch, in evaluation mode."""
        if self.best is not None:
            self.trainer.load(self.best)
        if self.is_spread:
            trainer: Any = self.trainer
            trainer.gather()
        self.parts.eval()
        return Outcome(self.progress.best_epoch, self.progress.history, self.cut)

    def _agree(self, *wishes: bool, always: bool = False) -> list[bool]:
        """What some rank wishes, every rank does; they ask each other at every 16th step."""
        if group.size() == 1:
            return list(wishes)
        if self.steps % ASKED and not always:
            return [False] * len(wishes)
        return [bool(wish) for wish in group.all_reduce_max(torch.tensor(wishes).int()).tolist()]

    def _spread(self) -> None:
        """Let each rank hold a part of what is trained."""
        trainer: Any = self.trainer
        trainer.spread()
        self.best = None if self.best is None else trainer.own(self.best)

    def _keep(self) -> None:
        if self.checkpointer is None:
            return
        state, best = self.trainer.state(), self.best
        if self.is_spread:
            trainer: Any = self.trainer
            state, best = trainer.whole(state), None if best is None else trainer.whole(best)
        self.checkpointer.save(vars(self.progress), state, best)

    @within_memory("training")
    def _epoch(self, asked_to_stop: Callable[[], bool], meter: Meter) -> dict[str, Any]:
        """Train one epoch, measure it, and keep the best."""
        saved = time.monotonic()

        def pause() -> None:
            nonlocal saved
            self.steps += 1
            now = time.monotonic()
            due = now - saved > self.schedule.checkpoint_seconds
            stop, due, over = self._agree(asked_to_stop(), due, now >= self.until)
            if stop or due:
                self._keep()
                saved = time.monotonic()
            if stop:
                raise KeyboardInterrupt
            if over:
                raise _TimeIsOver
            if meter.is_due():
                part, loss = self.trainer.so_far(progress)
                meter.at(progress.epoch + part, loss)

        progress = self.progress
        self.parts.train()
        began = time.perf_counter()
        loss = self.trainer.run_epoch(progress, pause)
        trained = time.perf_counter() - began
        self.parts.eval()
        if loss != loss:
            raise SoftdexError(
                f"training: the loss is not a number in epoch {progress.epoch + 1}. Choose less "
                "extreme options (a lower lr, if there is one)."
            )
        record: dict[str, Any] = {"epoch": progress.epoch + 1, "loss": round(loss, 6)}
        trainer: Any = self.trainer
        with trainer.gathered() if self.is_spread else nullcontext():
            metric = float(progress.epoch) if self.measure is None else self.measure()
            if self.measure is not None:
                record["metric"] = round(metric, 6)
            if self.probe is not None:
                record |= self.probe()
        better = metric > progress.best
        if better:
            progress.best, progress.best_epoch = metric, progress.epoch
        record |= progress.notes
        before = progress.history[-1].get("trained", 0.0) if progress.history else 0.0
        record["trained"] = round(before + trained, 4)
        progress.history.append(record)
        progress.epoch, progress.step, progress.notes = progress.epoch + 1, 0, {}
        if better and self.measure is not None:
            self.best = {n: t.detach().clone() for n, t in self.trainer.state().items()}
        return record


def train(
    job: Job,
    log: Interactions,
    *,
    name: str = "training",
    measure: Measure | None = None,
    checkpointer: Checkpointer | None = None,
) -> Outcome:
    """Train a job in place; the weights of the best epoch are restored at the end.

    Args:
        job: what is trained; its parts are moved to the device of the schedule.
        log: the training events.
        name: of what is trained, for the messages.
        measure: called after each epoch; higher is better. None keeps the last epoch.
        checkpointer: writes checkpoints; None writes nothing.
    """
    run = Run(job, log, name=name, measure=measure, checkpointer=checkpointer)
    run.advance(job.schedule.epochs)
    return run.finish()
