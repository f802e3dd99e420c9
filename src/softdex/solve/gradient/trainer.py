"""Stochastic gradient descent: a plain loop whose step costs what the batch costs.

Batches are index ranges on the device, tables are updated row by row, and nothing in a step waits
for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.interactions import Interactions
from softdex.encode.features.tower import Tower
from softdex.encode.table import Table
from softdex.errors import DataError
from softdex.index.contract import Index, copy_into
from softdex.index.imi.index import Imi
from softdex.index.tree.tree import Tree
from softdex.machine import pick_device
from softdex.messages import say
from softdex.objective.contract import Loss
from softdex.objective.softmax import BLOCK_CELLS
from softdex.solve.gradient.feed import TINY, Events, Histories, Reading, Sequences, Windows
from softdex.solve.gradient.probe import proposal_report
from softdex.solve.gradient.replay import Replay
from softdex.solve.gradient.rowwise import RowAdam
from softdex.solve.loop import Probe, Progress, Schedule
from softdex.solve.tree.loss import TreeLoss
from softdex.solve.tree.rectify import Rectify, labels_of
from softdex.solve.tree.relearn import Rounds, relearn

PROBE_USERS, PROBE_CELLS = 16, 10_000_000
TUNED_USERS, RECALL = 500, 0.99  # for the search of the served index


@dataclass(frozen=True)
class Composition:
    """What is trained: an encoder, a scorer, the index that proposes, and a loss over them.

    `query` is what the encoder made of the users, so the loss does not know what a user is.
    `draws` is how many items it draws, for the whole batch if `shared`; unless the index `proposes`
    them, they are what the batch holds, and the index only serves. A loss that is a module may
    remember things: they are saved with the run. A step takes events, or with `targets` > 0 users
    with up to so many of their items, which are both what the encoder reads and what it should
    find: all of them at once, or if `ordered` each from those before it. Of these queries `rows`
    are trained on in a step, 0: all. With `reading` a step takes items with the histories before
    them, which are the query as they are. `rounds` says when the tree is learned anew, `rectify`
    what labels count on it.
    """

    encoder: nn.Module
    scorer: nn.Module
    index: Index
    loss: Loss
    draws: int
    shared: bool = True
    targets: int = 0
    proposes: bool = True
    ordered: bool = False
    rows: int = 0
    reading: Reading | None = None
    rounds: Rounds | None = None
    rectify: Rectify | None = None


@dataclass(frozen=True)
class Settings:
    """How fast.

    Attributes:
        batch_size, lr, decay: of each step; `decay` shrinks touched rows by lr * decay.
        lr_end: what of `lr` is left in the last epoch; it falls evenly from the first on.
        epochs: in which it falls.
        seed: decides initial vectors, order and draws.
        precision: "float32", or "bf16" for the matrix products.
        refit_every: steps after which the index follows the scorer; 0 never.
        per_row: tables keep one second moment a row: a third less memory and traffic.
        smooth: share of the events whose target becomes one of the items most like it.
        by_step: the rate falls with every step and not with every epoch: for few epochs.
        restart: it falls anew in each round of a tree.
    """

    batch_size: int = 2048
    lr: float = 0.01
    decay: float = 0.0
    seed: int = 0
    precision: str = "float32"
    refit_every: int = 0
    lr_end: float = 1.0
    epochs: int = 1
    per_row: bool = False
    smooth: float = 0.0
    by_step: bool = False
    restart: bool = False


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
        if self.settings.refit_every:  # an earlier model may have given other vectors
            trainer.refit()
        return trainer

    def memory(self, log: Interactions) -> int:
        """Tables, their two moments and the copy of the best epoch; the events and their order;
        the scores of a batch with their gradients."""
        modules = nn.ModuleDict({"encoder": self.encoder, "scorer": self.scorer})
        tables = {m for m in modules.modules() if isinstance(m, Table)}
        weights = sum(t.weight.nbytes for t in tables)
        past = sum(b.nbytes for b in modules.buffers()) - weights
        past += 3 * sum(t.nbytes for t in self.parts.index.state().values())
        if self.parts.rounds is not None and isinstance(self.parts.index, Tree):
            past += 16 * log.num_items * self.parts.index.sizes[0]  # what level 1 weighs for items
        batch, targets = min(self.settings.batch_size, len(log)), max(1, self.parts.targets)
        if self.parts.ordered:  # what each layer made of each position, and as many queries
            past += 8 * batch * int(self.encoder.query_bytes)  # type: ignore[arg-type]
            batch, targets = self.parts.rows or batch * targets, 1
        draws = self.parts.draws or max(1, min(log.num_items, BLOCK_CELLS // batch))
        weights += 0 if self.parts.draws else weights // 3  # all items: a dense gradient
        rows = batch * (2 + targets) + draws * (1 if self.parts.shared else batch)
        past += batch * draws * int(getattr(self.scorer, "pair_bytes", 0))
        dim = max(t.dim for t in tables)
        copies = 5 if self.settings.per_row else 6
        return copies * weights + past + 24 * len(log) + 4 * (5 * batch * draws + 6 * rows * dim)

    def probe(self, log: Interactions, trainer: Any) -> Probe | None:
        """How good the proposal is; a full softmax has none to report on."""
        if self.parts.draws == 0 or not self.parts.proposes:
            return None
        most = max(1, min(PROBE_USERS, len(log), PROBE_CELLS // log.num_items))
        at = np.random.default_rng(self.settings.seed).choice(len(log), most, replace=False)
        device = pick_device(self.schedule.device)
        users = log.user[at].astype(np.int64)
        items = torch.from_numpy(log.item[at].astype(np.int64)).to(device)
        history = log.histories.take(users)
        history = history.where(history.ids != log.item[at][history.row_of])

        def report() -> dict[str, float]:
            generator = torch.Generator(device).manual_seed(self.settings.seed)
            with torch.no_grad():
                query = self.encoder(users, history)
            return proposal_report(trainer.index, query, items, self.parts.draws, generator)

        return report


class Trainer:
    """Weights, optimisers, index and generator of one run, as one thing to save and restore."""

    feed: Events | Histories | Sequences | Windows

    def __init__(self, parts: Composition, settings: Settings, device: torch.device) -> None:
        self.parts, self.settings, self.device = parts, settings, device
        self.loss = parts.loss
        self.modules = nn.ModuleDict({"encoder": parts.encoder, "scorer": parts.scorer})
        if isinstance(parts.loss, nn.Module):
            self.modules["loss"] = parts.loss
        self.modules.to(device)
        tables = dict.fromkeys(m for m in self.modules.modules() if isinstance(m, Table))
        self.towers = [m for m in self.modules.modules() if isinstance(m, Tower)]
        self.index = parts.index.to(device)
        self.lr = torch.tensor(settings.lr, device=device)
        self.optimizers = [
            RowAdam(t, self.lr, decay=settings.decay, per_row=settings.per_row) for t in tables
        ]
        dense = list(self.modules.parameters())
        on_gpu = device.type == "cuda"
        self.dense = (
            torch.optim.AdamW(
                dense, self.lr, weight_decay=settings.decay, capturable=on_gpu, fused=on_gpu
            )
            if dense
            else None
        )
        self.generator = torch.Generator(device).manual_seed(settings.seed + 1)
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.replay = Replay(self.generator) if on_gpu else None

    def read(self, log: Interactions) -> None:
        """Take the events of a log to the device."""
        if log.weight is not None and not float(log.weight.sum()) > 0:
            raise DataError("fit: the events weigh 0 together. Give some of them a weight above 0.")
        self.log = log
        most, seed = self.parts.targets, self.settings.seed
        if self.parts.reading is not None:
            self.feed = Windows(log, self.parts.reading, seed, self.device)
        elif most and self.parts.ordered:
            self.feed = Sequences(log, most, self.device)
        elif most:
            self.feed = Histories(log, most, seed, self.device)
        else:
            self.feed = Events(log, self.settings.smooth, self.device)

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
        state |= {f"dense.{n}": t for n, t in self._dense_state().items()}
        state |= {f"index.{n}": t for n, t in self.index.state().items()}
        return state | {"generator": self.generator.get_state(), "total": self.total}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        self.modules.load_state_dict(_under("model.", state), strict=False)
        for i, optimizer in enumerate(self.optimizers):
            optimizer.load(_under(f"optimizer.{i}.", state))
        for name, tensor in self._dense_state().items():
            tensor.copy_(state[f"dense.{name}"])
        kept = {n: t.to(self.device) for n, t in _under("index.", state).items()}
        made: Any = type(self.index)
        copy_into(self.index, made(self.index.scorer, **kept))
        self.generator.set_state(state["generator"].cpu())
        self.total.copy_(state["total"])

    def _dense_state(self) -> dict[str, Tensor]:
        """Moments of the parameters that are no tables, made where there are none yet."""
        if self.dense is None:
            return {}
        for group in self.dense.param_groups:
            for parameter in group["params"]:
                moments = self.dense.state[parameter]
                if not moments:
                    where = parameter.device if parameter.is_cuda else "cpu"
                    moments["step"] = torch.zeros((), device=where)
                    moments["exp_avg"] = torch.zeros_like(parameter)
                    moments["exp_avg_sq"] = torch.zeros_like(parameter)
        kept = enumerate(self.dense.state.values())
        return {f"{i}.{name}": tensor for i, moments in kept for name, tensor in moments.items()}

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """The rest of an epoch, and its mean loss."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return self._run_epoch(progress, pause)

    def _run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        a_epoch = -(-self.feed.size // self.settings.batch_size)
        every, lr_end = self.settings.refit_every, self.settings.lr_end
        if self.parts.reading is not None:
            self._prepare_tree(progress)
        first, falls = self._fall(progress.epoch)
        done = min(1.0, (progress.epoch - first) / max(1, falls - 1))
        self.lr.fill_(self.settings.lr * (1 - (1 - lr_end) * done))
        for at in _batches(self.feed.size, progress, self.settings, self.device):
            if self.settings.by_step:
                done = (progress.epoch - first + progress.step / a_epoch) / falls
                self.lr.fill_(self.settings.lr * (1 - (1 - lr_end) * done))
            whole = len(at) == self.settings.batch_size
            if self.replay is not None and whole:
                self.replay(self.step, at)
            else:
                self.step(at)
            progress.step += 1
            if every and (progress.epoch * a_epoch + progress.step) % every == 0:
                self.refit()
            pause()
        loss = float(self.total) / max(1, progress.step)
        self.total.zero_()
        return loss

    def _fall(self, epoch: int) -> tuple[int, int]:
        """The first of the epochs in which the rate falls, and how many they are."""
        rounds, epochs = self.parts.rounds, self.settings.epochs
        if rounds is None or not self.settings.restart:
            return 0, epochs
        edges = [0, *rounds.starts, epochs]
        first = max(edge for edge in edges[:-1] if edge <= epoch)
        return first, edges[edges.index(first) + 1] - first

    def _prepare_tree(self, progress: Progress) -> None:
        """Learn the tree at the beginning of a round, and the labels on it where they are needed.

        A run that is carried on inside an epoch has the tree already."""
        tree, feed, rounds, rectify = self.index, self.feed, self.parts.rounds, self.parts.rectify
        assert isinstance(tree, Tree)
        assert isinstance(feed, Windows)
        starts = rounds is not None and progress.epoch in rounds.starts
        if rounds is not None and starts and progress.step == 0:
            self.modules.eval()
            progress.notes = relearn(tree, feed, self.optimizers[0], rounds, self.generator)
            self.modules.train()
        if rectify is None or progress.epoch < rectify.after:
            return
        if rectify.kind == "own":
            assert isinstance(self.loss, TreeLoss)
            self.loss = replace(self.loss, own=True)
        elif starts or feed.labels is None:
            feed.labels = labels_of(tree, feed, rectify)
        if self.replay is not None and (starts or progress.epoch == rectify.after):
            self.replay = Replay(self.generator)

    @torch.no_grad()
    def served(self) -> Index | None:
        """The tree, or the multi-index, if that proposed: for the vectors as they are, tuned."""
        if isinstance(self.index, Tree):
            return self.index
        if not isinstance(self.index, Imi) or not self.parts.draws:
            return None
        users = np.flatnonzero(self.log.user_counts)
        users = np.random.default_rng(self.settings.seed).permutation(users)[:TUNED_USERS]
        query = self.parts.encoder(users, self.log.histories.take(users))
        generator = torch.Generator(self.device).manual_seed(self.settings.seed)
        say(f"serving from the multi-index, tuned to a recall of {RECALL} of the exact lists")
        return self.index.refit(generator=generator).tune(query, RECALL)

    def refit(self) -> None:
        """Let the index follow the scorer."""
        copy_into(self.index, self.index.refit(generator=self.generator))

    def step(self, at: Tensor) -> None:
        """One batch: the events or users of these numbers."""
        for tower in self.towers:
            tower.shuffle(self.generator)
        bf16 = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            users, target, weight = self.feed.batch(at, self.generator)
            penalty = None
            if self.parts.ordered:
                query, target, weight = self._queries(target, weight)
            elif self.parts.targets:
                query, penalty = self.parts.encoder.learn(target, self.generator)  # type: ignore[operator]
            elif self.parts.reading is not None:
                query = users
            else:
                query = self.parts.encoder(users, leave_out=target)
            losses = self.loss(self.index, query, target, self.generator).float()
            loss = (losses * weight).sum()
            if penalty is not None:
                loss = loss + penalty.float().mean() / self.feed.mean  # type: ignore[union-attr]
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        if self.dense is not None:
            self.dense.step()
            self.dense.zero_grad()
        self.total += loss.detach()

    def _queries(self, sequence: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A query behind each item but the last (R, D), the item that follows, and its weight."""
        read = torch.where(sequence[:, 1:] >= 0, sequence[:, :-1], -1)  # what something follows on
        query = self.parts.encoder.learn(read, self.generator)  # type: ignore[operator]
        target, weight = sequence[:, 1:].reshape(-1), weight[:, 1:].reshape(-1)
        query = query.reshape(len(target), -1)
        rows = self.parts.rows or self.feed.real(len(sequence))  # type: ignore[union-attr]
        if rows < len(target):
            chance = torch.rand(len(target), generator=self.generator, device=self.device)
            at = torch.where(target >= 0, chance, chance - 1).topk(rows).indices
            query, target, weight = query[at], target[at], weight[at]
        return query, target, weight / weight.sum().clamp(min=TINY)


def _under(head: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(head): t for n, t in state.items() if n.startswith(head)}


def _batches(
    size: int, progress: Progress, settings: Settings, device: torch.device
) -> Iterator[Tensor]:
    """Index ranges of this epoch's order, which seed and epoch alone decide."""
    shuffle = torch.Generator().manual_seed((settings.seed * 1_000_003 + progress.epoch) % 2**63)
    order = torch.randperm(size, generator=shuffle).to(device)
    for start in range(progress.step * settings.batch_size, size, settings.batch_size):
        yield order[start : start + settings.batch_size]
