"""Record every step of a training: what it drew, its loss, its gradients, the tables around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from softdex.encode.table import Table, Touched
from softdex.solve.gradient.trainer import Trainer


@dataclass
class Step:
    """One step, in float64.

    Attributes:
        trainer: the run; its tables are those of the end of the training.
        at: rows of the feed.
        before, after: the state of the run around the step, by the names of `Trainer.state`.
        generator: as it was before the step, to repeat its random numbers.
        tables: by their names; serving may later put others in their place.
        parameters: names of what autograd trains.
        draws: the draws of the index, in their order.
        gradients: the gradient of each table that was looked up (rows, D).
        dense: the gradient of each dense parameter by its name.
        loss: the sum over the batch.
        lr: learning rate.
    """

    trainer: Trainer
    at: Tensor
    before: dict[str, Tensor]
    generator: torch.Generator
    tables: dict[str, Table] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    draws: list[Any] = field(default_factory=list)
    gradients: dict[Table, Tensor] = field(default_factory=dict)
    dense: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    loss: float = float("nan")
    lr: float = float("nan")


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """Record the steps of every training inside."""
    steps: list[Step] = []
    plain, touched = Trainer.step, Table.touched

    def step(self: Trainer, at: Tensor) -> None:
        copy = torch.Generator(self.device)
        copy.set_state(self.generator.get_state())
        now = Step(self, at.clone(), _copied(self.state()), copy, lr=float(self.lr))
        named = self.modules.named_modules()
        now.tables = {name: module for name, module in named if isinstance(module, Table)}
        now.parameters = [name for name, _ in self.modules.named_parameters()]
        steps.append(now)
        total = float(self.total)
        sample = type(self.index).sample

        def drawn(index: Any, *args: Any, **kwargs: Any) -> Any:
            found = sample(index, *args, **kwargs)
            now.draws.append(found)
            return found

        with patch.object(type(self.index), "sample", drawn), _dense_gradients(self, now):
            plain(self, at)
        now.after, now.loss = _copied(self.state()), float(self.total) - total

    def look(self: Table) -> list[Touched]:
        found = touched(self)
        if found and steps:
            steps[-1].gradients[self] = _summed(self, found)
        return found

    with patch.object(Trainer, "step", step), patch.object(Table, "touched", look):
        yield steps


@contextmanager
def _dense_gradients(trainer: Trainer, now: Step) -> Iterator[None]:
    plain = trainer.dense.step

    def step() -> None:
        for name, parameter in trainer.modules.named_parameters():
            if parameter.grad is not None:
                now.dense[name] = parameter.grad.detach().double().clone()
        plain()

    with patch.object(trainer.dense, "step", step):
        yield


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.double() if t.is_floating_point() else t.clone() for n, t in state.items()}


def _summed(table: Table, found: list[Touched]) -> Tensor:
    """The gradient of a table, its lookups added one by one."""
    total = torch.zeros_like(table.weight, dtype=torch.float64)
    for touched in found:
        grad, own = touched.grad.double(), table.weight.double()
        if touched.ids is None:
            total += grad
            continue
        source, weight, pull = (
            None if t is None else t.tolist()
            for t in (touched.source, touched.weight, touched.pull)
        )
        for m, row in enumerate(touched.ids.tolist()):
            if row >= 0:
                each = 1.0 if weight is None else weight[m]
                total[row] += each * grad[m if source is None else source[m]]
                if pull is not None:
                    total[row] += pull[m] * own[row]
    return total
