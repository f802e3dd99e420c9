"""A step of a network in float32 against float64 loops: what layers of norms round is allowed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

import softdex as sdx
from composition.logs import held, measured, world
from composition.loops import KEPT, Leaves, Ran, _check_dense, _check_rows, steps_per_epoch
from composition.suite import Case

ROUNDING = 3e-4  # of the largest gradient of the step


def check_network_step(
    ran: Ran, number: int, leaves: Leaves, loss: Tensor, moving: Iterable[str] = ()
) -> None:
    """As `loops.check_step`, with gradients up to a part of the largest one of the step.

    The rate is that of the step; what moves without a gradient is named.
    """
    step, options = ran.steps[number], ran.options
    value = float(loss.detach())
    assert abs(step.loss - value) <= 1e-4 * max(1.0, abs(value)), (number, step.loss, value)
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: _gradient(rows.weight) for name, rows in leaves.tables.items()}
    wanted |= {name: _gradient(parameter) for name, parameter in leaves.dense.items()}
    most = max(float(each.abs().max()) for each in wanted.values() if each.numel())
    moved = {"generator", "total", *(f"model.{n}" for n in moving)}
    found: dict[str, Tensor] = {}
    for i, optimizer in enumerate(step.trainer.optimizers):
        name = leaves.names[optimizer.table]
        found[name] = step.gradients.get(optimizer.table, torch.zeros_like(wanted[name]))
        seen = leaves.of(optimizer.table).seen
        _check_rows(step, i, f"model.{name}.weight", seen, found[name], step.lr, options)
        moved |= {f"model.{name}.weight", *(f"optimizer.{i}.{n}" for n in KEPT)}
    for i, name in enumerate(leaves.dense):
        found[name] = step.dense.get(name, torch.zeros_like(wanted[name]))
        if name in step.dense:
            _check_dense(step, i, f"model.{name}", found[name], step.lr, options["decay"])
        moved |= {f"model.{name}", *(f"dense.{i}.{n}" for n in ("step", "exp_avg", "exp_avg_sq"))}
    for name, gradient in found.items():
        if not gradient.numel():
            continue
        size = max(float(wanted[name].abs().max()), most / 50)
        worst = float((gradient - wanted[name]).abs().max())
        assert worst <= ROUNDING * size, f"gradient of {name} in step {number}: {worst} of {size}"
    for name, tensor in step.before.items():
        assert name in moved or torch.equal(tensor, step.after[name]), f"{name} changed in a step"


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def check_order(ran: Ran, size: int) -> None:
    """The rows of each epoch stand in an order of its own, by the seed."""
    per, seed = steps_per_epoch(ran), ran.options["seed"]
    for epoch in range(ran.options["epochs"]):
        shuffle = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.cat([step.at for step in ran.steps[epoch * per : (epoch + 1) * per]])
        assert torch.equal(order, torch.randperm(size, generator=shuffle))


def check_patience(case: Case) -> None:
    """Training ends two epochs after the best one, which is kept."""
    plain, last = held(world())
    with measured(0.1, 0.3, 0.2, 0.3, 0.9, 0.9):
        model = sdx.fit(case.recipe, plain.log, last, patience=2, **case.options)
    assert model.card.training is not None
    assert [record["metric"] for record in model.card.training["history"]] == [0.1, 0.3, 0.2, 0.3]
    assert model.card.training["best_epoch"] == 2
