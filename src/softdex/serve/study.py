"""Study: what is measured of a served model for the page; computed once, in the background.

To add a part: a function of a `Study` that returns plain values, and a handler in a row of the
table of endpoints that returns
`await studied(app, served, (name, *arguments), lambda: function(served.study, *arguments))`.
Until the values are there the answer is 202, and the page asks again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from softdex.data.holdout import Holdout
from softdex.data.ragged import Ragged, empty
from softdex.evaluate.result import Result
from softdex.index.contract import MAX_MEMORY, Filter
from softdex.messages import volume
from softdex.model.answer import search
from softdex.model.asking import batch_size, blocks
from softdex.model.measure import evaluated
from softdex.model.retriever import Retriever
from softdex.plan import CONFIG, read_config, tested
from softdex.serve.facts import facts
from softdex.serve.problems import Problem, overloaded
from softdex.serve.words import encode
from softdex.tables import Rows

KEPT = 256  # parts of a model, at most
WAITING = 32  # parts that may wait
USERS = 10_000  # users that are measured, at most
CUTOFFS = (10, 20, 50, 100)
METRIC, K = "ndcg", 20
T = TypeVar("T")


class Listed(NamedTuple):
    """Lists of users, of whom one may have several.

    Attributes:
        users: rows of the model (B,).
        history: item rows that each list was made from, oldest first.
        targets: held-out item rows of each, none where they are not known.
        lists: item rows (B, K), -1 past the end of a list.
    """

    users: np.ndarray
    history: Ragged
    targets: Ragged
    lists: np.ndarray


class Tested(NamedTuple):
    """What is held out of a user.

    Attributes:
        ask: fields of the request whose list is measured, beside the user.
        targets: item rows.
    """

    ask: dict[str, Any]
    targets: np.ndarray


@final
class Study:
    """What is measured of a model. Its properties are computed in the background thread only.

    Args:
        model: the model.
        path: its file or run folder, or None.
        given: what was held out of its training; None: as the config of its run folder says.
    """

    def __init__(self, model: Retriever, path: Path | None, given: Holdout | None) -> None:
        self.model, self._given = model, given
        folder = None if path is None else path if path.is_dir() else path.parent
        self.folder = folder if folder is not None and (folder / CONFIG).is_file() else None
        self._parts: dict[Hashable, Future[bytes]] = {}
        self._kept: dict[str, Any] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._against: dict[int, Rows] = {}

    @property
    def has_holdout(self) -> bool:
        """Whether it is known what was held out of the training."""
        return self._given is not None or self.folder is not None

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the model can do, and its item columns; also outside the background thread."""
        return facts(self.model) | {"holdout": self.has_holdout}

    @cached_property
    def rules(self) -> dict[str, Any]:
        """Arguments of `Retriever.evaluate` that the run was evaluated with, but for k."""
        if self._given is not None or self.folder is None:
            return {}
        found = read_config(self.folder / CONFIG).get("evaluate", {})
        return {name: value for name, value in found.items() if name not in ("k", "metrics")}

    @property
    def holdout(self) -> Holdout:
        """What was held out of the training."""
        return self.once("holdout", self._held_out) if self._given is None else self._given

    def _held_out(self) -> Holdout:
        if self.folder is None:
            raise Problem(
                404,
                "It is not known what was held out of this model's training. Serve its run "
                "folder, or call sdx.look(model, test).",
            )
        return tested(self.model, read_config(self.folder / CONFIG), self.folder)

    @property
    def result(self) -> Result:
        """Metrics of the users of the holdout, or of a sample of them."""
        return self._measured[0]

    @property
    def listed(self) -> Listed:
        """The lists that are measured; without a holdout, those of users with events."""
        return self._measured[1] if self.has_holdout else self._served

    @cached_property
    def cutoffs(self) -> list[int]:
        """Lengths of lists that are measured."""
        most = max(1, len(self.model.items))
        return [k for k in CUTOFFS if k <= most] or [most]

    @cached_property
    def _measured(self) -> tuple[Result, Listed]:
        held, keep = self.holdout, list[np.ndarray]()
        asked = np.flatnonzero(held.targets.lengths > 0)
        if len(asked) > USERS:
            held = held.take(some(asked, USERS))
        result = evaluated(self.model, held, self.cutoffs, keep=keep, **self.rules)
        if result.conventions["empty"] == "skip":
            held = held.take(np.flatnonzero(held.targets.lengths > 0))
        return result, Listed(held.users, held.history, held.targets, np.concatenate(keep))

    @cached_property
    def _served(self) -> Listed:
        model, k = self.model, self.cutoffs[-1]
        users = some(np.flatnonzero(model.seen.lengths > 0), USERS)
        history, found = model.seen.take(users), [np.zeros((0, k), np.int32)]
        for part in blocks(len(users), batch_size(model.encoder, MAX_MEMORY, k)):
            past = history.take(part)
            hits = search(model, users[part], past, k, Filter(past))
            found.append(hits.ids.cpu().numpy().astype(np.int32))
        return Listed(users, history, empty(len(users)), np.concatenate(found))

    def against(self, other: Study) -> Rows:
        """Return the paired differences to another model; the bootstrap is drawn once."""
        if id(other.result) not in self._against:
            self._against = {id(other.result): self.result.compare(other.result)}
        return self._against[id(other.result)]

    @cached_property
    def row_of(self) -> np.ndarray:
        """Row of the holdout per user row, the last one; -1 for users without targets."""
        held, found = self.holdout, np.full(len(self.model.users), -1)
        rows = np.flatnonzero(held.targets.lengths > 0)
        found[held.users[rows]] = rows
        return found

    def tested(self, user: int) -> Tested | None:
        """Return what is held out of the user in a row of the model."""
        held, row = self.holdout, int(self.row_of[user])
        if row < 0:
            return None
        at = np.array([row])
        history, masked = held.history.take(at).ids, held.masked.take(at).ids
        seen, ask = self.model.seen.take(np.array([user])).ids, dict[str, Any]()
        if self.model.encoder.reads_history and not np.array_equal(history, seen):
            ask["history"], seen = self.keys(history), history
        denied = np.setdiff1d(masked, seen)
        if len(denied):
            ask["deny"] = self.keys(denied)
        return Tested(ask, held.targets.take(at).ids)

    def keys(self, rows: np.ndarray | Ragged) -> list[Any]:
        """Return the keys of items."""
        ids = rows.ids if isinstance(rows, Ragged) else rows
        return list(self.model.items.take(np.asarray(ids, np.int64)).to_pylist())

    def once(self, name: str, work: Callable[[], T]) -> T:
        """Return what is computed when it is first asked for, in any thread, and kept."""
        with self._locks[name]:
            if name not in self._kept:
                self._kept[name] = work()
            found: T = self._kept[name]
            return found

    def part(
        self, pool: Studies, name: Hashable, work: Callable[[], Any], thread: str = "measured"
    ) -> Future[bytes]:
        """Return a part as JSON, which is computed in the background when it is first asked for.

        Call it in the event loop. `thread` is one of those of `Studies`.
        """
        found = self._parts.get(name)
        if found is None or (found.done() and found.exception() is not None):
            done = [each for each, future in self._parts.items() if future.done()]
            for each in done[: max(0, len(self._parts) - KEPT)]:
                del self._parts[each]
            found = self._parts[name] = pool.submit(lambda: encode(work()), thread)
        return found


def some(rows: np.ndarray, most: int) -> np.ndarray:
    """Return rows, or a sample of `most` of them, always the same, in their order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


@final
class Studies:
    """The background threads of all studies: what is shown of one user does not wait for what is
    measured over all of them.

    Their names: `measured` over all users; `made` once for a model, such as an index; `shown` of
    one user.
    """

    def __init__(self) -> None:
        self._pools = {
            name: ThreadPoolExecutor(1, f"softdex-{name}") for name in ("measured", "made", "shown")
        }
        self._waiting, self._lock = 0, threading.Lock()

    def submit(self, work: Callable[[], bytes], thread: str) -> Future[bytes]:
        """Compute something after what waits for the same thread."""
        with self._lock:
            if self._waiting >= WAITING:
                raise overloaded(1.0)
            self._waiting += 1
        return self._pools[thread].submit(self._run, work)

    def _run(self, work: Callable[[], bytes]) -> bytes:
        try:
            with volume(quiet=True):
                return work()
        finally:
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """End the threads; what waits is not computed."""
        for each in self._pools.values():
            each.shutdown(wait=False, cancel_futures=True)
