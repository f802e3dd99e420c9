"""Stochastic gradient descent: a plain loop whose step costs what the batch costs.

Batches are index ranges on the device, tables are updated row by row, and nothing in a step waits
for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softdex.encode.table import Table
from softdex.index.contract import Index
from softdex.interactions import Interactions
from softdex.objective.softmax import BLOCK_CELLS
from softdex.solve.loop import Probe, Progress, Schedule, pick_device
from softdex.solve.probe import proposal_report
from softdex.solve.rowwise import RowAdam

PROBE_USERS, PROBE_CELLS = 16, 10_000_000


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
    """How fast.

    Attributes:
        batch_size, lr, decay: of each step; `decay` shrinks touched rows by lr * decay.
        seed: decides initial vectors, order and draws.
        precision: "float32", or "bf16" for the matrix products.
    """

    batch_size: int = 2048
    lr: float = 0.01
    decay: float = 0.0
    seed: int = 0
    precision: str = "float32"


class Job(NamedTuple):
    """A composition to be trained by gradient descent."""

    parts: Composition
    settings: Settings
    schedule: Schedule

    @property
    def encoder(self) -> nn.Module:
        """Makes queries."""
        return self.parts.encoder

    @property
    def scorer(self) -> nn.Module:
        """Scores items."""
        return self.parts.scorer

    def trainer(self, log: Interactions) -> Trainer:
        """The run, ready to start."""
        trainer = Trainer(self.parts, self.settings, pick_device(self.schedule.device))
        trainer.read(log)
        return trainer

    def memory(self, log: Interactions) -> int:
        """Tables, their two moments and the copy of the best epoch; the events and their order;
        the scores of a batch with their gradients."""
        modules = nn.ModuleDict({"encoder": self.encoder, "scorer": self.scorer})
        tables = {m for m in modules.modules() if isinstance(m, Table)}
        weights = sum(t.weight.nbytes for t in tables)
        past = sum(b.nbytes for b in modules.buffers()) - weights
        batch = self.settings.batch_size
        draws = self.parts.draws or max(1, min(log.num_items, BLOCK_CELLS // batch))
        weights += 0 if self.parts.draws else weights // 3  # all items: a dense gradient
        rows = batch * 3 + draws
        dim = max(t.dim for t in tables)
        return 6 * weights + past + 24 * len(log) + 4 * (5 * batch * draws + 12 * rows * dim)

    def probe(self, log: Interactions) -> Probe | None:
        """How good the proposal is; a full softmax has none to report on."""
        if self.parts.draws == 0:
            return None
        most = max(1, min(PROBE_USERS, len(log), PROBE_CELLS // log.num_items))
        at = np.random.default_rng(self.settings.seed).choice(len(log), most, replace=False)
        device = pick_device(self.schedule.device)
        users = torch.from_numpy(log.user[at].astype(np.int64)).to(device)
        items = torch.from_numpy(log.item[at].astype(np.int64)).to(device)

        def report() -> dict[str, float]:
            index = self.parts.index.to(device)
            generator = torch.Generator(device).manual_seed(self.settings.seed)
            with torch.no_grad():
                query = self.encoder(users, leave_out=items)
            return proposal_report(index, query, items, self.parts.draws, generator)

        return report


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

    def read(self, log: Interactions) -> None:
        """Take the events of a log to the device."""
        columns = (log.user, log.item) if log.weight is None else (log.user, log.item, log.weight)
        self.events = [torch.from_numpy(column.copy()).to(self.device) for column in columns]

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

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """The rest of an epoch, and its mean loss."""
        for batch in _batches(len(self.events[0]), progress, self.settings, self.device):
            user, item, *weight = (column[batch] for column in self.events)
            self.step(user.long(), item.long(), *weight)
            progress.step += 1
            pause()
        loss = float(self.total) / max(1, progress.step)
        self.total = torch.zeros_like(self.total)
        return loss

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


def _batches(
    size: int, progress: Progress, settings: Settings, device: torch.device
) -> Iterator[Tensor]:
    """Index ranges of this epoch's order, which seed and epoch alone decide."""
    shuffle = torch.Generator().manual_seed(settings.seed * 1_000_003 + progress.epoch)
    order = torch.randperm(size, generator=shuffle).to(device)
    for start in range(progress.step * settings.batch_size, size, settings.batch_size):
        yield order[start : start + settings.batch_size]
