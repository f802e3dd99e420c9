"""Gradient descent: a plain loop whose step costs what the batch costs.

Batches are index ranges on the device, tables are updated row by row, and nothing in a step waits
for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softdex import group
from softdex.data.interactions import Interactions
from softdex.encode.blocks import sent_to_first
from softdex.encode.features.tower import towers_in
from softdex.encode.table import Table, tables_in
from softdex.errors import DataError
from softdex.index.contract import Index, copy_into
from softdex.machine import pick_device
from softdex.messages import say
from softdex.objective.softmax import SCORES_AT_A_TIME
from softdex.share import share_of, sharing
from softdex.solve.gradient.composition import Composition
from softdex.solve.gradient.dense import DenseAdam
from softdex.solve.gradient.exchange import send_to_owners, sum_gradients
from softdex.solve.gradient.probe import proposal_report
from softdex.solve.gradient.replay import Replay
from softdex.solve.gradient.rowwise import RowAdam
from softdex.solve.gradient.training import Training
from softdex.solve.loop import Probe, Progress, Schedule

CHECKPOINT_SECONDS = 300.0
PROBE_USERS, PROBE_CELLS = 16, 10_000_000
TUNED_USERS = 500  # for the search of the served index


class Descent(NamedTuple):
    """A composition to be trained by gradient descent: the job that a recipe returns."""

    parts: Composition
    training: Training
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    @property
    def encoder(self) -> nn.Module:
        """Makes queries."""
        found: nn.Module = self.parts.encoder
        return found

    @property
    def scorer(self) -> nn.Module:
        """Scores items."""
        found: nn.Module = self.parts.scorer
        return found

    @property
    def schedule(self) -> Schedule:
        """How long the run is, and where it happens."""
        training, epochs = self.training, self.training.epochs or 0
        return Schedule(epochs, training.patience, training.device, self.checkpoint_seconds)

    def trainer(self, log: Interactions) -> Trainer:
        """The run, ready to start."""
        if log.weight is not None and not float(log.weight.sum()) > 0:
            raise DataError("fit: the events weigh 0 together. Give some of them a weight above 0.")
        trainer = Trainer(self.parts, self.training, pick_device(self.training.device))
        trainer.log = log
        if self.parts.negatives.refit_every:  # an earlier model may have given other vectors
            trainer.refit()
        return trainer

    @property
    def spreads(self) -> bool:
        """Whether the tables can be spread over ranks: no step reads all rows."""
        against = self.parts.negatives
        reads_all = against.draws == 0 or getattr(against.index, "last", "") == "exact"
        return not reads_all and self.parts.prepare is None

    def memory(self, log: Interactions, ranks: int = 1) -> int:
        """Bytes: tables, their two moments and the copy of the best epoch; the events and their
        order; the scores of a batch with their gradients.

        Args:
            log: the training events.
            ranks: over which tables are spread; they are gathered to be measured.
        """
        feed, negatives = self.parts.feed, self.parts.negatives
        modules = nn.ModuleDict({"encoder": self.encoder, "scorer": self.scorer})
        tables = tables_in(modules)
        weights = sum(t.weight.nbytes for t in tables)
        past = sum(b.nbytes for b in modules.buffers()) - weights
        past += 3 * sum(t.nbytes for t in negatives.index.state().values())
        if self.parts.prepare is not None:
            past += self.parts.prepare.memory(log)
        size = min(self.training.batch_size or len(log), len(log))
        batch, targets, held = feed.extent(size, self.encoder)
        draws = negatives.draws or max(1, min(log.num_items, SCORES_AT_A_TIME // batch))
        weights += 0 if negatives.draws else weights // 3  # all items: a dense gradient
        rows, cells = batch * (2 + targets), 5  # vectors, and numbers per score
        product = getattr(self.scorer, "is_product", False) and not negatives.index.searches
        if negatives.shared:
            rows += draws
        elif product and isinstance(self.parts.scorer.items, Table):
            cells = 25  # with ids and their order; vectors of own draws are not copied
        else:  # nor here, but an index that searches needs as much to draw
            rows += batch * draws
        past += held + batch * draws * int(self.parts.scorer.pair_bytes)
        dim = max(t.dim for t in tables)
        copies = 5 if self.training.per_row else 6
        weights = copies * weights // ranks + (weights if ranks > 1 else 0)
        return weights + past + 24 * len(log) + 4 * (cells * batch * draws + 6 * rows * dim)

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """How good the proposal is; a full softmax has none to report on."""
        draws = self.parts.negatives.draws
        if draws == 0 or not self.parts.negatives.proposes:
            return None
        most = max(1, min(PROBE_USERS, len(log), PROBE_CELLS // log.num_items))
        at = np.random.default_rng(self.training.seed).choice(len(log), most, replace=False)
        device = pick_device(self.training.device)
        users = log.user[at].astype(np.int64)
        items = torch.from_numpy(log.item[at].astype(np.int64)).to(device)
        history = log.histories.take(users)
        history = history.where(history.ids != log.item[at][history.row_of])

        def report() -> dict[str, float]:
            generator = torch.Generator(device).manual_seed(self.training.seed)
            with torch.no_grad():
                query = self.encoder(users, history)
            return proposal_report(trainer.index, query, items, draws, generator)

        return report


class Trainer:
    """Weights, optimisers, index and generator of one run, as one thing to save and restore."""

    log: Interactions
    unit = "epoch"

    def __init__(self, parts: Composition, training: Training, device: torch.device) -> None:
        self.parts, self.training, self.device = parts, training, device
        assert training.epochs is not None
        assert training.batch_size is not None
        assert training.lr is not None
        self.epochs, self.batch_size, self.rate = training.epochs, training.batch_size, training.lr
        self.feed, self.negatives, self.loss = parts.feed, parts.negatives, parts.negatives.loss
        self.feed.to(device)
        self.modules = nn.ModuleDict({"encoder": parts.encoder, "scorer": parts.scorer})
        if isinstance(self.loss, nn.Module):
            self.modules["loss"] = self.loss
        self.modules.to(device)
        tables, self.towers = tables_in(self.modules), towers_in(self.modules)
        self.index = self.negatives.index.to(device)
        self.lr = torch.tensor(self.rate, device=device)
        self.optimizers = [
            RowAdam(t, self.lr, decay=training.decay, per_row=training.per_row) for t in tables
        ]
        self.dense = DenseAdam(list(self.modules.parameters()), self.lr, training.decay)
        self.generator = torch.Generator(device).manual_seed(training.seed + 1)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.tables = tables
        alone = group.size() == 1  # what is captured cannot wait for other ranks
        self.replay = Replay(self.generator) if device.type == "cuda" and alone else None

    def spread(self) -> None:
        """Let each rank hold and update a block of the rows of every table."""
        for optimizer in self.optimizers:
            optimizer.table.spread()
            optimizer.spread()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let every rank hold the vectors of all items and users, while this lasts."""
        spread = [table for table in self.tables if table.edges is not None]
        for table in spread:
            table.gather()
        try:
            yield
        finally:
            for table in spread:
                table.spread()

    def gather(self) -> None:
        """Let every rank hold all vectors from here on; the training is over."""
        for table in self.tables:
            if table.edges is not None:
                table.gather()

    def whole(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A state with the blocks of all ranks joined, on the first rank."""
        names = self._spread_names()
        return {n: sent_to_first(t) if n in names else t for n, t in state.items()}

    def own(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A state of one process with the blocks of this rank."""
        names = self._spread_names()
        return {n: t[group.own_rows(len(t))] if n in names else t for n, t in state.items()}

    def _spread_names(self) -> set[str]:
        """The names of the tensors of which each rank holds a block."""
        modules = self.modules.named_modules(remove_duplicate=False)
        names = {
            f"model.{name}.weight"
            for name, module in modules
            if isinstance(module, Table) and module.edges is not None
        }
        for i, optimizer in enumerate(self.optimizers):
            if optimizer.table.edges is not None:
                names |= {f"optimizer.{i}.{n}" for n in optimizer.state()}
        return names

    def state(self) -> dict[str, Tensor]:
        """Weights, moments, index, generator and the loss summed so far."""
        state: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.modules.state_dict().items():
            if tensor.data_ptr() not in seen:  # a table that two parts share is kept once
                state[f"model.{name}"] = tensor
            seen.add(tensor.data_ptr())
        for i, optimizer in enumerate(self.optimizers):
            state |= {f"optimizer.{i}.{n}": t for n, t in optimizer.state().items()}
        state |= {f"dense.{n}": t for n, t in self.dense.state().items()}
        state |= {f"index.{n}": t for n, t in self.index.state().items()}
        return state | {"generator": self.generator.get_state(), "total": self.total}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        self.modules.load_state_dict(_under("model.", state), strict=False)
        for i, optimizer in enumerate(self.optimizers):
            optimizer.load(_under(f"optimizer.{i}.", state))
        for name, tensor in self.dense.state().items():
            tensor.copy_(state[f"dense.{name}"])
        kept = {n: t.to(self.device) for n, t in _under("index.", state).items()}
        made: Any = type(self.index)
        copy_into(self.index, made(self.index.scorer, **kept))
        self.generator.set_state(state["generator"].cpu())
        self.total.copy_(state["total"])

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """The rest of an epoch, and its mean loss."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return self._run_epoch(progress, pause)

    def _run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        size, steps, every = self.batch_size, self.steps, self.negatives.refit_every
        if self.parts.prepare is not None:
            self.parts.prepare(self, progress)
        self._set_rate(progress, 0.0)
        for at in self._batches(progress):
            if self.parts.decline.by_step:
                self._set_rate(progress, progress.step / steps)
            if self.replay is not None and len(at) == size:
                self.replay(self.step, at)
            else:
                self.step(at)
            progress.step += 1
            if every and (progress.epoch * steps + progress.step) % every == 0:
                self.refit()
            pause()
        loss = float(self.total) / max(1, progress.step)
        self.total.zero_()
        return loss

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.feed.size // self.batch_size)

    def so_far(self, progress: Progress) -> tuple[float, float | None]:
        """The part of the present epoch that is done, and its mean loss until now."""
        done = progress.step
        return done / self.steps, float(self.total) / done if done else None

    def _set_rate(self, progress: Progress, part: float) -> None:
        done = self.parts.decline.done(progress.epoch, part, self.epochs)
        self.lr.fill_(self.rate * (1 - (1 - self.training.lr_end) * done))

    def _batches(self, progress: Progress) -> Iterator[Tensor]:
        """Index ranges of this epoch's order, which seed and epoch alone decide."""
        seed, size = self.training.seed, self.feed.size
        shuffle = torch.Generator().manual_seed((seed * 1_000_003 + progress.epoch) % 2**63)
        order = torch.randperm(size, generator=shuffle).to(self.device)
        for start in range(progress.step * self.batch_size, size, self.batch_size):
            yield order[start : start + self.batch_size]

    @property
    def updates_all(self) -> bool:
        """Whether every item is trained; in-batch training leaves out those without events."""
        return self.negatives.proposes

    def searched(self) -> Index | None:
        """The index to measure by: one that serves as it is. None: every item is scored."""
        as_it_is = self.index.searches and self.negatives.recall is None
        return self.index if as_it_is else None

    @torch.no_grad()
    def served(self) -> Index | None:
        """The index of the trained model, tuned; None: every item is scored."""
        recall = self.negatives.recall
        if not self.index.searches or not self.negatives.draws:
            return None
        if recall is None:
            return self.index
        users = np.flatnonzero(self.log.user_counts)
        users = np.random.default_rng(self.training.seed).permutation(users)[:TUNED_USERS]
        query = self.parts.encoder(users, self.log.histories.take(users))
        generator = torch.Generator(self.device).manual_seed(self.training.seed)
        say(f"serving from the index, tuned to a recall of {recall} of the exact lists")
        cold = (~self.index.alive).nonzero()[:, 0]  # no negatives, but served
        index = self.index.insert(cold) if len(cold) else self.index
        fitted: Any = index.refit(generator=generator)
        found: Index = fitted.tune(query, recall)
        return found

    def refit(self) -> None:
        """Refit the index to the scorer's present vectors."""
        with self.gathered():
            copy_into(self.index, self.index.refit(generator=self.generator))

    def step(self, at: Tensor) -> None:
        """One batch: the rows of the feed with these numbers, of which each rank computes some."""
        share = share_of(len(at))
        with sharing(share):
            loss = self._backward(at)
        if share is None:
            for table in self.tables:
                if table.edges is not None:
                    send_to_owners(table, everyone=True)
        else:
            loss = sum_gradients(self.tables, self.dense.parameters, loss)
        for optimizer in self.optimizers:
            optimizer.step()
        self.dense.step()
        self.dense.zero_grad()
        self.total += loss

    def _backward(self, at: Tensor) -> Tensor:
        """The loss of a batch; its gradients are left where the optimisers find them."""
        for tower in self.towers:
            tower.shuffle(self.generator)
        bf16 = self.training.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            asked = self.feed.ask(self.parts.encoder, at, self.generator)
            query, target, weight, penalty, users = asked
            more = {"users": users} if getattr(self.loss, "reads_users", False) else {}
            losses = self.loss(self.index, query, target, self.generator, **more).float()
            loss = (losses * weight).sum()
            if penalty is not None:
                loss = loss + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def _under(head: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(head): t for n, t in state.items() if n.startswith(head)}
